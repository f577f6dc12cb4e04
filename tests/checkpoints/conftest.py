import pytest


@pytest.fixture(autouse=True)
def promotion(promotion_that_optax_needs):
  """Every test here may take a step of training."""
