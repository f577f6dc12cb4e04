"""The local learning coefficient, beside models whose coefficient is known."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.settings import isotropic
from zoo.probing import local_learning_coefficient

_N = 256
_BETA = _N / math.log(_N)  # nβ
_SHORT: Any = {'num_prompts': _N, 'batch_size': 64, 'num_chains': 16}


class Scale(nnx.Module):
  """The prediction w·x_q with the weights 0."""

  def __init__(self, size):
    self.weights = nnx.Param(jnp.zeros(size))

  def __call__(self, prompt):
    return prompt.x_query @ self.weights[...]


class Product(nnx.Module):
  """The prediction a·b·x_q with a = b = 0."""

  def __init__(self):
    self.a, self.b = nnx.Param(jnp.zeros(())), nnx.Param(jnp.zeros(()))

  def __call__(self, prompt):
    return self.a[...] * self.b[...] * prompt.x_query[:, 0]


class DeepLinear(nnx.Module):
  """W_1 W_2 minus a matrix of rank r, which the two are equal to."""

  def __init__(self, size, rank):
    ones = jnp.diag((jnp.arange(size) < rank).astype('float32'))
    self.first, self.second, self.target = nnx.Param(ones), nnx.Param(ones), ones

  def __call__(self, prompt):
    return prompt.x_query @ (self.first[...] @ self.second[...] - self.target)


def _square(model, prompt):
  outputs = jnp.square(model(prompt))
  return outputs if outputs.ndim == 1 else jnp.sum(outputs, axis=1)


def _agrees(value, truth):
  """Whether a mean over chains is within four standard errors of the truth."""
  return abs(value.mean - truth) < 4 * value.stderr


def test_a_regular_model_has_half_of_its_number_of_weights():
  task = isotropic(3, 4)
  found = local_learning_coefficient(
    Scale(3), task, _square, step_size=1e-3, localization=1.0, **_SHORT
  )
  curvature = 2 * _BETA  # E (w·x)² is |w|².
  exact = 3 * curvature / (curvature + 1.0) / 2
  assert exact == pytest.approx(1.5, abs=0.03)
  # Long steps make a variance larger by the factor 1/(1 − εh/4), 3 % here.
  assert _agrees(found.value, exact)
  assert found.num_weights == 3


@pytest.mark.slow
@pytest.mark.usefixtures('compiled_well')
def test_a_minimum_whose_loss_is_not_0_has_the_same_coefficient():
  """On fixed prompts it would be 1.5 (1 − 8/log 256) < 0: the loss there is 4."""
  task = isotropic(3, 4)

  def beside_noise(model, prompt):
    # Of the labels that the prompt shows, the first is independent of the query.
    noise = 2 * jnp.sign(prompt.y[:, 0])
    return jnp.square(model(prompt) - noise)

  found = local_learning_coefficient(
    Scale(3), task, beside_noise, step_size=3e-4, num_steps=6000, **_SHORT
  )
  curvature = 2 * _BETA
  assert found.loss == pytest.approx(4.0)
  assert _agrees(found.value, 3 * curvature / (curvature + 1.0) / 2)


@pytest.mark.slow
@pytest.mark.usefixtures('compiled_well')
def test_a_product_of_two_scalars_has_the_density_of_an_integral():
  task = isotropic(2, 4)
  found = local_learning_coefficient(
    Product(), task, _square, num_steps=20000, step_size=2e-3, **_SHORT
  )
  grid = np.linspace(-5, 5, 2001)
  a, b = np.meshgrid(grid, grid)
  energy = _BETA * (a * b) ** 2
  density = np.exp(-energy - (a**2 + b**2) / 2)
  exact = float(np.sum(energy * density) / np.sum(density))
  # λ is 1/2 with the multiplicity 2, so that the value is below 1/2 for every n.
  assert 0.3 < exact < 0.5
  assert _agrees(found.value, exact)


def _reduced_rank(size, rank):
  """λ of W_1 W_2 for square matrices of one size (Aoyagi and Watanabe, 2005)."""
  m = h = n = size
  total = 2 * (h + rank) * (m + n) + 2 * m * n - (h + rank) ** 2 - m**2 - n**2
  return (total + (m + h + n + rank) % 2) / 8


@pytest.mark.slow
@pytest.mark.usefixtures('compiled_well')
@pytest.mark.parametrize('rank', [1, 3])
def test_deep_linear_networks_have_the_coefficient_of_aoyagi(rank):
  truth = {1: 4.0, 3: 4.5}[rank]
  assert _reduced_rank(3, rank) == truth
  found = local_learning_coefficient(
    DeepLinear(3, rank), isotropic(3, 4), _square, num_steps=20000
  )
  # At n = 1024 the localization and the terms of order 1/log n are below 5 %.
  assert abs(found.value.mean - truth) < 4 * found.value.stderr + 0.05 * truth


def test_a_loss_that_weights_do_not_change_has_the_coefficient_0():
  found = local_learning_coefficient(
    Scale(2),
    isotropic(2, 4),
    lambda model, prompt: prompt.y_query**2,
    num_steps=100,
    **_SHORT,
  )
  assert abs(found.value.mean) < 1e-3
  assert found.accepted == pytest.approx(1.0, abs=0.01)


def test_estimates_whose_diagnostics_fail_are_refused():
  task = isotropic(2, 4)

  def away(model, prompt):
    return jnp.square(model(prompt) - prompt.x_query[:, 0])

  with refuses('step_size 0.03 is too long', 'take a smaller one'):
    local_learning_coefficient(
      Scale(2), task, _square, num_steps=200, step_size=0.03, **_SHORT
    )
  with refuses('the chains find weights of lower loss', 'at no minimum'):
    local_learning_coefficient(
      Scale(2), task, away, num_steps=400, step_size=1e-3, **_SHORT
    )
  with refuses('the chains still move after 100 steps'):
    local_learning_coefficient(
      Scale(6),
      isotropic(6, 4),
      _square,
      num_steps=100,
      step_size=1e-5,
      **{**_SHORT, 'num_chains': 64},
    )


def test_a_model_without_weights_is_refused():
  class Nothing(nnx.Module):
    def __call__(self, prompt):
      return prompt.x_query[:, 0]

  with refuses('Nothing has no weights to sample'):
    zoo.probing.local_learning_coefficient(Nothing(), isotropic(2, 4))
