"""Which algorithm, or which mixture of predictors, is nearest to a model."""
