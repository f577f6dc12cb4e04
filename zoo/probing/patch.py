"""Effects of values within a model: the loss after a value is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from zoo.core.errors import UserError, check_name, in_one_line, shown
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import loss_of, run_once
from zoo.measure.ratio import Share, share_of_gap, why_no_share
from zoo.measure.table import Rows, WithRows, name_of_share
from zoo.probing.activations import calls_of, recorded, site_of
from zoo.probing.attribution_patching import NUM_STEPS, first_order_loss_changes
from zoo.probing.checks import (
  check_is_list,
  no_array,
  no_values,
  takes,
  taps_of,
  wanted_sites,
)
from zoo.probing.edit import ABLATED, edited
from zoo.probing.graph import (
  HEADS,
  TOKENS,
  Node,
  NodeLike,
  axis_of,
  from_first_token,
  node_of,
  part_of,
)
from zoo.probing.reach import dead_sites

# The ways of replacing a value, in the order of the fields of `Effect`.
REPLACEMENTS = 'recovered', *ABLATED
METHODS = 'patch', 'gradient', 'integrated'
RECOVERED = REPLACEMENTS.index('recovered')
_AT_ONCE = 16  # One call of the model is vectorised over this many replacements.

# A metric takes predictions `[b, *k]` and the clean prompts, and returns a number for
# each prompt.
Metric = Callable[[Float[Array, ' b *k'], Prompt], Float[Array, ' b']]
# What a row of the table is of: a site, or nodes in words, a head and a token.
_Place: TypeAlias = tuple[str, int | None, int | None]
# The losses of the clean prompts `[b]`, of the corrupt prompts `[b]`, and after each
# replacement `[m, b]`.
_Losses: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
_Arrays = TypeVar('_Arrays')  # This is a tree of arrays.


class Effect(NamedTuple):
  """The effect of replacing one value, as shares of the gap of the losses.

  It is a row of the table that `effects` returns. The gap is the corrupt loss minus the
  clean loss. It is the same for all values, so that shares can be compared. Errors are
  over prompts, and include that of the gap. If the gap is less than 8 standard errors
  from 0, shares are of the type `zoo.measure.intervals.Interval`, with wide intervals
  (see `zoo.measure.ratio.share_of_gap`). A share is None if it was not asked for,
  if the gap is less than 3 standard errors from 0 or no more than rounding, or, without
  a `metric`, if the corrupt prompts have the lower loss.

  Attributes:
    site: The site of the value. For values that were replaced together these are their
      nodes, with ` + ` between them.
    head: The head that was replaced, from 0. None means all heads, or a value without
      an axis of heads.
    token: The token that was replaced, from 0; in scores and patterns of attention it
      is the query. None means all tokens, or a value without an axis of tokens.
    recovered: The share of the gap that the clean value recovers in the corrupt
      prompts.
    zero: The share that is lost in the clean prompts with 0 in place of the value.
    mean: The share that is lost with the mean of the value over prompts. None for
      integers, which have no mean.
    resample: The share that is lost with the value of the next prompt.
    site_kind: The kind of the tap, one of `zoo.probing.TAP_KINDS`. None means that the
      tap has no kind, or that values of several kinds are replaced together.
  """

  site: str
  head: int | None
  token: int | None
  recovered: Share | None
  zero: Share | None
  mean: Share | None
  resample: Share | None
  site_kind: str | None = None


@dataclasses.dataclass(frozen=True)
class Effects(WithRows):
  """The effects of all sites, and the two losses between which their gap lies.

  `effects` returns it. It prints as a table. `records` returns the rows as
  dictionaries, `to_frame` as a data frame of pandas, and `to_csv` writes them to a
  file.

  Attributes:
    clean: The loss in the clean prompts.
    corrupt: The loss in the corrupt prompts.
    gap: The corrupt loss minus the clean loss, prompt by prompt.
    rows: The effects by site, head and token.
    method: How they were found, the argument of `effects`. With a method other than
      'patch' they are approximations, whose error the standard errors do not contain.
    quantity: What was measured: 'loss', or 'metric' if `effects` was given one.
    left_out: The sites that were not named and have no rows although they reach the
      prediction, since they are within a compiled loop or function, such as `nnx.scan`.
  """

  clean: Estimate
  corrupt: Estimate
  gap: Estimate
  rows: Rows[Effect]
  method: str = 'patch'
  quantity: str = 'loss'
  left_out: tuple[str, ...] = ()

  def __str__(self) -> str:
    said = ''
    if self.method != 'patch':
      said = (
        f'approximated by method={self.method!r}; ± is the error over prompts alone\n'
      )
    said += (
      f'gap {self.gap.mean:.4g} ± {self.gap.half:.2g}: the {self.quantity} of corrupt '
      f'prompts is {self.corrupt.mean:.4g}, and that of clean ones '
      f'{self.clean.mean:.4g}\n'
    )
    if self.left_out:
      said += (
        'Without rows, since they are within a compiled loop or function: '
        f'{shown(self.left_out)}\n'
      )
    ends = self.clean, self.corrupt, self.gap
    return f'{said}{with_footer(self.rows, *ends, self.quantity)}'


def with_footer(
  rows: Rows[Any], clean: Estimate, corrupt: Estimate, gap: Estimate, quantity: str
) -> str:
  """Returns a table of shares, and below it what ± is, or why there are no shares.

  Args:
    rows: The rows.
    clean: The loss in the clean prompts.
    corrupt: The loss in the corrupt prompts.
    gap: Their gap, prompt by prompt.
    quantity: What was measured: 'loss' or 'metric'.
  """
  if not rows:
    return str(rows)
  reason = why_no_share(gap, clean, corrupt, is_loss=quantity == 'loss')
  if reason is not None:
    return f'{rows}\nThere are no shares, since {reason}'
  return f'{rows}\n{name_of_share(gap)} over {gap.num} prompts'


def effects(
  model: Predictor,
  task: Task,
  clean: Prompt,
  corrupt: Prompt,
  sites: Sequence[NodeLike | Sequence[NodeLike]] | None = None,
  metric: Metric | None = None,
  *,
  kinds: Sequence[str] | None = None,
  heads: bool = False,
  tokens: bool = False,
  method: str = 'patch',
) -> Effects:
  """Measures how much the value at each site matters, by patching and ablation.

  Each value is replaced in turn, and the change of the loss is given as a share of the
  gap between corrupt and clean loss, so that sites can be compared. All replacements
  run as one compiled program. In a looped model a value is replaced by the value of the
  same iteration.

  The columns have different scales, so compare numbers of one column. For a value that
  carries the whole answer, `recovered` is 1, and `resample` is about 1, since the value
  of another prompt is as wrong as a corrupt prompt. A mean is less wrong: with the
  squared error, and corrupt prompts with the labels of another function, `mean` is
  about 1/2.

  - Quantity: `recovered` is (E L(corrupt) − E L(corrupt; v ← clean v)) / gap; `zero`,
    `mean` and `resample` are (E L(clean; v ← v') − E L(clean)) / gap, where v' is 0,
    the mean of v over prompts, or the v of the next prompt. E is over pairs of prompts.
    The methods `gradient` and `integrated` approximate each loss L(v ← v') by
    L + Σ ∂L/∂v · (v' − v), where v' is the clean value for `recovered`. The gap is
    measured, as it is for `patch`.
  - Null: 0, for a value that the prediction ignores.
  - Counterfactual: the corrupt prompts, such as `task.redraw(key, clean, 'inputs')`,
    and the values v'.
  - Denominator: the gap E L(corrupt) − E L(clean). Shares are None with fewer than 16
    prompts, if the gap is less than 3 standard errors from 0 or no more than rounding,
    or if the corrupt prompts have the lower loss. With a `metric` it may be negative.

  Args:
    model: A model with taps.
    task: The task of the prompts, whose loss L is taken.
    clean: Two or more prompts. All losses are measured against the targets of their
      queries, `y_query`.
    corrupt: As many prompts of the same sizes. `task.redraw(key, clean, 'inputs')`
      gives the same features with the labels of another function.
    sites: The sites to replace. None means all that reach the prediction, except those
      whose values are computed on demand or are not single arrays. An entry may also be
      a `Node`, one head or one token, or a list of nodes and sites, whose values are
      replaced together and have one row. Both need the method 'patch'.
    metric: A function that replaces the loss: it takes predictions and the clean
      prompts, and returns a number for each prompt.
    kinds: The kinds of replacements, some of 'recovered', 'zero', 'mean' and
      'resample'. None means all that the method has.
    heads: Whether to replace each head by itself, at sites that have heads. The tap of
      such a site has an axis `h`.
    tokens: Whether to replace each token by itself, at sites that have tokens.
    method: How the change of the loss is found. `'patch'` replaces each value and runs
      the model again. `'gradient'` takes ∂L/∂v at the value that would be replaced; two
      backward passes serve all sites. `'integrated'` takes the mean of ∂L/∂v at the
      midpoints of ten steps from the corrupt prompts to the clean ones, and has the
      kind `recovered` alone.

  Returns:
    One row for each site, head and token, with standard errors over prompts; and the
    clean loss, the corrupt loss and their gap.

  Raises:
    UserError: If a site, head, token, kind or method is unknown, a site does not reach
      the prediction, or the clean and corrupt prompts do not fit together. Also if the
      method cannot do what is asked: only 'patch' replaces integers and nodes.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> clean = saved.task.sample(jax.random.key(0), 64)
    >>> corrupt = saved.task.redraw(jax.random.key(1), clean, 'inputs')
    >>> table = zoo.probing.effects(
    ...   saved.model,
    ...   saved.task,
    ...   clean,
    ...   corrupt,
    ...   sites=['layers.0.mixer.out', 'layers.1.mixer.out'],
    ...   kinds=['recovered'],
    ... )
    >>> [(row.site, round(row.recovered.mean, 1)) for row in table.rows]
    [('layers.0.mixer.out', 0.1), ('layers.1.mixer.out', 0.9)]

  References:
    Patching: Meng et al., arXiv 2202.05262. Mean ablation: Wang et al., arXiv
    2211.00593. Resampled values: Conmy et al., arXiv 2304.14997. Gradients: Syed et
    al., arXiv 2310.10348. Integrated gradients: Hanna et al., arXiv 2403.17806, who
    take the ends of the steps instead of their midpoints.
  """
  require_task(task)
  check_name('method', method, METHODS)
  kinds = checked_kinds(kinds, method)
  check_takes_prompts(metric)
  clean, corrupt = checked_prompts(clean, corrupt)
  if method == 'integrated':
    _check_real(clean)
  targets = None if sites is None else _targets(sites, method)
  shapes, left_out = _replaceable(model, clean, targets)
  taps = taps_of(model)
  axes = _axes_of(model, shapes, heads)
  if targets is None:
    targets = [(Node(site),) for site in axes]
  places_of, selections = _selections(targets, axes, shapes, kinds, heads, tokens)
  if axes and not places_of:
    raise UserError(
      f'the kind is mean, and the values at {shown([*axes])} are integers, which have '
      'no mean'
    )
  loss = metric or LossAtQuery(task)
  if method == 'patch':
    clean_loss, corrupt_loss, losses = _patched_losses(
      model, loss, clean, corrupt, axes, selections, kinds
    )
  else:
    num_steps = NUM_STEPS if method == 'integrated' else None
    clean_loss, corrupt_loss, losses = _first_order_losses(
      model, loss, clean, corrupt, axes, selections, kinds, num_steps, heads, tokens
    )
  site_kinds = {}
  for target in targets:
    of_target = {taps[node.site].kind for node in target}
    site_kinds[_name_of(target)] = of_target.pop() if len(of_target) == 1 else None
  empty = _why_no_rows(model, has_taps=bool(taps), sites=sites)
  quantity = 'loss' if metric is None else 'metric'
  table = _table(
    clean_loss, corrupt_loss, losses, selections, places_of, site_kinds, empty, quantity
  )
  return dataclasses.replace(table, method=method, left_out=left_out)


def _targets(
  sites: Sequence[NodeLike | Sequence[NodeLike]], method: str
) -> list[tuple[Node, ...]]:
  """Returns the nodes of each entry, which are replaced together.

  Raises:
    UserError: If `sites` is not a list; if an entry is empty; if there are nodes, and
      the method is not 'patch'.
  """
  check_is_list(sites)
  targets: list[tuple[Node, ...]] = []
  for entry in sites:
    together = [entry] if isinstance(entry, str | Node) else entry
    if not isinstance(together, list | tuple) or not all(
      isinstance(node, str | Node) for node in together
    ):
      raise UserError(
        f'an entry of sites is {in_one_line(repr(entry), 80)}; it must be the name of '
        'a site, a Node, or a list of these'
      )
    if not together:
      raise UserError('an entry of sites is empty; it must have a site or more')
    target = tuple(map(node_of, together))
    is_whole_site = len(target) == 1 and target[0] == Node(target[0].site)
    if method != 'patch' and not is_whole_site:
      raise UserError(
        f'sites has {_name_of(target)!r}, and the method is {method!r}; single heads '
        "and tokens, and values that are replaced together, need method='patch'"
      )
    targets.append(target)
  return [*dict.fromkeys(targets)]


def _name_of(target: Sequence[Node]) -> str:
  """Returns what stands in the column of sites: one site, or all nodes."""
  return target[0].site if len(target) == 1 else ' + '.join(map(str, target))


def _why_no_rows(model: Predictor, has_taps: bool, sites: Sequence[Any] | None) -> str:
  """Returns what a table without rows says: why nothing was replaced."""
  name = type(model).__name__
  if not has_taps:
    return f'{name} has no taps, so there is nothing to replace (see zoo.probing.Tap)'
  if sites is None:
    return f'{name} has no taps that reach the prediction: there is nothing to replace'
  return 'no sites are given, so nothing is replaced'


def _patched_losses(
  model: Predictor,
  loss: Metric,
  clean: Prompt,
  corrupt: Prompt,
  axes: dict[str, str],
  selections: Selection,
  kinds: Sequence[str],
) -> _Losses:
  """Returns the losses with each value replaced in turn."""
  sites = [*axes]

  def measured(
    models: Sequence[Any], clean: Prompt, corrupt: Prompt, selections: Selection
  ) -> tuple[Array, Array, Array]:
    values, prediction = recorded(models[0], clean, sites)
    _, corrupt_prediction = recorded(models[0], corrupt, ())

    def replaced(selection: Selection) -> Array:
      return loss(
        _replaced(models[0], clean, corrupt, values, axes, kinds, selection), clean
      )

    losses = jax.lax.map(replaced, selections, batch_size=_AT_ONCE)
    return loss(prediction, clean), loss(corrupt_prediction, clean), losses

  whole = in_whole_batches(selections, _AT_ONCE)
  clean_loss, corrupt_loss, losses = run_once(measured, [model], clean, corrupt, whole)
  return _checked_losses(clean_loss, corrupt_loss, losses, clean)


def in_whole_batches(rows: _Arrays, size: int) -> _Arrays:
  """Repeats the first of some rows, to fill the last batch.

  So `jax.lax.map` has a whole number of batches, and XLA compiles no second program for
  the rest.

  Args:
    rows: A tree of arrays `[m, …]`.
    size: The size of a batch.

  Returns:
    The tree, with a multiple of `size` rows.
  """

  def filled(array: np.ndarray) -> np.ndarray:
    return np.resize(array, (-(-len(array) // size) * size, *array.shape[1:]))

  return jax.tree.map(filled, rows)


def _first_order_losses(
  model: Predictor,
  loss: Metric,
  clean: Prompt,
  corrupt: Prompt,
  axes: dict[str, str],
  selections: Selection,
  kinds: Sequence[str],
  num_steps: int | None,
  heads: bool,
  tokens: bool,
) -> _Losses:
  """Returns first-order approximations of the losses with each value replaced in turn.

  The number of steps from the corrupt to the clean prompts is None for 'gradient'.
  """

  def measured(models: Sequence[Any], clean: Prompt, corrupt: Prompt) -> Any:
    (model,) = models
    ends = [loss(recorded(model, prompt, ())[1], clean) for prompt in (clean, corrupt)]
    for end in ends:
      check_metric(end, len(clean.x))
    return *ends, first_order_loss_changes(
      model, clean, corrupt, axes, kinds, loss, num_steps, heads, tokens
    )

  clean_loss, corrupt_loss, changes = run_once(measured, [model], clean, corrupt)
  clean_loss = np.asarray(clean_loss, np.float64)
  corrupt_loss = np.asarray(corrupt_loss, np.float64)
  changes = jax.tree.map(lambda change: np.asarray(change, np.float64), changes)
  sites = [*axes]
  losses = [
    (corrupt_loss if kind == RECOVERED else clean_loss)
    + changes[REPLACEMENTS[kind]][sites[site]][:, max(head, 0), max(token, 0)]
    for kind, (site,), (head,), (token,) in zip(*selections, strict=True)
  ]
  return clean_loss, corrupt_loss, np.array(losses).reshape(-1, len(clean_loss))


class Moves(NamedTuple):
  """What replacing each value moves the loss of each prompt by, as `moved_by` says.

  Attributes:
    parts: The values: heads, tokens or whole sites.
    clean: The losses of the clean prompts.
    corrupt: The losses of the corrupt prompts.
    moved: How far the loss moves towards the other end, for each value. Its mean, as a
      share of the mean of corrupt − clean, is the number of `Effect`.
  """

  parts: list[Node]
  clean: Float[np.ndarray, ' b']
  corrupt: Float[np.ndarray, ' b']
  moved: Float[np.ndarray, 'u b']


def moved_losses(
  model: Predictor,
  task: Task,
  clean: Prompt,
  corrupt: Prompt,
  sites: Sequence[NodeLike],
  kind: str,
  heads: bool,
) -> Moves:
  """Returns prompt by prompt what `effects` has the means of.

  Raises:
    UserError: If a site or the prompts are not as `effects` needs them.
  """
  require_task(task)
  clean, corrupt = checked_prompts(clean, corrupt)
  targets = _targets(sites, 'patch')
  shapes, _ = _replaceable(model, clean, targets)
  axes = _axes_of(model, shapes, heads)
  places_of, selections = _selections(targets, axes, shapes, [kind], heads, False)
  clean_loss, corrupt_loss, losses = _patched_losses(
    model, LossAtQuery(task), clean, corrupt, axes, selections, [kind]
  )
  losses = losses[: len(places_of)]
  parts = [Node(*place) for place in places_of]
  moved = moved_by(kind, losses, clean_loss, corrupt_loss)
  return Moves(parts, clean_loss, corrupt_loss, moved)


def moved_by(
  kind: str,
  loss: Float[np.ndarray, '*m b'],
  clean_loss: Float[np.ndarray, ' b'],
  corrupt_loss: Float[np.ndarray, ' b'],
) -> Float[np.ndarray, '*m b']:
  """Returns what a replacement moves the loss by, towards the other end of the gap.

  Args:
    kind: The kind of the replacement, one of `REPLACEMENTS`. By 'recovered' the corrupt
      prompts lose loss, and by all others the clean prompts gain some.
    loss: The losses after the replacement.
    clean_loss: The losses of the clean prompts.
    corrupt_loss: The losses of the corrupt prompts.
  """
  return corrupt_loss - loss if kind == 'recovered' else loss - clean_loss


def share_moved(
  kind: str,
  moved: Float[np.ndarray, ' b'],
  clean_loss: Float[np.ndarray, ' b'],
  corrupt_loss: Float[np.ndarray, ' b'],
  is_loss: bool = True,
) -> Share | None:
  """Returns what `moved_by` returns as a share of the gap, as `share_of_gap` does.

  In a resampled value each prompt has something of the next one.
  """
  with_next = kind == 'resample'
  return share_of_gap(moved, clean_loss, corrupt_loss, with_next, is_loss)


class Selection(NamedTuple):
  """One replacement of one or more values together, or an array of replacements.

  Attributes:
    kind: The number of the kind in `REPLACEMENTS`.
    site: The number of the site of each value in the list of sites. −1 fills the places
      of a replacement of fewer values than another one.
    head: The head of each value, or −1 for all heads.
    token: The token of each value, or −1 for all tokens.
  """

  kind: Int[Any, '*m']
  site: Int[Any, '*m g']
  head: Int[Any, '*m g']
  token: Int[Any, '*m g']


class LossAtQuery:
  """The loss of a task at the queries of the clean prompts."""

  def __init__(self, task: Task):
    self.loss = loss_of(task)

  def __call__(self, prediction: Array, prompt: Prompt) -> Array:
    return self.loss(prediction, prompt.y_query)


def checked_prompts(clean: Prompt, corrupt: Prompt) -> tuple[Prompt, Prompt]:
  """Returns both batches without latents and without the targets of the context.

  Raises:
    UserError: If their sizes differ, or if there is only one prompt.
  """
  for name in ('x', 'y', 'x_query'):
    shapes = [getattr(prompt, name).shape for prompt in (clean, corrupt)]
    if shapes[0] != shapes[1]:
      raise UserError(
        f'{name} of the corrupt prompts has the shape {shapes[1]}; it must be that of '
        f'the clean ones, {shapes[0]}'
      )
  if len(clean.x) < 2:
    raise UserError('there is one prompt; standard errors need two or more')
  plain = {'latents': None, 'context_targets': None}
  return dataclasses.replace(clean, **plain), dataclasses.replace(corrupt, **plain)


def checked_kinds(kinds: Sequence[str] | None, method: str = 'patch') -> Sequence[str]:
  """Returns the kinds of replacements, by default all that a method has.

  Raises:
    UserError: If `kinds` is not a list, is empty, or has a kind that is unknown or that
      the method does not have.
  """
  if kinds is None:
    return REPLACEMENTS[:1] if method == 'integrated' else REPLACEMENTS
  if isinstance(kinds, str):
    raise UserError(
      f'kinds is {kinds!r}; it must be a list of {", ".join(REPLACEMENTS)}'
    )
  if not kinds:
    raise UserError(f'kinds is empty; it must have some of {", ".join(REPLACEMENTS)}')
  for kind in kinds:
    check_name('kind', kind, REPLACEMENTS)
    if method == 'integrated' and kind != 'recovered':
      raise UserError(
        f"the kind is {kind!r}; method='integrated' has 'recovered' alone, since its "
        'steps lead from the corrupt prompts to the clean ones'
      )
  return kinds


def _check_real(prompt: Prompt) -> None:
  """Checks that a prompt has no integers, for the method 'integrated'.

  This method takes prompts between the corrupt and the clean ones. Between neighbouring
  integers there are no others.

  Raises:
    UserError: If an array of the prompt has integers.
  """
  for name in ('x', 'y', 'x_query'):
    dtype = getattr(prompt, name).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
      raise UserError(
        f"prompt.{name} is {dtype}; method='integrated' needs prompts between the "
        'corrupt and the clean ones, with numbers that have a fraction'
      )


def _checked_losses(
  clean_loss: Array, corrupt_loss: Array, losses: Array, clean: Prompt
) -> _Losses:
  """Returns the losses on the host.

  Raises UserError unless the metric returns one number for each prompt.
  """
  for array in (clean_loss, corrupt_loss):
    check_metric(array, len(clean.x))
  clean_64, corrupt_64, losses_64 = (
    np.asarray(array, np.float64) for array in (clean_loss, corrupt_loss, losses)
  )
  return clean_64, corrupt_64, losses_64


def _replaceable(
  model: Predictor, clean: Prompt, targets: Sequence[Sequence[Node]] | None
) -> tuple[dict[str, jax.ShapeDtypeStruct], tuple[str, ...]]:
  """Returns the sites whose values are to be replaced, with the shapes of these values.

  The shape of a site that a model calls several times is the shape of its value in the
  first call. If `targets` is None, these are all sites that reach the prediction. The
  second entry then has the sites that reach it and whose values cannot be recorded.

  Raises:
    UserError: If the value of a site cannot be replaced.
  """
  sites = None
  if targets is not None:
    sites = [*dict.fromkeys(node.site for target in targets for node in target)]
  wanted = wanted_sites(model, sites)
  shapes = jax.eval_shape(lambda: recorded(model, clean, wanted)[0])
  # Four prompts are enough to see which sites reach the prediction.
  dead = dead_sites(model, jax.tree.map(lambda array: array[:4], clean), wanted)
  seen = {site_of(name, wanted) for name in shapes}
  hidden = tuple(site for site in wanted if site not in seen and site not in dead)
  if sites is None:
    wanted = [site for site in wanted if site not in dead and site in shapes]
    if hidden and not wanted:
      raise UserError(no_values(hidden))
  axes = {site: tap.axes for site, tap in taps_of(model).items()}
  for site in wanted:
    if site not in shapes:
      raise UserError(no_array(site, shapes))
    if site in dead:
      raise UserError(f'the site {site!r} does not reach the prediction')
    letters = axes[site]
    if letters is not None and letters.split(' ')[:1] != ['b']:
      raise UserError(f'the axes of the site {site!r} are {letters!r}; b must be first')
  return {site: shapes[site] for site in wanted}, hidden if sites is None else ()


def check_takes_prompts(metric: Metric | None) -> None:
  """Raises UserError for a metric that cannot be called with two arguments."""
  if metric is not None and not takes(metric, 2):
    raise UserError(
      f'the metric is {in_one_line(repr(metric), 80)}; a metric takes the predictions '
      'and the clean prompts'
    )


def check_metric(values: Array, num_prompts: int) -> None:
  """Raises UserError unless a metric returns one number for each prompt."""
  if values.shape != (num_prompts,):
    raise UserError(
      f'the metric returns the shape {values.shape}; it must be a number for each '
      f'prompt, {(num_prompts,)}'
    )


def _axes_of(model: Predictor, sites: Iterable[str], heads: bool) -> dict[str, str]:
  """Returns the axes of the value at each site; empty where they are not known.

  Raises:
    UserError: If heads are to be replaced one by one, and no site has heads.
  """
  taps = taps_of(model)
  axes = {site: taps[site].axes or '' for site in sites}
  if heads and all(axis_of(of_site, HEADS) is None for of_site in axes.values()):
    raise UserError(
      f'heads is True, and none of the sites {", ".join(axes)} has heads: the axes of '
      f'its tap lack the letter {" or ".join(HEADS)}'
    )
  return axes


def _selections(
  targets: Sequence[Sequence[Node]],
  axes: dict[str, str],
  shapes: Mapping[str, Any],
  kinds: Sequence[str],
  heads: bool,
  tokens: bool,
) -> tuple[list[_Place], Selection]:
  """Returns what all replacements are of, and these as arrays on the host.

  They are in the order of the kinds. Integers have no mean.
  """
  numbers = {site: i for i, site in enumerate(axes)}
  parts = [
    part
    for target in targets
    for part in _parts_of(target, axes, shapes, heads, tokens)
  ]
  most = max((len(nodes) for _, nodes in parts), default=1)
  places_of, kinds_of, rows = [], [], []
  for kind in kinds:
    for place, nodes in parts:
      dtypes = [shapes[node.site].dtype for node in nodes]
      if kind == 'mean' and not all(jnp.issubdtype(of, jnp.inexact) for of in dtypes):
        continue
      row = [
        (
          numbers[node.site],
          -1 if node.head is None else node.head,
          -1 if node.token is None else node.token,
        )
        for node in nodes
      ]
      places_of.append(place)
      kinds_of.append(REPLACEMENTS.index(kind))
      rows.append(row + [(-1, -1, -1)] * (most - len(row)))
  members = np.array(rows, np.int32).reshape(-1, most, 3)
  return places_of, Selection(
    np.array(kinds_of, np.int32), *np.moveaxis(members, -1, 0)
  )


def _parts_of(
  target: Sequence[Node],
  axes: dict[str, str],
  shapes: Mapping[str, Any],
  heads: bool,
  tokens: bool,
) -> list[tuple[_Place, list[Node]]]:
  """Returns the rows of a target, each with the nodes that are replaced in it.

  These are all heads and tokens of a whole site, if they are replaced one by one.

  Raises:
    UserError: If a head or a token is unknown.
  """
  nodes = []
  for node in target:
    shape = shapes[node.site].shape
    part_of(node, axes[node.site] or None, shape)  # It checks the head and the token.
    nodes.append(from_first_token(node, axes[node.site], shape))
  if len(nodes) > 1:
    return [((_name_of(target), None, None), nodes)]
  (node,) = nodes
  shape, letters = shapes[node.site].shape, axes[node.site]

  def numbers(own: int | None, known: Sequence[str], wanted: bool) -> Sequence[Any]:
    axis = axis_of(letters, known)
    return range(shape[axis]) if wanted and own is None and axis is not None else [own]

  return [
    ((node.site, head, token), [Node(node.site, head, token)])
    for head in numbers(node.head, HEADS, heads)
    for token in numbers(node.token, TOKENS, tokens)
  ]


def _replaced(
  model: Any,
  clean: Prompt,
  corrupt: Prompt,
  values: dict[str, Array],
  axes: dict[str, str],
  kinds: Sequence[str],
  selection: Selection,
) -> Array:
  """Returns the predictions with one value replaced.

  It is called within a function that JAX traces.
  """
  is_patch = selection.kind == RECOVERED
  prompt = jax.tree.map(
    lambda patched, ablated: jnp.where(is_patch, patched, ablated), corrupt, clean
  )

  def replacements(i: int, site: str) -> Callable[[Array], Array]:
    calls = iter(calls_of(values, site))

    def replace(value: Array) -> Array:
      new = new_value(next(calls), selection.kind, kinds)
      return jnp.where(mask_of(selection, i, axes[site], value), new, value)

    return replace

  edits = {site: replacements(i, site) for i, site in enumerate(axes)}
  return edited(model, edits)(prompt)


def new_value(clean: Array, kind: Int[Array, ''], kinds: Sequence[str]) -> Array:
  """Returns what a kind, a number in `REPLACEMENTS`, puts in place of a value.

  Args:
    clean: The value in the clean prompts.
    kind: The number of the kind.
    kinds: The kinds that occur.
  """
  has_mean = jnp.issubdtype(clean.dtype, jnp.inexact)
  ablated = [
    ABLATED[name](clean) if name in kinds and (has_mean or name != 'mean') else clean
    for name in REPLACEMENTS[1:]
  ]
  return jax.lax.select_n(kind, clean, *ablated)


def mask_of(selection: Selection, i: int, axes: str, value: Array) -> Array:
  """Returns which entries of the value at the site i are replaced."""
  names = axes.split() if axes else []
  mask = jnp.zeros(value.shape, bool)
  for site, head, token in zip(
    selection.site, selection.head, selection.token, strict=True
  ):
    part = jnp.broadcast_to(site == i, value.shape)
    for axis, name in enumerate(names):
      for letters, number in ((HEADS, head), (TOKENS, token)):
        if name in letters:
          numbers = jax.lax.broadcasted_iota(number.dtype, value.shape, axis)
          part &= (number < 0) | (numbers == number)
    mask |= part
  return mask


def _table(
  clean_loss: Float[np.ndarray, ' b'],
  corrupt_loss: Float[np.ndarray, ' b'],
  losses: Float[np.ndarray, 'm b'],
  selections: Selection,
  places_of: Sequence[_Place],
  site_kinds: Mapping[str, str | None],
  empty: str,
  quantity: str,
) -> Effects:
  unknown = dict.fromkeys(REPLACEMENTS)
  rows: dict[_Place, dict[str, Share | None]] = {}
  # `in_whole_batches` repeats selections to fill the last batch. The losses of these
  # repetitions stand at the end, and are left out.
  for number, place, loss in zip(selections.kind, places_of, losses, strict=False):
    kind, ends = REPLACEMENTS[number], (clean_loss, corrupt_loss)
    share = share_moved(kind, moved_by(kind, loss, *ends), *ends, quantity == 'loss')
    rows.setdefault(place, {**unknown})[kind] = share
  return Effects(
    estimate(clean_loss),
    estimate(corrupt_loss),
    estimate(corrupt_loss - clean_loss),
    Rows(
      (
        Effect(*place, **shares, site_kind=site_kinds[place[0]])
        for place, shares in rows.items()
      ),
      empty,
    ),
    quantity=quantity,
  )
