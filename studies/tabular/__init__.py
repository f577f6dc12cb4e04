"""A model in context beside methods of scikit-learn, on one table."""
