"""One ml_collections config a file; each docstring says what it trains and reaches."""
