"""Models moved from one prior mean to another."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from docs.programs.prior_shift import transport
from tests.compare import assert_close, refuses
from tests.compiled import predict
from tests.marks import SLOW, mostly_full
from tests.settings import isotropic
from tests.weights import drawn
from zoo import theory

SHIFT = np.array([1.5, -2.0, 0.5])


def changed(name, **options):
  """A model of the precision that is enabled, whose weights are all random."""
  sizes = {'num_features': 3} | options
  dtype = str(jnp.result_type(float))
  return drawn(lambda: zoo.create_model(name, **sizes, rngs=nnx.Rngs(0)), 0.5, dtype)


def compare(model, relative):
  """`f'(X, y, x_q) = w*·x_q + f(X, y − Xw*, x_q)`, and the given model stays."""
  dtype, draw = jnp.result_type(float), np.random.default_rng(0).normal
  shapes = (32, 4, 3), (32, 4), (32, 3), 32
  parts: Any = (draw(size=shape).astype(dtype) for shape in shapes)
  prompt = zoo.Prompt(*parts)
  shift = np.asarray(SHIFT, dtype)
  before = np.asarray(predict(model, prompt))
  moved = transport(model, SHIFT)
  there = dataclasses.replace(prompt, y=prompt.y + prompt.x @ shift)
  expected = before + prompt.x_query @ shift
  assert_close(predict(moved, there), expected, relative)
  np.testing.assert_array_equal(predict(model, prompt), before)


# Of every model of the zoo that satisfies the hypothesis, in some form.
RESIDUAL = {'guess': 'residual'}
PLACES = {'context_length': 4, 'width': 8, **RESIDUAL}


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('yq_lsa', {'num_heads': 2}),
    pytest.param('ltb', {'num_heads': 2, 'hidden_features': 5}, marks=SLOW),
    pytest.param('sequential', {'context_length': 4}, marks=SLOW),
    ('deep_lsa', {'num_layers': 2, 'readout': 'linear', **RESIDUAL}),
  ],
)
def test_transport_of_linear_models(float64, name, options):
  # Rounding errors in float64 are 1e-16, and terms below 1e4 times the predictions.
  compare(changed(name, **options), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('transformer', {'num_layers': 1, 'tokens': 'joint', **PLACES}),
    ('deep_set', {'width': 8, **RESIDUAL}),
  ],
)
def test_transport_of_networks(name, options):
  # Rounding errors in float32 are 1e-7, and a layer norm divides by a spread that may
  # be some hundred times smaller than its input.
  compare(changed(name, **options), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('mixer', mostly_full(['gated_delta'], zoo.list_mixers()))
def test_transport_of_transformers_of_every_mixer(mixer):
  options = {'num_layers': 1, 'num_heads': 2, 'mixer': mixer, **PLACES}
  compare(changed('transformer', **options), 1e-4)


def test_models_that_cannot_be_transported(float64, unchecked):
  with refuses('the model is LSA;', 'transport is for YqLSA', "guess='residual'"):
    transport(changed('lsa'), SHIFT)
  for rule, guess in (
    ('linear', 'linear'),
    ('retention', 'linear'),
    ('gated_delta', 'linear'),
    ('delta', 'zero'),
  ):
    model = changed('sequential', context_length=4, rule=rule, guess=guess)
    with refuses(f"rule='{rule}'" if rule != 'delta' else guess, "rule='delta'"):
      transport(model, SHIFT)
  blind = changed('ltb', num_heads=2, hidden_features=5)
  blind.w_2[...] = 0 * blind.w_2[...]
  with refuses('does not depend on the label'):
    transport(blind, SHIFT)
  with refuses("guess='linear'", 'residual'):
    transport(changed('deep_lsa', num_layers=1, guess='linear'), SHIFT)
  with refuses('shift has shape (2,)'):
    transport(changed('yq_lsa', num_heads=2), np.zeros(2))


@pytest.mark.slow
def test_transport_keeps_the_exact_risk(float64):
  model = changed('yq_lsa', num_heads=2)
  risk = theory.exact_risk(model, isotropic(3, 4, 0.5, 0.3))
  moved = transport(model, SHIFT)
  there = theory.exact_risk(moved, isotropic(3, 4, 0.5 + SHIFT, 0.3))
  assert there == pytest.approx(risk, rel=1e-10)
