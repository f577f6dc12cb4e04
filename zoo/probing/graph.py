"""Nodes and graphs: the parts of a model, and the streams that connect them."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from zoo.core.errors import UserError, shown
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.taps import places
from zoo.measure.predict import run_once
from zoo.probing.activations import calls_of, put_back, recorded
from zoo.probing.checks import taps_of
from zoo.probing.reach import exchanged, outputs_of, two_of, values_given

# The letters of the axes of tokens, and of heads, in the axes of a tap.
TOKENS, HEADS = ('n', 'q'), ('h',)
KINDS_OF_GRAPH = 'stream', 'query', 'key', 'value', 'heads', 'added'
_PARTS = 'query', 'key', 'value'


class Node(NamedTuple):
  """A site of a model, or one head or one token of the value there.

  Attributes:
    site: One of `zoo.probing.sites(model)`.
    head: The head, from 0. None means all heads, or that the site has none.
    token: The token, from 0, or from −1 for the last token. None means all tokens. In
      scores and patterns of attention it is the query.

  Example:
    >>> print(zoo.probing.Node('layers.0.mixer.heads', head=1, token=-2))
    layers.0.mixer.heads, head 1, token -2
  """

  site: str
  head: int | None = None
  token: int | None = None

  def __str__(self) -> str:
    head = '' if self.head is None else f', head {self.head}'
    token = '' if self.token is None else f', token {self.token}'
    return f'{self.site}{head}{token}'


# The name of a site stands for the node of its whole value.
NodeLike: TypeAlias = Node | str
# The index of the part of a value that belongs to a node.
Part: TypeAlias = tuple[int | slice, ...]


def node_of(node: NodeLike) -> Node:
  """Returns the node; the name of a site becomes the node of its whole value."""
  return Node(node) if isinstance(node, str) else node


def axis_of(axes: str | None, letters: Sequence[str]) -> int | None:
  """Returns the number of the first axis with one of these letters, or None."""
  names = [] if axes is None else axes.split()
  return next((i for i, name in enumerate(names) if name in letters), None)


def part_of(node: Node, axes: str | None, shape: tuple[int, ...]) -> Part:
  """Returns the index of a node's part in the value at its site.

  Args:
    node: The node.
    axes: A letter for each axis of the value, as in `Tap`. None means that they are not
      known.
    shape: The shape of the value.

  Returns:
    An index with one entry for each axis.

  Raises:
    UserError: If the site has no axis of heads or of tokens, or no such head or token.
  """
  part: list[int | slice] = [slice(None)] * len(shape)
  for name, number, known in (
    ('head', node.head, HEADS),
    ('token', node.token, TOKENS),
  ):
    if number is None:
      continue
    axis = axis_of(axes, known)
    if axis is None:
      raise UserError(
        f'the site {node.site!r} has no axis of {name}s; its axes are '
        f'{axes or "not known"}'
      )
    least, most = (0 if name == 'head' else -shape[axis]), shape[axis] - 1
    is_integer = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    if not is_integer or not least <= number <= most:
      raise UserError(
        f'the {name} is {number!r} at the site {node.site!r}; it must be an integer '
        f'from {least} to {most}'
      )
    part[axis] = int(number)
  return tuple(part)


def from_first_token(node: Node, axes: str | None, shape: tuple[int, ...]) -> Node:
  """Returns a node whose token is counted from the first one; see `part_of`."""
  axis = axis_of(axes, TOKENS)
  if node.token is None or axis is None:
    return node
  return node._replace(token=node.token % shape[axis])


def put_part(
  values: dict[str, Array], site: str, part: Part
) -> Callable[[Array], Array]:
  """Returns an edit that puts a part of captured values back, for one forward pass."""
  calls = iter(calls_of(values, site))
  return lambda value: value.at[part].set(next(calls)[part])


class Attention(NamedTuple):
  """The sites of a mixer with heads.

  Attributes:
    query: The site of the queries.
    key: The site of the keys.
    value: The site of the values.
    heads: The site of what the heads give to the output matrix.
    out: The site of what the mixer adds to the stream.
    num_heads: The number of heads.
    axes: The axis of heads in the value at each of the first four sites.
  """

  query: str
  key: str
  value: str
  heads: str
  out: str
  num_heads: int
  axes: dict[str, int]

  @property
  def parts(self) -> tuple[str, str, str]:
    """The sites of the queries, keys and values."""
    return self.query, self.key, self.value


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
  def sites(self) -> list[str]:
    """The tap of the stream, and those from whose values all that is added follows."""
    parts = self.attention.parts if self.attention is not None else ()
    return [self.site, *parts, *self.networks]

  @property
  def receivers(self) -> list[Node]:
    """The readers; the readout, if nothing is added after this tap."""
    nodes = [Node(site) for site in self.networks]
    if (mixer := self.attention) is not None:
      heads = range(mixer.num_heads)
      nodes = [Node(site, head) for site in mixer.parts for head in heads] + nodes
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
    num_bytes: The bytes of the stream of one prompt.
  """

  stages: list[Stage]
  num_bytes: int

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
  def outputs(self) -> dict[Node, Node]:
    """The sender that is computed from what each receiver reads.

    The readout is missing, because it adds nothing to the stream.
    """
    outputs = {}
    for stage in self.stages:
      outputs |= {node: node for node in stage.senders if node.site in stage.networks}
      if (mixer := stage.attention) is not None:
        for site in mixer.parts:
          for head in range(mixer.num_heads):
            outputs[Node(site, head)] = Node(mixer.heads, head)
    return outputs

  @property
  def bytes_per_prompt(self) -> int:
    """The bytes of what all senders add to the stream of one prompt."""
    return len(self.senders) * self.num_bytes

  def by_stage(self, values: Array) -> list[Array]:
    """Splits values of all edges `[e, …]` into an array `[r, u, …]` for each stage."""
    parts, start = [], 0
    for stage in self.stages:
      shape = len(stage.receivers), stage.num_senders
      size = shape[0] * shape[1]
      parts.append(values[start : start + size].reshape(*shape, *values.shape[1:]))
      start += size
    return parts

  def ends(self, model: Any, clean: Prompt, corrupt: Prompt) -> Ends:
    """Returns what each sender adds in clean and in corrupt prompts.

    It is called within a function that JAX traces.
    """
    added, streams = [], []
    for prompt in (corrupt, clean):
      sites = [site for stage in self.stages for site in stage.sites]
      values, _ = recorded(model, prompt, sites)
      of_prompt = [values[self.stages[0].site]]
      for stage in self.stages:
        if (mixer := stage.attention) is not None:
          parts = {site: values[site] for site in mixer.parts}
          of_prompt += _heads_apart(model, prompt, mixer, parts)
        of_prompt += [values[site] for site in stage.networks]
      added.append(jnp.stack(of_prompt))
      streams.append([values[stage.site] for stage in self.stages])
    return Ends(added[0], added[1], streams[0])

  def run(
    self,
    model: Any,
    prompt: Prompt,
    ends: Ends,
    mask: Float[Array, ' e'],
    *,
    embedded: Float[Array, 'b n w'] | None = None,
    nudges: Float[Array, 'e b'] | None = None,
    last: tuple[Array, Array] | None = None,
  ) -> Run:
    """Runs a model in which the edges of a mask carry what is added in this run.

    It is called within a function that JAX traces.

    Args:
      model: The model.
      prompt: The clean prompts.
      ends: What the senders add in clean and corrupt prompts.
      mask: 1 for the edges that carry what is added in this run; all others, with 0,
        carry what is added in the corrupt prompts.
      embedded: Embedded tokens that replace those of the prompts.
      nudges: How much of the change from corrupt to clean is added to each edge.
      last: The mask of another run of these prompts, and what was added there. What
        does not differ from it is not computed anew.

    Returns:
      The prediction, and what each sender added.
    """
    of_stages, known = self.by_stage(mask), None
    if last is not None:
      before = self.by_stage(last[0])
      # A stage reads the same as in the last run if no edge until there has changed.
      pairs = zip(of_stages[:-1], before[:-1], strict=True)
      is_equal = jnp.stack([jnp.all(new == old) for new, old in pairs])
      known = _KnownRun(last[1], jnp.cumprod(is_equal).astype(bool))
    changes = None if nudges is None else self.by_stage(nudges)
    streams = _with_edges(ends, of_stages, changes)
    return _run_graph(model, self, prompt, streams, embedded, known)


def graph_of(model: Predictor, prompt: Prompt) -> Graph:
  """Returns the graph of a model, from the kinds and the calls of its taps.

  Args:
    model: A model with taps of all `KINDS_OF_GRAPH`.
    prompt: Prompts; two are enough.

  Returns:
    The graph.

  Raises:
    UserError: If the model lacks one of the kinds, or calls a tap twice; if a mixer
      lacks its queries, keys, values or heads, or their axes are not known; if what
      heads read is not a function of their queries, keys and values; if there is no tap
      of the stream before the readout.
  """
  name = type(model).__name__
  kinds = kinds_of_sites(model, KINDS_OF_GRAPH, 'a circuit')
  wanted = [site for site, kind in kinds.items() if kind in KINDS_OF_GRAPH]
  shapes = shapes_in_order(model, prompt, wanted)
  order = list(shapes)
  few = two_of(prompt)
  outs = outputs_of(model, few, [site for site in order if kinds[site] == 'heads'])
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
  if beside := _reads_beside(model, few, stages):
    raise UserError(
      f'the heads of {name} at {shown(beside)} depend on the residual stream beside '
      'their queries, keys and values, as by gates or decays; a circuit of heads needs '
      'softmax, ReLU or linear attention, and circuit(…, tokens=True) any mixer'
    )
  if stages[-1].senders:
    raise UserError(
      f'{name} has no tap of the kind stream after {order[-1]!r}; a circuit needs one '
      'before the readout'
    )
  stream = shapes[stages[0].site]
  return Graph(stages, stream.size * stream.dtype.itemsize // len(prompt.x))


def kinds_of_sites(
  model: Predictor, needed: Sequence[str], what: str
) -> dict[str, str | None]:
  """Returns the kind of the tap at each site.

  Args:
    model: The model.
    needed: The kinds of which the model needs a tap each.
    what: What needs them, for the message.

  Raises:
    UserError: If the model has no tap of one of these kinds.
  """
  kinds = {site: tap.kind for site, tap in taps_of(model).items()}
  for kind in needed:
    if kind not in kinds.values():
      raise UserError(
        f'{type(model).__name__} has no tap of the kind {kind}; {what} needs '
        f'{", ".join(needed)}'
      )
  return kinds


def shapes_in_order(
  model: Predictor, prompt: Prompt, sites: Sequence[str]
) -> dict[str, Any]:
  """Returns the shapes of the values at some sites, in the order of their calls.

  Raises:
    UserError: If a forward pass calls one of the taps twice.
  """
  order: list[str] = []

  def values() -> dict[str, Array]:
    found, _ = recorded(model, prompt, sites)
    order.extend(found)  # JAX sorts a dictionary that a function returns.
    return found

  shapes = jax.eval_shape(values)
  for site in order:
    if '@' in site:
      raise UserError(
        f'the tap at {site.partition("@")[0]!r} is called again in a forward pass; a '
        'circuit needs a model without loops'
      )
  return {site: shapes[site] for site in order}


def _stage(
  site: str,
  between: Sequence[str],
  kinds: dict[str, str | None],
  outs: Collection[str],
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
  of_heads = {name: axes[name].index('h') for name in (query, key, value, heads)}
  num_heads = shapes[heads].shape[of_heads[heads]]
  attention = Attention(query, key, value, heads, out, num_heads, of_heads)
  return Stage(site, attention, networks, num_senders)


def _reads_beside(model: Predictor, prompt: Prompt, stages: list[Stage]) -> list[str]:
  """Returns the sites of heads that depend on the stream beside what they attend to.

  The stream is NaN at all its taps, while all queries, keys and values are kept.
  """
  mixers = [stage.attention for stage in stages if stage.attention is not None]
  parts = [site for mixer in mixers for site in mixer.parts]

  def are_nan(models: Sequence[Any], prompt: Prompt) -> list[Bool[Array, '']]:
    (model,) = models
    kept, _ = recorded(model, prompt, parts)
    noise = {
      stage.site: lambda value: jnp.full_like(value, jnp.nan) for stage in stages
    }
    copy = exchanged(model, {**noise, **put_back(kept, parts)})
    values, _ = recorded(copy, prompt, [mixer.heads for mixer in mixers])
    return [jnp.any(jnp.isnan(values[mixer.heads])) for mixer in mixers]

  found = run_once(are_nan, [model], prompt)
  return [mixer.heads for mixer, is_nan in zip(mixers, found, strict=True) if is_nan]


class Run(NamedTuple):
  """A forward pass in which each reader has its own stream.

  Attributes:
    prediction: The predictions for the queries.
    added: What each of u senders adds to the stream.
  """

  prediction: Array
  added: Float[Array, 'u b n w']


class _KnownRun(NamedTuple):
  """What is known of a run from another one.

  Attributes:
    added: What each sender added in the other run.
    is_same: Whether all that is read at a stage, and before it, is as in the other run.
      There is one entry for each stage but the last.
  """

  added: Float[Array, 'u b n w']
  is_same: Bool[Array, ' s']


# Such a function takes the number of a stage and what each sender added before it, and
# returns a stream for each receiver, `[r, b, n, w]`.
_Streams = Callable[[int, Sequence[Array]], Array]


def _run_graph(
  model: Any,
  graph: Graph,
  prompt: Prompt,
  streams: _Streams,
  embedded: Float[Array, 'b n w'] | None = None,
  known: _KnownRun | None = None,
) -> Run:
  """Runs a model in which each reader has its own stream.

  It is called within a function that JAX traces. The model is called several times for
  each stage. Each call computes some values of the stage from others that are given;
  XLA drops all of the model that these values do not need.

  Args:
    model: The model.
    graph: Its graph.
    prompt: Prompts.
    streams: What each receiver of a stage reads.
    embedded: Embedded tokens that replace those of the prompts. None keeps the
      prompts'.
    known: What is not computed anew.

  Returns:
    The prediction, and what each sender added.
  """
  *stages, last = graph.stages
  if embedded is None:
    embedded = values_given(model, prompt, {}, [stages[0].site])[stages[0].site]
  added = [embedded]
  for number, stage in enumerate(stages):
    sent = tuple(added)

    def compute(number: int = number, stage: Stage = stage, sent: Any = sent) -> Any:
      return _added(model, prompt, stage, streams(number, sent))

    if known is None:
      added += compute()
    else:
      start = stage.num_senders
      old = [*known.added[start : start + len(stage.senders)]]
      added += jax.lax.cond(known.is_same[number], lambda old=old: old, compute)
  (read,) = streams(len(stages), added)
  prediction = exchanged(model, {last.site: lambda _: read})(prompt)
  return Run(prediction, jnp.stack(added))


def _added(
  model: Any, prompt: Prompt, stage: Stage, read: Float[Array, 'r b n w']
) -> list[Float[Array, 'b n w']]:
  """Returns what each sender of a stage adds if the receivers have these streams."""
  added = []
  if stage.attention is not None:
    added += _added_by_heads(model, prompt, stage.site, stage.attention, read)
  of_networks = read[len(read) - len(stage.networks) :]
  for site, stream in zip(stage.networks, of_networks, strict=True):
    given = {stage.site: lambda _, stream=stream: stream}
    added.append(values_given(model, prompt, given, [site])[site])
  return added


def _added_by_heads(
  model: Any,
  prompt: Prompt,
  stream: str,
  mixer: Attention,
  read: Float[Array, 'r b n w'],
) -> list[Float[Array, 'b n w']]:
  """Returns what each head adds, if it has queries, keys and values of its own streams.

  The first h streams are those of the queries, then come those of keys and of values.
  """
  heads = range(mixer.num_heads)

  @jax.jit  # It is traced once. XLA drops the two parts that a call does not need.
  def parts_of(tokens: Array) -> dict[str, Array]:
    return values_given(model, prompt, {stream: lambda _: tokens}, mixer.parts)

  parts: dict[str, Array] = {}
  for i, site in enumerate(mixer.parts):
    own = read[i * mixer.num_heads : (i + 1) * mixer.num_heads]
    values, axis = jax.vmap(parts_of)(own)[site], mixer.axes[site]
    of_heads = [jax.lax.index_in_dim(values[head], head, axis) for head in heads]
    parts[site] = jnp.concatenate(of_heads, axis)
  return _heads_apart(model, prompt, mixer, parts)


def _heads_apart(
  model: Any, prompt: Prompt, mixer: Attention, parts: dict[str, Array]
) -> list[Float[Array, 'b n w']]:
  """Returns what each head adds, from the queries, keys and values of all heads."""

  def added_by(chosen: Array) -> Array:
    def one_head(value: Array) -> Array:
      other = [axis for axis in range(value.ndim) if axis != mixer.axes[mixer.heads]]
      return value * jnp.expand_dims(chosen, other)

    given = {mixer.heads: one_head, **put_back(parts, mixer.parts)}
    return values_given(model, prompt, given, [mixer.out])[mixer.out]

  # The last row has no head: it gives the bias alone, which no edge carries.
  dtype = parts[mixer.value].dtype
  rows = jnp.eye(mixer.num_heads + 1, mixer.num_heads, dtype=dtype)
  *added, bias = jax.vmap(added_by)(rows)
  return [of_head - bias for of_head in added]


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


def _with_edges(
  ends: Ends, masks: Sequence[Array], nudges: Sequence[Array] | None = None
) -> _Streams:
  """Returns streams in which the edges of a mask carry what is added in this run.

  All other edges carry what is added in the corrupt prompts. The mask has the form of
  `Graph.by_stage`, an array `[r, u]` for each stage. `nudges` `[r, u, b]` say how much
  of the change from corrupt to clean prompts is added to each edge.
  """

  def streams(i: int, added: Sequence[Array]) -> Array:
    moved = [sent - ends.corrupt[j] for j, sent in enumerate(added)]
    stream, mask = ends.streams[i], masks[i]
    if len(mask) > 1:
      carried = stream[None] + jnp.einsum('ru,ubnw->rbnw', mask, jnp.stack(moved))
    else:
      # On a CPU a sum is several times faster than the product of a row and a matrix.
      carried = (stream + sum(map(jnp.multiply, mask[0], moved)))[None]
    if nudges is None:
      return carried
    change = ends.clean[: len(added)] - ends.corrupt[: len(added)]
    return carried + jnp.einsum('rub,ubnw->rbnw', nudges[i], change)

  return streams
