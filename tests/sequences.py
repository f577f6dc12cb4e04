"""Prompts of given symbols, for tests of tasks that are sequences."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax
from scipy.stats import chi2

import zoo


def all_sequences(task: Any) -> np.ndarray:
  """All sequences of symbols that a prompt may have, in lexicographic order."""
  length = task.context_length + 1
  return np.asarray([*itertools.product(range(task.num_symbols), repeat=length)])


def prompt_of(sequences: np.ndarray, size: int) -> zoo.Prompt:
  """Prompts of these symbols, whose targets are no predictor's business."""
  x = np.eye(size)[sequences]
  y = np.roll(x, -1, axis=1)[:, :-1]
  dtype = jnp.result_type(float)
  arrays = [
    jnp.asarray(array.astype(dtype)) for array in (x[:, :-1], y, x[:, -1], x[:, -1])
  ]
  return zoo.Prompt(*arrays)


def predicted(task: Any, names: Sequence[str], sequences: np.ndarray) -> Any:
  """The probabilities of the next symbol by baselines, in float64, `[b, t, s]` each."""
  predictors = [task.baselines()[name] for name in names]
  with jax.enable_x64(True):
    prompt = prompt_of(sequences, task.num_symbols)
    run = jax.jit(lambda prompt: [f.predictions(prompt) for f in predictors])
    return [softmax(logits, axis=-1) for logits in run(prompt)]


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
  statistic = np.sum((counts - expected) ** 2 / expected)
  return float(chi2.sf(statistic, len(counts) - 1))


def check_law(task: Any, symbols: np.ndarray, law: np.ndarray) -> None:
  """Symbols `[b, t]` have the law of all sequences, and of those at each position.

  The probability of each sequence is in the order of `all_sequences`.
  """
  count, length = symbols.shape
  size, sequences = task.num_symbols, all_sequences(task)
  np.testing.assert_allclose(law.sum(), 1, rtol=1e-9)
  drawn = np.bincount(symbols @ size ** np.arange(length)[::-1], minlength=len(law))
  assert p_value(drawn, count * law) > 1e-5
  for position in range(length):
    expected = np.bincount(sequences[:, position], count * law, size)
    counts = np.bincount(symbols[:, position], minlength=size)
    assert p_value(counts, expected) > 1e-5


def check_causal(task: Any) -> None:
  """No baseline reads later symbols, bit for bit, or the target of the query.

  Called on fewer examples they predict what they do in one pass.
  """
  size, length = task.num_symbols, task.context_length + 1
  sequences = np.random.default_rng(0).integers(size, size=(50, length))
  predictors, prompt = task.baselines().values(), prompt_of(sequences, size)
  run = jax.jit(lambda prompt: [f.predictions(prompt) for f in predictors])
  everywhere = jax.device_get(run(prompt))
  for k in range(length):
    changed = sequences.copy()
    changed[:, k + 1 :] = (changed[:, k + 1 :] + 1) % size
    for after, before in zip(run(prompt_of(changed, size)), everywhere, strict=True):
      np.testing.assert_array_equal(np.asarray(after)[:, : k + 1], before[:, : k + 1])
  lengths, whole = (0, task.context_length // 2), jax.device_get(prompt)
  alone = jax.jit(
    lambda prompts: [[f(prompt) for f in predictors] for prompt in prompts]
  )
  for k, own in zip(lengths, alone([*map(whole.prefix, lengths)]), strict=True):
    for prediction, expected in zip(own, everywhere, strict=True):
      np.testing.assert_allclose(prediction, expected[:, k], rtol=1e-5, atol=1e-6)
