"""One ml_collections config per file; its docstring states its model and final risk."""
