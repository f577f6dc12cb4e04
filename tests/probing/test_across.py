"""Heads of several seeds: matched beside brute force, and chance without training."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import zoo
from tests.compare import refuses
from tests.compiled import built
from tests.marks import SLOW
from tests.probing.models import sample, with_heads_in_order
from tests.settings import isotropic
from zoo import probing
from zoo.measure.intervals import half_of
from zoo.probing.across import (
  _by_ranks,
  _centred,
  _correlations,
  _largest,
  _permuted,
  match,
)

D, C, H = 2, 4, 3
TASK = isotropic(D, C, noise_std=0.3)
ORDER = 2, 0, 1
SITE = 'layers.0.mixer.heads'


def _transformer(seed=0, num_layers=1, scale=1.0) -> Any:
  model: Any = built(
    lambda: zoo.models.Transformer(
      D, C, num_layers=num_layers, width=12, num_heads=H, rngs=nnx.Rngs(seed)
    )
  )
  # Larger queries and keys, so that attention differs from prompt to prompt.
  for layer in model.layers:
    for linear in (layer.mixer.query, layer.mixer.key):
      linear.kernel[...] = scale * linear.kernel[...]
  return model


def _pair(num_prompts=64) -> tuple[zoo.Prompt, zoo.Prompt]:
  clean = sample(TASK, jax.random.key(0), num_prompts)
  return clean, TASK.redraw(jax.random.key(1), clean, 'inputs')


def _parts(seed, u=4, p=10, m=3) -> np.ndarray:
  return np.random.default_rng(seed).normal(size=(u, p, m))


@pytest.mark.parametrize(
  ('by', 'seed', 'rounding'),
  [
    ('attention', 0, 1e-4),
    # Effects that differ by rounding alone may change places in the order of the ranks.
    pytest.param('effect', 1, 0.01, marks=SLOW),
  ],
)
def test_heads_in_another_order_are_found_and_have_the_correlation_1(
  by, seed, rounding
):
  model = _transformer(seed, scale=4.0)
  other = with_heads_in_order(model, 0, ORDER)
  found = probing.across_seeds([model, other, model], TASK, *_pair(), [SITE], by=by)
  for row, nodes in zip(found.rows, found.nodes, strict=True):
    place = ORDER.index(row.head)
    assert nodes == [probing.Node(SITE, head) for head in (row.head, place, row.head)]
    assert row.matches == f'head {place}; head {row.head}'
    assert row.correlation == pytest.approx(1, abs=rounding)
    assert row.lowest == pytest.approx(1, abs=rounding)
    assert row.unmatched is not None
    assert row.unmatched < 0.9
    assert row.holds
  assert 0 < found.permuted < 0.9
  assert found.untrained is None
  assert 'with permuted prompts' in str(found)


@pytest.mark.slow
def test_the_share_is_that_of_effects_over_models_on_the_second_half():
  models = [_transformer(seed, scale=4.0) for seed in (0, 2)]
  clean, corrupt = _pair(256)
  found = probing.across_seeds(models, TASK, clean, corrupt, [SITE], kind='zero')
  second = [jax.tree.map(lambda array: array[128:], of) for of in (clean, corrupt)]
  tables = [
    probing.effects(
      model, TASK, second[0], second[1], [SITE], kinds=['zero'], heads=True
    ).rows
    for model in models
  ]
  for row, nodes in zip(found.rows, found.nodes, strict=True):
    heads = [node.head or 0 for node in nodes]
    shares = [table[head].zero for table, head in zip(tables, heads, strict=True)]
    if any(share is None for share in shares):
      assert row.share is None
      continue
    means = [share.mean for share in shares if share is not None]
    assert row.share is not None
    assert row.share.mean == pytest.approx(np.mean(means), rel=1e-4, abs=1e-6)
    half = stats.t.ppf(0.975, 1) * np.std(means, ddof=1) / 2**0.5
    assert row.share.half == pytest.approx(half, rel=1e-3, abs=1e-6)


def test_the_matching_is_the_best_of_all_orders():
  for seed in range(20):
    first, second = _centred(_parts(seed)), _centred(_parts(100 + seed))
    table = np.einsum('upm,vpm->uv', first, second)
    best = max(
      itertools.permutations(range(4)),
      key=lambda order: sum(table[i, j] for i, j in enumerate(order)),
    )
    np.testing.assert_array_equal(match(first, second), best)


def test_correlations_are_those_of_covariances_and_of_ranks():
  first, second = _parts(0), _parts(1)
  found = _correlations(_centred(first), _centred(second))
  for i, j in itertools.product(range(4), range(4)):
    of_each = [np.cov(first[i, :, e], second[j, :, e]) for e in range(3)]
    (a, both), (_, b) = np.sum(of_each, axis=0)
    assert found[i, j] == pytest.approx(both / np.sqrt(a * b), rel=1e-12)
  ranks = _correlations(_by_ranks(first[..., :1]), _by_ranks(second[..., :1]))
  expected: Any = stats.spearmanr(first[2, :, 0], second[1, :, 0])
  assert ranks[2, 1] == pytest.approx(expected.statistic, rel=1e-12)


@pytest.mark.slow
def test_a_head_that_attends_alike_in_all_prompts_has_no_correlation():
  model = _transformer(scale=4.0)
  mixer = model.layers[0].mixer
  size = mixer.query.kernel[...].shape[1] // H
  for linear in (mixer.query, mixer.key):
    linear.kernel[...] = linear.kernel[...].at[:, :size].set(0)
  found = probing.across_seeds([model, model], TASK, *_pair(), [SITE])
  first, *others = found.rows
  assert first.correlation is None
  assert first.lowest is None
  assert not first.holds
  assert all(row.holds for row in others)


@pytest.mark.slow
def test_permuted_prompts_are_exceeded_by_chance_in_one_of_twenty_cases():
  """Heads that have nothing in common, matched on other prompts than compared."""
  num_cases, hits = 400, 0
  for seed in range(num_cases):
    halves = [_centred(_parts(4 * seed + i, p=24)) for i in range(4)]
    pair = match(halves[0], halves[1])
    first, second = halves[2], halves[3][pair]
    level = _permuted(first, second, np.random.default_rng(seed))
    hits += np.einsum('upm,upm->u', first, second).max() > level
  # The 99.9 % range of 400 draws of which 5 % are hits.
  assert stats.binom.ppf(0.0005, num_cases, 0.05) <= hits
  assert hits <= stats.binom.ppf(0.9995, num_cases, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize('k', [2, 4])
def test_a_pair_is_above_untrained_models_no_more_often_than_said(k):
  """Models differ in how alike they are to all others, so that pairs are dependent."""
  generator, num_cases, hits = np.random.default_rng(0), 1500, 0
  for _ in range(num_cases):
    shared = generator.normal(size=(1, 16, 1))
    halves = []
    for _ in range(k + 2):
      noise = np.exp(2 * generator.normal())
      half = _centred(shared + noise * generator.normal(size=shared.shape))
      halves.append((half, half))
    hits += (_largest(halves[:2]) or 0) > (_largest(halves[2:]) or 0)
  share, bound = hits / num_cases, 1 / (1 + k // 2)
  error = 3 * (bound * (1 - bound) / num_cases) ** 0.5
  assert share <= bound + error
  if k == 4:  # As if its 6 pairs were independent, it would be 1/7.
    assert share > 1 / 7 + error
  else:
    assert share >= bound - error


@pytest.mark.slow
@pytest.mark.full
def test_heads_of_untrained_models_hold_no_more_than_chance():
  models = [_transformer(seed) for seed in range(3)]
  bare = [_transformer(seed) for seed in range(3, 8)]
  found = probing.across_seeds(models, TASK, *_pair(128), untrained=bare)
  assert found.untrained is not None
  assert found.chance == max(found.untrained, found.permuted)
  assert not any(row.holds for row in found.rows)
  assert 'between untrained models' in found.footer


@pytest.mark.slow
def test_whole_sites_are_matched_by_their_effects():
  model = _transformer(scale=4.0, num_layers=2)
  found = probing.across_seeds([model, model], TASK, *_pair(), by='effect', heads=False)
  sites = [site for site in probing.sites(model) if site.endswith('.out')]
  assert [row.site for row in found.rows] == sites
  assert [row.matches for row in found.rows] == sites
  assert all(row.holds for row in found.rows)


@SLOW
@pytest.mark.parametrize('num_models', [2, 3])
def test_intervals_over_models_contain_the_mean_of_all_models(num_models):
  """Shares over models that are nearly normal, at the least number of models."""
  drawn = np.random.default_rng(0).normal(0.3, 0.1, size=(4000, num_models))
  half = half_of(drawn.std(axis=1, ddof=1) / num_models**0.5, num_models)
  covered = np.mean(np.abs(drawn.mean(axis=1) - 0.3) < half)
  assert 0.93 <= covered <= 0.97


@pytest.mark.usefixtures('unchecked')
def test_what_cannot_be_matched_is_refused():
  model, pair = _transformer(), _pair()
  with refuses('there are 1 models; matching needs two or more'):
    probing.across_seeds([model], TASK, *pair)
  with refuses('models is of type Transformer; it must be a list of models'):
    probing.across_seeds(model, TASK, *pair)
  with refuses('there is one untrained model', 'give two or more, or none'):
    probing.across_seeds([model, model], TASK, *pair, untrained=[model])
  with refuses("unknown by 'values'", 'attention, effect'):
    probing.across_seeds([model, model], TASK, *pair, by='values')
  with refuses("heads is False and by is 'attention'", "by='effect'"):
    probing.across_seeds([model, model], TASK, *pair, heads=False)
  with refuses('there are 63 prompts', '64 or more'):
    few = [jax.tree.map(lambda array: array[:63], prompt) for prompt in pair]
    probing.across_seeds([model, model], TASK, *few)
  with refuses('model 1 has other heads or sites', 'layers.1.mixer.heads'):
    probing.across_seeds([model, _transformer(num_layers=2)], TASK, *pair)
  narrower: Any = zoo.models.Transformer(
    D, C, num_layers=1, width=12, num_heads=2, rngs=nnx.Rngs(0)
  )
  with refuses(f'{SITE}, head 2 has no attention weights in Transformer'):
    probing.across_seeds([model, model], TASK, *pair, untrained=[narrower] * 2)
