"""The hidden Markov chain against sums over all paths of its states."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from tests.sequences import all_sequences, check_causal, check_law, predicted
from tests.tasks import host
from zoo.tasks import HiddenMarkov

_SMALL = {'num_states': 3, 'num_symbols': 2, 'context_length': 3, 'persistence': 0.6}


def _task(**changes) -> HiddenMarkov:
  task = zoo.create_task('hidden_markov', **_SMALL | changes)
  assert isinstance(task, HiddenMarkov)
  return task


def _matrices(task) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """T and E, and the stationary law by an eigenvector of T."""
  random = np.random.RandomState(task.seed)
  n = task.num_states
  rows = random.dirichlet(np.ones(n), n)
  emissions = random.dirichlet(np.ones(task.num_symbols), n)
  moves = task.persistence * np.eye(n) + (1 - task.persistence) * rows
  values, vectors = np.linalg.eig(moves.T)
  law = np.real(vectors[:, np.argmin(np.abs(values - 1))])
  return moves, emissions, law / law.sum()


def _paths(task, length: int, last: int = 0) -> Any:
  """All paths of states with their probabilities, the first states left out."""
  moves, _, law = _matrices(task)
  for path in itertools.product(range(task.num_states), repeat=last + length):
    value = law[path[0]]
    for i, j in itertools.pairwise(path):
      value *= moves[i, j]
    yield path[last:], value


def _law(task, length: int, before: int = 0) -> np.ndarray:
  """The probability of each sequence of `length` symbols after `before` others."""
  _, emissions, _ = _matrices(task)
  law = np.zeros((task.num_symbols,) * length)
  for path, probability in _paths(task, length, before):
    for symbols in itertools.product(range(task.num_symbols), repeat=length):
      law[symbols] += probability * np.prod(emissions[list(path), list(symbols)])
  return law


_OTHER = {'num_symbols': 3, 'context_length': 3}


@pytest.mark.parametrize('changes', mostly_slow([{}], [{}, _OTHER]))
def test_predictors_agree_with_sums_over_all_paths(changes):
  task = _task(**changes)
  sequences = all_sequences(task)
  memories = {'bayes': 9, 'trigram': 2, 'bigram': 1, 'unigram': 0}
  every = predicted(task, [*memories], sequences)
  for actual, memory in zip(every, memories.values(), strict=True):
    for k in range(task.context_length + 1):
      known = min(memory, k + 1)
      # Of a window in the middle, which is stationary, the states before are summed
      # over.
      law = _law(task, known + 1, before=k + 1 - known)
      for b, symbols in enumerate(sequences):
        both = law[tuple(symbols[k + 1 - known : k + 1])]
        np.testing.assert_allclose(actual[b, k], both / both.sum(), rtol=1e-9)


@pytest.mark.slow
def test_predictions_do_not_depend_on_later_symbols():
  check_causal(_task())


@functools.cache
def _drawn() -> Any:
  return host.sample_with_latents(_task(), 1, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize('changes', mostly_slow([{}], [{}, _OTHER]))
def test_sequences_have_their_probabilities(changes):
  """All of them, and so the symbols at each position and the label of the query."""
  task = _task(**changes)
  prompt = host.sample(task, 1, 20_000) if changes else _drawn()
  one_hot = host.features(prompt)
  symbols = one_hot.argmax(-1)
  np.testing.assert_array_equal(one_hot.sum(-1), 1)
  np.testing.assert_array_equal(prompt.y.argmax(-1), symbols[:, 1:])
  check_law(task, symbols, _law(task, task.context_length + 1).ravel())


@pytest.mark.slow
def test_targets_are_laws_given_the_state():
  task, prompt = _task(), _drawn()
  symbols, targets = host.features(prompt).argmax(-1), host.targets(prompt)
  moves, emissions, law = _matrices(task)
  np.testing.assert_allclose(task.law, law, rtol=1e-10)
  transitions = jax.jit(lambda task: task.transitions)(task)
  np.testing.assert_allclose(transitions, moves, rtol=1e-6)
  np.testing.assert_allclose(targets, (moves @ emissions)[prompt.latents], rtol=1e-5)
  # A one-hot symbol minus its law given the states has the mean 0 given all before it.
  gap = np.eye(2)[symbols[:, 1:]] - targets[:, :-1]
  known = np.eye(3)[prompt.latents[:, :-1]]
  products = np.einsum('bti,btj->btij', gap, known)
  error = np.sqrt(np.sum(products**2, axis=(0, 1)))
  assert np.all(np.abs(products.sum((0, 1))) <= 4.5 * error)


@pytest.mark.slow
def test_the_forward_algorithm_is_the_mean_of_the_targets():
  """Of prompts with the same symbols, by which it has the least loss."""
  prompt, sequences = _drawn(), all_sequences(_task())
  (expected,) = predicted(_task(), ['bayes'], sequences)
  index = host.features(prompt).argmax(-1) @ [8, 4, 2, 1]
  for sequence in range(16):
    chosen = index == sequence
    gap = prompt.y_query[chosen] - expected[sequence, -1]
    assert np.all(np.abs(gap.mean(0)) <= 4.5 * gap.std(0) / np.sqrt(chosen.sum()))


@pytest.mark.slow
@pytest.mark.full
def test_memory_pays():
  """The excess over the forward algorithm after 100 symbols, at the defaults."""
  task = zoo.create_task('hidden_markov')
  prompt = task.sample(jax.random.key(4), 2000)
  losses = {
    name: np.asarray(task.loss(jax.jit(predictor)(prompt), prompt.y_query))
    for name, predictor in task.baselines().items()
  }
  for name, least in {'trigram': 0.05, 'bigram': 0.08, 'unigram': 0.12}.items():
    assert np.mean(losses[name] - losses['bayes']) > least


@pytest.mark.slow
def test_persistence_is_a_leaf_and_the_chain_one_of_its_seed():
  task = _task()
  both_leaves = jax.tree.map(lambda leaf: np.array([leaf, leaf]), task)
  persistence: Any = np.array([0.0, 0.6])
  many = dataclasses.replace(both_leaves, persistence=persistence)

  @jax.jit
  def both(task, many):
    keys = jax.random.split(jax.random.key(0), 2)
    vmapped = jax.vmap(lambda task, key: task.sample_one(key))(many, keys)
    return vmapped, task.sample_one(keys[1])

  vmapped, alone = jax.device_get(both(task, many))
  np.testing.assert_allclose(vmapped.y_query[1], alone.y_query, rtol=1e-6)
  np.testing.assert_array_equal(vmapped.x[1], alone.x)
  assert not np.isclose(_task(seed=1).emissions, task.emissions).any()
  emissions: Any = task.emissions
  assert not emissions.flags.writeable
  with refuses('persistence is 1.0; it must be below 1'):
    _task(persistence=1.0)
