"""Losses by number of examples, comparisons with baselines, and contracts."""
