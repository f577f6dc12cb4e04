"""The graph of a model: what adds to its residual stream, and what reads the stream.

Every reader sees the sum of all that was added before it. In a run of a graph each
reader has a stream of its own, so that an edge from an adder to a reader can carry the
value of another prompt while all other edges keep theirs. To this end each prompt is
repeated along the axis of prompts, once for each reader between two taps of the stream:
such a tap gives every repetition the stream of one reader, and the taps of queries,
keys and values put together what each head has read from its own streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.taps import Replacement, places, without_shortcuts
from zoo.probing.inside.activations import checked_module, recorded
from zoo.probing.inside.edits import readers
from zoo.probing.inside.nodes import Node

KINDS = 'stream', 'query', 'key', 'value', 'heads', 'added'
_PARTS = 'query', 'key', 'value'


class Attention(NamedTuple):
  """The sites of a mixer with heads."""

  query: str
  key: str
  value: str
  heads: str
  out: str  # what is added to the stream
  num_heads: int


class Stage(NamedTuple):
  """A tap of the stream, and what reads the stream between it and the next one."""

  site: str
  attention: Attention | None
  networks: tuple[str, ...]  # the sites of what else is added
  num_senders: int  # that have added to the stream before

  @property
  def receivers(self) -> list[Node]:
    """The readers; the readout, if nothing is added after this tap."""
    nodes = [Node(site) for site in self.networks]
    if (mixer := self.attention) is not None:
      sites = mixer.query, mixer.key, mixer.value
      heads = range(mixer.num_heads)
      nodes = [Node(site, head) for site in sites for head in heads] + nodes
    return nodes or [Node(self.site)]

  @property
  def senders(self) -> list[Node]:
    """What is added to the stream after this tap."""
    nodes = [Node(site) for site in self.networks]
    if (mixer := self.attention) is not None:
      nodes = [Node(mixer.heads, head) for head in range(mixer.num_heads)] + nodes
    return nodes


class Graph(NamedTuple):
  """The stages of a model, the last of which is the readout's."""

  stages: list[Stage]

  @property
  def senders(self) -> list[Node]:
    """The embedded tokens, and all that is added to them, in the order of the model."""
    first = Node(self.stages[0].site)
    return [first, *(node for stage in self.stages for node in stage.senders)]

  @property
  def edges(self) -> list[tuple[Node, Node]]:
    """All pairs of a sender and a receiver after it: stage, receiver, sender."""
    senders = self.senders
    return [
      (sender, receiver)
      for stage in self.stages
      for receiver in stage.receivers
      for sender in senders[: stage.num_senders]
    ]

  @property
  def num_streams(self) -> int:
    """The most receivers of a stage."""
    return max(len(stage.receivers) for stage in self.stages)

  @property
  def outputs(self) -> dict[Node, Node]:
    """What follows from what a receiver reads; the readout has no such sender."""
    outputs = {}
    for stage in self.stages:
      outputs |= {node: node for node in stage.senders if node.site in stage.networks}
      if (mixer := stage.attention) is not None:
        for site in (mixer.query, mixer.key, mixer.value):
          for head in range(mixer.num_heads):
            outputs[Node(site, head)] = Node(mixer.heads, head)
    return outputs

  def by_stage(self, values: Array) -> list[Array]:
    """Values of all edges `[e]` as one array `[r, u]` for each stage."""
    parts, start = [], 0
    for stage in self.stages:
      shape = len(stage.receivers), stage.num_senders
      size = shape[0] * shape[1]
      parts.append(values[start : start + size].reshape(shape))
      start += size
    return parts


def graph_of(model: Predictor, prompt: Prompt) -> Graph:
  """The graph of a model, from the kinds of its taps and the order of their calls.

  Raises UserError for a model without the kinds, with a layer that is called again, or
  with mixers whose queries, keys, values and heads are not all there.
  """
  name = type(model).__name__
  kinds = {place.site: place.tap.kind for place in places(checked_module(model))}
  for kind in KINDS:
    if kind not in kinds.values():
      raise UserError(
        f'{name} has no tap of the kind {kind}; a circuit needs {", ".join(KINDS)}'
      )
  wanted = [site for site, kind in kinds.items() if kind in KINDS]
  order: list[str] = []

  def values() -> dict[str, Array]:
    found, _ = recorded(model, prompt, wanted)
    order.extend(found)
    return found

  shapes = jax.eval_shape(values)
  for site in order:
    if '@' in site:
      raise UserError(
        f'the tap at {site.partition("@")[0]!r} is called again in a forward pass; a '
        'circuit needs a model without loops'
      )
  few = jax.tree.map(lambda array: array[:2], prompt)
  outs = readers(model, few, [site for site in order if kinds[site] == 'heads'])
  starts = [i for i, site in enumerate(order) if kinds[site] == 'stream']
  if not starts:
    raise UserError(f'no tap of the kind stream of {name} is called')
  stages, num_senders = [], 1
  for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
    between = order[start + 1 : end]
    stage = _stage(order[start], between, kinds, outs, shapes, model, num_senders)
    if stage.senders or end == len(order):  # else the next tap has the same stream
      stages.append(stage)
      num_senders += len(stage.senders)
  if stages[-1].senders:
    raise UserError(
      f'{name} has no tap of the kind stream after {order[-1]!r}; a circuit needs one '
      'before the readout'
    )
  return Graph(stages)


def _stage(
  site: str,
  between: Sequence[str],
  kinds: dict[str, str | None],
  outs: Sequence[str],
  shapes: dict[str, jax.ShapeDtypeStruct],
  model: Any,
  num_senders: int,
) -> Stage:
  """The stage of what is called between a tap of the stream and the next one."""
  added = [name for name in between if kinds[name] == 'added']
  networks = tuple(name for name in added if name not in outs)
  found = {
    'query': [name for name in between if kinds[name] == 'query'],
    'key': [name for name in between if kinds[name] == 'key'],
    'value': [name for name in between if kinds[name] == 'value'],
    'heads': [name for name in between if kinds[name] == 'heads'],
    'added': [name for name in added if name in outs],
  }
  if not any(found.values()):
    return Stage(site, None, networks, num_senders)
  for kind, names in found.items():
    if len(names) != 1:
      raise UserError(
        f'{len(names)} taps of the kind {kind} are called after {site!r} and before '
        'the next of the kind stream; a circuit needs one of a mixer'
      )
  axes = {place.site: (place.tap.axes or '').split() for place in places(model)}
  for (name,) in (found[kind] for kind in (*_PARTS, 'heads')):
    if axes[name][:1] != ['b'] or 'h' not in axes[name]:
      raise UserError(
        f'the axes of the site {name!r} are {" ".join(axes[name])!r}; a circuit needs '
        'b first, and h'
      )
  query, key, value, heads, out = (names[0] for names in found.values())
  num_heads = shapes[heads].shape[axes[heads].index('h')]
  attention = Attention(query, key, value, heads, out, num_heads)
  return Stage(site, attention, networks, num_senders)


class Run(NamedTuple):
  """A forward pass in which each reader has its own stream."""

  prediction: Array
  added: Float[Array, 'u b n w']  # by each sender
  # How far what heads read depends on the streams besides queries, keys and values.
  spread: Float[Array, '']


# Takes the number of a stage and what was added so far; has a stream for each receiver.
Streams = Callable[[int, Array], Array]  # [u, b, n, w] to [r, b, n, w]


def run_graph(
  model: Any,
  graph: Graph,
  prompt: Prompt,
  streams: Streams,
  embedded: Float[Array, 'b n w'] | None = None,
) -> Run:
  """Runs a model with streams of its readers' own; to be traced.

  Args:
    model: The model.
    graph: Its graph.
    prompt: Prompts.
    streams: What each receiver of a stage reads.
    embedded: In place of the embedded tokens.
  """
  copy = without_shortcuts(model)
  by_site = {place.site: place for place in places(copy)}
  axes = {site: (place.tap.axes or '').split() for site, place in by_site.items()}
  senders, num_streams = graph.senders, graph.num_streams
  added: dict[Node, Array] = {}
  spreads: list[Array] = []

  def replace(site: str, function: Callable[[Array], Array]) -> None:
    by_site[site].put(_Exchange(function))

  def apart(value: Array) -> Array:  # [r, b, …]
    return value.reshape(num_streams, -1, *value.shape[1:])

  def joined(parts: Array) -> Array:
    return parts.reshape(-1, *parts.shape[2:])

  def add_stage(number: int, stage: Stage) -> None:
    def spread_out(stream: Array) -> Array:
      if number == 0:
        added[senders[0]] = apart(stream)[0] if embedded is None else embedded
      before = jnp.stack([added[sender] for sender in senders[: stage.num_senders]])
      read = streams(number, before)
      # Repetitions that no reader of this stage needs are those of the last one.
      rest = jnp.broadcast_to(read[-1:], (num_streams - len(read), *read.shape[1:]))
      return joined(jnp.concatenate([read, rest]))

    replace(stage.site, spread_out)
    if (mixer := stage.attention) is not None:
      num_heads = mixer.num_heads

      def put_together(first: int, site: str) -> Callable[[Array], Array]:
        """Takes each head from its own stream, and gives all streams the same."""
        axis = axes[site].index('h')

        def own(value: Array) -> Array:
          parts = apart(value)
          of_heads = [
            jax.lax.index_in_dim(parts[first + head], head, axis)
            for head in range(num_heads)
          ]
          whole = jnp.concatenate(of_heads, axis)
          return joined(jnp.broadcast_to(whole[None], parts.shape))

        return own

      for i, site in enumerate((mixer.query, mixer.key, mixer.value)):
        replace(site, put_together(i * num_heads, site))

      def heads_apart(value: Array) -> Array:
        """The first streams get one head each, the others none."""
        parts = apart(value)
        spreads.append(jnp.max(jnp.abs(parts - parts[:1])))
        axis = axes[mixer.heads].index('h')
        shape = [num_streams, *(1 for _ in value.shape)]
        shape[axis + 1] = num_heads
        chosen = jnp.eye(num_streams, num_heads, dtype=value.dtype).reshape(shape)
        return joined(jnp.broadcast_to(parts[:1], parts.shape) * chosen)

      replace(mixer.heads, heads_apart)

      def add_heads(value: Array) -> Array:
        parts = apart(value)
        # The stream without heads has the bias, which no edge carries.
        for head in range(num_heads):
          added[Node(mixer.heads, head)] = parts[head] - parts[num_heads]
        return value

      replace(mixer.out, add_heads)
    for site in stage.networks:

      def add_network(value: Array, site: str = site) -> Array:
        added[Node(site)] = apart(value)[stage.receivers.index(Node(site))]
        return value

      replace(site, add_network)

  for number, stage in enumerate(graph.stages):
    add_stage(number, stage)
  repeated = jax.tree.map(lambda array: jnp.concatenate([array] * num_streams), prompt)
  prediction = apart(copy(repeated))[0]
  spread = jnp.max(jnp.stack(spreads)) if spreads else jnp.zeros(())
  return Run(prediction, jnp.stack([added[sender] for sender in senders]), spread)


class _Exchange(Replacement):
  """Hands the value of a tap to a function, and goes on with what it returns."""

  def __init__(self, function: Callable[[Array], Array]):
    super().__init__()
    self.function = function

  def __call__(self, value: Any) -> Any:
    return self.function(self.tap(value))


class Ends(NamedTuple):
  """What is added to the stream in corrupt and in clean prompts."""

  corrupt: Float[Array, 'u b n w']
  clean: Float[Array, 'u b n w']
  streams: list[Float[Array, 'b n w']]  # by stage, in corrupt prompts


def ends_of(model: Any, graph: Graph, clean: Prompt, corrupt: Prompt) -> Ends:
  """What each sender adds in clean and in corrupt prompts; to be traced."""
  sites = [stage.site for stage in graph.stages]
  added, of_corrupt = [], []
  for prompt in (corrupt, clean):
    values, _ = recorded(model, prompt, sites)

    def streams(i: int, _: Array, values: dict[str, Array] = values) -> Array:
      stream = values[sites[i]]
      num_receivers = len(graph.stages[i].receivers)
      return jnp.broadcast_to(stream[None], (num_receivers, *stream.shape))

    added.append(run_graph(model, graph, prompt, streams).added)
    of_corrupt.append([values[site] for site in sites])
  return Ends(added[0], added[1], of_corrupt[0])


def with_edges(ends: Ends, masks: Sequence[Array]) -> Streams:
  """Streams in which edges of a mask carry what is added, and others the corrupt.

  The mask is that of `Graph.by_stage`, an array `[r, u]` for each stage.
  """

  def streams(i: int, added: Array) -> Array:
    moved = added - ends.corrupt[: len(added)]
    return ends.streams[i][None] + jnp.einsum('ru,ubnw->rbnw', masks[i], moved)

  return streams
