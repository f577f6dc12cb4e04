import jax
import pytest


@pytest.fixture(autouse=True)
def promotion_that_optax_needs():
  """Optax raises a float to an int32 array, which strict promotion refuses."""
  jax.config.update('jax_numpy_dtype_promotion', 'standard')
  yield
  jax.config.update('jax_numpy_dtype_promotion', 'strict')
