"""What the library needs of JAX's private parts is there, and does what it should.

If one of these fails with a new release of JAX, `zoo/host/jax_private.py` is the place
to mend: read the release's `jax/_src/distributed.py`.
"""

import inspect

import jax
import pytest
from jax._src import distributed

from zoo.host import jax_private


def test_the_release_of_jax_is_the_one_that_was_tested():
  assert jax.__version__ == jax_private.TESTED_VERSION, (
    'run the tests that need several processes (pytest --slow tests/launch), and '
    'change TESTED_VERSION in zoo/host/jax_private.py'
  )


def test_the_state_of_a_run_has_what_is_read_of_it():
  state = distributed.State()
  assert (state.num_processes, state.process_id) == (1, 0)
  assert state.client is None
  assert state.coordinator_address is None
  assert isinstance(distributed.global_state, distributed.State)
  # The client is made by this function, which is looked up when it is called.
  source = inspect.getsource(distributed.State.initialize)
  assert '_jax.get_distributed_runtime_client(' in source


@pytest.mark.parametrize(
  'method',
  [
    *('key_value_set', 'key_value_dir_get', 'blocking_key_value_get'),
    'wait_at_barrier',
  ],
)
def test_jax_has_the_methods_that_are_called(method):
  assert hasattr(vars(distributed)['_jax'].DistributedRuntimeClient, method)


def test_the_original_is_put_back():
  extension = vars(distributed)['_jax']
  before = extension.get_distributed_runtime_client
  with jax_private.joining():
    assert extension.get_distributed_runtime_client is not before
  assert extension.get_distributed_runtime_client is before
