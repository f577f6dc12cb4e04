"""State tracking: targets against arithmetic and permutations, not an automaton."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from tests.tasks import host

_SIZES = {
  'parity_prefix': {},
  'modular_addition': {'modulus': 4},
  'permutations': {'num_elements': 4},
  'swaps': {'num_elements': 4, 'transpositions': True},
  'modular_arithmetic': {'modulus': 5},
}


@functools.cache
def _sampled(name: str) -> Any:
  kind = 'permutations' if name == 'swaps' else name
  task = zoo.create_task(kind, context_length=11, **_SIZES[name])
  return task, host.sample(task, 0, 200)


def _sum(symbols):
  return symbols.sum() % 4


def _permutation(symbols):
  """The number of the product, as NumPy's permutations are sorted as texts."""
  every = sorted(np.ndindex(4, 4, 4, 4))
  every = [row for row in every if len(set(row)) == 4]
  elements = np.arange(4)
  for symbol in symbols:
    elements = np.asarray(every[symbol])[elements]
  return every.index(tuple(elements))


def _swaps(symbols):
  """The same of swaps, in the order of their texts."""
  every = sorted(row for row in np.ndindex(4, 4, 4, 4) if len(set(row)) == 4)
  swaps = [i for i, row in enumerate(every) if (np.asarray(row) != range(4)).sum() == 2]
  return _permutation([swaps[symbol] for symbol in symbols])


def _value(symbols):
  """Python knows which operations bind first."""
  text = '0' + ''.join(f'{"+-*"[symbol // 5]}{symbol % 5}' for symbol in symbols)
  return eval(text) % 5


_DEFINITIONS = {
  'parity_prefix': lambda symbols: symbols.sum() % 2,
  'modular_addition': _sum,
  'permutations': _permutation,
  'swaps': _swaps,
  'modular_arithmetic': _value,
}


@pytest.mark.parametrize('name', mostly_slow(['permutations'], _DEFINITIONS))
def test_targets_are_the_state_after_each_symbol(name):
  task, prompt = _sampled(name)
  one_hot, targets = host.features(prompt), host.targets(prompt)
  symbols = one_hot.argmax(axis=-1)
  assert one_hot.shape == (200, 12, task.num_features)
  assert set(np.unique(targets)) == {0, 1}
  np.testing.assert_array_equal(targets.sum(axis=-1), 1)
  for sequence, target in zip(symbols[:40], targets[:40].argmax(axis=-1), strict=True):
    states = [_DEFINITIONS[name](sequence[: t + 1]) for t in range(len(sequence))]
    np.testing.assert_array_equal(target, states)
  assert not prompt.y.any()  # no label tells the state
  # Each symbol is equally likely: 2400 of them, 5 standard errors.
  share, n = 1 / task.num_features, symbols.size
  frequency = np.bincount(symbols.ravel(), minlength=task.num_features) / n
  assert np.all(np.abs(frequency - share) < 5 * np.sqrt(share * (1 - share) / n))


@pytest.mark.parametrize(
  'name', mostly_slow(['permutations'], ['permutations', 'modular_arithmetic'])
)
def test_bayes_has_no_loss_from_the_first_symbol_on(name):
  task, prompt = _sampled(name)
  bayes, targets = task.baselines()['bayes'], host.targets(prompt)
  run = jax.jit(lambda prompt, targets: task.loss(bayes.predictions(prompt), targets))
  losses = np.asarray(run(prompt, targets))
  assert losses.shape == (200, 12)
  assert np.abs(losses).max() < 1e-6


def test_sizes_have_ends():
  with refuses('num_elements is 6'):
    zoo.create_task('permutations', num_elements=6)
  with refuses('modulus is 1'):
    zoo.create_task('modular_addition', modulus=1)
