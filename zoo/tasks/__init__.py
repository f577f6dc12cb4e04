"""Tasks: distributions of prompts, each registered by name."""

from zoo.tasks.linear_regression import LinearRegression as LinearRegression
