"""Configs: their fields, checks, what they build, and the mesh they ask for."""
