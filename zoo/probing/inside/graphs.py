"""The graph of a model: what adds to its residual stream, and what reads the stream.

Every reader sees the sum of all that was added before it. In a run of a graph each
reader has a stream of its own, so that the edge from one adder to one reader can carry
the value of another prompt while all other edges keep theirs.

To this end each prompt is repeated along the axis of prompts, once for each reader
between two taps of the stream. A tap of the stream gives every repetition the stream of
one reader. The taps of queries, keys and values then put together what each head has
read from its own streams.
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
from zoo.core.taps import places, without_shortcuts
from zoo.probing.checks import checked_module
from zoo.probing.inside.activations import recorded
from zoo.probing.inside.nodes import Node
from zoo.probing.inside.reach import Exchange, readers

KINDS = 'stream', 'query', 'key', 'value', 'heads', 'added'
_PARTS = 'query', 'key', 'value'


class Attention(NamedTuple):
  """The sites of a mixer with heads.

  Attributes:
    query: The site of the queries.
    key: The site of the keys.
    value: The site of the values.
    heads: The site of what the heads give to the output matrix.
    out: The site of what the mixer adds to the stream.
    num_heads: The number of heads.
  """

  query: str
  key: str
  value: str
  heads: str
  out: str
  num_heads: int


class Stage(NamedTuple):
  """A tap of the stream, and what reads the stream between it and the next such tap.

  Attributes:
    site: The site of the tap.
    attention: The mixer, if there is one.
    networks: The sites of all else that is added to the stream.
    num_senders: How many senders have added to the stream before.
  """

  site: str
  attention: Attention | None
  networks: tuple[str, ...]
  num_senders: int

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
    """The heads and networks that add to the stream after this tap."""
    nodes = [Node(site) for site in self.networks]
    if (mixer := self.attention) is not None:
      nodes = [Node(mixer.heads, head) for head in range(mixer.num_heads)] + nodes
    return nodes


class Graph(NamedTuple):
  """The stages of a model.

  Attributes:
    stages: The stages in their order. The last one is the readout's.
  """

  stages: list[Stage]

  @property
  def senders(self) -> list[Node]:
    """The embedded tokens, and all that is added to them, in the order of the model."""
    first = Node(self.stages[0].site)
    return [first, *(node for stage in self.stages for node in stage.senders)]

  @property
  def edges(self) -> list[tuple[Node, Node]]:
    """All pairs of a sender and a later receiver.

    They are ordered by stage, then by receiver, then by sender.
    """
    senders = self.senders
    return [
      (sender, receiver)
      for stage in self.stages
      for receiver in stage.receivers
      for sender in senders[: stage.num_senders]
    ]

  @property
  def num_streams(self) -> int:
    """The largest number of receivers of a stage."""
    return max(len(stage.receivers) for stage in self.stages)

  @property
  def outputs(self) -> dict[Node, Node]:
    """The sender that is computed from what each receiver reads.

    The readout is missing, because it adds nothing to the stream.
    """
    outputs = {}
    for stage in self.stages:
      outputs |= {node: node for node in stage.senders if node.site in stage.networks}
      if (mixer := stage.attention) is not None:
        for site in (mixer.query, mixer.key, mixer.value):
          for head in range(mixer.num_heads):
            outputs[Node(site, head)] = Node(mixer.heads, head)
    return outputs

  def by_stage(self, values: Array) -> list[Array]:
    """Splits values of all edges `[e]` into an array `[r, u]` for each stage."""
    parts, start = [], 0
    for stage in self.stages:
      shape = len(stage.receivers), stage.num_senders
      size = shape[0] * shape[1]
      parts.append(values[start : start + size].reshape(shape))
      start += size
    return parts


def graph_of(model: Predictor, prompt: Prompt) -> Graph:
  """Returns the graph of a model, from the kinds and the calls of its taps.

  Args:
    model: A model with taps of all `KINDS`.
    prompt: Prompts; two are enough.

  Returns:
    The graph.

  Raises:
    UserError: If the model lacks one of the kinds, or calls a tap twice; if a mixer
      lacks its queries, keys, values or heads, or their axes are not known; if there is
      no tap of the stream before the readout.
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
    # If nothing was added, the next tap has the same stream.
    if stage.senders or end == len(order):
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
  """Returns the stage between a tap of the stream and the next one."""
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
  """A forward pass in which each reader has its own stream.

  Attributes:
    prediction: The predictions for the queries.
    added: What each of u senders adds to the stream.
    spread: The largest difference between what heads read in different streams although
      their queries, keys and values are equal. It is 0 for attention alone.
  """

  prediction: Array
  added: Float[Array, 'u b n w']
  spread: Float[Array, '']


# Such a function takes the number of a stage and what was added before it,
# `[u, b, n, w]`, and returns a stream for each receiver, `[r, b, n, w]`.
Streams = Callable[[int, Array], Array]


def run_graph(
  model: Any,
  graph: Graph,
  prompt: Prompt,
  streams: Streams,
  embedded: Float[Array, 'b n w'] | None = None,
) -> Run:
  """Runs a model in which each reader has its own stream.

  It is called within a function that JAX traces.

  Args:
    model: The model.
    graph: Its graph.
    prompt: Prompts.
    streams: What each receiver of a stage reads.
    embedded: Embedded tokens that replace those of the prompts. None keeps the
      prompts'.

  Returns:
    The prediction, and what each sender added.
  """
  copy = without_shortcuts(model)
  by_site = {place.site: place for place in places(copy)}
  axes = {site: (place.tap.axes or '').split() for site, place in by_site.items()}
  senders, num_streams = graph.senders, graph.num_streams
  added: dict[Node, Array] = {}
  spreads: list[Array] = []

  def replace(site: str, function: Callable[[Array], Array]) -> None:
    by_site[site].put(Exchange(function))

  def apart(value: Array) -> Array:  # to [r, b, …]
    return value.reshape(num_streams, -1, *value.shape[1:])

  def joined(parts: Array) -> Array:
    return parts.reshape(-1, *parts.shape[2:])

  def add_stage(number: int, stage: Stage) -> None:
    def spread_out(stream: Array) -> Array:
      if number == 0:
        added[senders[0]] = apart(stream)[0] if embedded is None else embedded
      before = jnp.stack([added[sender] for sender in senders[: stage.num_senders]])
      read = streams(number, before)
      # Repetitions that no reader of this stage needs get the last reader's stream.
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
        """Keeps one head in each of the first streams, and none in the others."""
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
        # A stream without heads has the bias alone, which no edge carries.
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


class Ends(NamedTuple):
  """What is added to the stream in corrupt and in clean prompts.

  Attributes:
    corrupt: What each of u senders adds in the corrupt prompts.
    clean: What each of u senders adds in the clean prompts.
    streams: The stream at each stage in the corrupt prompts.
  """

  corrupt: Float[Array, 'u b n w']
  clean: Float[Array, 'u b n w']
  streams: list[Float[Array, 'b n w']]


def ends_of(model: Any, graph: Graph, clean: Prompt, corrupt: Prompt) -> Ends:
  """Returns what each sender adds in clean and in corrupt prompts.

  It is called within a function that JAX traces.
  """
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
  """Returns streams in which the edges of a mask carry what is added in this run.

  All other edges carry what is added in the corrupt prompts. The mask has the form of
  `Graph.by_stage`, an array `[r, u]` for each stage.
  """

  def streams(i: int, added: Array) -> Array:
    moved = added - ends.corrupt[: len(added)]
    return ends.streams[i][None] + jnp.einsum('ru,ubnw->rbnw', masks[i], moved)

  return streams
