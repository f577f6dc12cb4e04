"""Paths from head to head, beside a forward pass in NumPy."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing import numpy_transformer as steps
from tests.probing.models import sample
from tests.settings import isotropic
from tests.weights import double, drawn, promoting_float64
from zoo import probing
from zoo.probing import Estimate, Node, Rows

# Shares are None only where a test says so.
path_effect: Any = probing.path_effect


def _losses(model, prompt, changed):
  """The losses after a change of the second layer's queries, keys and values."""
  first, second = model.layers
  stream = steps.embedded(model, prompt)
  stream = steps.after(first, stream, steps.attended(**steps.parts(first, stream)))
  parts = changed(steps.parts(second, stream), stream)
  stream = steps.after(second, stream, steps.attended(**parts))
  outputs = steps.linear(model.read_out, steps.normed(model.norm, stream))[:, -1, 0]
  return np.square(outputs - steps.setting()[2].y_query)


def _expected(name, sender, receiver):
  """The share by equations; sender and receiver are (head, token), None is all."""
  model, _, clean, corrupt = steps.setting()
  first, second = model.layers
  heads = [
    steps.attended(**steps.parts(first, steps.embedded(model, prompt)))
    for prompt in (clean, corrupt)
  ]

  def mask(head, token):
    chosen = np.zeros(heads[0].shape[1:3], bool)
    rows = slice(None) if token is None else token
    chosen[rows, slice(None) if head is None else head] = True
    return chosen[None, :, :, None]

  change = np.where(mask(*sender), heads[0] - heads[1], 0)
  moved = change.reshape(*change.shape[:2], -1) @ double(first.mixer.out)[0]

  def changed(parts, stream):
    new = steps.projected(second, name, stream + moved)
    return parts | {name: np.where(mask(*receiver), new, parts[name])}

  before = _losses(model, clean, lambda parts, stream: parts)
  after = _losses(model, corrupt, lambda parts, stream: parts)
  patched = _losses(model, corrupt, changed)
  return (after - patched).mean() / (after - before).mean()


@pytest.mark.parametrize(
  ('name', 'sender', 'receiver'),
  mostly_full(
    [],
    [
      ('key', (0, -2), (1, -2)),
      ('key', (1, None), (0, None)),
      ('value', (1, None), (0, None)),
      ('value', (None, None), (1, None)),
    ],
    slow=[('query', (1, None), (0, None))],
  ),
)
def test_the_path_from_a_head_to_the_inputs_of_another_is_that_of_numpy(
  name, sender, receiver
):
  model, task, clean, corrupt = steps.setting()
  nodes = (
    Node('layers.0.mixer.heads', *sender),
    Node(f'layers.1.mixer.{name}', *receiver),
  )
  with promoting_float64():
    share = path_effect(model, task, clean, corrupt, *nodes)
  expected = _expected(name, sender, receiver)
  assert abs(expected) > 1e-5  # a share of 0 would say nothing
  # Losses are differences of sums of some hundred products in float64.
  assert share.mean == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_all_senders_at_once_have_the_effects_of_each_alone():
  model, task, clean, corrupt = steps.setting()
  receiver = Node('layers.1.mixer.key', 1)
  with promoting_float64():
    table: Any = probing.path_effects(model, task, clean, corrupt, receiver)
    nodes = [Node(row.sender, row.head) for row in table.rows]
    # What comes after the receiver does not reach it, and has no row.
    heads = [Node('layers.0.mixer.heads', head) for head in range(2)]
    assert nodes == [Node('layers.0.tokens'), *heads, Node('layers.0.network.out')]
    for row, node in [*zip(table.rows, nodes, strict=True)][1::2]:
      alone = path_effect(model, task, clean, corrupt, node, receiver)
      assert row.recovered.mean == pytest.approx(alone.mean, rel=1e-9)
      assert row.recovered.half == pytest.approx(alone.half, rel=1e-9)
    with refuses("'layers.1.network.out' by this path", 'does not depend on'):
      probing.path_effects(
        model, task, clean, corrupt, receiver, [*heads, 'layers.1.network.out']
      )
    with refuses("unknown kind 'one'"):
      probing.path_effects(model, task, clean, corrupt, receiver, kinds=['one'])


def test_a_table_without_shares_says_why_below_it():
  row = probing.PathEffect('embed', None, None, None, None, None, None)
  large, small = Estimate(1.0, 0.01, 64), Estimate(0.01, 0.01, 64)
  receiver, rows = Node('layers.0.mixer.out'), Rows([row])
  for gap, said in (
    (large, '± t·s.e. over 64 prompts'),
    (small, 'There are no shares, since the gap is less than 3 standard errors from 0'),
  ):
    table = probing.PathEffects(receiver, large, large, gap, rows)
    assert str(table).splitlines()[-1] == said


@pytest.mark.parametrize(
  ('kind', 'new'),
  mostly_full(
    [],
    [
      ('zero', np.zeros_like),
      ('mean', lambda value: np.broadcast_to(value.mean(axis=0), value.shape)),
    ],
    slow=[('resample', lambda value: np.roll(value, -1, axis=0))],
  ),
)
def test_an_ablated_path_is_that_of_numpy(kind, new):
  model, task, clean, corrupt = steps.setting()
  first, second = model.layers
  embedded = steps.embedded(model, clean)
  heads = steps.attended(**steps.parts(first, embedded))
  change = np.zeros_like(heads)
  change[:, :, 1] = (new(heads) - heads)[:, :, 1]
  moved = change.reshape(*change.shape[:2], -1) @ double(first.mixer.out)[0]

  def changed(parts, stream):
    value = steps.projected(second, 'value', stream + moved)
    return parts | {
      'value': np.where(np.arange(2)[:, None] == 0, value, parts['value'])
    }

  before, ablated = (
    _losses(model, clean, of).mean() for of in (lambda parts, _: parts, changed)
  )
  gap = _losses(model, corrupt, lambda parts, _: parts).mean() - before
  with promoting_float64():
    table = probing.path_effects(
      *(model, task, clean, corrupt),
      receiver=Node('layers.1.mixer.value', 0),
      senders=[Node('layers.0.mixer.heads', 1)],
      kinds=[kind],
    )
  (row,) = table.rows
  expected = (ablated - before) / gap
  assert abs(expected) > 1e-5
  assert getattr(row, kind).mean == pytest.approx(expected, rel=1e-9)
  assert row.recovered is None


def test_nodes_that_are_not_there_are_refused():
  model, task, clean, corrupt = steps.setting()
  effect = functools.partial(path_effect, model, task, clean, corrupt)
  heads, key = Node('layers.0.mixer.heads'), Node('layers.1.mixer.key')
  with promoting_float64():
    with refuses('the head is 2 at the site', 'from 0 to 1'):
      effect(heads._replace(head=2), key)
    with refuses('the token is -8 at the site', 'from -7 to 6'):
      effect(heads, key._replace(token=-8))
    with refuses("'layers.1.tokens' has no axis of heads", 'axes are b n w'):
      effect(heads, Node('layers.1.tokens', head=0))
    with refuses("unknown site 'layers.0.mixer.hats'"):
      effect('layers.0.mixer.hats', key)


@pytest.mark.slow
@pytest.mark.full
def test_paths_to_earlier_and_other_tokens_are_refused():
  model, task, clean, corrupt = steps.setting()
  effect = functools.partial(path_effect, model, task, clean, corrupt)
  heads, key = Node('layers.0.mixer.heads'), Node('layers.1.mixer.key')
  with promoting_float64():
    # A causal mask keeps the values of later tokens out, although 0 · NaN is NaN.
    value, stream = 'layers.0.mixer.value', 'layers.1.tokens'
    with refuses('layers.1.tokens, token 2', 'does not depend on', 'token 6'):
      effect(Node(value, token=6), Node(stream, token=2))
    # The residual stream keeps tokens apart.
    with refuses('layers.1.mixer.key, token 1', 'does not depend on', 'token 2'):
      effect(heads._replace(token=2), key._replace(token=1))


class _Thresholds(nnx.Module):
  """What goes through it is above 10, which labels of corrupt prompts are not."""

  def __init__(self, kind: Any = 'stream'):
    self.in_tap = probing.Tap('in', 'b', kind='guess')
    self.start_tap = probing.Tap('start', 'b', kind=kind)
    self.unit_tap = probing.Tap('unit', 'b', kind='added')
    self.pair_tap = probing.Tap('pair', 'b')

  def __call__(self, prompt):
    value = self.in_tap(prompt.y[:, 0])
    self.pair_tap((value, value))
    start = self.start_tap(0 * value)
    return start + self.unit_tap(jax.nn.relu(value - 10))


@pytest.mark.slow
def test_a_path_may_be_open_at_the_clean_value_alone():
  task = isotropic(2, 3)
  corrupt = sample(task, jax.random.key(0), 40)
  corrupt = dataclasses.replace(corrupt, y=np.clip(corrupt.y, -2, 2))
  clean = dataclasses.replace(corrupt, y=corrupt.y + 20)
  clean = dataclasses.replace(clean, y_query=_Thresholds()(clean))
  share = path_effect(_Thresholds(), task, clean, corrupt, 'in', 'unit')
  assert (share.mean, share.stderr) == (1.0, 0.0)
  with refuses('no tap of the kind embed or stream', "'in', whose kind is guess"):
    path_effect(_Thresholds(None), task, clean, corrupt, 'in', 'unit')
  with refuses("the value at the site 'pair' is a tree"):
    path_effect(_Thresholds(), task, clean, corrupt, 'pair', 'unit')


@pytest.mark.slow
@pytest.mark.full
def test_no_path_leads_to_an_earlier_token_through_an_fft():
  task = isotropic(2, 3)
  model: Any = drawn(
    lambda: zoo.models.Transformer(
      2, 3, mixer='hyena', num_layers=2, width=4, num_heads=1, rngs=nnx.Rngs(0)
    ),
    dtype='float32',
  )
  clean, corrupt = (sample(task, jax.random.key(seed), 40) for seed in (0, 1))
  later, earlier = Node('layers.0.mixer.in', token=3), Node('layers.1.tokens', token=1)
  with refuses('layers.1.tokens, token 1', 'does not depend on', 'token 3'):
    path_effect(model, task, clean, corrupt, later, earlier)


@pytest.mark.slow
def test_the_path_from_the_guess_leaves_all_mixers_as_they_were():
  task = isotropic(2, 3)
  model: Any = drawn(
    lambda: zoo.models.Transformer(
      *(2, 3),
      num_layers=2,
      num_heads=1,
      width=4,
      feed_forward='none',
      norm='none',
      guess='fixed',
      guess_weights=3.0,
      rngs=nnx.Rngs(0),
    ),
    dtype='float32',
  )
  clean, corrupt = (sample(task, jax.random.key(seed), 40) for seed in (0, 1))
  # Labels that the model predicts, so that corrupt prompts have the larger loss.
  clean = dataclasses.replace(clean, y_query=nnx.jit(lambda of: of(clean))(model))
  mixers = [f'layers.{layer}.mixer.out' for layer in range(2)]
  of_corrupt = probing.capture(model, corrupt, mixers)
  edits: dict[str, Any] = {site: probing.Set(of_corrupt[site]) for site in mixers}
  edits['guess'] = probing.Set(probing.capture(model, clean, ['guess'])['guess'])
  stream = probing.capture(probing.edited(model, edits), corrupt, ['final.stream'])[
    'final.stream'
  ]

  patched = probing.edited(model, {'final.stream': probing.Set(stream)})
  after, by_hand = (
    np.square(np.asarray(predicts(corrupt), np.float64) - clean.y_query).mean()
    for predicts in (model, patched)
  )
  expected = (after - by_hand) / after
  sites = 'guess', 'final.stream'
  share = path_effect(model, task, clean, corrupt, *sites)
  assert share.mean == pytest.approx(expected, rel=1e-3)
  (row,) = probing.effects(
    model, task, clean, corrupt, ['guess'], kinds=['recovered']
  ).rows
  assert row.recovered is not None
  assert abs(row.recovered.mean - expected) > 0.01
