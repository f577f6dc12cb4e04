"""Probes of latents: what a site holds, it predicts, and nothing else does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import zoo
from tests import oracle
from tests.compare import refuses
from tests.probing.models import table
from tests.settings import isotropic
from zoo.probing import Tap, latent_targets, probe_latents

_D, _C, _NUM = 2, 6, 4096
_TASK = isotropic(_D, _C, prior_mean=[0.5, -1.0], noise_std=0.5)


class _Correlations(nnx.Module):
  """Shows X'y and, at another site, the last feature of the query."""

  def __init__(self):
    self.embed_tap, self.sum_tap = Tap(axes='b n m'), Tap(axes='b n w')
    self.other_tap = Tap(axes='b')

  def __call__(self, prompt):
    tokens = self.embed_tap(prompt.tokens(jnp.zeros_like(prompt.x_query[:, 0])))
    x, y = tokens[:, :-1, :-1], tokens[:, :-1, -1]
    sums = jnp.cumsum(y[..., None] * x, axis=1)
    last = self.sum_tap(sums)[:, -1]
    return jnp.sum(last * prompt.x_query, axis=1) + self.other_tap(prompt.x_query[:, 1])


def test_a_site_predicts_what_it_holds_and_controls_do_not():
  scores = {
    (score.site, score.target): score
    for score in probe_latents(_Correlations(), _TASK, num_prompts=_NUM)
  }
  sites = [*dict.fromkeys(site for site, _ in scores)]
  assert sites == ['the prompt itself', 'embed', 'sum', 'other']  # as they are called
  held = scores['sum', "X'y / C"]
  assert held.r2.mean == pytest.approx(1, abs=1e-6)
  # Of 2,048 prompts, with two inputs: 0 to a few standard errors of 2/2048.
  assert abs(held.permuted.mean) <= 0.01
  assert abs(scores['other', "X'y / C"].r2.mean) <= 0.01
  assert scores['the prompt itself', "X'y / C"].r2.mean <= 0.2
  weights = scores['sum', 'latents']
  assert 0.2 <= weights.r2.mean <= 0.9
  assert weights.r2.stderr <= 0.05


def test_targets_are_those_of_numpy():
  prompt = jax.jit(lambda: _TASK.sample(jax.random.key(0), 3, latents=True))()
  known = latent_targets(_TASK, prompt)
  targets = jax.jit(lambda prompt: {name: of(prompt) for name, of in known.items()})(
    prompt
  )
  prompt, targets = jax.device_get((prompt, targets))
  np.testing.assert_array_equal(targets['latents'], prompt.latents)
  start, noise = np.array([0.5, -1.0]), 0.5
  rate = zoo.estimators.gradient_descent(_TASK).step_sizes
  for i in range(3):
    x, y = (np.asarray(a[i], np.float64) for a in (prompt.x, prompt.y))
    residual = x.T @ (y - x @ start)
    expected = {
      "X'y / C": x.T @ y / _C,
      'least squares': np.linalg.solve(x.T @ x, x.T @ y),
      'GD, 1 step': oracle.gd_weights(x, y, start, float(np.ravel(rate)[0])),
      'posterior mean': start
      + np.linalg.solve(x.T @ x + noise**2 * np.eye(_D), residual),
    }
    for name, value in expected.items():
      np.testing.assert_allclose(targets[name][i], value, rtol=2e-4, err_msg=name)


def test_untrained_models_are_a_control_with_their_spread():
  def model(scale):
    return _Scaled(scale)

  own = {'sums': lambda prompt: jnp.einsum('bcd,bc->bd', prompt.x, prompt.y)}
  arguments, scales = (_TASK, own, ['site'], _NUM), (0.3, 0.1, 0.2)
  scores = probe_latents(model(1.0), *arguments, untrained=[*map(model, scales)])
  prompt_alone, score = scores
  assert score.untrained is not None
  assert score.above_untrained is not None
  assert prompt_alone.untrained is None
  alone = [probe_latents(model(scale), *arguments)[1].r2.mean for scale in scales]
  quantile = stats.t.ppf(0.975, 2)
  half = quantile * np.std(alone, ddof=1) * np.sqrt(4 / 3)
  assert score.untrained.mean == pytest.approx(np.mean(alone))
  assert score.untrained.half == pytest.approx(half, rel=1e-4)
  assert score.above_untrained.mean == pytest.approx(score.r2.mean - np.mean(alone))
  assert score.above_untrained.stderr >= 0.9999 * half / quantile
  # Two degrees of freedom, beside which the error over prompts hardly counts.
  assert prompt_alone.p_value is None
  t = score.above_untrained.mean / (half / quantile)
  assert score.p_value == pytest.approx(stats.t.sf(t, 2), rel=0.1)
  with refuses('the number of untrained models is 2; their spread needs 3 or more'):
    probe_latents(model(1.0), *arguments, untrained=[model(0.3), model(0.1)])


class _Scaled(nnx.Module):
  """Shows X'y times a number, and features that hide it where the number is small."""

  def __init__(self, scale):
    self.scale, self.site_tap = scale, Tap(axes='b w')

  def __call__(self, prompt):
    sums = jnp.einsum('bcd,bc->bd', prompt.x, prompt.y)
    return jnp.sum(self.site_tap(self.scale * sums + prompt.x[:, 0]), axis=1)


class _Pair(nnx.Module):
  """Shows its labels and their sum in one value, which is a pair."""

  def __init__(self):
    self.carry_tap = Tap(axes='b n')

  def __call__(self, prompt):
    return self.carry_tap((prompt.y, prompt.y.sum(axis=1)))[1]


def test_arrays_of_a_tree_are_probed_one_by_one():
  own = {'sum': lambda prompt: prompt.y.sum(axis=1)}
  scores = probe_latents(_Pair(), _TASK, own, ['carry'], num_prompts=128)
  _, last_label, whole = scores
  assert [last_label.site, whole.site] == ['carry.0', 'carry.1']
  assert last_label.r2.mean < 0.9  # the last token alone
  assert whole.r2.mean == pytest.approx(1, abs=1e-6)


def test_targets_of_ones_own():
  model = _Correlations()
  own = {'y': lambda prompt: prompt.y[:, 0]}
  (score,) = probe_latents(model, _TASK, own, ['other'], num_prompts=_NUM)[-1:]
  assert (score.site, score.target) == ('other', 'y')
  with refuses("unknown site 'sums'"):
    probe_latents(model, _TASK, own, ['sums'])


def test_a_target_that_varies_by_rounding_alone_has_no_r2():
  # Numbers of float32 near 1000 are 6e-5 apart.
  own = {'constant': lambda prompt: 1e3 + 1e-4 * prompt.y[:, 0]}
  scores = probe_latents(_Correlations(), _TASK, own, ['other'], num_prompts=128)
  assert all(np.isnan(score.r2.mean) for score in scores)


class _State(nnx.Module):
  """Shows the last symbol as a one-hot vector, and a constant."""

  def __init__(self):
    self.symbol_tap, self.nothing_tap = Tap(axes='b d'), Tap(axes='b')

  def __call__(self, prompt):
    nothing = self.nothing_tap(jnp.zeros(len(prompt.x)))
    return self.symbol_tap(prompt.x_query) + nothing[:, None]


@pytest.mark.slow
def test_latents_that_are_integers_are_classes():
  """Symbols say which of two states a hidden Markov model is in, where they agree."""
  task = zoo.create_task('hidden_markov', context_length=2)
  prompt = task.sample(jax.random.key(0), 256, latents=True)
  assert jnp.issubdtype(prompt.latents.dtype, jnp.integer)
  classes = np.unique(prompt.latents)
  (name,) = known = latent_targets(task, prompt)
  assert name == 'latents, one-hot'
  one_hot = np.asarray(known[name](prompt))
  expected = np.asarray(prompt.latents)[..., None] == classes
  np.testing.assert_array_equal(one_hot, expected)
  scores = {
    score.site: score for score in probe_latents(_State(), task, num_prompts=4096)
  }
  # The map from nothing is to the frequencies of the states.
  assert abs(scores['nothing'].r2.mean) < 0.01
  assert scores['symbol'].r2.mean > 5 * scores['symbol'].r2.half
  assert abs(scores['symbol'].permuted.mean) < 0.01


@pytest.mark.slow
def test_integers_of_too_many_values_are_no_classes(tmp_path):
  with refuses('the latents of Arrays are integers with more than 64 values'):
    probe_latents(_Correlations(), table(tmp_path, 400), num_prompts=512)


def test_prompts_are_held_out(tmp_path):
  task, seen = table(tmp_path), []

  def label(prompt):
    seen.append(np.ravel(prompt.features[..., 0]))
    return prompt.y_query

  probe_latents(_Correlations(), task, {'label': label}, ['other'], num_prompts=128)
  assert set(np.concatenate(seen)) <= set(task.held_out().x[:, 0])
