"""Interventions: what matters in a model, what heads and layers do, where weights are.

These are parts of a report. Each is measured by itself, so that a report can go on
where it stopped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np
from absl import logging
from jaxtyping import Array, Key

from zoo.core.draws import CURVE_STREAM, REDRAW_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import KEPT, Layered, Predictor, Task
from zoo.measure.intervals import Estimate, Interval, difference_of
from zoo.measure.ratio import is_sure, why_no_share
from zoo.measure.table import Rows
from zoo.measure.tests import (
  LEVEL,
  above_zero,
  apart_from_extreme,
  holm,
  p_value_above_zero,
)
from zoo.probing.activations import in_order_of_calls
from zoo.probing.attention_heads import HeadScore, head_scores
from zoo.probing.checks import checked_module, sites_of_kind
from zoo.probing.latents import PROMPT, LatentScore, probe_latents
from zoo.probing.nearest.by_layer import (
  Match,
  Readout,
  layer_algorithms,
  layer_rows,
)
from zoo.probing.patch import Effect, Effects, effects
from zoo.probing.reach import dead_sites
from zoo.reports.probe.algorithm_words import name_layer_algorithms
from zoo.tasks.base import is_squared

PARTS = 'what_matters', 'heads', 'layers', 'latents'
NUM_PROMPTS = 512
_NUM_PROBED = 2048
_SHOWN = 'stream', 'added'  # Values at taps of these kinds are patched and probed.


class HeadMeasurements(NamedTuple):
  """What each head attends to, and what it does.

  Attributes:
    scores: The scores of the heads.
    effects: The effects at the sites of the kind `heads`, head by head.
  """

  scores: list[HeadScore]
  effects: Effects


_Value = TypeVar('_Value')

# The results of the parts: what matters, heads, layers and latents.
Result: TypeAlias = Effects | HeadMeasurements | Readout | list[LatentScore]


def measure(
  model: Predictor,
  task: Task,
  part: str,
  num_prompts: int = NUM_PROMPTS,
  seed: int = 0,
  untrained: Sequence[Predictor] = (),
) -> Result | None:
  """Measures one part of the report.

  The corrupt prompts have the same inputs and another function. If a task has no other
  function for the same inputs, they have the same query and another context. All
  prompts are those that the task holds out.

  Args:
    model: The model.
    task: The task.
    part: One of `PARTS`.
    num_prompts: The number of prompts for effects and heads.
    seed: The seed of the prompts.
    untrained: Untrained models of the same architecture, the control of
      `probe_latents`.

  Returns:
    The result. None if the model or its task has no such part.

  Raises:
    UserError: If the model is not an NNX module.
  """
  logging.info('probe: interventions, %s', part)
  checked_module(model)
  task = task.held_out()
  clean = task.sample(stream_of(seed, CURVE_STREAM), num_prompts)
  if part in ('what_matters', 'heads'):
    corrupt = _corrupt(task, clean, stream_of(seed, REDRAW_STREAM))
    measured = _what_matters if part == 'what_matters' else _heads
    return corrupt and measured(model, task, clean, corrupt)
  if part == 'layers':
    return _layers(model, task, seed)
  return _latents(model, task, seed, untrained)


def _corrupt(task: Task, clean: Prompt, key: Key[Array, '']) -> Prompt | None:
  """Returns other prompts with the same inputs or, failing that, the same query."""
  for keep in KEPT[::-1]:
    try:
      return task.redraw(key, clean, keep)
    except UserError as error:
      logging.info('corrupt prompts do not keep the %s: %s', keep, error)
  logging.warning(
    'effects are left out: %s has no corrupt prompts', type(task).__name__
  )
  return None


def _what_matters(
  model: Predictor, task: Task, clean: Prompt, corrupt: Prompt
) -> Effects | None:
  few = jax.tree.map(lambda array: array[:4], clean)
  dead = dead_sites(model, few)
  shown = sites_of_kind(model, *_SHOWN)
  added = [site for site in in_order_of_calls(model, few, shown) if site not in dead]
  if not added:
    return None
  return effects(model, task, clean, corrupt, added, kinds=['recovered'], tokens=True)


def _heads(
  model: Predictor, task: Task, clean: Prompt, corrupt: Prompt
) -> HeadMeasurements | None:
  sites = sites_of_kind(model, 'heads')
  if not sites:
    return None
  table = effects(model, task, clean, corrupt, sites, heads=True)
  try:
    scores = head_scores(model, clean)
  except UserError as error:  # The model has no tokens, or no attention.
    logging.warning('scores of heads are left out: %s', error)
    scores = []
  return HeadMeasurements(scores, table)


def _layers(model: Predictor, task: Task, seed: int) -> Readout | None:
  if not (isinstance(model, Layered) and is_squared(task) and task.num_outputs == 1):
    return None
  if task.label_kind != 'numbers':
    return None
  try:
    return layer_algorithms(model, task, seed=seed).own
  except UserError as error:
    # The model ignores its context, or the task cannot redraw.
    logging.warning('algorithms by layer are left out: %s', error)
    return None


def _latents(
  model: Predictor, task: Task, seed: int, untrained: Sequence[Predictor]
) -> list[LatentScore] | None:
  prompt = task.sample(jax.random.key(0), 1, latents=True)
  if not jax.tree.leaves(prompt.latents):
    return None
  shown = sites_of_kind(model, *_SHOWN)
  try:
    return probe_latents(model, task, None, shown or None, _NUM_PROBED, seed, untrained)
  except UserError as error:  # There are no targets to which a map could lead.
    logging.warning('probes of latents are left out: %s', error)
    return None


def tables(part: str, result: Result) -> dict[str, Rows[Any]]:
  """Returns the numbers of a part as rows, by the name of their table."""
  if isinstance(result, Effects):
    return {part: result.rows}
  if isinstance(result, HeadMeasurements):
    return {part: result.effects.rows, 'head_scores': Rows(result.scores)}
  if isinstance(result, Readout):
    return {part: layer_rows('own', result)}
  return {part: Rows(result)}


# The functions below say in words what survives its interval.


def sentence(result: Result) -> str:
  """Returns a sentence with the numbers of a part that survive a correction at 5 %.

  Holm's correction is over all numbers of the part that are compared with 0.
  Bonferroni's is over all pairs of numbers, where the largest of them is compared with
  the others. What follows ± is half of the interval of that number alone.
  """
  if isinstance(result, Effects):
    what = 'Of the outputs of mixers and networks at one token, patching'
    return _gap_sentence(result) or _largest(result.rows, 'recovered', what, 'recovers')
  if isinstance(result, HeadMeasurements):
    what = 'Of all heads, ablation by the mean of'
    return _gap_sentence(result.effects) or _largest(
      result.effects.rows, 'mean', what, 'costs'
    )
  if isinstance(result, Readout):
    return name_layer_algorithms(result)
  return _latent_sentence(result)


def _gap_sentence(table: Effects) -> str:
  """Returns a sentence if the gap of the losses is too small to compare shares."""
  reason = why_no_share(table.gap, table.clean, table.corrupt, is_loss=True)
  if reason is None and is_sure(table.gap):
    return ''
  gap = f'from {table.clean.mean:.3g} to {table.corrupt.mean:.3g}'
  if reason is None:
    return (
      f'The gap {gap} is less than 8 standard errors from 0, so that shares of it are '
      'not compared; more prompts would tell.'
    )
  return f'Shares of the gap {gap} say nothing, since {reason}.'


def _largest(rows: Sequence[Effect], kind: str, what: str, does: str) -> str:
  """Returns a sentence with the rows whose share may be the largest.

  Rows of the residual stream are left out.
  """
  shares: list[tuple[Effect, Estimate]] = [
    (row, share)
    for row in rows
    if row.site_kind != 'stream' and isinstance(share := getattr(row, kind), Estimate)
  ]
  positive = _surviving(shares, [share for _, share in shares])
  if not positive:
    return f'{what} none of them {does} a share that is told apart from 0.'
  best = max(positive, key=lambda pair: pair[1].mean)
  others = [pair for pair in positive if pair is not best]
  gaps = [difference_of(best[1], share) for _, share in others]
  is_lower = apart_from_extreme(gaps)
  alike = [pair for pair, lower in zip(others, is_lower, strict=True) if not lower]
  equal = [best, *alike]
  equal.sort(key=lambda pair: -pair[1].mean)
  named = ', '.join(f'{_place(row)} ({_said(share)})' for row, share in equal[:3])
  if len(equal) == 1:
    return f'{what} {named} {does} the largest share of the gap.'
  more = f' and {len(equal) - 3} more' if len(equal) > 3 else ''
  return (
    f'{what} {named}{more} {does} the largest shares of the gap, which are not told '
    'apart.'
  )


def _surviving(values: Sequence[_Value], estimates: Sequence[Estimate]) -> list[_Value]:
  """Returns the values whose estimates are above 0, by Holm over all of them."""
  is_above = above_zero(estimates)
  return [value for value, above in zip(values, is_above, strict=True) if above]


def _latent_sentence(scores: Sequence[LatentScore]) -> str:
  """Returns a sentence with the site of the largest R² over the controls, by target."""
  controls = {score.target: score.r2 for score in scores if score.site == PROMPT}
  tested = [score for score in scores if score.site != PROMPT]
  # Each R² has to be above 0 and above all controls. The least sure of these counts.
  p_values = [
    float(
      np.max(
        [
          p_value_above_zero(score.r2),
          p_value_above_zero(difference_of(score.r2, score.permuted)),
          p_value_above_zero(difference_of(score.r2, controls[score.target])),
          *([] if score.p_value is None else [score.p_value]),
        ]
      )
    )
    for score in tested
  ]
  beside = ''
  if any(score.above_untrained for score in tested):
    beside = ' and from untrained models'
  held = [
    score
    for score, p_value in zip(tested, holm(p_values), strict=True)
    if p_value < LEVEL / 2
  ]
  said = []
  for target in controls:
    of_target = [score for score in held if score.target == target]
    if of_target:
      best = max(of_target, key=lambda score: score.r2.mean)
      said.append(f'{target} from {best.site} ({_said(best.r2)})')
  if not said:
    return (
      'From no site does a linear map predict a target better than from the prompt'
      f'{beside}.'
    )
  return (
    f"A linear map of the value at the query's token predicts, with this R², better "
    f'than from the prompt{beside}: {"; ".join(said)}.'
  )


def _place(row: Effect) -> str:
  head = '' if row.head is None else f', head {row.head}'
  token = '' if row.token is None else f', token {row.token}'
  return f'{row.site}{head}{token}'


def _said(estimate: Estimate) -> str:
  return f'{estimate.mean:.2f} ± {estimate.half:.2f}'


# A report goes on from the rows of its parts, which are JSON.


def to_json(result: Any) -> Any:
  """Returns a result in JSON types, with the names of fields; NaN becomes None."""
  if hasattr(result, '_fields'):
    return {name: to_json(getattr(result, name)) for name in result._fields}
  if dataclasses.is_dataclass(result):
    return {name: to_json(value) for name, value in vars(result).items()}
  if isinstance(result, Mapping):
    return {name: to_json(part) for name, part in result.items()}
  if isinstance(result, np.ndarray):
    return to_json(result.tolist())
  if isinstance(result, list | tuple):
    return [to_json(part) for part in result]
  if isinstance(result, float):
    return None if math.isnan(result) else float(result)
  return result


def from_json(part: str, content: Any) -> Result | None:
  """Returns the result of a part from what `to_json` returned."""
  if content is None:
    return None
  if part == 'what_matters':
    return _effects(content)
  if part == 'heads':
    scores = [HeadScore(**_values(row)) for row in content['scores']]
    return HeadMeasurements(scores, _effects(content['effects']))
  if part == 'layers':
    matches = {name: _match(**fields) for name, fields in content['matches'].items()}
    return Readout(matches, content['nearest'])
  return [LatentScore(**_values(row)) for row in content]


def _match(parameters: list[Any], **arrays: Any) -> Match:
  return Match(
    **{name: np.array(value) for name, value in arrays.items()},
    parameters=[np.array(fitted, float) for fitted in parameters],
  )


def _effects(content: dict[str, Any]) -> Effects:
  fields = _values(content)
  fields['rows'] = Rows(Effect(**_values(row)) for row in content['rows'])
  fields['left_out'] = tuple(content['left_out'])
  return Effects(**fields)


def _values(content: dict[str, Any]) -> dict[str, Any]:
  """Returns the fields of a record, with estimates and intervals as such."""
  return {name: _value(value) for name, value in content.items()}


def _value(value: Any) -> Any:
  """Returns an estimate or an interval from its fields, in which None is NaN."""
  if not isinstance(value, dict) or 'mean' not in value:
    return value
  fields = {name: math.nan if of is None else of for name, of in value.items()}
  return (Interval if 'low' in fields else Estimate)(**fields)
