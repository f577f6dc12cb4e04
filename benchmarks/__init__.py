"""How fast models train, next to plain programs; `python -m launch.benchmark`."""
