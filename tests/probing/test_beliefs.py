"""Instruments of beliefs: models that hold the belief, the last symbol, or nothing."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from zoo.probing import Tap, interchange, probe_beliefs, rival_statistics, steer
from zoo.tasks.hidden_markov import Filtering

_TASK: Any = zoo.create_task('hidden_markov', process='mess3', context_length=8)
_NUM = 512


class Holds(nnx.Module):
  """Holds statistics of each prefix in a mixed stream, and predicts from one of them.

  The stream is `[b, t, 12]`: what `holds` gives for each token, times a fixed matrix.
  The prediction is the Bayes one of the first three numbers, which `reads` are in the
  stream; without `reads` it is that of the stationary law.
  """

  def __init__(self, holds, reads=True, power=1):
    self.holds, self.reads, self.power = holds, reads, power
    self.stream_tap = Tap(axes='b n w', kind='stream')
    normal = np.random.default_rng(0).standard_normal((12, 12))
    self.mix = nnx.Param(jnp.asarray(np.linalg.qr(normal)[0], jnp.float32))

  def __call__(self, prompt):
    return self.predictions(prompt)[:, -1]

  def predictions(self, prompt):
    held = self.holds(prompt)
    wide = jnp.pad(held, ((0, 0), (0, 0), (0, 12 - held.shape[-1])))
    stream = self.stream_tap(wide @ self.mix[...])
    first = (stream @ self.mix[...].T)[..., :3]
    law = first if self.reads else jnp.full_like(first, 1 / 3) + 0 * first
    following = _TASK.transitions @ _TASK.emissions
    return self.power * jnp.log(jnp.maximum(law @ following, 1e-6))


def belief(prompt):
  return Filtering(_TASK).belief(prompt)


def belief_and_symbol(prompt):
  return jnp.concatenate([belief(prompt), 3 * prompt.features], axis=-1)


def last_symbol(prompt):
  return prompt.features


def constant(prompt):
  return jnp.ones_like(prompt.features)


def noise(prompt):
  """Other noise for other prompts."""
  places = jnp.arange(prompt.features.size).reshape(prompt.features.shape)
  number = jnp.sum(jnp.where(prompt.features > 0, places, 0))
  key = jax.random.fold_in(jax.random.key(7), number)
  return jax.random.normal(key, (*prompt.features.shape[:2], 3))


def noisy_belief(prompt):
  return belief(prompt) + 0.1 * noise(prompt)


def noisy_truth() -> float:
  """R² of the best linear map from the noisy belief, beyond the rival.

  With the covariance Σ of what the rival leaves of the belief, in 450,000 tokens, it is
  `tr(Σ (Σ + 0.01)⁻¹ Σ) / tr Σ`.
  """
  prompt = _TASK.sample(jax.random.key(99), 50_000)
  values = np.asarray(_TASK.belief(prompt).values, np.float64).reshape(-1, 3)
  known = rival_statistics(prompt).reshape(len(values), -1)
  left = values - known @ np.linalg.lstsq(known, values, rcond=1e-10)[0]
  covariance = left.T @ left / len(left)
  best = covariance @ np.linalg.solve(covariance + 0.01 * np.eye(3), covariance)
  return float(np.trace(best) / np.trace(covariance))


@functools.cache
def _score(holds, num_prompts=_NUM, seed=0):
  (*_, row) = probe_beliefs(Holds(holds), _TASK, num_prompts=num_prompts, seed=seed)
  return row


def sharper_truth() -> float:
  """The slope of predictions that are proportional to the square of Bayes's."""
  prompt = _TASK.sample(jax.random.key(98), 200_000)
  values = np.asarray(_TASK.belief(prompt).values, np.float64)[:, -1]
  laws = values @ np.asarray(_TASK.transitions @ _TASK.emissions, np.float64)
  sharper = laws**2 / np.sum(laws**2, axis=1, keepdims=True)
  wanted, moved = laws[1:] - laws[:-1], sharper[1:] - sharper[:-1]
  return float(np.sum(wanted * moved) / np.sum(wanted**2))


def mean_of(value):
  """The mean of an estimate, which must be there."""
  assert value is not None
  return value.mean


def test_a_stream_that_holds_the_belief_has_it_beyond_the_rival():
  for holds in belief, belief_and_symbol:
    row = _score(holds)
    assert row.site == 'stream'
    # The ridge penalty is at most 1e-6 of the largest squared singular value.
    assert row.r2.mean == pytest.approx(1, abs=1e-5)
    assert mean_of(row.beyond_rival) == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(row.by_token, 1, atol=1e-4)


def test_the_last_symbol_explains_much_and_nothing_beyond_the_rival():
  row = _score(last_symbol)
  assert 0.5 < row.r2.mean < 0.95
  assert mean_of(row.beyond_rival) == pytest.approx(0, abs=1e-6)
  assert row.by_token[0] == pytest.approx(1, abs=0.05)  # There it is all that is known.


def test_a_stream_that_holds_nothing():
  assert _score(constant).r2.mean == pytest.approx(0, abs=0.01)
  row = _score(noise)
  # 3 numbers fitted to 256 · 9 tokens explain about −3/2304 of others.
  assert row.r2.mean == pytest.approx(0, abs=0.01)
  assert mean_of(row.beyond_rival) == pytest.approx(0, abs=0.01)


def test_r2_is_that_of_numpy():
  """By least squares with the rival beside the site, in place of two steps."""
  prompt = jax.device_get(_held_out_prompt())
  values = np.asarray(_TASK.belief(prompt).values, np.float64)
  held = np.asarray(noisy_belief(prompt), np.float64)
  row = _score(noisy_belief)
  ones = np.ones((*held.shape[:2], 1))
  rival = np.concatenate([rival_statistics(prompt), ones], axis=-1)
  alone = np.concatenate([held, ones], axis=-1)
  errors = [_left(rows, values) for rows in (alone, rival)]
  both = _left(np.concatenate([rival, held], axis=-1), values)
  whole = np.square(values[256:] - values[:256].mean((0, 1))).sum()
  # The penalty of cross-validation changes R² by about the 3/2304 of a fit to noise.
  assert row.r2.mean == pytest.approx(1 - errors[0] / whole, abs=2e-3)
  assert mean_of(row.beyond_rival) == pytest.approx(1 - both / errors[1], abs=2e-3)
  assert 0.1 < mean_of(row.beyond_rival) < 0.9


def _left(rows, values):
  fit, test = (of.reshape(-1, of.shape[-1]) for of in (rows[:256], rows[256:]))
  weights = np.linalg.lstsq(fit, values[:256].reshape(-1, 3), rcond=1e-10)[0]
  return np.square(values[256:].reshape(-1, 3) - test @ weights).sum()


def _held_out_prompt():
  from zoo.core.draws import CURVE_STREAM, stream_of

  return _TASK.sample(stream_of(0, CURVE_STREAM), _NUM)


def test_untrained_models_are_beside_the_model():
  untrained = [Holds(last_symbol), Holds(noise), Holds(noise)]
  rows = probe_beliefs(Holds(belief), _TASK, untrained=untrained, num_prompts=_NUM)
  prompt_alone, rival, row = rows
  assert [of.site for of in rows] == ['the prompt itself', 'the rival', 'stream']
  assert rival.beyond_rival is None
  assert prompt_alone.untrained is None
  functions = last_symbol, noise, noise
  alone = [_score(of).r2.mean for of in functions]
  assert mean_of(row.untrained) == pytest.approx(np.mean(alone), abs=1e-6)
  assert mean_of(row.above_untrained) == pytest.approx(1 - np.mean(alone), abs=1e-4)
  beyond = [mean_of(_score(of).beyond_rival) for of in functions]
  assert mean_of(row.beyond_untrained) == pytest.approx(1 - np.mean(beyond), abs=1e-3)
  # A filter that sees eight symbols back is nearly linear in them.
  assert 0.9 < prompt_alone.r2.mean < 1
  with refuses('the number of untrained models is 2; their spread needs 3 or more'):
    probe_beliefs(Holds(belief), _TASK, untrained=untrained[:2])


@functools.cache
def _steered(holds, reads=True):
  (row,) = steer(Holds(holds, reads), _TASK, num_prompts=_NUM)
  return row


def test_predictions_follow_a_belief_that_is_read():
  for holds in belief, belief_and_symbol:
    row = _steered(holds)
    # Float32 probabilities, and logarithms.
    assert row.slope.mean == pytest.approx(1, abs=1e-4)
    assert row.r2.mean == pytest.approx(1, abs=1e-4)
    assert row.random_r2.mean < 0.5


def test_predictions_stay_where_the_belief_is_not_read():
  row = _steered(belief, False)
  assert row.slope.mean == row.r2.mean == 0
  # The direction of a belief that the last symbol does not tell is 0.
  row = _steered(last_symbol)
  assert row.slope.mean == pytest.approx(0, abs=1e-5)
  assert row.r2.mean == pytest.approx(0, abs=1e-5)


def test_a_transformer_is_read_and_steered_at_its_tokens():
  """Interleaved tokens: beliefs are at every other one, and queries are changed."""
  model = zoo.models.Transformer(
    3, 8, num_layers=1, width=8, num_heads=2, num_outputs=3, rngs=nnx.Rngs(0)
  )
  rows = probe_beliefs(model, _TASK, num_prompts=128)
  assert [row.site for row in rows][2:] == [
    'embed',
    'layers.0.tokens',
    'layers.0.middle',
    'final.stream',
  ]
  embed = rows[2]
  # Its tokens are the symbols themselves.
  assert mean_of(embed.beyond_rival) == pytest.approx(0, abs=1e-6)
  assert len(embed.by_token) == 9
  (row,) = steer(model, _TASK, sites=['final.stream'], num_prompts=128)
  assert np.isfinite(row.slope.mean)
  with refuses("the axes of the site 'layers.0.mixer.pattern' are 'b h q k'"):
    steer(model, _TASK, sites=['layers.0.mixer.pattern'], num_prompts=128)


def test_a_subspace_is_found_that_exchanges_the_belief():
  (row,) = interchange(Holds(belief), _TASK, rank=2, num_prompts=_NUM, num_steps=150)
  assert row.basis.shape == (12, 2)
  np.testing.assert_allclose(row.basis.T @ row.basis, np.eye(2), atol=1e-5)
  assert row.r2.mean > 0.99
  assert row.slope.mean == pytest.approx(1, abs=0.02)
  assert row.whole_r2.mean == pytest.approx(1, abs=1e-4)
  assert row.random_r2.mean < 0.5


def test_a_model_that_does_not_read_has_no_subspace():
  (row,) = interchange(
    Holds(belief, False), _TASK, rank=2, num_prompts=_NUM, num_steps=5
  )
  assert row.slope.mean == row.r2.mean == row.whole_r2.mean == 0


class _Weights(nnx.Module):
  """Holds the posterior means of two weights, and the query; predicts by them."""

  def __init__(self, task):
    self.belief = lambda prompt: task.belief(prompt).values
    self.tap = Tap('stream', 'b n w', kind='stream')

  def __call__(self, prompt):
    means = self.belief(prompt)[..., :2]
    held = self.tap(jnp.concatenate([means, prompt.features], axis=-1))[:, -1]
    return jnp.sum(held[:, :2] * held[:, 2:], axis=1)


def test_one_coordinate_or_a_latent_is_exchanged():
  task = zoo.tasks.LinearRegression(2, 6, noise_std=0.3)
  model = _Weights(task)
  (row,) = interchange(
    model, task, rank=1, variable=['mean of weight 1'], num_prompts=512
  )
  assert row.r2.mean > 0.98
  np.testing.assert_allclose(np.abs(row.basis[:, 0]), [0, 1, 0, 0], atol=0.1)
  # The weights of the prompt themselves, of which the posterior has only a part.

  def by_weights(base, source):
    return jnp.sum(source.latents * base.x_query, axis=1)

  (row,) = interchange(model, task, rank=2, variable=by_weights, num_prompts=512)
  assert 0.8 < row.r2.mean < 1
  with refuses(
    "variable has 'weight'; the coordinates of the belief are mean of weigh"
  ):
    interchange(model, task, rank=1, variable=['weight'], num_prompts=512)
  with refuses('rank at the site'):
    interchange(model, task, rank=5, num_prompts=512)


def test_what_is_refused():
  model = Holds(belief)
  with refuses('Sinusoid has no belief'):
    probe_beliefs(model, zoo.create_task('sinusoid'))
  with refuses('num_prompts is 100; it must be'):
    probe_beliefs(model, _TASK, num_prompts=100)
  with refuses('the rival returns the shape (512, 3)'):
    probe_beliefs(model, _TASK, rival=lambda prompt: prompt.x_query, num_prompts=_NUM)
  sparse = zoo.tasks.SparseRegression(2, 4, num_nonzero=1, noise_std=0.4)
  with refuses('SparseRegression does not say what follows from a belief'):
    steer(_Weights(sparse), sparse, num_prompts=128)
