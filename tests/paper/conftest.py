import jax
import pytest


@pytest.fixture(scope='session')
def made(tmp_path_factory):
  """The folder and the judged claims of figures with twenty steps of training."""
  from studies.paper import reproduce
  from tests.paper.settings import MADE, get_config

  out = tmp_path_factory.mktemp('paper')
  with jax.numpy_dtype_promotion('standard'):  # which optax needs
    judged = reproduce(out, get_config, MADE, num_seeds=1, objective='exact')
  return out, judged
