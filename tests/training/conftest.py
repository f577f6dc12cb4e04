import jax
import pytest


@pytest.fixture(scope='session', autouse=True)
def compile_once(tmp_path_factory):
  """Runs of one config compile the same program: the second finds it in a cache."""
  cache = tmp_path_factory.getbasetemp() / 'compiled'
  jax.config.update('jax_compilation_cache_dir', str(cache))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


@pytest.fixture(autouse=True)
def promotion_that_optax_needs():
  """Optax raises a float to an int32 array, which strict promotion refuses."""
  jax.config.update('jax_numpy_dtype_promotion', 'standard')
  yield
  jax.config.update('jax_numpy_dtype_promotion', 'strict')
