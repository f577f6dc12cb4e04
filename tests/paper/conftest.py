import jax
import pytest


@pytest.fixture(scope='session')
def made(tmp_path_factory, full):
  """A folder, its judged claims and its figures, with twenty steps of training.

  Without --full one figure stands for all, since each model is compiled.
  """
  from studies.paper import reproduce
  from tests.paper.settings import MADE, get_config

  out, names = tmp_path_factory.mktemp('paper'), MADE if full else ('1',)
  with jax.numpy_dtype_promotion('standard'):  # which optax needs
    judged = reproduce(out, get_config, names, num_seeds=1, objective='exact')
  return out, judged, names
