"""Which strategy a model follows: mixtures of known predictors, and shifted tasks."""
