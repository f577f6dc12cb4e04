"""Patching and ablation: induction by hand, a toy of known shares, and paths."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing.models import induction, induction_share, sample
from tests.settings import isotropic
from tests.weights import drawn
from zoo import probing
from zoo.models.tokens import LAYOUTS
from zoo.probing import Node, Tap
from zoo.probing.attention_heads import _share, correlation, site_of_heads

# Shares are None only where a test says so.
effects: Any = probing.effects
path_effect: Any = probing.path_effect
head_scores: Any = probing.head_scores


def _accuracy(prediction, prompt):
  right = prediction.argmax(axis=-1) == prompt.y_query.argmax(axis=-1)
  return right.astype(prediction.dtype)


@pytest.mark.slow
def test_scores_of_induction_by_hand():
  model, task = induction()
  prompt, n = sample(task, jax.random.key(0), 8), 17
  scores: Any = {(s.layer, s.head): s for s in head_scores(model, prompt)}
  # The first token has none before it, and attends to itself.
  assert scores['layers.0', 0].previous == pytest.approx(1 - 1 / n, abs=1e-6)
  induction_score = scores['layers.1', 0].induction
  assert induction_score == pytest.approx(induction_share(prompt), abs=1e-6)
  # The idle heads attend uniformly, and add nothing.
  uniform = sum(1 / i for i in range(2, n + 1)) / n
  assert scores['layers.0', 1].previous == pytest.approx(uniform, rel=1e-5)
  for score in scores.values():
    assert score.label_correlation is None
    assert score.reasons['label_correlation'].startswith('there are 8 prompts;')


def _scores(task, **options):
  """Scores of the heads of a small random transformer, and its prompts."""
  model = drawn(
    lambda: zoo.models.Transformer(
      task.num_features,
      task.context_length,
      num_layers=1,
      width=8,
      feed_forward='none',
      norm='none',
      rngs=nnx.Rngs(0),
      **options,
    ),
    dtype='float32',
  )
  prompt = sample(task, jax.random.key(0), 512)
  return model, prompt, head_scores(model, prompt)


@pytest.mark.slow
def test_labels_that_recur_make_no_score_where_features_do_not():
  task = zoo.create_task('logistic_regression', num_features=3, context_length=6)
  _, prompt, scores = _scores(task)
  assert len(np.unique(prompt.y)) == 2
  for score in scores:
    assert score.previous is not None
    assert score.duplicate is score.induction is None
    assert score.reasons['induction'] == 'no features recur in these prompts'
    assert 'reasons' not in scores.records()[0]


@pytest.mark.parametrize('layout', mostly_full([], LAYOUTS, slow=['shifted']))
def test_a_guess_does_not_count_as_a_label(layout):
  causal = layout != 'joint'
  guess = {'guess': 'fixed', 'guess_weights': 3.0}
  model, prompt, scores = _scores(
    isotropic(2, 4), tokens=layout, causal=causal, **guess
  )
  attention = np.asarray(zoo.probing.attention_maps(model, prompt)['layers.0'])[
    :, :, -1
  ]
  y = np.asarray(prompt.y)[:, None]
  with_labels = {'interleaved': np.s_[1::2], 'joint': np.s_[:-1], 'shifted': np.s_[1:]}
  seen = (attention[..., with_labels[layout]] * y).sum(axis=-1)
  added = zoo.probing.attribution(model, prompt).contributions['layers.0.mixer.heads']
  for score in scores:
    expected = np.corrcoef(added[:, score.head], seen[:, score.head])[0, 1]
    assert score.label_correlation.mean == pytest.approx(expected, abs=1e-5)


def test_a_constant_that_favours_frequent_classes_has_no_label_correlation():
  generator = np.random.default_rng(0)
  n, offset = 4096, np.array([3.0, 1.0, 0.0])
  seen = generator.multinomial(1, [0.7, 0.2, 0.1], n).astype(float)
  added = offset + 0.1 * generator.normal(size=(n, 3))
  pooled = np.corrcoef(added.ravel(), seen.ravel())[0, 1]
  assert pooled > 0.5
  found: Any = correlation(added, seen)
  assert abs(found.mean) < 4 / n**0.5
  assert abs(found.mean) < 4 * found.stderr
  assert correlation(offset + np.zeros((n, 3)), seen) is None


@pytest.mark.parametrize(
  ('d', 'num_draws'), mostly_full([(1, 500)], [1, 2, 5], [1000], slow=[(2, 1000)])
)
def test_a_head_that_reads_features_leaves_the_null_of_the_label_correlation_rarely(
  d, num_draws
):
  """Features x say how much the labels w·x vary, and not their signs."""
  generator, n = np.random.default_rng(d), 512
  left, by_count = 0, 0
  for _ in range(num_draws):
    x, w = generator.normal(size=(2, n, d))
    labels = (w * x).sum(axis=1, keepdims=True)
    found: Any = correlation(x[:, :1], labels)
    left += abs(found.mean) > found.half
    by_count += abs(found.mean) > 2 / n**0.5

  def four_errors(rate):
    return 4 * (rate * (1 - rate) / num_draws) ** 0.5

  # The rate is 0.050 to 0.057 in 4,000 draws, and of fewer within four errors of it.
  assert 0.05 - four_errors(0.05) < left / num_draws < 0.057 + four_errors(0.057)
  # Independent numbers would leave ± 2/√n in 4.6 % of draws. Here the correlation has
  # the variance E x_1² (w·x)² / (d n) = (d + 2)/(d n).
  rate = 2 * float(stats.norm.sf(2 / (1 + 2 / d) ** 0.5))
  assert abs(by_count / num_draws - rate) < four_errors(rate)


def test_a_pattern_that_is_the_mask_scores_one_and_others_their_share():
  previous = np.eye(5, k=-1, dtype=bool)[None]
  assert _share(previous.astype(float), previous, True) == 1
  half = 0.5 * previous + 0.5 * np.eye(5, k=-2)[None]
  assert _share(half, previous, False) == pytest.approx(4 / 7)
  assert _share(0 * half, previous, True) == 'the head attends to nothing'


@pytest.mark.slow
def test_ablating_either_head_of_induction_costs_all_and_any_other_nothing():
  model, task = induction()
  clean = sample(task, jax.random.key(1), 64)
  table = effects(
    model,
    task,
    clean,
    task.redraw(jax.random.key(2), clean, 'inputs'),
    ['layers.0.mixer.heads', 'layers.1.mixer.heads'],
    _accuracy,
    heads=True,
  )
  assert table.clean.mean == 1
  # 1/8 of 64 prompts, and their labels that are shared: four standard errors.
  assert table.corrupt.mean <= 0.3
  assert [(row.site[7], row.head) for row in table.rows] == [
    ('0', 0),
    ('0', 1),
    ('1', 0),
    ('1', 1),
  ]
  for row in table.rows:
    for cost in (row.zero, row.mean):
      if row.head == 0:
        assert cost.mean == pytest.approx(1, abs=0.15)
      else:
        assert abs(cost.mean) <= 0.01
  # The induction head's clean value recovers all; the other, which corrupt labels do
  # not move at the query, nothing alone.
  assert table.rows[2].recovered.mean >= 0.99
  assert abs(table.rows[3].recovered.mean) <= 0.01


def _with_wrong_keys(task):
  clean = sample(task, jax.random.key(2), 64)
  return clean, zoo.Prompt(
    x=jnp.roll(clean.x, 1, axis=-1),
    y=clean.y,
    x_query=clean.x_query,
    y_query=clean.y_query,
  )


@pytest.mark.slow
def test_the_path_between_the_two_heads():
  model, task = induction()
  clean, wrong_keys = _with_wrong_keys(task)

  sites = 'layers.0.mixer.heads', 'layers.1.mixer.in'
  effect = path_effect(model, task, clean, wrong_keys, *sites, _accuracy)
  assert effect.mean >= 0.99
  # The accuracy falls, and a metric may. A loss that falls has no shares.
  nodes = [probing.Node(site) for site in sites]
  exchanged = dataclasses.replace(wrong_keys, y_query=clean.y_query)
  assert path_effect(model, task, exchanged, clean, *nodes) is None


@pytest.mark.slow
def test_the_path_from_an_output_to_the_tokens_after_it():
  model, task = induction()
  sites = 'layers.0.mixer.out', 'layers.1.tokens'
  clean, wrong_keys = _with_wrong_keys(task)
  effect = path_effect(model, task, clean, wrong_keys, *sites, _accuracy)
  assert effect.mean >= 0.99


class _Sum(nnx.Module):
  """Predicts 3 x_1 + x_2 of the query, each of which goes through a tap."""

  def __init__(self, kind=None):
    self.first_tap, self.second_tap = Tap(axes='b', kind=kind), Tap(axes='b', kind=kind)

  def __call__(self, prompt):
    first, second = prompt.x_query[:, 0], prompt.x_query[:, 1]
    return 3 * self.first_tap(first) + self.second_tap(second)


def test_paths_that_are_not_there_are_refused():
  task, sites = isotropic(2, 3), ('first', 'second')
  with refuses("'second' does not depend on 'first' by this path"):
    path_effect(_Sum('added'), task, *_pair(), *sites)
  with refuses('_Sum has no tap of the kind added'):
    path_effect(_Sum(), task, *_pair(), *sites)


class _Aside(nnx.Module):
  """Predicts a value that a tap has seen, and not what the tap returns."""

  def __init__(self, name, kind=None):
    self.first_tap = Tap(name, 'b', kind=kind)
    self.out_tap = Tap('mixer.out', 'b', kind='added')
    self.after_tap, self.seen_tap = Tap('after', 'b'), Tap('seen', 'b')

  def __call__(self, prompt):
    value = self.out_tap(self.first_tap(prompt.x_query[:, 0]))
    self.seen_tap(value)
    return self.after_tap(value)


@pytest.mark.parametrize('name', ['mixer.heads', 'other'])
def test_what_is_added_from_the_sender_is_on_the_path_whatever_its_name(name):
  task = isotropic(2, 3)
  share = path_effect(_Aside(name, 'heads'), task, *_pair(), name, 'after')
  assert share.mean == pytest.approx(1)


@pytest.mark.slow
def test_a_share_that_would_be_0_is_refused():
  task = isotropic(2, 3)
  with refuses("the site 'seen' does not reach the prediction"):
    path_effect(_Aside('heads', 'heads'), task, *_pair(), 'heads', 'seen')
  # What comes from the residual stream goes on by the stream alone.
  said = 'this path, which keeps the values at mixer.out'
  with refuses("'after' does not depend on 'heads' by", said):
    path_effect(_Aside('heads', 'stream'), task, *_pair(), 'heads', 'after')


def _with_next(values):
  """The correlation of neighbours, of which the last is the first one's."""
  apart = values - values.mean()
  return max(np.sum(apart * np.roll(apart, 1)) / np.sum(apart**2), 0)


def test_shares_and_their_errors_are_those_of_numpy():
  task = isotropic(2, 3)
  clean, corrupt = _pair()
  table = effects(_Sum(), task, clean, corrupt)
  loss_clean, loss_corrupt, paired = table.clean, table.corrupt, table.gap
  rows = table.rows
  x, other, y = (
    np.asarray(a, np.float64) for a in (clean.x_query, corrupt.x_query, clean.y_query)
  )

  def losses(first, second):
    return np.square(3 * first + second - y)

  before, after = losses(*x.T), losses(*other.T)
  assert loss_clean.mean == pytest.approx(before.mean(), rel=1e-5)
  assert loss_corrupt.mean == pytest.approx(after.mean(), rel=1e-5)
  gap = after - before
  assert paired.mean == pytest.approx(gap.mean(), rel=1e-5)
  assert paired.stderr == pytest.approx(gap.std(ddof=1) / _NUM**0.5, rel=1e-5)
  mean = np.full(_NUM, x[:, 0].mean())
  expected = {
    'recovered': after - losses(x[:, 0], other[:, 1]),
    'zero': losses(0, x[:, 1]) - before,
    'mean': losses(mean, x[:, 1]) - before,
    'resample': losses(np.roll(x[:, 0], -1), x[:, 1]) - before,
  }
  assert rows[0].site == 'first'
  for kind, part in expected.items():
    ratio = part.mean() / gap.mean()
    error = (part - ratio * gap).std(ddof=1) / _NUM**0.5 / abs(gap.mean())
    if kind == 'resample':  # a prompt and the next one have a value in common
      error *= (1 + 2 * _with_next(part - ratio * gap)) ** 0.5
    share = getattr(rows[0], kind)
    assert (share.mean, share.stderr) == pytest.approx((ratio, error), rel=1e-3)


class _Twice(nnx.Module):
  """Its tap is called again, on the sum of its value and another label."""

  def __init__(self):
    self.value_tap = Tap(axes='b')

  def __call__(self, prompt):
    return self.value_tap(self.value_tap(prompt.y[:, 0]) + prompt.y[:, 1])


@pytest.mark.slow
def test_a_site_that_is_called_again_is_replaced_by_the_value_of_the_same_call():
  task = isotropic(2, 3)
  clean, _ = _pair()
  # Labels that the model predicts, so that corrupt prompts have the larger loss.
  clean = dataclasses.replace(clean, y_query=_Twice()(clean))
  table = effects(
    _Twice(),
    task,
    clean,
    task.redraw(jax.random.key(2), clean, 'inputs'),
    ['value'],
    kinds=['recovered'],
  )
  assert table.rows[0].recovered.mean == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
@pytest.mark.full
def test_replacements_in_a_looped_model_are_those_of_the_same_loop():
  task = isotropic(3, 4)
  model = drawn(
    lambda: zoo.models.Transformer(
      3, 4, num_layers=1, width=8, num_loops=2, rngs=nnx.Rngs(0)
    ),
    dtype='float32',
  )
  clean = sample(task, jax.random.key(0), 24)
  clean = dataclasses.replace(clean, y_query=jax.jit(model)(clean))
  table = effects(
    model,
    task,
    clean,
    task.redraw(jax.random.key(2), clean, 'inputs'),
    ['layers.0.tokens'],
    kinds=['recovered'],
  )
  assert table.rows[0].recovered.mean == pytest.approx(1, abs=1e-3)


_NUM = 640  # The gap of the losses is then more than ten standard errors.


def _pair() -> tuple[zoo.Prompt, zoo.Prompt]:
  """Returns pairs of prompts; the model of `_Sum` predicts the labels of the first."""
  task = isotropic(2, 3)
  clean, corrupt = (sample(task, jax.random.key(seed), _NUM) for seed in (0, 1))
  labels = clean.x_query @ jnp.array([3.0, 1.0]) + clean.y_query
  return dataclasses.replace(clean, y_query=labels), corrupt


class _Looped(nnx.Module):
  """Its tap is within a compiled loop."""

  def __init__(self):
    self.inner_tap, self.outer_tap = Tap(axes='b'), Tap(axes='n b')

  def __call__(self, prompt):
    start = prompt.x_query[:, 0]
    twice = jax.lax.fori_loop(0, 2, lambda _, z: self.inner_tap(2 * z), start)
    return twice + self.outer_tap(prompt.y.T)[0]


@pytest.mark.slow
def test_mistakes_of_effects():
  task = isotropic(2, 3)
  with refuses("the site 'inner' has no value", 'within a compiled loop'):
    effects(_Looped(), task, *_pair(), ['inner'])
  with refuses("the axes of the site 'outer' are 'n b'"):
    effects(_Looped(), task, *_pair(), ['outer'])
  with refuses('the metric returns the shape ()', f'({_NUM},)'):
    effects(_Sum(), task, *_pair(), metric=lambda answer, prompt: answer.mean())
  with refuses("sites is 'first'; it must be a list"):
    effects(_Sum(), task, *_pair(), 'first')
  with refuses("kinds is 'zero'; it must be a list"):
    effects(_Sum(), task, *_pair(), kinds='zero')
  clean, _ = _pair()
  with refuses("unknown site 'frist'", "did you mean 'first'"):
    effects(_Sum(), task, clean, clean, ['frist'])
  fewer = jax.tree.map(lambda array: np.asarray(array)[:4], clean)
  with refuses('corrupt', '(4, 3, 2)', f'({_NUM}, 3, 2)'):
    effects(_Sum(), task, clean, fewer)


def test_a_table_without_shares_says_why():
  clean, corrupt = _pair()
  task = isotropic(2, 3)
  table = effects(_Sum(), task, clean, corrupt, kinds=['zero'])
  assert 'no shares' not in str(table)
  back = effects(
    _Sum(), task, dataclasses.replace(corrupt, y_query=clean.y_query), clean
  )
  assert back.gap.mean < -back.gap.half
  assert back.rows
  assert all(row.zero is None for row in back.rows)
  assert 'since the corrupt prompts have the lower loss' in str(back)
  same = effects(_Sum(), task, clean, clean, kinds=['zero'])
  assert 'There are no shares, since the gap is' in str(same)
  with refuses('kinds is empty'):
    effects(_Sum(), task, clean, corrupt, kinds=[])


def test_a_negative_gap_has_shares_of_a_metric_alone():
  clean, corrupt = _pair()
  task = isotropic(2, 3)

  def metric(prediction, prompt):
    return -task.loss(prediction, prompt.y_query)

  found = effects(_Sum(), task, clean, corrupt, metric=metric, kinds=['recovered'])
  usual = effects(_Sum(), task, clean, corrupt, kinds=['recovered'])
  assert found.gap.mean == pytest.approx(-usual.gap.mean)
  for row, other in zip(found.rows, usual.rows, strict=True):
    assert row.recovered.mean == pytest.approx(other.recovered.mean)
  assert 'the metric of corrupt prompts' in str(found)


class _Compiled(nnx.Module):
  """Its call is one compiled function."""

  def __init__(self):
    self.value_tap = Tap(axes='b')

  @nnx.jit
  def predict(self, prompt):
    return self.value_tap(prompt.y[:, 0])

  def __call__(self, prompt):
    return self.predict(prompt)  # pyright: ignore[reportCallIssue]


class _PartlyLooped(nnx.Module):
  """One of its taps is within a compiled loop."""

  def __init__(self):
    self.inner_tap, self.outer_tap = Tap(axes='b'), Tap(axes='b')

  def __call__(self, prompt):
    start = self.outer_tap(prompt.x_query[:, 0])
    return jax.lax.fori_loop(0, 2, lambda _, z: self.inner_tap(2 * z), start)


def test_what_is_no_list_of_sites_and_nodes_is_refused(unchecked):
  task, (clean, corrupt) = isotropic(2, 3), _pair()
  node: Any = Node('first')
  for sites, said in (
    (node, 'it must be a list of sites'),
    ([('first', 0)], "('first', 0)"),
    ([None], 'an entry of sites is None'),
  ):
    with refuses(said):
      effects(_Sum(), task, clean, corrupt, sites)
  for sites in node, [node]:
    with refuses('Node'):
      probing.capture(_Sum(), clean, sites)
    with refuses('Node'):
      probing.probe_latents(_Sum(), task, sites=sites)
  names = (name for name in ['first'])
  assert [*probing.capture(_Sum(), clean, names)] == ['first']  # pyright: ignore
  for sites in [node], [['first']]:  # One whole site has gradients.
    (row,) = effects(_Sum(), task, clean, corrupt, sites, method='gradient').rows
    assert row.site == 'first'


@pytest.mark.slow
def test_sites_within_compiled_functions_are_named():
  task, (clean, corrupt) = isotropic(2, 3), _pair()
  said = 'none of the sites value has a value', 'nnx.jit', 'without the decorator'
  with refuses(*said):
    effects(_Compiled(), task, clean, corrupt)
  with refuses(*said):
    probing.capture(_Compiled(), clean)
  with refuses(*said):
    probing.probe_latents(_Compiled(), task, num_prompts=128)
  table = effects(_PartlyLooped(), task, clean, corrupt, kinds=['zero'])
  assert [row.site for row in table.rows] == ['outer']
  assert table.left_out == ('inner',)
  assert 'within a compiled loop or function: inner' in str(table)


class _Mixed(nnx.Module):
  """Shows a pair of arrays, the largest feature's number, and a number."""

  def __init__(self):
    self.carry_tap = Tap(axes='b n')
    self.index_tap, self.value_tap = Tap(axes='b'), Tap(axes='b')

  def __call__(self, prompt):
    labels, query = self.carry_tap((prompt.y, prompt.x_query))
    index = self.index_tap(jnp.argmax(query, axis=1))
    largest = jnp.take_along_axis(query, index[:, None], axis=1)[:, 0]
    return self.value_tap(labels[:, 0] + largest)


@pytest.mark.slow
def test_trees_have_no_rows_and_integers_no_mean():
  task, (clean, corrupt) = isotropic(2, 3), _pair()
  clean = dataclasses.replace(clean, y_query=_Mixed()(clean))
  table = effects(_Mixed(), task, clean, corrupt)
  assert [row.site for row in table.rows] == ['index', 'value']
  assert table.left_out == ()
  integers, numbers = table.rows
  assert integers.mean is None
  assert integers.recovered is not None
  assert numbers.mean is not None
  # Integers have the value of the next prompt.
  before = np.asarray(clean.x_query)
  moved = before[np.arange(_NUM), np.roll(before.argmax(axis=1), -1)] - before.max(
    axis=1
  )
  expected = np.square(moved).mean() / table.gap.mean
  assert integers.resample.mean == pytest.approx(expected, rel=1e-3)
  assert probing.dead_sites(_Mixed(), clean) == []
  with refuses('the values at index are integers, which have no mean'):
    effects(_Mixed(), task, clean, corrupt, ['index'], kinds=['mean'])
  with refuses("the value at the site 'carry' is a tree of arrays"):
    effects(_Mixed(), task, clean, corrupt, ['carry'])


def test_the_ends_of_a_path_have_no_integers():
  with refuses("the value at the site 'index' is int32", 'with a fraction'):
    path_effect(_Counting(), isotropic(2, 3), *_pair(), 'index', 'value')


class _Counting(_Mixed):
  """What it adds to the stream is one of its values."""

  def __init__(self):
    super().__init__()
    self.value_tap = Tap(axes='b', kind='added')


def test_signatures_of_other_libraries_are_refused():
  task, (clean, corrupt) = isotropic(2, 3), _pair()
  with_hook: Any = lambda value, hook: value  # noqa: E731
  with refuses("the edit at the site 'first' is a function", 'takes the value alone'):
    probing.edited(_Sum(), {'first': with_hook})
  said = 'a metric takes the predictions and the clean prompts'
  with refuses(said):
    effects(_Sum(), task, clean, corrupt, metric=lambda logits: logits)
  with refuses(said):
    path_effect(
      _Sum('added'), task, clean, corrupt, 'first', 'second', lambda logits: logits
    )

  def wrong(value):
    return value + len(3)  # pyright: ignore[reportArgumentType]

  # An error within a function of the user's own is not taken for another one.
  with pytest.raises(TypeError, match='has no len'):
    probing.edited(_Sum(), {'first': wrong})(clean)


@pytest.mark.usefixtures('unchecked')
def test_sites_are_no_function():
  clean, corrupt = _pair()
  names: Any = lambda name: 'first' in name  # noqa: E731
  for call in (
    lambda: probing.capture(_Sum(), clean, names),
    lambda: effects(_Sum(), isotropic(2, 3), clean, corrupt, names),
  ):
    with refuses('sites is a function; it must be a list of names'):
      call()


class _OfHeads(nnx.Module):
  """Its taps of heads have names of its own."""

  def __init__(self, *names):
    self.taps = nnx.List([Tap(name, kind='heads') for name in names])

  def __call__(self, prompt):
    return prompt.y_query


def test_heads_of_a_layer_are_found_by_their_kind():
  model = _OfHeads('blocks.0.z', 'blocks.1.z', 'blocks.1.y')
  assert site_of_heads(model, 'blocks.0@2') == 'blocks.0.z@2'
  assert site_of_heads(model, 'blocks.1') is None
  assert site_of_heads(model, 'blocks.2') is None


class _Attending(nnx.Module):
  """One map of attention, from the first token to itself, in an order of its own."""

  def __init__(self, axes, kind: str | None = 'embed'):
    self.axes = axes
    self.tokens_tap = Tap(axes='b n d', kind=kind)
    self.pattern_tap = Tap(axes=axes, kind='pattern')

  def __call__(self, prompt):
    tokens = self.tokens_tap(prompt.x)
    b, n, _ = tokens.shape
    previous = jnp.broadcast_to(jnp.eye(n, k=-1).at[0, 0].set(1), (b, n, n))
    letters = [letter for letter in self.axes.split() if letter != 'h']
    pattern = jnp.transpose(previous, ['bqk'.index(letter) for letter in letters])
    if 'h' in self.axes:
      pattern = jnp.expand_dims(pattern, self.axes.split().index('h'))
    return self.pattern_tap(pattern).sum(axis=(1, 2)).ravel()[:b]


@pytest.mark.parametrize('axes', ['b h k q', 'b q k h', 'b q k', 'b k q'])
def test_attention_is_read_by_the_letters_of_its_axes(axes):
  clean, _ = _pair()
  (score,) = head_scores(_Attending(axes), clean)
  assert score.previous == pytest.approx(2 / 3)  # of three tokens


def test_attention_of_other_axes_is_refused():
  clean, _ = _pair()
  with refuses("the axes of the site 'pattern' are 'b q n'", 'b, h, q and k'):
    head_scores(_AxesNamed('b q n'), clean)
  with refuses('_Attending has no tap of the kind embed'):
    head_scores(_Attending('b q k', kind=None), clean)


class _AxesNamed(_Attending):
  """Its map has other letters than the tap says."""

  def __init__(self, axes):
    super().__init__('b q k')
    self.pattern_tap = Tap(axes=axes, kind='pattern')


class _TwoHeads(nnx.Module):
  """Predicts 3 x_1 + x_2 of the query, which are two heads."""

  def __init__(self):
    self.heads_tap = Tap('heads', axes='b h', kind='heads')
    self.out_tap = Tap('out', axes='b', kind='added')

  def __call__(self, prompt):
    return self.out_tap(self.heads_tap(prompt.x_query) @ jnp.array([3.0, 1.0]))


def test_values_that_are_replaced_together_have_one_row():
  task, (clean, corrupt) = isotropic(2, 3), _pair()
  first, second = (probing.Node('heads', head=head) for head in (0, 1))
  sites = ['heads', first, [first, second], ('heads', 'out'), 'out']
  kinds = ['recovered', 'zero', 'mean', 'resample']
  table = effects(_TwoHeads(), task, clean, corrupt, sites, kinds=kinds)
  assert [(row.site, row.head, row.site_kind) for row in table.rows] == [
    ('heads', None, 'heads'),
    ('heads', 0, 'heads'),
    ('heads, head 0 + heads, head 1', None, 'heads'),
    ('heads + out', None, None),
    ('out', None, 'added'),
  ]
  whole, one, both, with_out, out = table.rows
  for row, same in (both, whole), (with_out, out):
    for share, of_same in zip(row[3:7], same[3:7], strict=True):
      found, wanted = ((each.mean, each.stderr) for each in (share, of_same))
      assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)
  assert whole.recovered.mean == pytest.approx(1)
  # All heads of a prompt have the values of the next prompt.
  predicted = np.asarray(clean.x_query, np.float64) @ [3.0, 1.0]
  before, after = (
    np.square(values - clean.y_query).mean()
    for values in (predicted, np.roll(predicted, -1))
  )
  lost = (after - before) / table.gap.mean
  assert whole.resample.mean == pytest.approx(lost, rel=1e-4)
  alone = effects(_TwoHeads(), task, clean, corrupt, heads=True, kinds=kinds).rows[0]
  assert (alone.site, alone.head) == ('heads', 0)
  for share, of_alone in zip(one[3:7], alone[3:7], strict=True):
    found, wanted = ((each.mean, each.stderr) for each in (share, of_alone))
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)
  with refuses('an entry of sites is empty'):
    effects(_TwoHeads(), task, clean, corrupt, [[]])
  with refuses("sites has 'heads + out'", "need method='patch'"):
    effects(_TwoHeads(), task, clean, corrupt, [('heads', 'out')], method='gradient')
  with refuses('the head is 2 at the site'):
    effects(_TwoHeads(), task, clean, corrupt, [first._replace(head=2)])
