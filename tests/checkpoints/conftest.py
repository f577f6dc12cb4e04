import gc

import pytest

from tests.launch.conftest import call as call


@pytest.fixture(autouse=True)
def promotion(promotion_that_optax_needs):
  """Every test here may take a step of training."""


@pytest.fixture
def few_to_collect():
  """What earlier tests have left is not looked through by `gc.collect`."""
  gc.freeze()
  yield
  gc.unfreeze()
