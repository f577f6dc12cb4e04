import gc
import shutil

import pytest

from tests.launch.conftest import call as call


@pytest.fixture(scope='session')
def three_steps(tmp_path_factory):
  """The workdir of a run that has saved its steps 1, 2 and 3."""
  # What this file imports is imported before XLA has its flags, and starts JAX.
  from tests.checkpoints.states import save

  workdir = tmp_path_factory.mktemp('three_steps')
  save(workdir, 1, 2, 3)
  return workdir


@pytest.fixture
def steps_123(three_steps, tmp_path):
  """A copy of that workdir, to be damaged."""
  return shutil.copytree(three_steps, tmp_path, dirs_exist_ok=True)


@pytest.fixture(autouse=True)
def promotion(promotion_that_optax_needs):
  """Every test here may take a step of training."""


@pytest.fixture
def few_to_collect():
  """What earlier tests have left is not looked through by `gc.collect`."""
  gc.freeze()
  yield
  gc.unfreeze()
