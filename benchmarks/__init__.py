"""How fast models train, next to plain programs."""
