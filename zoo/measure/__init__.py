"""Losses by number of examples and comparisons with baselines."""
