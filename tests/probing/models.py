"""Models and tasks that the tests of probing share."""

import jax
import jax.numpy as jnp
from flax import nnx

import zoo
from tests.settings import general, isotropic


class Softmax(nnx.Module):
  """One head of softmax attention: a model without a learning rule."""

  def __init__(self, num_features: int):
    normal = jax.random.normal(jax.random.key(3), (num_features, num_features))
    self.num_features = num_features
    self.w = nnx.Param(0.3 * normal)

  def scores(self, prompt):
    return jax.nn.softmax(
      jnp.einsum('bcd,de,be->bc', prompt.x, self.w[...], prompt.x_query)
    )

  def __call__(self, prompt):
    return jnp.sum(self.scores(prompt) * prompt.y, axis=1)


def biased(num_heads=2, **other):
  """Multi-head LSA of d = 3 in which nothing is 0: random weights, a guess, a bias."""
  return zoo.create_model(
    'multi_head_lsa',
    num_features=3,
    num_heads=num_heads,
    initial_guess=[0.3, -0.5, 1.0],
    initial_bias=0.4,
    init_scale=0.4,
    rngs=nnx.Rngs(5),
    **other,
  )


def tasks():
  return [
    isotropic(3, 4, prior_mean=0.5),
    isotropic(3, 5, prior_mean=[1.0, -0.5, 0.0], noise_std=0.5),
    general(noise_std=0.7),
  ]


def assert_within(estimate, exact, stderrs=4):
  """The exact value is within some standard errors: one in 16,000 draws is not."""
  assert abs(estimate.mean - exact) <= stderrs * estimate.stderr, (estimate, exact)


def keep_shifts(monkeypatch, *names):
  """Compiling takes most of the time of a shift."""

  def kept(task):
    return {name: shifted for name, shifted in task.shifts().items() if name in names}

  monkeypatch.setattr('zoo.probing.report.shifts_of', kept)
