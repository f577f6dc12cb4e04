"""A comparison of an in-context model with methods of scikit-learn, on one table."""
