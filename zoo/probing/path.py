"""Paths: how one value within a model affects another through the residual stream."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from zoo.core.errors import UserError, shown
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.intervals import Estimate, difference, estimate
from zoo.measure.predict import run_once
from zoo.measure.ratio import Share
from zoo.measure.table import Rows, WithRows
from zoo.probing.activations import calls_of, put_back, recorded
from zoo.probing.checks import (
  check_is_list,
  no_array,
  sites_of_kind,
  taps_of,
  wanted_sites,
)
from zoo.probing.edit import edited
from zoo.probing.graph import (
  HEADS,
  Node,
  NodeLike,
  Part,
  axis_of,
  from_first_token,
  node_of,
  part_of,
  put_part,
)
from zoo.probing.patch import (
  RECOVERED,
  REPLACEMENTS,
  LossAtQuery,
  Metric,
  Selection,
  check_metric,
  check_takes_prompts,
  checked_kinds,
  checked_prompts,
  in_whole_batches,
  mask_of,
  moved_by,
  new_value,
  share_moved,
  with_footer,
)
from zoo.probing.reach import depends, in_trial, outputs_of, readers, two_of

# The kinds of the residual stream, and of the values that are added to it. All later
# layers read their sum.
_OF_STREAM = 'embed', 'stream', 'added'
_MOST_AT_ONCE = 16  # One call of the model is vectorised over up to so many paths.
_BYTES = 2**28  # The values that are kept for all paths of such a call.


class PathEffect(NamedTuple):
  """The effect of the path from one sender, as shares of the gap of the losses.

  It is a row of the table that `path_effects` returns. A share is None if it was not
  asked for, if the gap is less than 3 standard errors from 0, or, without a `metric`,
  if the corrupt prompts have the lower loss.

  Attributes:
    sender: The site of the sender.
    head: The head of the sender. None means all heads, or a site without heads.
    token: The token of the sender. None means all tokens.
    recovered: The share of the gap that the clean value recovers in the corrupt prompts
      if it takes this path alone.
    zero: The share that is lost in the clean prompts with 0 on the path.
    mean: The share that is lost with the mean over prompts on the path.
    resample: The share that is lost with the value of the next prompt on the path.
  """

  sender: str
  head: int | None
  token: int | None
  recovered: Share | None
  zero: Share | None
  mean: Share | None
  resample: Share | None


@dataclasses.dataclass(frozen=True)
class PathEffects(WithRows):
  """The effects of the paths from several senders to one receiver.

  `path_effects` returns it. It prints as a table. `records` returns the rows as
  dictionaries, `to_frame` as a data frame of pandas, and `to_csv` writes them to a
  file.

  Attributes:
    receiver: The receiver.
    clean: The loss in the clean prompts.
    corrupt: The loss in the corrupt prompts.
    gap: The corrupt loss minus the clean loss, prompt by prompt.
    rows: One row for each sender.
    quantity: What was measured: 'loss', or 'metric' if `path_effects` was given one.
  """

  receiver: Node
  clean: Estimate
  corrupt: Estimate
  gap: Estimate
  rows: Rows[PathEffect]
  quantity: str = 'loss'

  def __str__(self) -> str:
    ends = self.clean, self.corrupt, self.gap
    return (
      f'paths into {self.receiver}; gap {self.gap.mean:.4g} ± {self.gap.half:.2g}\n'
      f'{with_footer(self.rows, *ends, self.quantity)}'
    )


def path_effect(
  model: Predictor,
  task: Task,
  clean: Prompt,
  corrupt: Prompt,
  sender: NodeLike,
  receiver: NodeLike,
  metric: Metric | None = None,
) -> Share | None:
  """Measures the share of the gap that the path from one node to another recovers.

  This is path patching. The clean value of the sender reaches the receiver, in the
  corrupt prompts, through the residual stream alone: the outputs of all other mixers
  and networks keep their corrupt values. The new value of the receiver then replaces
  its corrupt value, and everything after it is computed from it. If the receiver is
  `Node('layers.1.mixer.query', head=0)`, the path ends in the queries of one head.

  The outputs of mixers and networks are the values at all taps of the kind `added`.
  They keep their corrupt values, except for an output that contains the sender: if the
  sender is a head, the output of its mixer carries the new value of the head. An output
  contains the sender if it changes with the sender while the residual stream is held
  fixed, at all taps of the kinds `embed`, `stream` and `added`. A sender before the
  stream, such as `guess`, is in none of these outputs. To know this, a model must have
  a tap of the kind `embed` or `stream`.

  A value depends on another one if it becomes NaN with it, and also changes, by more
  than rounding, with its clean value or with normal noise. So the values at earlier
  tokens do not depend on those at later ones if attention is causal.

  - Quantity: (E L(corrupt) − E L(corrupt; receiver ← r)) / (E L(corrupt) − E L(clean)),
    where r is the value that the receiver has in the corrupt prompts if the sender has
    its clean value and all other outputs keep theirs, and E is over pairs of prompts.
  - Null: 0, if the part of the sender that reaches the receiver does not change the
    prediction. If nothing of the sender reaches the receiver, an error is raised.
  - Counterfactual: the corrupt prompts, such as `task.redraw(key, clean, 'inputs')`.
  - Denominator: the gap E L(corrupt) − E L(clean). The share is None with fewer than 16
    prompts, if the gap is less than 3 standard errors from 0 or no more than rounding,
    or, without a `metric`, if the corrupt prompts have the lower loss.

  Args:
    model: A model with taps.
    task: The task of the prompts, whose loss L is taken.
    clean: Two or more prompts. All losses are measured against the labels of their
      queries.
    corrupt: As many prompts of the same sizes.
    sender: A site, or a `Node`, which may name one head or one token.
    receiver: A site, or a `Node`.
    metric: A function that replaces the loss: it takes predictions and the clean
      prompts, and returns a number for each prompt.

  Returns:
    The share with its error over prompts, an `Interval` if the gap is less than 8
    standard errors from 0. None if the gap is less than 3 standard errors from 0 or,
    without a `metric`, if the corrupt prompts have the lower loss.

  Raises:
    UserError: If an end of the path is unknown or has no numbers with a fraction, the
      model lacks the taps, or the prompts do not fit together. Also if the receiver
      does not depend on the sender by this path, or does not reach the prediction.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> clean = saved.task.sample(jax.random.key(0), 64)
    >>> corrupt = saved.task.redraw(jax.random.key(1), clean, 'inputs')
    >>> sender = zoo.probing.Node('layers.1.mixer.heads', head=0)
    >>> receiver = zoo.probing.Node('layers.2.mixer.key', head=1)
    >>> share = zoo.probing.path_effect(
    ...   saved.model, saved.task, clean, corrupt, sender, receiver
    ... )
    >>> round(share.mean, 1)
    0.0

  References:
    Wang et al., arXiv 2211.00593; Goldowsky-Dill et al., arXiv 2304.05969.
  """
  table = path_effects(
    model, task, clean, corrupt, receiver, [sender], metric, kinds=['recovered']
  )
  return table.rows[0].recovered


def path_effects(
  model: Predictor,
  task: Task,
  clean: Prompt,
  corrupt: Prompt,
  receiver: NodeLike,
  senders: Sequence[NodeLike] | None = None,
  metric: Metric | None = None,
  *,
  kinds: Sequence[str] | None = None,
) -> PathEffects:
  """Measures the effects of the paths from several senders to one receiver.

  It does for all senders what `path_effect` does for one, as one compiled program. It
  also ablates paths: the receiver then has, in the clean prompts, the value that it has
  if 0, the mean over prompts or the value of the next prompt is in place of the sender,
  while all other outputs keep their clean values.

  - Quantity: `recovered` is that of `path_effect`. `zero`, `mean` and `resample` are
    (E L(clean; receiver ← r') − E L(clean)) / gap, where r' is the value that the
    receiver has in the clean prompts if the sender is replaced on the path, and E is
    over pairs of prompts.
  - Null: 0, if the part of the sender that reaches the receiver does not change the
    prediction.
  - Counterfactual: the corrupt prompts, such as `task.redraw(key, clean, 'inputs')`,
    and the values in place of the sender.
  - Denominator: the gap E L(corrupt) − E L(clean). Shares are None with fewer than 16
    prompts, if the gap is less than 3 standard errors from 0 or no more than rounding,
    or, without a `metric`, if the corrupt prompts have the lower loss.

  Args:
    model: A model with taps.
    task: The task of the prompts, whose loss L is taken.
    clean: Two or more prompts. All losses are measured against the labels of their
      queries.
    corrupt: As many prompts of the same sizes.
    receiver: A site, or a `Node`, which may name one head or one token.
    senders: Sites or nodes. None means each head at the sites of the kind `heads`, each
      output of the kind `added` that contains none of these heads, and the site of the
      kind `stream` that is called first, if they reach the receiver.
    metric: A function that replaces the loss: it takes predictions and the clean
      prompts, and returns a number for each prompt.
    kinds: The kinds of replacements, some of 'recovered', 'zero', 'mean' and
      'resample'. None means all.

  Returns:
    One row for each sender, with errors over prompts.

  Raises:
    UserError: If one of the `senders` has no path to the receiver; if a kind is
      unknown; for all other reasons for which `path_effect` raises it.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> clean = saved.task.sample(jax.random.key(0), 64)
    >>> corrupt = saved.task.redraw(jax.random.key(1), clean, 'inputs')
    >>> table = zoo.probing.path_effects(
    ...   saved.model, saved.task, clean, corrupt, 'final.stream', kinds=['recovered']
    ... )
    >>> largest = max(table.rows, key=lambda row: row.recovered.mean)
    >>> print(largest.sender, largest.head, round(largest.recovered.mean, 2))
    layers.1.mixer.heads 0 0.47
  """
  require_task(task)
  check_takes_prompts(metric)
  clean, corrupt = checked_prompts(clean, corrupt)
  kinds = checked_kinds(kinds)
  receiver = node_of(receiver)
  nodes = _senders(model, corrupt, receiver, senders)
  plan = _plan(model, corrupt, nodes, receiver, kinds)
  goes_on, is_reached, clean_loss, corrupt_loss, losses = _losses(
    model, metric or LossAtQuery(task), clean, corrupt, plan
  )
  if senders is not None:
    _check_reached(plan, nodes, is_reached)
  if not goes_on:
    raise UserError(f'the site {str(receiver)!r} does not reach the prediction')
  rows, ends = [], (clean_loss, corrupt_loss)
  for i, node in enumerate(plan.nodes):
    shares: dict[str, Share | None] = {**dict.fromkeys(REPLACEMENTS)}
    for kind, of_kind in zip(kinds, losses, strict=True):
      moved = moved_by(kind, of_kind[i], *ends)
      shares[kind] = share_moved(kind, moved, *ends, is_loss=metric is None)
    if is_reached[i]:
      rows.append(PathEffect(*node, **shares))
  return PathEffects(
    receiver,
    estimate(clean_loss),
    estimate(corrupt_loss),
    difference(corrupt_loss, clean_loss),
    Rows(rows, f'no sender reaches {receiver}'),
    'loss' if metric is None else 'metric',
  )


class _Plan(NamedTuple):
  """The paths that are measured together.

  Attributes:
    nodes: The senders.
    receiver: The receiver.
    part: The index of the receiver's part in the value at its site.
    axes: The axes of the tap at each site of a sender.
    kinds: The kinds of replacements.
    added: The sites of what is added to the stream.
    is_frozen: Whether each of these keeps its value, for each sender.
    at_once: The number of paths over which one call of the model is vectorised.
  """

  nodes: list[Node]
  receiver: Node
  part: Part
  axes: dict[str, str]
  kinds: Sequence[str]
  added: list[str]
  is_frozen: Bool[np.ndarray, 's a']
  at_once: int

  def frozen(self, i: int) -> list[str]:
    """The sites that keep their values for one sender."""
    pairs = zip(self.added, self.is_frozen[i], strict=True)
    return [site for site, is_frozen in pairs if is_frozen]

  def rows(self, kinds: Sequence[str]) -> tuple[Selection, Bool[np.ndarray, 'm a']]:
    """Returns the replacements of all senders by these kinds, in the order of kinds.

    Of the last batch some are repetitions, as `in_whole_batches` says.
    """
    sites = [*self.axes]
    members = [
      (sites.index(site), *(-1 if number is None else number for number in numbers))
      for site, *numbers in self.nodes
    ]
    numbers = [REPLACEMENTS.index(kind) for kind in kinds for _ in self.nodes]
    columns = np.array(members * len(kinds), np.int32).T[..., None]
    selections = Selection(np.array(numbers, np.int32), *columns)
    is_frozen = np.tile(self.is_frozen, (len(kinds), 1))
    return in_whole_batches((selections, is_frozen), self.at_once)


def _plan(
  model: Predictor,
  corrupt: Prompt,
  nodes: list[Node],
  receiver: Node,
  kinds: Sequence[str],
) -> _Plan:
  """Returns the paths; raises UserError for nodes that cannot be their ends."""
  name = type(model).__name__
  taps = taps_of(model)
  if not (added := sites_of_kind(model, 'added')):
    raise UserError(
      f'{name} has no tap of the kind added, whose values would be kept off the path'
    )
  sites = [*dict.fromkeys(node.site for node in nodes)]
  shapes = jax.eval_shape(
    lambda: recorded(model, corrupt, [*sites, *added, receiver.site])[0]
  )
  *_, part = (_part(node, taps[node.site].axes, shapes) for node in [*nodes, receiver])
  for site in sites:
    is_before = taps[site].kind in ('guess', None)
    if is_before and not sites_of_kind(model, 'embed', 'stream'):
      raise UserError(
        f'{name} has no tap of the kind embed or stream; without one it is not known '
        f'which outputs contain {site!r}, whose kind is {taps[site].kind}'
      )
  beside_stream = [site for site in sites if taps[site].kind not in _OF_STREAM]
  direct = readers(model, two_of(corrupt), beside_stream)
  num_bytes = sum(shape.size * shape.dtype.itemsize for shape in shapes.values())
  at_once = min(_MOST_AT_ONCE, len(nodes) * len(kinds), max(1, _BYTES // num_bytes))
  is_frozen = [
    [
      site not in (node.site, receiver.site, *direct.get(node.site, ()))
      for site in added
    ]
    for node in nodes
  ]
  return _Plan(
    nodes=[
      from_first_token(node, taps[node.site].axes, shapes[node.site].shape)
      for node in nodes
    ],
    receiver=receiver,
    part=part,
    axes={site: taps[site].axes or '' for site in sites},
    kinds=kinds,
    added=added,
    is_frozen=np.array(is_frozen),
    at_once=at_once,
  )


def _losses(
  model: Predictor, loss: Metric, clean: Prompt, corrupt: Prompt, plan: _Plan
) -> tuple[Any, Any, np.ndarray, np.ndarray, Float[np.ndarray, 'k s b']]:
  """Returns whether paths are open, and the losses without and with each path.

  The first entry says whether the receiver reaches the prediction, and the second one
  which senders reach the receiver.
  """
  rows = plan.rows(plan.kinds), plan.rows([REPLACEMENTS[RECOVERED]])
  goes_on, is_reached, *ends, losses = run_once(
    functools.partial(_measured, plan, loss), [model], clean, corrupt, *rows
  )
  for of_end in ends:
    check_metric(of_end, len(clean.x))
  clean_loss, corrupt_loss, losses = (
    np.asarray(array, np.float64) for array in (*ends, losses)
  )
  num_rows = len(plan.kinds) * len(plan.nodes)
  losses = losses[:num_rows].reshape(len(plan.kinds), len(plan.nodes), -1)
  return goes_on, np.asarray(is_reached), clean_loss, corrupt_loss, losses


def _measured(
  plan: _Plan,
  loss: Metric,
  models: Sequence[Any],
  clean: Prompt,
  corrupt: Prompt,
  rows: Any,
  senders: Any,
) -> tuple[Array, ...]:
  """Returns what `_losses` returns, the losses of all rows in turn.

  It is called within a function that JAX traces.
  """
  (model,), site, sites = models, plan.receiver.site, [*plan.axes]
  of_clean, prediction = recorded(model, clean, [*sites, *plan.added, site])
  of_corrupt, without = recorded(model, corrupt, plan.added)

  def with_path(row: tuple[Selection, Array]) -> Array:
    is_patch = row[0].kind == RECOVERED
    prompt, kept = jax.tree.map(
      lambda patched, ablated: jnp.where(is_patch, patched, ablated),
      (corrupt, of_corrupt),
      (clean, {name: of_clean[name] for name in of_corrupt}),
    )

    def replace(new: Array, mask: Array, value: Array) -> Array:
      return jnp.where(mask, new_value(new, row[0].kind, plan.kinds), value)

    received = _received(model, plan, prompt, kept, of_clean, row, replace)
    # The new value replaces the receiver's, and everything after it is computed anew.
    edit = put_part(received, site, plan.part)
    return loss(edited(model, {site: edit})(prompt), clean)

  def is_reached(row: tuple[Selection, Array]) -> Array:
    def received_in(trial: Array) -> list[Array]:
      def replace(new: Array, mask: Array, value: Array) -> Array:
        return in_trial(trial, mask, value, new)

      received = _received(model, plan, corrupt, of_corrupt, of_clean, row, replace)
      return [value[plan.part] for value in received.values()]

    return depends(received_in)

  def predicted_in(trial: Array) -> list[Array]:
    calls = iter(calls_of(of_clean, site))

    def edit(value: Array) -> Array:
      mask = jnp.zeros(value.shape, bool).at[plan.part].set(True)
      return in_trial(trial, mask, value, next(calls))

    return [edited(model, {site: edit})(corrupt)]

  return (
    depends(predicted_in),
    jax.lax.map(is_reached, senders, batch_size=plan.at_once),
    loss(prediction, clean),
    loss(without, clean),
    jax.lax.map(with_path, rows, batch_size=plan.at_once),
  )


def _received(
  model: Any,
  plan: _Plan,
  prompt: Prompt,
  kept: dict[str, Array],
  of_clean: dict[str, Array],
  row: tuple[Selection, Bool[Array, ' a']],
  replace: Callable[[Array, Array, Array], Array],
) -> dict[str, Array]:
  """Returns the receiver's value if a sender is replaced and reaches it by its path.

  It is called within a function that JAX traces.

  Args:
    model: The model.
    plan: The paths.
    prompt: The prompts that the model reads.
    kept: The values at all sites of the kind `added`, of which some are frozen.
    of_clean: The clean values at the sites of the senders.
    row: The sender, and which sites are frozen.
    replace: A function that takes the clean value at the site of the sender, a mask of
      the sender's part, and the value that is there, and returns what replaces it.
  """
  selection, is_frozen = row

  def edit_of(site: str) -> Callable[[Array], Array]:
    back, calls = put_back(kept, plan.added).get(site), iter(calls_of(of_clean, site))

    def edit(value: Array) -> Array:
      if back is not None:
        value = jnp.where(is_frozen[plan.added.index(site)], back(value), value)
      if site in plan.axes:
        axes, i = plan.axes[site], [*plan.axes].index(site)
        mask = mask_of(selection, i, axes, value)
        value = replace(next(calls), mask, value)
      return value

    return edit

  sites = dict.fromkeys([*plan.axes, *plan.added])
  on_path = edited(model, {site: edit_of(site) for site in sites})
  return recorded(on_path, prompt, [plan.receiver.site])[0]


def _senders(
  model: Predictor,
  prompt: Prompt,
  receiver: Node,
  senders: Sequence[NodeLike] | None,
) -> list[Node]:
  """Returns the senders; if none are given, all heads and networks, and the stream."""
  if senders is not None:
    check_is_list(senders)
    if not senders:
      raise UserError('senders is empty; it must have a site or a node')
    nodes = [node_of(sender) for sender in senders]
    wanted_sites(model, [*(node.site for node in nodes), receiver.site])
    return nodes
  wanted_sites(model, [receiver.site])
  taps = taps_of(model)
  heads = [
    site
    for site in sites_of_kind(model, 'heads')
    if axis_of(taps[site].axes, HEADS) is not None
  ]
  streams = sites_of_kind(model, 'stream')
  called: list[str] = []

  def values() -> dict[str, Array]:
    found, _ = recorded(model, prompt, [*heads, *streams])
    called.extend(site for site in found if site in streams)
    return found

  shapes = jax.eval_shape(values)
  mixers = outputs_of(model, two_of(prompt), heads)
  nodes = [Node(site) for site in called[:1]]
  for site in sites_of_kind(model, 'heads', 'added'):
    if site in heads and site in shapes:
      axis = axis_of(taps[site].axes, HEADS)
      nodes += [Node(site, head) for head in range(shapes[site].shape[axis])]
    elif site not in mixers:
      nodes.append(Node(site))
  nodes = [node for node in nodes if node.site != receiver.site]
  if not nodes:
    raise UserError(f'{type(model).__name__} has no senders beside {receiver}')
  return nodes


def _check_reached(
  plan: _Plan, nodes: Sequence[Node], is_reached: Bool[np.ndarray, ' s']
) -> None:
  """Raises UserError unless all senders reach the receiver."""
  for i, node in enumerate(nodes):
    if not is_reached[i]:
      frozen = plan.frozen(i)
      keeps = f', which keeps the values at {shown(frozen)}' if frozen else ''
      raise UserError(
        f'{str(plan.receiver)!r} does not depend on {str(node)!r} by this path{keeps}'
      )


def _part(
  node: Node, axes: str | None, shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> Part:
  """Returns the part of a node; raises UserError for an unknown head or token."""
  if (shape := shapes.get(node.site)) is None:
    raise UserError(no_array(node.site, shapes))
  if not jnp.issubdtype(shape.dtype, jnp.inexact):
    raise UserError(
      f'the value at the site {node.site!r} is {shape.dtype}; the ends of a path must '
      'have numbers with a fraction'
    )
  return part_of(node, axes, shape.shape)
