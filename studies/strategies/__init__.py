"""Strategies: fits step by step of training, and phase diagrams of many runs."""
