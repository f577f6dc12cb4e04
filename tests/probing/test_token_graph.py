"""Circuits by token: recall and induction by hand, and runs of edges a second time."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from examples import circuit_by_token
from examples.circuit_by_token import AsksOne
from examples.recall_state import ASKED
from tests.compare import refuses
from tests.compiled import predict
from tests.marks import mostly_full
from tests.probing import numpy_transformer as steps
from tests.probing.models import one_hot_map, sample
from tests.probing.test_circuits import _induction
from tests.settings import isotropic
from tests.weights import drawn, promoting_float64
from zoo.probing import Node, Set, capture, circuit, edited
from zoo.probing.token_graph import token_graph_of

KEYS = 4


def asks_one(num_keys, num_examples):
  return AsksOne(
    num_keys=num_keys,
    num_values=num_keys,
    context_length=num_examples,
    num_pairs=num_keys,
  )


@functools.cache
def recall_by_hand() -> Any:
  """Recall by hand: one layer of the delta rule, each example in a token of its own.

  The state maps the key of each example to its value. The query writes nothing, and
  reads the value of its key.
  """
  m, width = 2 * KEYS, 3 * KEYS
  model: Any = drawn(
    lambda: zoo.models.Transformer(
      KEYS,
      KEYS,
      num_outputs=KEYS,
      num_layers=1,
      num_heads=1,
      width=width,
      mixer='delta',
      tokens='joint',
      positions='none',
      feed_forward='none',
      norm='none',
      rngs=nnx.Rngs(0),
    ),
    dtype='float32',
  )
  for _, parameter in nnx.iter_graph(model):
    if isinstance(parameter, nnx.Param):
      parameter[...] = jnp.zeros_like(parameter[...])
  keys, values, answers = (np.arange(KEYS) + i * KEYS for i in range(3))
  first, square = np.arange(KEYS), (width, width)
  model.read_in.kernel[...] = one_hot_map((m, width), np.arange(m), np.arange(m))
  model.read_out.kernel[...] = one_hot_map((width, KEYS), answers, first)
  mixer = model.layers[0].mixer
  for name, content in (('query', keys), ('key', keys), ('value', values)):
    # SiLU of a number as large as 10 is that number.
    getattr(mixer, name).kernel[...] = 10 * one_hot_map(square, content, first)
    # The convolution returns the token itself.
    kernel = mixer.convolutions[name].kernel
    kernel[...] = kernel[...].at[-1].set(1)
  mixer.norm.scale[...] = jnp.ones_like(mixer.norm.scale[...])
  mixer.out.kernel[...] = one_hot_map(square, first, answers)
  # A token with a value writes it; the query, which has none, writes nothing.
  strength = -60 * np.isin(np.arange(width), keys) + 120 * np.isin(
    np.arange(width), values
  )
  mixer.strength.kernel[...] = jnp.asarray(strength[:, None], 'float32')
  return model


def test_recall_in_a_delta_rule_has_exactly_its_edges():
  model, task = recall_by_hand(), asks_one(KEYS, KEYS)
  prompt = task.sample(jax.random.key(0), 64)
  answers = np.asarray(predict(model, prompt))
  np.testing.assert_array_equal(answers.argmax(-1), np.argmax(prompt.y_query, -1))
  found = circuit(model, task, num_prompts=64, tokens=True, num_searches=3)
  tokens, state, out = (
    functools.partial(Node, site, None)
    for site in ('layers.0.tokens', 'layers.0.mixer.state', 'layers.0.mixer.out')
  )
  query = KEYS
  assert {(edge.sender, edge.receiver) for edge in found.kept} == {
    # The asked example writes its value, and the states after it keep it.
    (tokens(ASKED), state(ASKED)),
    *((state(t), state(t + 1)) for t in range(ASKED, query - 1)),
    (state(query - 1), out(query)),
    (out(query), Node('final.stream')),
  }
  assert found.recovered.mean == pytest.approx(1, abs=1e-5)
  assert found.without.mean == pytest.approx(0, abs=1e-5)
  others = [edge.score.mean for edge in found.edges if not edge.is_kept]
  assert np.abs(others).max() < 1e-6 < min(abs(edge.score.mean) for edge in found.kept)
  # All samples and all searches agree.
  assert all(edge.kept_share == edge.is_kept for edge in found.edges)
  assert all(edge.found_share == edge.is_kept for edge in found.edges)
  assert found.sizes == [5, 5, 5]
  assert found.range_of_sizes == (5, 5, 0.5)
  assert '3 searches, each on prompts of its own, found 5 to 5 edges' in str(found)
  row = next(row for row in found.rows if row.receiver == 'final.stream')
  assert (row.sender_token, row.receiver_token, row.sender_head) == (query, None, None)


@pytest.mark.slow
def test_induction_has_exactly_its_edges():
  model, _ = _induction()
  found = circuit(model, asks_one(2, 2), num_prompts=64, tokens=True, num_searches=1)
  value, query = 2 * ASKED + 1, 4
  answer = Node('layers.1.mixer.out', token=query)
  assert {(edge.sender, edge.receiver) for edge in found.kept} == {
    (Node('layers.0.tokens', token=value), answer),
    (answer, Node('final.stream')),
  }
  assert found.recovered.mean == pytest.approx(1, abs=1e-5)
  assert found.range_of_sizes is None
  assert {edge.found_share for edge in found.edges} == {None}


def _linear(slope):
  """A transformer that is a linear function of the query, and reads no context."""
  model: Any = drawn(
    lambda: zoo.models.Transformer(
      2, 3, num_layers=1, width=4, norm='none', mixer='delta', rngs=nnx.Rngs(0)
    ),
    dtype='float32',
  )
  model.layers[0].mixer.out.kernel[...] *= 0
  model.layers[0].feed_forward.out.kernel[...] *= 0
  model.read_in.kernel[...] = one_hot_map((3, 4), np.arange(2), np.arange(2))
  model.read_out.kernel[...] = jnp.asarray([*slope, 0, 0], 'float32')[:, None]
  return model


@pytest.mark.slow
def test_a_model_that_does_not_read_its_context_has_no_edge_from_it():
  slope = np.array([1.0, -0.5])
  task = isotropic(2, 3, prior_mean=slope, prior_covariance=1e-4 * np.eye(2))
  with refuses('do not raise the loss', 'no gap'):
    circuit(_linear(slope), task, num_prompts=64, tokens=True)
  unread = _linear(0 * slope)
  with refuses("predictions of Transformer do not depend on 'final.stream'"):
    circuit(unread, task, num_prompts=64, tokens=True)
  # Other queries change its answer, which takes one edge: from the token of the query.
  found = circuit(_linear(slope), task, None, 64, tokens=True, num_searches=1)
  (edge,) = found.kept
  assert (edge.sender.site, edge.sender.token) == ('layers.0.tokens', 6)
  assert {edge.score.mean for edge in found.edges if not edge.is_kept} == {0.0}


_MIXERS = zoo.list_mixers()
_WITHOUT_STATE = 'softmax', 'relu', 'fox', 'hyena'
_D, _C = 3, 4


@pytest.mark.slow
@pytest.mark.parametrize('name', mostly_full([], _MIXERS, slow=['delta', 'hyena']))
def test_runs_of_edges_are_those_of_edits(name):
  model: Any = drawn(
    lambda: zoo.models.Transformer(
      _D, _C, mixer=name, width=8, num_heads=2, num_layers=2, rngs=nnx.Rngs(0)
    ),
    dtype='float32',
  )
  task, cut = isotropic(_D, _C), 3
  clean, corrupt = (sample(task, jax.random.key(i), 3) for i in range(2))
  graph = token_graph_of(model, clean)
  first = 'layers.0.mixer'
  # The mixer of the first layer reads the corrupt stream of one token.
  of_token = {Node('layers.0.tokens', token=cut)}
  into = [r for r in graph.readers if r.site in (f'{first}.out', f'{first}.state')]
  readers = {Node(r.site, token=t) for r in into for t in range(2 * _C + 1)}
  # The token after it reads the corrupt state.
  of_state = {Node(f'{first}.state', token=cut)}

  def without(senders, receivers=None):
    return [
      sender not in senders or not (receivers is None or receiver in receivers)
      for sender, receiver in graph.edges
    ]

  nobody = without(())
  masks = [nobody, np.zeros(len(nobody)), without(of_token, readers), without(of_state)]

  @jax.jit
  def predictions(masks):
    ends = graph.ends(model, clean, corrupt)
    return jax.lax.map(
      lambda mask: graph.run(model, clean, ends, mask).prediction, masks
    )

  found = predictions(np.asarray(masks, 'float32'))
  expected = [predict(model, clean), predict(model, corrupt)]
  read = capture(model, corrupt, [f'{first}.in'])[f'{first}.in'][:, cut]
  expected.append(
    predict(edited(model, {f'{first}.in': Set(read, np.s_[:, cut])}), clean)
  )
  states = [site for site in zoo.probing.sites(model) if f'{first}.state' in site]
  assert bool(states) == (name not in _WITHOUT_STATE)
  values = capture(model, corrupt, states) if states else {}
  edits = {site: Set(values[site][:, cut], np.s_[:, cut]) for site in states}
  expected.append(predict(edited(model, edits), clean) if edits else expected[0])
  # Some hundred float32 operations, in another order.
  scale = np.abs(expected[0]).max()
  np.testing.assert_allclose(found, np.stack(expected), atol=1e-4 * scale)
  assert np.abs(found[0] - found[2]).max() > 1e-3 * scale
  assert not states or np.abs(found[0] - found[3]).max() > 1e-3 * scale


def _numpy_runs(graph, masks):
  """The predictions if the edges of each mask carry what is added, by equations."""
  model, _, clean, corrupt = steps.setting()

  def added_by(prompt, is_on):
    """What each part adds, by site, and the predictions; a corrupt run has no mask."""
    sites = ['layers.0.tokens']
    sent = {sites[0]: steps.embedded(model, prompt)}

    def read(site, t=None):
      """The stream that a reader reads at a token."""
      if is_on is None:
        return sum(sent.values())
      stream = np.sum([others[of] for of in sites], axis=0)
      receiver = Node(site, token=t)
      for of in sites:
        for s in range(stream.shape[1]):
          if is_on.get((Node(of, token=s), receiver)):
            stream[:, s] += sent[of][:, s] - others[of][:, s]
      return stream

    n = sent[sites[0]].shape[1]

    def send(site, part):
      sent[site] = np.stack([part(read(site, t))[:, t] for t in range(n)], axis=1)
      sites.append(site)

    for i, layer in enumerate(model.layers):

      def mixed(stream, layer=layer):
        heads = steps.attended(**steps.parts(layer, stream))
        return steps.linear(layer.mixer.out, heads.reshape(*heads.shape[:2], -1))

      def network(stream, layer=layer):
        hidden = steps.linear(layer.feed_forward.up, steps.normed(layer.norm_2, stream))
        return steps.linear(layer.feed_forward.out, hidden)

      send(f'layers.{i}.mixer.out', mixed)
      send(f'layers.{i}.network.out', network)
    stream = steps.normed(model.norm, read('final.stream'))
    return sent, steps.linear(model.read_out, stream)[:, -1, 0]

  others = added_by(corrupt, None)[0]
  return [
    added_by(clean, dict(zip(graph.edges, mask, strict=True)))[1] for mask in masks
  ]


@pytest.mark.slow
def test_runs_of_random_edges_of_attention_are_those_of_numpy():
  model, _, clean, corrupt = steps.setting()
  few = jax.tree.map(lambda array: array[:8], (clean, corrupt))
  with promoting_float64():
    graph = token_graph_of(model, clean)
    # The first layer has 7 tokens, which read 28 and 7 · 2. Only the token of the query
    # reaches the readout from the second: it reads 7 · 3, 4, and the readout 5.
    assert len(graph.edges) == 28 + 14 + 21 + 4 + 5
    masks = np.random.default_rng(0).random((4, len(graph.edges))) < 0.6

    @jax.jit
    def predictions(masks):
      ends = graph.ends(model, *few)
      return jax.lax.map(
        lambda mask: graph.run(model, few[0], ends, mask).prediction, masks
      )

    found = np.asarray(predictions(masks.astype(float)))
  expected = np.stack(_numpy_runs(graph, masks))[:, :8]
  np.testing.assert_allclose(found, expected, rtol=1e-9)
  assert np.ptp(found, axis=0).min() > 1e-5  # The masks differ.


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_trained_delta_rule_carries_the_value_in_its_states(
  tmp_path, capsys, unchecked, promotion_that_optax_needs
):
  """As docs/circuits.md says."""
  circuit_by_token.main(str(tmp_path / 'run'), str(tmp_path / 'circuit.png'))
  said = capsys.readouterr().out
  value, query = 2 * ASKED + 1, 8
  state, out = 'layers.0.mixer.state, token', 'layers.0.mixer.out, token'
  edges = [
    (f'layers.0.tokens, token {value}', f'{state} {value}'),
    *((f'{state} {t}', f'{state} {t + 1}') for t in range(value, query - 1)),
    (f'{state} {query - 1}', f'{out} {query}'),
  ]
  for sender, receiver in edges:
    assert re.search(rf'^{re.escape(sender)} +{re.escape(receiver)} ', said, re.M)
  # Nothing is read before the value.
  assert not any(f'token {t} ' in said for t in range(value))
  assert (tmp_path / 'circuit.png').exists()
