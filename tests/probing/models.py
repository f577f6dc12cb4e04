"""Models and tasks that the tests of probing share."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import zoo
from tests.compiled import built
from tests.settings import general, isotropic
from zoo.core.trees import fresh
from zoo.measure.predict import Programs
from zoo.tasks import LinearRegression

PROGRAMS = Programs()  # that tests share, which change nothing that they call


def sample(task, key, num_prompts) -> zoo.Prompt:
  """`task.sample` in one program, which tasks that differ in numbers share."""
  return PROGRAMS.sample(fresh(task), key, num_prompts)


class Softmax(nnx.Module):
  """One head of softmax attention: a model without a learning rule."""

  def __init__(self, num_features: int):
    normal = np.random.default_rng(3).normal(size=(num_features, num_features))
    self.num_features = num_features
    self.w = nnx.Param(jnp.asarray((0.3 * normal).astype('f'), 'float32'))
    self.scores_tap = zoo.probing.Tap()

  def scores(self, prompt):
    scores = jnp.einsum('bcd,de,be->bc', prompt.x, self.w[...], prompt.x_query)
    return self.scores_tap(jax.nn.softmax(scores))

  def __call__(self, prompt):
    return jnp.sum(self.scores(prompt) * prompt.y, axis=1)


def biased(num_heads=2) -> Any:
  """Multi-head LSA of d = 3 in which nothing is 0: random weights, a guess, a bias."""
  return nnx.clone(_biased(num_heads))


@functools.cache
def _biased(num_heads):
  return built(
    lambda: zoo.create_model(
      'multi_head_lsa',
      num_features=3,
      num_heads=num_heads,
      initial_guess=[0.3, -0.5, 1.0],
      initial_bias=0.4,
      init_scale=0.4,
      rngs=nnx.Rngs(5),
    )
  )


def tasks():
  return [
    isotropic(3, 4, prior_mean=0.5),
    isotropic(3, 5, prior_mean=[1.0, -0.5, 0.0], noise_std=0.5),
    general(noise_std=0.7),
  ]


def assert_within(estimate, exact):
  """The exact value is within four standard errors: one in 16,000 draws is not."""
  assert abs(estimate.mean - exact) <= 4 * estimate.stderr, (estimate, exact)


def keep(monkeypatch, method, *names):
  """Keeps some `shifts` or `baselines`; compiling takes most of the time of each."""
  every = getattr(LinearRegression, method)

  def kept(task):
    return {name: entry for name, entry in every(task).items() if name in names}

  monkeypatch.setattr(LinearRegression, method, kept)


TASK = isotropic(3, 4, prior_mean=0.5)
