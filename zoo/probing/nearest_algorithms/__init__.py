"""Which algorithm a model runs: from its rule, from its predictions, by its layers."""
