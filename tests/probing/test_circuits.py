"""Circuits: the edges of induction by hand, and runs of edges beside NumPy."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.compiled import predict
from tests.marks import mostly_full, mostly_slow
from tests.probing import numpy_transformer as steps
from tests.probing.models import induction, table
from tests.settings import isotropic
from tests.weights import drawn, promoting_float64
from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.probing import Node, circuit, circuits
from zoo.probing.circuits import _of_random, _pair, _range_of
from zoo.probing.graph import graph_of


@functools.cache
def _induction():
  """Induction by hand; a second head of each layer writes noise that nobody reads."""
  model, task = induction(num_keys=2, num_examples=2)
  model, width = nnx.clone(model), model.read_in.out_features
  size, used = width // 2, 3 * 4 + 5  # entries of a head, and of what is read
  generator = np.random.default_rng(0)
  noise = functools.partial(generator.normal, 0, 0.3)
  for layer in model.layers:
    for name in ('query', 'key', 'value'):
      kernel = getattr(layer.mixer, name).kernel
      kernel[...] = kernel[...].at[:, size:].set(noise(size=(width, size)))
    out = layer.mixer.out.kernel
    out[...] = out[...].at[size:, used:].set(noise(size=(size, width - used)))
  return model, task


_TOKENS = Node('layers.0.tokens')
_PREVIOUS, _INDUCTION = (Node(f'layers.{i}.mixer.heads', 0) for i in range(2))
_COPIES = {
  (_INDUCTION, Node('final.stream')),
  (_TOKENS, Node('layers.1.mixer.value', 0)),
}
_MATCHES = {
  (_TOKENS, Node('layers.1.mixer.query', 0)),
  (_PREVIOUS, Node('layers.1.mixer.key', 0)),
  (_TOKENS, Node('layers.0.mixer.value', 0)),
}


@pytest.mark.parametrize(
  ('keep', 'expected'),
  mostly_full(
    [(None, _COPIES | _MATCHES)],
    # Other labels of the same keys change what is copied, and not what is looked for.
    [('inputs', _COPIES)],
  ),
)
def test_exactly_the_edges_of_induction_by_hand_are_found(keep, expected):
  found = circuit(*_induction(), keep=keep, num_prompts=64)
  assert {(edge.sender, edge.receiver) for edge in found.kept} == expected
  assert found.recovered.mean == pytest.approx(1, abs=1e-5)
  # It is judged on the second of two pairs of prompts, and was chosen on the first.
  model, task = _induction()
  pairs = [
    _pair(task, keep, 64, key) for key in jax.random.split(stream_of(0, CURVE_STREAM))
  ]
  first, second = (
    float(task.loss(predict(model, corrupt), clean.y_query).mean())
    for clean, corrupt in pairs
  )
  assert found.corrupt.mean == pytest.approx(second, rel=1e-5)
  assert abs(first - second) > 0.01 * second
  # Without them answers are those of the corrupt prompts.
  assert found.without.mean == pytest.approx(0, abs=1e-5)
  fewer = [point.recovered.mean for point in found.curve[: len(expected) - 1]]
  assert max(fewer) < 0.9
  assert found.random.mean < 0.3
  assert found.random.mean <= found.largest_random < 0.9
  others = [edge.score.mean for edge in found.edges if not edge.is_kept]
  assert np.abs(others).max() < 1e-6 < min(abs(edge.score.mean) for edge in found.kept)
  # All bootstrap samples agree.
  assert all(edge.kept_share == edge.is_kept for edge in found.edges)
  assert len(found.rows) == len(found.edges) == 29
  said = str(found)
  assert said.startswith(f'{len(expected)} of 29 edges recover 1.000')
  assert f'and at most {found.largest_random:.3f}.' in said
  assert '95 %' not in said  # 64 prompts are too few.


@pytest.mark.slow
@pytest.mark.parametrize('stop', mostly_full(['minutes'], ['Ctrl-C']))
def test_what_was_searched_before_a_stop_is_kept(stop, monkeypatch):
  whole = circuit(*_induction(), keep=None, num_prompts=64)
  monkeypatch.setattr(circuits, '_FEW', 2)
  minutes = 1e-6 if stop == 'minutes' else None
  calls = []

  def losses(runner, *arguments, of_runner=circuits._Runner.losses):
    calls.append(arguments)
    if len(calls) == 2 and stop == 'Ctrl-C':
      raise KeyboardInterrupt
    return of_runner(runner, *arguments)

  monkeypatch.setattr(circuits._Runner, 'losses', losses)
  found = circuit(*_induction(), keep=None, num_prompts=64, minutes=minutes)
  assert found.stopped == ('by Ctrl-C' if stop == 'Ctrl-C' else 'after 1e-06 minutes')
  assert [edge.is_kept for edge in found.edges] == [True] * 2 + [None] * 27
  assert {(edge.kept_share, edge.found_share) for edge in found.edges} == {(None, None)}
  assert (found.sizes, found.range_of_sizes) == ([], None)
  # These two edges are the first of the whole circuit, and are judged as it is.
  assert [(edge.sender, edge.receiver, edge.score) for edge in found.edges] == [
    (edge.sender, edge.receiver, edge.score) for edge in whole.edges
  ]
  (point,) = found.curve
  assert point.num_edges == 2
  assert point.recovered.mean == pytest.approx(whole.curve[1].recovered.mean, abs=1e-6)
  assert found.recovered == point.recovered
  assert '27 of 29 edges were not searched' in str(found)
  with refuses('minutes is 0', '> 0'):
    circuit(*_induction(), num_prompts=64, minutes=0.0)


@pytest.mark.slow
@pytest.mark.full
def test_a_stop_among_the_other_searches_keeps_the_circuit(monkeypatch):
  calls, last = [], []

  def losses(runner, *arguments, of_runner=circuits._Runner.losses):
    calls.append(arguments)
    if len(calls) in last:
      raise KeyboardInterrupt
    return of_runner(runner, *arguments)

  monkeypatch.setattr(circuits._Runner, 'losses', losses)
  search = functools.partial(circuit, *_induction(), keep=None, num_prompts=64)
  alone = search(num_searches=1)
  # The second search runs its two ends and eight sets, and is stopped at the next.
  last.append(2 * len(calls) + 3)
  found = search(num_searches=3)
  assert found.stopped == 'by Ctrl-C'
  assert 'there were fewer searches' in str(found)
  assert found.sizes == alone.sizes == [5]
  assert found.edges == alone.edges
  assert found.curve == alone.curve


@pytest.mark.parametrize('num_searches', [2, 5, 39])
def test_one_more_search_is_in_the_range_as_often_as_it_says(num_searches):
  generator = np.random.default_rng(0)
  # Skewed numbers with ties, as those of edges are.
  draws = generator.geometric(0.05, size=(4000, num_searches + 1)).tolist()
  hits = []
  for *sizes, other in draws:
    low, high, _ = _range_of(sizes)
    hits.append(low <= other <= high)
  probability = _range_of(draws[0][:-1])[2]
  assert probability == pytest.approx((num_searches - 1) / (num_searches + 1))
  # Four standard errors; ties raise it by less than 0.05.
  error = 4 * np.sqrt(probability * (1 - probability) / len(hits))
  assert probability - error < np.mean(hits) < probability + 0.05 + error


@pytest.mark.parametrize('num_edges', [1, 32, 33, 262, 10_000])
def test_a_search_has_few_numbers_of_edges(num_edges):
  counts = circuits._counts(num_edges)
  assert counts[:32] == [*range(1, min(num_edges, 32) + 1)]
  assert counts[-1] == num_edges
  assert len(counts) <= 150
  # They grow by 5 %, rounded up.
  pairs = itertools.pairwise(counts)
  assert all(small < large <= 1.05 * small + 1 for small, large in pairs)


def test_a_random_set_that_recovers_all_is_not_hidden_in_the_mean():
  shares = np.array([1.0] + [0.0] * 9)
  gap = np.random.default_rng(0).uniform(1, 3, size=64)
  clean = np.ones(64)
  losses = clean + (1 - shares[:, None]) * gap  # They recover these shares of the gap.
  random, largest = _of_random(losses, clean, clean + gap)
  assert random.mean == pytest.approx(0.1)
  # The standard deviation of the shares is √0.1, and t = 2.262 with 9 degrees of
  # freedom. Prompts add nothing: one more set is on the same prompts.
  assert random.half == pytest.approx(2.262 * np.sqrt(0.1 * (1 + 1 / 10)), rel=1e-3)
  # A circuit that recovers 0.9 is worse than one of ten random sets.
  assert largest == pytest.approx(1)


@pytest.mark.parametrize('keep', mostly_slow(['query'], [None]))
def test_prompts_are_held_out(keep, tmp_path):
  task = table(tmp_path)
  held_out = set(task.held_out().x[:, 0])
  for prompt in _pair(task, keep, 8, jax.random.key(0)):
    assert set(np.ravel(prompt.features[..., 0])) <= held_out


def _numpy_run(mask):
  """The predictions if the edges of a mask carry what is added, by equations."""
  model, _, clean, corrupt = steps.setting()
  heads, size = steps.HEADS, steps.SIZE

  def added_by(prompt, is_on):
    """What each sender adds, in order; `is_on` says which edges carry it."""
    senders, edge = [steps.embedded(model, prompt)], iter(is_on)

    def read(bias):
      stream = sum(bias)
      for sent, of_corrupt in zip(senders, others, strict=False):
        stream = stream + (sent if next(edge) else of_corrupt)
      return stream

    bias = []
    for layer in model.layers:
      parts = {}
      for name in ('query', 'key', 'value'):
        streams = [read(bias) for _ in range(heads)]
        whole = [steps.projected(layer, name, stream) for stream in streams]
        parts[name] = np.stack([whole[h][:, :, h] for h in range(heads)], axis=2)
      attended = steps.attended(**parts)
      kernel = np.asarray(layer.mixer.out.kernel[...]).reshape(heads, size, -1)
      senders += [attended[:, :, h] @ kernel[h] for h in range(heads)]
      bias.append(np.asarray(layer.mixer.out.bias[...])[None, None])
      hidden = steps.linear(
        layer.feed_forward.up, steps.normed(layer.norm_2, read(bias))
      )
      senders.append(steps.linear(layer.feed_forward.out, hidden))
    return senders, read(bias)

  others = [0.0] * 7
  others = added_by(corrupt, np.ones(len(mask), bool))[0]
  stream = added_by(clean, mask)[1]
  return steps.linear(model.read_out, steps.normed(model.norm, stream))[:, -1, 0]


@pytest.mark.slow
def test_runs_of_random_edges_are_those_of_numpy():
  model, _, clean, corrupt = steps.setting()
  with promoting_float64():
    graph = graph_of(model, clean)
    count = len(graph.edges)
    # Each layer has 2 heads of three inputs, and a network; the readout reads all.
    assert count == 6 + 3 + 6 * 4 + 6 + 7
    masks = np.random.default_rng(0).random((4, count)) < 0.6

    @jax.jit
    def predict(mask):
      ends = graph.ends(model, clean, corrupt)
      return graph.run(model, clean, ends, mask.astype(float)).prediction

    for mask in [*masks, np.ones(count, bool), np.zeros(count, bool)]:
      # In float64 a sum of some hundred products in another order.
      np.testing.assert_allclose(predict(mask), _numpy_run(mask), rtol=1e-9)


@pytest.mark.slow
def test_models_that_have_no_such_graph_are_refused():
  task = isotropic(2, 3)
  yq_lsa = drawn(lambda: zoo.models.YqLSA(2, rngs=nnx.Rngs(0)), dtype='float32')
  with refuses('YqLSA has no tap of the kind stream; a circuit needs stream'):
    circuit(yq_lsa, task, num_prompts=64)

  with refuses('YqLSA has no tap of the kind stream', 'needs stream, added'):
    circuit(yq_lsa, task, num_prompts=64, tokens=True)
  with refuses('num_searches is 0'):
    circuit(yq_lsa, task, num_prompts=64, num_searches=0)

  def transformer(**options):
    return drawn(
      lambda: zoo.models.Transformer(
        2, 3, num_layers=1, width=4, norm='none', rngs=nnx.Rngs(0), **options
      ),
      dtype='float32',
    )

  with refuses("'layers.0.tokens' is called again", 'without loops'):
    circuit(transformer(num_loops=2), task, num_prompts=64)
  with refuses("'layers.0.tokens' is called again", 'without loops'):
    circuit(transformer(num_loops=2), task, num_prompts=64, tokens=True)
  with refuses('depend on the residual stream beside', 'softmax', 'tokens=True'):
    circuit(transformer(mixer='retention', feed_forward='none'), task, num_prompts=64)
  blind: Any = transformer(feed_forward='none')
  blind.layers[0].mixer.out.kernel[...] *= 0
  with refuses('do not raise the loss of Transformer', 'no gap'):
    circuit(blind, task, num_prompts=64)
  with refuses("unknown keep 'labels'"):
    circuit(blind, task, keep='labels', num_prompts=64)


class _Unread(nnx.Module):
  """A transformer whose prediction also has the first label, past the stream."""

  def __init__(self):
    self.inner = drawn(
      lambda: zoo.models.Transformer(
        2, 3, num_layers=1, width=4, feed_forward='none', rngs=nnx.Rngs(0)
      ),
      dtype='float32',
    )

  def __call__(self, prompt):
    return self.inner(prompt) + jnp.sum(prompt.y, axis=1)


@pytest.mark.slow
def test_what_goes_past_the_stream_is_refused():
  with refuses('_Unread', 'misses its prediction by', 'past the stream'):
    circuit(_Unread(), isotropic(2, 3), num_prompts=64)


@pytest.mark.slow
@pytest.mark.full
def test_a_circuit_of_a_trained_transformer_is_better_than_random_edges():
  saved = zoo.load('checkpoints/transformer')
  found = circuit(saved.model, saved.task)
  assert len(found.kept) < len(found.edges) / 5
  assert found.recovered.mean > 0.8  # it was chosen for 0.9 on other prompts
  assert found.recovered.mean - found.recovered.half > found.largest_random
  assert found.curve[-1].recovered.mean == pytest.approx(1, abs=1e-5)


def test_prompts_are_no_prompts_of_training(monkeypatch):
  """Splitting the key of a seed gives the keys of its streams, of training too."""
  asked = []

  def keep(task, keep, num_prompts, key):
    asked.append(key)
    if len(asked) == 2:
      raise InterruptedError

  monkeypatch.setattr(circuits, '_pair', keep)
  with pytest.raises(InterruptedError):
    circuit(lambda prompt: prompt.y_query, isotropic(2, 3), seed=4)
  expected = jax.random.split(stream_of(4, CURVE_STREAM))
  assert [(asked[i] == expected[i]).item() for i in range(2)] == [True, True]
