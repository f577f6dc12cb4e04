"""Predictions of prompts whose contexts have different lengths."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import predict
from tests.weights import drawn
from zoo.estimators.baselines import Averaging, Zero
from zoo.measure.predict import loss_of

_B, _C, _D = 5, 4, 3
_COUNTS = [0, 4, 2, 2, 4]


@functools.cache
def _prompt() -> Any:
  task = zoo.create_task('quadratic_regression', num_features=_D, context_length=_C)
  return jax.device_get(task.sample(jax.random.key(0), _B))


def _padded() -> zoo.Prompt:
  """The prompts with what no model may read in place of the other examples."""
  prompt = _prompt()
  x, y = prompt.x.copy(), prompt.y.copy()
  for i, count in enumerate(_COUNTS):
    x[i, count:] = y[i, count:] = np.nan
  return zoo.Prompt(x, y, prompt.x_query, prompt.y_query)


def _averages():
  """The predictions of `Averaging`, from its definition."""
  prompt, predictions = _prompt(), np.zeros(_B)
  for i, count in enumerate(_COUNTS):
    for j in range(count):
      predictions[i] += prompt.y[i, j] * prompt.x[i, j] @ prompt.x_query[i] / count
  return predictions


def test_only_the_first_examples_count():
  assert_close(zoo.predict(Averaging(), _padded(), _COUNTS), _averages(), 1e-5)
  expected = np.einsum('bcd,bc,bd->b', _prompt().x, _prompt().y, _prompt().x_query)
  assert_close(zoo.predict(Averaging(), _prompt()), expected / _C, 1e-5)


def test_a_predictor_of_the_query_alone_gets_prompts_of_one_length_at_a_time():
  def mean(prompt):
    weights = jnp.einsum('bcd,bc->bd', prompt.x, prompt.y) / max(prompt.y.shape[1], 1)
    return jnp.einsum('bd,bd->b', weights, prompt.x_query)

  assert_close(zoo.predict(mean, _padded(), _COUNTS), _averages(), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('mixer', ['softmax,gla', 'hyena'])
def test_a_transformer_predicts_as_without_the_padding(mixer, unchecked):
  sizes = {'num_features': _D, 'context_length': _C, 'width': 8, 'num_layers': 2}

  def build() -> Any:
    return zoo.create_model('transformer', **sizes, mixer=mixer, rngs=nnx.Rngs(0))

  model, prompt = drawn(build, dtype='float32'), _prompt()
  predictions = zoo.predict(model, _padded(), _COUNTS)
  for count in sorted({*_COUNTS}):
    short = zoo.Prompt(
      prompt.x[:, :count], prompt.y[:, :count], prompt.x_query, prompt.y_query
    )
    at = np.array(_COUNTS) == count
    # Float32, summed in another order.
    assert_close(predictions[at], np.asarray(predict(model, short))[at], 1e-4)


@pytest.mark.parametrize(
  ('counts', 'said'),
  [
    ([0, 1], 'num_examples is of type int64 and shape (2,); it must be an integer for'),
    ([0.5] * _B, 'num_examples is of type float64'),
    ([_C + 1] * _B, 'num_examples is 5; it must be an integer from 0 to 4'),
    ([-1] * _B, 'num_examples is -1'),
  ],
)
def test_other_numbers_are_refused(counts, said, unchecked):
  with refuses(said):
    zoo.predict(Zero(), _prompt(), counts)


@pytest.mark.parametrize(
  ('changed', 'said'),
  [
    ({'x': np.ones((_B, _C))}, 'prompt.x and prompt.y have shapes (5, 4) and (5, 4)'),
    ({'y': np.ones((_B, 3))}, 'prompt.y has shape (5, 3); it must be (5, 4), since'),
    (
      {'x_query': np.ones((_B, 2))},
      'prompt.x_query has shape (5, 2); it must be (5, 3',
    ),
    ({'y_query': np.ones(2)}, 'prompt.y_query has shape (2,); it must be (5,)'),
    ({'y_query': None}, 'prompt.y_query is a NoneType; it must be an array of numbers'),
    ({'x': [[[1.0]]]}, 'prompt.x is a list; it must be an array of numbers'),
    ({'y': np.full((_B, _C), 'a')}, 'prompt.y is of type <U1; it must be'),
  ],
)
def test_a_malformed_prompt_is_refused_in_one_line(changed, said, unchecked):
  rule = zoo.LearningRule.gradient_descent(np.zeros(_D), 1.0)
  prompt: Any = dataclasses.replace(_prompt(), **changed)
  array: Any = np.ones((_B, _C, _D))
  for predict_it in rule, functools.partial(zoo.predict, Zero()):
    with refuses(said):
      predict_it(prompt)
    with refuses('the prompt is of type ndarray; it must be a zoo.Prompt'):
      predict_it(array)


def test_shifts_of_a_task_share_the_programs_of_its_loss():
  task = zoo.create_task('logistic_regression', num_features=_D, context_length=_C)
  shifted = task.shifts()['scale_x=2']
  losses = [
    jax.tree.structure(loss_of(task_of_loss)) for task_of_loss in (task, shifted)
  ]
  assert losses[0] == losses[1]
