import contextlib

import jax
import pytest


@contextlib.contextmanager
def promotion_that_optax_needs():
  """Optax raises a float to an int32 array, which strict promotion refuses."""
  jax.config.update('jax_numpy_dtype_promotion', 'standard')
  yield
  jax.config.update('jax_numpy_dtype_promotion', 'strict')


@pytest.fixture
def training():
  """For a test that trains."""
  with promotion_that_optax_needs():
    yield


@pytest.fixture(scope='session')
def made(tmp_path_factory):
  """The folder and the judged claims of figures with twenty steps of training."""
  from tests.paper.settings import MADE, get_config
  from zoo.studies.paper import reproduce

  out = tmp_path_factory.mktemp('paper')
  with promotion_that_optax_needs():
    judged = reproduce(out, get_config, MADE, num_seeds=1, objective='exact')
  return out, judged
