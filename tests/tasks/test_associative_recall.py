import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from tests.tasks import host


def _task(**changes) -> Any:
  return zoo.create_task('associative_recall', **changes)


def _numbers(prompt: zoo.Prompt) -> tuple[np.ndarray, np.ndarray]:
  """The keys and values of each prompt, `[b, t]`, the query's last."""
  x, targets = host.features(prompt), host.targets(prompt)
  for one_hot in (x, targets):
    assert set(np.unique(one_hot)) == {0, 1}
    np.testing.assert_array_equal(one_hot.sum(-1), 1)
  return x.argmax(-1), targets.argmax(-1)


_SETTINGS = [
  {'num_keys': 3, 'num_values': 5, 'context_length': 7},
  {'num_keys': 5, 'num_values': 6, 'context_length': 10, 'num_pairs': 4},
]


_FEW_VALUES = {'num_keys': 6, 'num_values': 4, 'context_length': 7, 'num_pairs': 3}
_KINDS: dict[str, Any] = {
  'drawn': _SETTINGS[0],
  'asked': _SETTINGS[1],
  'few': _FEW_VALUES,
}


@functools.cache
def _drawn(kind: str) -> zoo.Prompt:
  return host.sample(_task(**_KINDS[kind]), 1, 6000)


@pytest.mark.slow
@pytest.mark.parametrize('kind', mostly_slow(['asked'], ['drawn', 'few']))
def test_each_prompt_has_a_pairing_of_its_own(kind):
  setting = _KINDS[kind]
  size = setting['num_values']
  keys, values = _numbers(_drawn(kind))
  for row, answers in zip(keys, values, strict=True):
    pairs = set(zip(row.tolist(), answers.tolist(), strict=True))
    assert len(pairs) == len({k for k, _ in pairs}) == len({v for _, v in pairs})
  # Each value is equally likely, whatever the key; 30 frequencies, 4.5 errors.
  for key in range(setting['num_keys']):
    at = values[keys[:, 0] == key, 0]
    frequency = np.bincount(at, minlength=size) / len(at)
    error = np.sqrt(1 / size * (1 - 1 / size) / len(at))
    assert np.all(np.abs(frequency - 1 / size) <= 4.5 * error)


@pytest.mark.slow
def test_keys_are_drawn_with_replacement():
  keys, _ = _numbers(_drawn('drawn'))
  # Any two examples have any two keys with the probability 1/9.
  for i, j in [(0, 1), (0, 7), (6, 7)]:
    frequency = np.bincount(3 * keys[:, i] + keys[:, j], minlength=9) / len(keys)
    error = np.sqrt(1 / 9 * (8 / 9) / len(keys))
    assert np.all(np.abs(frequency - 1 / 9) <= 4.5 * error)


@pytest.mark.slow
def test_pairs_are_shown_and_then_asked_for_at_random():
  keys, _ = _numbers(_drawn('asked'))  # 4 shown, then 7 questions
  shown = np.sort(keys[:, :4], axis=1)
  assert np.all(np.diff(shown, axis=1) > 0)
  # Of which pair a question is: any two questions ask for any two of the four with the
  # probability 1/16, whatever was asked before. 6000 prompts, 4.5 standard errors.
  places = keys[:, 4:, None] == keys[:, None, :4]
  assert np.all(places.sum(axis=-1) == 1)
  place = places.argmax(axis=-1)
  error = np.sqrt(1 / 16 * (15 / 16) / len(keys))
  for i, j in itertools.combinations(range(7), 2):
    frequency = np.bincount(4 * place[:, i] + place[:, j], minlength=16) / len(keys)
    assert np.all(np.abs(frequency - 1 / 16) <= 4.5 * error)


@pytest.mark.parametrize('kind', mostly_slow(['asked'], ['drawn']))
def test_bayes_is_the_share_of_the_pairings_that_fit(kind):
  setting = _KINDS[kind]
  task = _task(**setting)
  prompt = jax.tree.map(lambda array: array[:4], _drawn(kind))
  keys, values = _numbers(prompt)
  bayes = task.baselines()['bayes']
  every = softmax(jax.jit(bayes.predictions)(prompt), axis=-1)
  pairings = np.asarray(
    list(itertools.permutations(range(setting['num_values']), setting['num_keys']))
  )
  for k in range(setting['context_length'] + 1):
    if k in (0, 5):
      direct = softmax(jax.jit(bayes)(prompt.prefix(k)), axis=-1)
      np.testing.assert_allclose(direct, every[:, k], rtol=1e-6)
    for b in range(4):
      fits = np.all(pairings[:, keys[b, :k]] == values[b, :k], axis=1)
      answers = pairings[fits, keys[b, k]]
      expected = np.bincount(answers, minlength=setting['num_values']) / len(answers)
      # A probability of 0 is 1e-6, so that its logarithm is finite.
      np.testing.assert_allclose(every[b, k], expected, atol=1e-5)


def test_shifts_are_longer_contexts():
  shifts = _task(num_pairs=4).shifts()
  assert [*shifts] == [f'context_length={c}' for c in (64, 128, 256, 512, 1024)]
  assert shifts['context_length=64'] == _task(num_pairs=4, context_length=64)


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'num_values': 15}, 'num_values is 15; it must be an integer ≥ 16'),
    ({'num_values': 3, 'num_pairs': 4}, 'num_values is 3; it must be an integer ≥ 4'),
    ({'num_pairs': 17}, 'num_pairs is 17; it must be an integer from 1 to 16'),
    ({'num_pairs': 9, 'context_length': 8}, 'an integer from 1 to 8'),
  ],
)
def test_bad_input_is_refused_in_one_line(unchecked, changes, said):
  with refuses(said):
    _task(**changes)
