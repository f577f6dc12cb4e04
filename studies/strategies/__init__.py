"""Strategies: which known predictors a model resembles, and how that changes.

`series` fits mixtures of known predictors to the checkpoints of a run, `phases` makes
phase diagrams of many runs, and `pictures` draws both.
"""
