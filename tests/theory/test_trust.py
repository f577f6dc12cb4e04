"""A learning rule is relied on only if the model predicts what it says."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import SLOW, mostly_slow
from tests.settings import isotropic
from tests.training.runs import small_config
from tests.weights import drawn
from zoo import theory
from zoo.core import registry
from zoo.measure.comparison import compare
from zoo.models import LTB, LinearAttention, MultiHeadLSA, YqLSA
from zoo.tasks import QuadraticRegression
from zoo.theory.trust import changed_weights, check_rule
from zoo.training import train


class Same(nnx.Module):
  """A model of one's own that predicts as the multi-head LSA that it holds."""

  def __init__(self, num_features, num_heads=2, *, rngs, **options):
    self.inner = MultiHeadLSA(num_features, num_heads, **options, rngs=rngs)

  def __call__(self, prompt):
    return self.inner(prompt)

  def embed(self, prompt):
    return self.inner.embed(prompt)

  def forward_tokens(self, tokens):
    return self.inner.forward_tokens(tokens)

  def learning_rule(self) -> Any:
    return self.inner.learning_rule()


class OtherTokens(Same):
  """Changes the paper's equation alone; `__call__` still follows the rule."""

  def forward_tokens(self, tokens):
    return tokens + jnp.tanh(self.inner.update(tokens))


class OtherCall(Same):
  def __call__(self, prompt):
    return super().__call__(prompt) + 0.1


class OtherGuess(LinearAttention):
  """Both paths and the rule follow."""

  def initial_guess(self):
    return jnp.full(self.num_features, 0.7), jnp.asarray(0.3)


@functools.cache
def _make(cls):
  sizes = {'num_features': 3, 'init_scale': 0.0}
  if issubclass(cls, LinearAttention | Same) and cls is not YqLSA:
    sizes['num_heads'] = 2
  return drawn(lambda: cls(**sizes, rngs=nnx.Rngs(0)), 0.0, 'float32')


@pytest.mark.parametrize(
  ('cls', 'method'),
  [(OtherTokens, 'forward_tokens'), (OtherCall, '__call__')],
)
def test_a_class_that_predicts_otherwise_is_named(cls, method):
  with refuses(f'{cls.__name__}.learning_rule()', f'{cls.__name__}.{method}()'):
    check_rule(_make(cls))


@pytest.mark.parametrize(
  'cls',
  mostly_slow([YqLSA, OtherGuess], [MultiHeadLSA, YqLSA, LTB, Same, OtherGuess]),
)
def test_what_predicts_as_its_rule_passes(cls):
  check_rule(_make(cls))


class Halved:
  """No NNX module."""

  def learning_rule(self):
    return zoo.LearningRule.gradient_descent(np.ones(3), 0.5)

  def __call__(self, prompt):
    return self.learning_rule()(prompt) / 2


@pytest.mark.parametrize(
  'ask',
  [
    theory.exact_risk,
    theory.excess_risk,
    theory.certificate,
    lambda subject, task: theory.squared_difference(subject, subject, task),
    zoo.probing.implicit_algorithm,
  ],
)
@pytest.mark.parametrize(
  'make',
  [pytest.param(lambda: _make(OtherCall), marks=SLOW), Halved],
  ids=['model', 'other'],
)
def test_no_exact_number_trusts_it(ask, make):
  subject = make()
  with refuses(f'{type(subject).__name__}.learning_rule()'):
    ask(subject, isotropic(3, 4))


@pytest.mark.slow
def test_a_method_that_is_redefined_counts_at_once(monkeypatch):
  class Own(YqLSA):
    pass

  model = _make(Own)
  check_rule(model)
  monkeypatch.setattr(
    Own, '__call__', lambda self, prompt: 2 * YqLSA.__call__(self, prompt)
  )
  with refuses('Own.learning_rule()', 'Own.__call__()'):
    check_rule(model)


@pytest.mark.slow
def test_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
  monkeypatch.setitem(registry.MODELS, 'other_scores', OtherTokens)
  config = small_config('multi_head_lsa')
  config.model.name = 'other_scores'
  with refuses('OtherTokens.forward_tokens()'):
    train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
@pytest.mark.parametrize('measure', [zoo.curve, compare])
def test_no_curve_trusts_it(measure):
  # Also on a task that exact theory does not cover.
  for task in (isotropic(3, 4), QuadraticRegression(3, 4)):
    with refuses('Halved.learning_rule()'):
      measure(Halved(), task, 4)


class OtherPredictions(Same):
  def predictions(self, prompt):
    return 2 * self.learning_rule().predictions(prompt)


@pytest.mark.slow
def test_a_curve_does_not_trust_predictions_that_are_not_those_of_call():
  graph, parameters, rest = nnx.split(_make(OtherPredictions), nnx.Param, ...)
  model = nnx.merge(graph, jax.jit(changed_weights)(parameters), rest)
  with refuses('OtherPredictions.predictions() at the query is not'):
    zoo.curve(model, isotropic(3, 4, 1.0), 4)


def _any(value: Any) -> Any:
  return value


@pytest.mark.parametrize(
  'call',
  [
    lambda model: zoo.theory.check_rule(_any(3)),
    lambda model: zoo.theory.ridge_risk(model, isotropic(2, 3)),
    lambda model: zoo.theory.constructions.yq_lsa_from_ltb(model),
    lambda model: zoo.theory.constructions.multi_head_lsa(model),
    lambda model: zoo.theory.constructions.multi_head_lsa_for_signs(
      _any(isotropic(2, 3))
    ),
  ],
)
def test_what_is_of_another_kind_is_one_line(call, unchecked):
  """A yq-LSA as an LTB gave other predictions without a word."""
  with refuses(' is not a'):
    call(zoo.theory.constructions.gd_transformer(np.ones(2), step_size=0.5))
