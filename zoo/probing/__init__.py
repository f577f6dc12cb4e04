"""Probing: what a model has learned, beside what theory says it could."""

from zoo.probing.alignment import alignment as alignment
