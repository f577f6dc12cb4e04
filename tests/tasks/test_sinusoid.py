import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compare import refuses
from zoo.tasks import Sinusoid


def test_labels_are_those_of_the_equation():
  task = Sinusoid()
  x = task.sample_features(jax.random.key(0))
  labels = task.evaluate((jnp.asarray(0.3), jnp.asarray(1.2)), x)
  expected = [0.3 * math.sin(float(one) + 1.2) for one in x[:, 0]]
  # x + p is rounded to 24 bits, at most 3e-7 below 8.
  np.testing.assert_allclose(labels, expected, rtol=0, atol=2e-7)


def test_amplitude_phase_and_features_are_uniform_and_independent():
  task = Sinusoid(context_length=1, phase_range=(-1.0, 2.0))
  keys = jax.random.split(jax.random.key(0), 20_000)
  amplitude, phase = jax.vmap(task.sample_function)(keys)
  prompt = task.sample(jax.random.key(1), 20_000)
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
  prompt = Sinusoid().sample(jax.random.key(0), 200)
  x = np.asarray(jnp.concatenate([prompt.x[..., 0], prompt.x_query], axis=1), float)
  for features, labels in zip(x, np.asarray(prompt.targets, float), strict=True):
    waves = np.stack([np.sin(features), np.cos(features)], axis=1)
    weights, *_ = np.linalg.lstsq(waves, labels, rcond=None)
    # Eleven labels within 2e-7 and matrices whose condition is a few.
    np.testing.assert_allclose(waves @ weights, labels, rtol=0, atol=1e-6)
    assert 0.1 - 1e-5 <= np.hypot(*weights) <= 0.5 + 1e-5
    assert weights[1] >= -1e-5  # sin p of a phase from 0 to π


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'amplitude_range': (0.5, 0.1)}, 'amplitude_range is (0.5, 0.1)'),
    ({'amplitude_range': (-0.1, 0.1)}, 'amplitude_range is (-0.1, 0.1)'),
    ({'amplitude_range': 0.3}, 'amplitude_range is 0.3'),
    ({'amplitude_range': (0, np.inf)}, 'amplitude_range holds'),
    ({'phase_range': (0, 1, 2)}, 'phase_range has shape (3,)'),
    ({'phase_range': (0, 7)}, 'phase_range is (0.0, 7.0)'),
    ({'phase_range': 'pi'}, "phase_range is 'pi'"),
  ],
  ids=str,
)
def test_bad_input_is_refused_in_one_line(unchecked, changes, said):
  with refuses(said):
    Sinusoid(**changes)
