"""Graphs of parts at tokens: what a part adds at a token, and the state after one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PyTree

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.mixers.mixer import Mixer
from zoo.probing.activations import recorded
from zoo.probing.graph import Node, Run, kinds_of_sites, shapes_in_order
from zoo.probing.reach import exchanged, reached_by_token, two_of, values_given

KINDS_OF_TOKEN_GRAPH = 'stream', 'added'


class Reader(NamedTuple):
  """A part of the model that reads the residual stream, at each of its tokens.

  Attributes:
    site: The site of what it adds to the stream; `….state` for the state of a mixer,
      and the last tap of the stream for the readout.
    stream: The tap of the stream that it reads.
    num_senders: How many parts have added to the stream before.
    reads: Whether it depends, at the token t, on the stream at the token s. The readout
      has one row.
    mixer: The mixer whose state after the last token it reads; None if there is none.
  """

  site: str
  stream: str
  num_senders: int
  reads: Bool[np.ndarray, 't n']
  mixer: str | None = None

  @property
  def is_state(self) -> bool:
    """Whether this is the state of a mixer, which is not added to the stream."""
    return self.site == f'{self.mixer}.state'


class EdgesInto(NamedTuple):
  """The edges into one reader. Edges are counted through the whole graph.

  Attributes:
    rows: The tokens at which the reader has edges.
    edges: The numbers of the edges through the stream.
    row: For each of them the number of the receiver's token in `rows`.
    token: For each of them the token of the sender.
    sender: For each of them the number of the part that sends.
    state_edges: The numbers of the edges from the state after the last token.
    state_token: For each of them the token of that state.
  """

  rows: Int[np.ndarray, ' t']
  edges: Int[np.ndarray, ' e']
  row: Int[np.ndarray, ' e']
  token: Int[np.ndarray, ' e']
  sender: Int[np.ndarray, ' e']
  state_edges: Int[np.ndarray, ' s']
  state_token: Int[np.ndarray, ' s']


class TokenEnds(NamedTuple):
  """What is added to the stream, and the states, in corrupt and in clean prompts.

  Attributes:
    corrupt: What each of u parts adds in the corrupt prompts.
    clean: What each of u parts adds in the clean prompts.
    streams: The corrupt stream at each tap.
    corrupt_states: The states of each mixer after each token, `[n, b, …]`.
    clean_states: Those in the clean prompts.
  """

  corrupt: Float[Array, 'u b n w']
  clean: Float[Array, 'u b n w']
  streams: dict[str, Float[Array, 'b n w']]
  corrupt_states: dict[str, PyTree]
  clean_states: dict[str, PyTree]


@dataclasses.dataclass(frozen=True, eq=False)
class TokenGraph:
  """The parts of a model at each token, and the edges between them.

  An edge leads from a part at a token s to a part at a token t, by the stream. A mixer
  with a state reads only the stream of its own token, and the state after the token
  before. All others have an edge from each token on which they depend.

  Attributes:
    readers: The parts, in the order of the model. The last one is the readout.
    edges: The pairs of a sender and a receiver. Edges that do not reach the readout are
      left out.
    into: The edges into each reader.
    bytes_per_prompt: The bytes that a run needs for one prompt.
  """

  readers: list[Reader]
  edges: list[tuple[Node, Node]]
  into: list[EdgesInto]
  bytes_per_prompt: int

  @property
  def outputs(self) -> dict[Node, Node]:
    """The sender that is computed from what each receiver reads: the same node."""
    readout = self.readers[-1].site
    receivers = {receiver for _, receiver in self.edges}
    return {node: node for node in receivers if node.site != readout}

  @property
  def embedded(self) -> str:
    """The first tap of the stream, which has the embedded tokens."""
    return self.readers[0].stream

  @property
  def added(self) -> list[str]:
    """The sites of all that is added to the stream, after the embedded tokens."""
    return [reader.site for reader in self.readers[:-1] if not reader.is_state]

  @property
  def streams(self) -> list[str]:
    """The taps of the stream that are read."""
    return [*dict.fromkeys(reader.stream for reader in self.readers)]

  def ends(self, model: Any, clean: Prompt, corrupt: Prompt) -> TokenEnds:
    """Returns what is added in clean and in corrupt prompts, and the states.

    It is called within a function that JAX traces.
    """
    added, states, streams = [], [], []
    for prompt in (corrupt, clean):
      values, _ = recorded(model, prompt, [*self.streams, *self.added])
      added.append(jnp.stack([values[site] for site in (self.embedded, *self.added)]))
      streams.append({site: values[site] for site in self.streams})
      states.append(
        {
          reader.mixer: _states(
            _mixer_of(model, reader), _inputs(model, prompt, reader, values)
          )
          for reader in self.readers
          if reader.is_state and reader.mixer is not None
        }
      )
    return TokenEnds(added[0], added[1], streams[0], states[0], states[1])

  def run(
    self,
    model: Any,
    prompt: Prompt,
    ends: TokenEnds,
    mask: Float[Array, ' e'],
    *,
    embedded: Float[Array, 'b n w'] | None = None,
    nudges: Float[Array, 'e b'] | None = None,
    last: tuple[Array, Array] | None = None,
  ) -> Run:
    """Runs a model in which each reader has its own stream at each token.

    It is called within a function that JAX traces.

    Args:
      model: The model.
      prompt: The clean prompts.
      ends: What the parts add in clean and corrupt prompts.
      mask: 1 for the edges that carry what is added in this run; all others, with 0,
        carry what is added in the corrupt prompts.
      embedded: Embedded tokens that replace those of the prompts.
      nudges: How much of the change from corrupt to clean is added to each edge.
      last: Not used; this graph computes each run anew.

    Returns:
      The prediction, and what each part added.
    """
    del last
    sent = [ends.clean[0] if embedded is None else embedded]
    states: dict[str, PyTree] = {}
    *parts, readout = zip(self.readers, self.into, strict=True)
    for reader, into in parts:
      carried = _Carried(reader, into, ends, mask, nudges)
      if reader.mixer is None:
        sent.append(_added(model, prompt, reader, into, carried, sent, ends))
        continue
      mixer = _mixer_of(model, reader)
      streams = {reader.stream: carried.own_token(sent)}
      tokens = _inputs(model, prompt, reader, streams)
      if reader.is_state:
        states[reader.mixer] = _states(mixer, tokens, carried.state)
      else:
        sent.append(_outputs(mixer, tokens, carried.states(states[reader.mixer])))
    reader, into = readout
    (read,) = _Carried(reader, into, ends, mask, nudges).by_row(sent)
    prediction = exchanged(model, {reader.stream: lambda _: read})(prompt)
    return Run(prediction, jnp.stack(sent))


class _Carried:
  """What the edges into one reader carry in a run."""

  def __init__(
    self,
    reader: Reader,
    into: EdgesInto,
    ends: TokenEnds,
    mask: Float[Array, ' e'],
    nudges: Float[Array, 'e b'] | None,
  ):
    self.reader, self.into, self.ends = reader, into, ends
    self.mask, self.nudges = mask, nudges
    self.num_tokens = reader.reads.shape[1]

  def by_row(self, sent: Sequence[Array]) -> Float[Array, 't b n w']:
    """Returns the stream that each token of the reader reads."""
    into = self.into
    shape = len(into.rows), self.num_tokens, self.reader.num_senders
    at = into.row, into.token, into.sender
    return self._streams(sent, shape, at, 'tsu,ubsw->tbsw', 'tsub,ubsw->tbsw')

  def own_token(self, sent: Sequence[Array]) -> Float[Array, 'b n w']:
    """Returns the stream of a reader whose tokens read their own token alone."""
    shape = self.num_tokens, self.reader.num_senders
    at = self.into.token, self.into.sender
    return self._streams(sent, shape, at, 'su,ubsw->bsw', 'sub,ubsw->bsw')

  def _streams(
    self,
    sent: Sequence[Array],
    shape: tuple[int, ...],
    at: tuple[Int[np.ndarray, ' e'], ...],
    product: str,
    product_of_nudges: str,
  ) -> Array:
    """Returns the corrupt stream, and what the edges carry beside it."""

    def dense(values: Array) -> Array:
      zeros = jnp.zeros((*shape, *values.shape[1:]), values.dtype)
      return zeros.at[at].set(values[self.into.edges])

    corrupt = self.ends.corrupt[: self.reader.num_senders]
    clean = self.ends.clean[: self.reader.num_senders]
    moved = jnp.stack(sent[: self.reader.num_senders]) - corrupt
    carried = jnp.einsum(product, dense(self.mask), moved)
    if self.nudges is not None:
      carried += jnp.einsum(product_of_nudges, dense(self.nudges), clean - corrupt)
    stream = self.ends.streams[self.reader.stream]
    return jnp.broadcast_to(stream, carried.shape) + carried

  def states(self, states: PyTree) -> PyTree:
    """Returns the states after all tokens, as the next tokens read them."""
    return jax.vmap(self.state)(states, jnp.arange(self.num_tokens))

  def state(self, state: PyTree, t: Int[Array, '']) -> PyTree:
    """Returns the state after token t, as the token t + 1 reads it."""
    name, into = self.reader.mixer, self.into
    assert name is not None
    is_on = jnp.zeros(self.num_tokens, bool)
    is_on = is_on.at[into.state_token].set(self.mask[into.state_edges] > 0.5)[t]
    corrupt, clean = (
      jax.tree.map(lambda leaf: leaf[t], of[name])
      for of in (self.ends.corrupt_states, self.ends.clean_states)
    )
    chosen = jax.tree.map(functools.partial(jnp.where, is_on), state, corrupt)
    if self.nudges is None:
      return chosen
    nudge = jnp.zeros((self.num_tokens, self.nudges.shape[1]), self.nudges.dtype)
    nudge = nudge.at[into.state_token].set(self.nudges[into.state_edges])[t]

    def nudged(leaf: Array, clean: Array, corrupt: Array) -> Array:
      if leaf.ndim == 0 or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
      change = jnp.where(clean == corrupt, 0, clean - corrupt)  # −∞ − (−∞) is NaN.
      of_prompts = nudge.reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype)
      return leaf + of_prompts * change

    return jax.tree.map(nudged, chosen, clean, corrupt)


def _added(
  model: Any,
  prompt: Prompt,
  reader: Reader,
  into: EdgesInto,
  carried: _Carried,
  sent: Sequence[Array],
  ends: TokenEnds,
) -> Float[Array, 'b n w']:
  """Returns what a part without a state adds, at the tokens where it has edges."""

  def added(stream: Float[Array, 'b n w']) -> Float[Array, 'b n w']:
    given = {reader.stream: lambda _: stream}
    return values_given(model, prompt, given, [reader.site])[reader.site]

  if _is_own(reader.reads):
    return added(carried.own_token(sent))
  # Each token has a stream of its own, so the part is run once for each of them.
  whole = jax.vmap(added)(carried.by_row(sent))
  rows = into.rows
  new = jnp.swapaxes(whole[jnp.arange(len(rows)), :, rows], 0, 1)
  return ends.corrupt[len(sent)].at[:, rows].set(new)


def _is_own(reads: Bool[np.ndarray, 't n']) -> bool:
  """Returns whether each token reads its own token alone."""
  return not (reads & ~np.eye(*reads.shape, dtype=bool)).any()


def _inputs(
  model: Any, prompt: Prompt, reader: Reader, streams: Mapping[str, Array]
) -> Float[Array, 'b n w']:
  """Returns what a mixer gets if its reader has this stream."""
  site = f'{reader.mixer}.in'
  given = {reader.stream: lambda _: streams[reader.stream]}
  return values_given(model, prompt, given, [site])[site]


def _states(mixer: Mixer, tokens: Float[Array, 'b n w'], carried: Any = None) -> PyTree:
  """Returns the states of a mixer after each token, `[n, b, …]`.

  Args:
    mixer: The mixer.
    tokens: Its input.
    carried: What the next token reads of a state: a function of the state and of the
      number of its token. None means that it reads the state itself.
  """

  def step(state: PyTree, inputs: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
    token, t = inputs
    _, state = mixer.step(token, state)
    return (state if carried is None else carried(state, t)), state

  start = mixer.initial_state(len(tokens))
  numbers = jnp.arange(tokens.shape[1])
  return jax.lax.scan(step, start, (jnp.swapaxes(tokens, 0, 1), numbers))[1]


def _outputs(
  mixer: Mixer, tokens: Float[Array, 'b n w'], states: PyTree
) -> Float[Array, 'b n w']:
  """Returns the outputs of a mixer if each token starts from the state before it.

  Args:
    mixer: The mixer.
    tokens: Its input.
    states: The states after each token, `[n, b, …]`.
  """

  def shifted(start: Array, after: Array) -> Array:
    return jnp.concatenate([start[None].astype(after.dtype), after[:-1]])

  before = jax.tree.map(shifted, mixer.initial_state(len(tokens)), states)
  step = jax.vmap(lambda token, state: mixer.step(token, state)[0])
  return jnp.swapaxes(step(jnp.swapaxes(tokens, 0, 1), before), 0, 1)


def _mixer_of(model: Any, reader: Reader) -> Any:
  """Returns the mixer whose state a reader reads."""
  return _mixers(model)[reader.mixer or '']


def _mixers(model: Any) -> dict[str, Mixer]:
  """Returns the mixers of a model that have a state, by their paths."""
  return {
    '.'.join(map(str, path)): module
    for path, module in nnx.iter_modules(model)
    if isinstance(module, Mixer)
    and module.causal
    and type(module).step is not Mixer.step
  }


def token_graph_of(model: Predictor, prompt: Prompt) -> TokenGraph:
  """Returns the graph of a model's parts at tokens.

  Args:
    model: A model with taps of the kinds `stream` and `added`.
    prompt: Prompts; two are enough.

  Returns:
    The graph.

  Raises:
    UserError: If the model lacks one of the kinds, or calls a tap twice; if something
      is added before its first tap of the stream or after the last one; if no
      prediction depends on the last one.
  """
  name, few = type(model).__name__, two_of(prompt)
  kinds = kinds_of_sites(model, KINDS_OF_TOKEN_GRAPH, 'a circuit with tokens')
  mixers = _mixers(model)
  wanted = [site for site, kind in kinds.items() if kind in KINDS_OF_TOKEN_GRAPH]
  wanted += [f'{mixer}.in' for mixer in mixers if f'{mixer}.in' in kinds]
  shapes = shapes_in_order(model, few, wanted)
  order = list(shapes)
  stream, parts = '', []
  for site in order:
    if kinds[site] == 'stream':
      stream = site
    elif kinds[site] == 'added':
      if not stream:
        raise UserError(f'{name} has no tap of the kind stream before {site!r}')
      parts.append((site, stream))
  if not stream or (parts and parts[-1][1] == stream):
    raise UserError(
      f'{name} has no tap of the kind stream after {order[-1]!r}; a circuit needs one '
      'before the readout'
    )
  reached = reached_by_token(model, few, parts, stream)
  if not reached[-1].any():
    raise UserError(f'the predictions of {name} do not depend on {stream!r}')
  n = shapes[stream].shape[1]
  readers = []
  for number, ((site, of), reads) in enumerate(zip(parts, reached[:-1], strict=True)):
    mixer = site.removesuffix('.out')
    if mixer in mixers and f'{mixer}.in' in order and site != mixer:
      own = np.eye(n, dtype=bool)
      readers.append(Reader(f'{mixer}.state', of, number + 1, own, mixer))
      readers.append(Reader(site, of, number + 1, own, mixer))
    else:
      readers.append(Reader(site, of, number + 1, reads))
  readers.append(Reader(stream, stream, len(parts) + 1, reached[-1]))
  # A part whose tokens have streams of their own holds all of them.
  most = max([1, *(len(r.reads) for r in readers[:-1] if not _is_own(r.reads))])
  tokens = shapes[stream]
  num_bytes = (len(parts) + 1 + most) * tokens.size * tokens.dtype.itemsize
  states = [jax.eval_shape(lambda m=m: m.initial_state(2)) for m in mixers.values()]
  num_bytes += n * sum(
    leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(states)
  )
  return _with_edges(readers, num_bytes // 2)


class _Edge(NamedTuple):
  """An edge into the reader of a number, from a token of a sender or from a state.

  The sender has the number of the part that adds to the stream; None means the state.
  """

  reader: int
  receiver: Node
  sender: Node
  row: int
  token: int
  number: int | None


def _with_edges(readers: list[Reader], num_bytes: int) -> TokenGraph:
  """Returns the graph with all edges that lead to the readout."""
  added = [reader.site for reader in readers[:-1] if not reader.is_state]
  sites, last = [readers[0].stream, *added], len(readers) - 1
  every = []
  for i, reader in enumerate(readers):
    for t, reads in enumerate(reader.reads):
      receiver = Node(reader.site, token=None if i == last else t)
      for u, s in itertools.product(range(reader.num_senders), np.flatnonzero(reads)):
        sender = Node(sites[u], token=int(s))
        every.append(_Edge(i, receiver, sender, t, int(s), u))
      if reader.mixer is not None and t:
        sender = Node(f'{reader.mixer}.state', token=t - 1)
        every.append(_Edge(i, receiver, sender, t, t - 1, None))
  # An edge comes after all that its sender reads, so one pass from the end is enough.
  needed, kept = {Node(readers[-1].site)}, []
  for edge in reversed(every):
    if edge.receiver in needed:
      needed.add(edge.sender)
      kept.append(edge)
  kept.reverse()
  into = []
  for i in range(len(readers)):
    of_reader = [(e, edge) for e, edge in enumerate(kept) if edge.reader == i]
    rows = np.unique([edge.row for _, edge in of_reader]).astype(int)
    by_stream = [(e, edge) for e, edge in of_reader if edge.number is not None]
    by_state = [(e, edge) for e, edge in of_reader if edge.number is None]
    into.append(
      EdgesInto(
        rows,
        np.array([e for e, _ in by_stream], int),
        np.searchsorted(rows, [edge.row for _, edge in by_stream]),
        np.array([edge.token for _, edge in by_stream], int),
        np.array([edge.number for _, edge in by_stream], int),
        np.array([e for e, _ in by_state], int),
        np.array([edge.token for _, edge in by_state], int),
      )
    )
  edges = [(edge.sender, edge.receiver) for edge in kept]
  return TokenGraph(readers, edges, into, num_bytes)
