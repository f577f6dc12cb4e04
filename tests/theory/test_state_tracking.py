"""Weights that track a state, on more tokens than any model is trained on."""

from typing import Any

import numpy as np
import pytest

import zoo
from docs.programs import state_tracking
from tests.compiled import predict_all
from tests.marks import FULL, SLOW

_LENGTH = 4095  # examples, and a query: 4096 tokens


def _prompt(task, **sizes):
  """Two prompts, drawn with NumPy: one of them starts with each symbol in turn."""
  task = zoo.create_task(task, context_length=_LENGTH, **sizes)
  rng, size = np.random.default_rng(0), task.num_features
  symbols = rng.integers(size, size=(2, _LENGTH + 1))
  x = np.eye(size, dtype='f')[symbols]
  k = task.num_outputs
  zeros = np.zeros((2, _LENGTH, k), 'f')
  parts: Any = (x[:, :-1], zeros, x[:, -1], zeros[:, 0], zeros)
  return zoo.Prompt(*parts), symbols, task


def _states(task, symbols):
  transitions, answers = task.automaton()
  states, state = [], np.zeros(len(symbols), int)
  for now in symbols.T:
    state = transitions[state, now]
    states.append(answers[state])
  return np.stack(states, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('build', 'task', 'sizes'),
  [
    pytest.param(state_tracking.parity, 'parity_prefix', {}, marks=FULL),
    pytest.param(
      *(state_tracking.modular_addition, 'modular_addition', {'modulus': 5}),
      marks=SLOW,
    ),
    (state_tracking.permutations, 'permutations', {'num_elements': 3}),
    pytest.param(
      *(state_tracking.permutations, 'permutations', {'num_elements': 5}),
      marks=FULL,
    ),
  ],
  ids=['parity', 'addition', 's_3', 's_5'],
)
def test_every_answer_of_4096_is_right(build, task, sizes):
  model = build(*sizes.values(), context_length=_LENGTH)
  prompt, symbols, task = _prompt(task, **sizes)
  answers = np.asarray(predict_all(model, prompt)).argmax(axis=-1)
  np.testing.assert_array_equal(answers, _states(task, symbols))


@pytest.mark.slow
def test_without_negative_eigenvalues_the_sign_is_lost():
  """The state of the same weights with β ≤ 1 keeps its sign, and is soon almost 0."""
  prompt, symbols, task = _prompt('parity_prefix')
  model = state_tracking.parity(_LENGTH, negative_eigenvalues=False)
  logits = np.asarray(predict_all(model, prompt))
  gaps = logits[..., 0] - logits[..., 1]
  first = gaps[:, :1]
  assert np.abs(first).min() > 1
  # β = 1 leaves 0; the sign of what rounding makes of it depends on the machine.
  rounding = np.finfo('f').eps * np.abs(first)
  assert np.all(gaps * np.sign(first) >= -rounding)  # as at the first token
  read = np.cumsum(symbols[:, 1:], axis=1) > 0  # a one after the first token
  assert np.abs(gaps[:, 1:][read]).max() < 0.01
  right = (gaps < 0) == _states(task, symbols)
  assert abs(right.mean() - 0.5) < 0.03  # 8192 coins: 5 standard errors
