"""Prompt distributions, by name in the registry."""

from zoo.tasks.linear_regression import LinearRegression as LinearRegression
