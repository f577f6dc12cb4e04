"""Sinusoids, and their posterior mean."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.tasks import host
from zoo.tasks import Sinusoid


def test_labels_are_those_of_the_equation():
  task = Sinusoid()
  x = np.linspace(-5, 5, 11, dtype='f')[:, None]
  labels = jax.jit(task.evaluate)((np.float32(0.3), np.float32(1.2)), x)
  expected = [0.3 * math.sin(float(value) + 1.2) for value in x[:, 0]]
  # x + p is rounded to 24 bits, at most 3e-7 below 8.
  np.testing.assert_allclose(labels, expected, rtol=0, atol=2e-7)


@functools.cache
def _drawn() -> Any:
  """4000 prompts, whose phases may have either sign."""
  task = Sinusoid(context_length=6, phase_range=(-1.0, 2.0))
  return task, host.sample_with_latents(task, 1, 4000)


@pytest.mark.slow
def test_amplitude_phase_and_features_are_uniform_and_independent():
  _, prompt = _drawn()
  amplitude, phase = prompt.latents
  drawn = np.stack([amplitude, phase, prompt.x[:, 0, 0], prompt.x_query[:, 0]], axis=1)
  low, high = np.asarray([[0.1, -1.0, -5.0, -5.0], [0.5, 2.0, 5.0, 5.0]])
  assert np.all((drawn >= low) & (drawn < high))
  # In units in which each is U(−√3, √3), of variance 1: E v⁴ = 9/5, so v² has the
  # variance 4/5. 14 moments within 4 standard errors.
  units = (drawn - (low + high) / 2) / (high - low) * np.sqrt(12)
  error = np.sqrt((np.ones((4, 4)) - np.eye(4) / 5) / len(units))
  assert np.all(np.abs(units.mean(axis=0)) <= 4 / np.sqrt(len(units)))
  assert np.all(np.abs(units.T @ units / len(units) - np.eye(4)) <= 4 * error)


def test_a_prompt_has_one_amplitude_and_one_phase():
  prompt = jax.tree.map(lambda array: array[:200], _drawn()[1])
  x = host.features(prompt)[..., 0].astype(float)
  rows = zip(x, host.targets(prompt).astype(float), *prompt.latents, strict=True)
  for features, labels, amplitude, phase in rows:
    waves = np.stack([np.sin(features), np.cos(features)], axis=1)
    weights, *_ = np.linalg.lstsq(waves, labels, rcond=None)
    # Seven labels within 2e-7 and matrices whose condition is a few.
    np.testing.assert_allclose(waves @ weights, labels, rtol=0, atol=1e-6)
    expected = amplitude * np.array([np.cos(phase), np.sin(phase)])
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'amplitude_range': (0.5, 0.1)}, 'amplitude_range is (0.5, 0.1)'),
    ({'amplitude_range': (-0.1, 0.1)}, 'amplitude_range is (-0.1, 0.1)'),
    ({'amplitude_range': 0.3}, 'amplitude_range is 0.3'),
    ({'amplitude_range': (0, np.inf)}, 'amplitude_range holds'),
    ({'phase_range': (0, 1, 2)}, 'phase_range has shape (3,)'),
    ({'phase_range': (0, 7)}, 'phase_range is (0, 7)'),
    ({'phase_range': 'pi'}, "phase_range is 'pi'"),
  ],
  ids=str,
)
def test_bad_input_is_refused_in_one_line(unchecked, changes, said):
  with refuses(said):
    zoo.create_task('sinusoid', **changes)


_RANGES = [
  ((0.1, 0.5), (0.0, math.pi)),
  ((0.0, 2.0), (-1.0, 0.5)),
  ((0.5, 1.0), (0.0, 2 * math.pi)),
  ((0.1, 0.5), (3.0, 9.0)),
]


def _task(amplitude=(0.1, 0.5), phase=(0.0, math.pi)):
  return Sinusoid(context_length=1, amplitude_range=amplitude, phase_range=phase)


def _bayes(prompt, task=None):
  return np.asarray(_predict((task or _task()).baselines()['bayes'], prompt), float)


@functools.partial(jax.jit, static_argnums=0)
def _predict(baseline, prompt):
  return baseline(prompt)


def _doubled(prompt):
  return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), prompt)


def _at_once(x, y, x_query):
  """Prompts of one example."""
  arrays: Any = (np.asarray(array, 'f') for array in (x, y, x_query))
  x, y, x_query = arrays
  return zoo.Prompt(
    x=x[:, None, None], y=y[:, None], x_query=x_query[:, None], y_query=y
  )


@pytest.mark.slow
@pytest.mark.parametrize(('amplitude', 'phase'), mostly_full(_RANGES[:1], _RANGES[1:]))
def test_one_example_agrees_with_a_grid_of_phases(amplitude, phase):
  task = _task(amplitude, phase)
  prompt: Any = host.sample(task, 1, 24)
  edges = np.linspace(phase[0], phase[1], 200_001)
  p = (edges[1:] + edges[:-1]) / 2
  expected = []
  for x, y, x_query in zip(
    prompt.x[:, 0, 0], prompt.y[:, 0], prompt.x_query[:, 0], strict=True
  ):
    sine = np.sin(float(x) + p)
    a = float(y) / sine
    weights = ((amplitude[0] <= a) & (a <= amplitude[1])) / np.abs(sine)
    expected.append(weights @ (a * np.sin(float(x_query) + p)) / weights.sum())
  with jax.enable_x64(True):
    double = _bayes(_doubled(prompt), task)
  # The grid misses up to a step of 3e-5 at each end of an interval, and intervals are
  # as short as 0.1; labels near 0 are left out below.
  easy = np.abs(prompt.y[:, 0]) > 0.1 * amplitude[1]
  assert easy.sum() >= 16
  np.testing.assert_allclose(double[easy], np.asarray(expected)[easy], atol=1e-3)
  np.testing.assert_allclose(_bayes(prompt, task), double, rtol=0, atol=1e-5)


@functools.cache
def _predicted() -> Any:
  """2048 prompts, and the predictions of `bayes` at each length."""
  task, drawn = _drawn()
  prompt = jax.tree.map(lambda array: array[:2048], drawn)
  return prompt, jax.device_get(jax.jit(task.baselines()['bayes'].predictions)(prompt))


@pytest.mark.slow
def test_no_example_gives_the_mean_of_the_prior():
  prompt, predictions = _predicted()
  p = 3 * (np.arange(100_000) + 0.5) / 100_000 - 1
  expected = [float(0.3 * np.mean(np.sin(float(x) + p))) for x in prompt.x[:24, 0, 0]]
  np.testing.assert_allclose(predictions[:24, 0], expected, atol=1e-6)


def test_two_examples_determine_the_function():
  prompt, predictions = _predicted()
  losses, x = (predictions - host.targets(prompt)) ** 2, prompt.x[..., 0]
  turns = (x[:, 1] - x[:, 0]).astype(float) / np.pi
  distance = np.pi * np.abs(turns - turns.round())
  # Some roundings of 6e-8, over the distance of two examples from a multiple of π,
  # which is below 1e-3 in about one prompt of 2048; three are never as near.
  assert np.all(np.sqrt(losses[:, 2]) * distance <= 1e-6)
  assert losses[:, 3:].max() <= 1e-9
  assert np.median(losses[:, 2:]) <= 1e-13


@pytest.mark.slow
@pytest.mark.parametrize('turns', mostly_full([1], [0]))
def test_two_examples_near_a_multiple_of_pi(turns):
  rng, n = np.random.default_rng(0), 400
  first = rng.uniform(-2, 1, n)
  distance = 10 ** rng.uniform(-8, -2, n)
  x = np.stack([first, first + turns * np.pi + distance, rng.uniform(-5, 5, n)], 1)
  x: Any = x.astype('f')
  a, p = (rng.uniform(*r, n).astype('f') for r in _RANGES[0])
  y: Any = np.asarray(jax.jit(jax.vmap(_task().evaluate))((a, p), x[..., None]))
  prompt = zoo.Prompt(x=x[:, :2, None], y=y[:, :2], x_query=x[:, 2:], y_query=y[:, 2])
  error = np.abs(_bayes(prompt) - np.asarray(y[:, 2]))
  distance = np.abs(np.sin(np.asarray(x[:, 1], float) - np.asarray(x[:, 0], float)))
  far = distance > 2e-6
  # A few roundings of labels and sums of about 1e-7 each, over the distance.
  assert np.all(error[far] * distance[far] <= 3e-7)
  # Nearer they count as one, and no error is larger than the functions.
  near = distance < 5e-7
  assert near.sum() > 50
  alone = zoo.Prompt(
    x=prompt.x[:, :1], y=prompt.y[:, :1], x_query=prompt.x_query, y_query=y[:, 2]
  )
  assert np.abs(_bayes(prompt) - _bayes(alone))[near].max() <= 1e-4
  assert error.max() <= 1


@pytest.mark.slow
def test_labels_near_zero_and_at_the_ends_of_the_range():
  # A label of 0 tells the phase, −x + mπ in the range, and is 1/a times as likely with
  # the amplitude a, whose mean is then 0.4/log 5.
  x, x_query = np.asarray([-1.0, -2.0, 0.5, 4.0]), np.asarray([0.3, 1.0, -2.0, 2.5])
  phase = np.mod(-x, np.pi)
  expected = 0.4 / np.log(5) * np.sin(x_query + phase)
  for label in (0.0, 1e-20, -1e-9, 1e-7):
    predictions = _bayes(_at_once(x, np.full(4, label), x_query))
    np.testing.assert_allclose(predictions, expected, rtol=0, atol=1e-5)
  # The largest amplitude at its crest: the phase is π/2 − x.
  predictions = _bayes(_at_once([0.5] * 4, [0.5] * 4, [1.0] * 4))
  np.testing.assert_allclose(
    predictions, 0.5 * np.sin(1.0 + np.pi / 2 - 0.5), atol=1e-3
  )


@pytest.mark.slow
def test_labels_that_no_function_has_give_the_mean_of_the_prior():
  # 0.7 is above the largest amplitude.
  prompt = _at_once([0.5, -1.0] * 2, [0.7, -0.7] * 2, [1.0, 2.0] * 2)
  prior = 0.3 * 2 / np.pi * np.cos([1.0, 2.0] * 2)  # 0.3 E sin(x + p)
  np.testing.assert_allclose(_bayes(prompt), prior, atol=1e-6)
