"""Folders of runs: their steps, saved models and locks, on disks and in buckets."""
