"""The pictures and tables of interventions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from zoo.core.tables import Table
from zoo.measure.ratio import Share
from zoo.measure.table import name_of_half, name_of_share, plus_minus
from zoo.models.token_model import TokenModel
from zoo.models.tokens import token_names
from zoo.probing.latents import LatentScore
from zoo.probing.nearest.by_layer import Readout
from zoo.probing.patch import Effects
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.probe.algorithm_pictures import plot_layer_algorithms
from zoo.reports.probe.algorithm_words import NAMES
from zoo.reports.probe.interventions import HeadMeasurements
from zoo.reports.probe.pictures import named_tokens
from zoo.reports.style import AMOUNTS, SIGNED, Figure, drawing_of

TITLES = {
  'what_matters': 'What matters',
  'heads': 'What the heads do',
  'layers': 'Which algorithm at which layer',
  'latents': 'Where the weights are',
}
CAPTIONS = {
  'what_matters': (
    'The share of the gap between corrupt and clean prompts that the clean value of '
    'one token recovers in the corrupt prompts. These have the features of the clean '
    'prompts and the labels of a newly drawn function. If the task has no such '
    'prompts, they have only the query of the clean prompts, and newly drawn examples.'
  ),
  'heads': (
    'What each head attends to, how what it adds correlates with the labels that it '
    'attends to, and the shares of the gap that its clean value recovers and that its '
    'ablation costs. Without features that recur there are no scores for the same '
    'token and for induction.'
  ),
  'layers': (
    "How far the prediction read after each layer, by the model's own readout, is from "
    'each algorithm after k steps; a disc marks the nearest k, circles its '
    'range over bootstrap samples.'
  ),
  'latents': (
    'R² of a linear map from the value at the query, on prompts that it was not fitted '
    'to; the first row is the map from all features and labels of the prompt.'
  ),
}
_SCORES = 'previous', 'duplicate', 'induction'
_SHARES = 'recovered', 'zero', 'mean', 'resample'
_HEADER = 'previous token', 'same token', 'induction'
_DOES = 'label correlation', 'recovers', 'zero costs', 'mean costs', 'resampling costs'
_MOST_ROWS = 40  # A picture has at most this many rows.
_MOST_LISTED = 20  # A table has at most this many rows.


def picture(part: str, result: Any, model: Any, context_length: int) -> Figure:
  """Draws the heat map of one part."""
  if part == 'what_matters':
    return drawing_of(plot_effects(result, model, context_length))
  if part == 'layers':
    return drawing_of(plot_layer_algorithms(result))
  return drawing_of(plot_scores(result) if part == 'heads' else plot_latents(result))


def table(part: str, result: Any) -> Table:
  """Returns the numbers of one part, ± half of an interval where it is known."""
  if part == 'what_matters':
    known = [row for row in result.rows if row.recovered is not None]
    largest = sorted(known, key=lambda row: -row.recovered.mean)[:_MOST_LISTED]
    rows = [
      (
        row.site,
        '-' if row.token is None else str(row.token),
        plus_minus(row.recovered),
      )
      for row in largest
    ]
    note = ''
    if len(known) > _MOST_LISTED:
      note = f'These are the {_MOST_LISTED} largest; what_matters.csv has all.'
    half = name_of_share(result.gap)
    return Table(rows, ('site', 'token', f'recovers {half}'), note=note)
  if part == 'heads':
    of_heads = _by_head(result)
    rows = [
      (name, *map(_number, scores), *map(plus_minus, shares))
      for name, (scores, shares) in of_heads.items()
    ]
    gap = result.effects.gap
    halves = [name_of_half(gap.num), *[name_of_share(gap)] * len(_SHARES)]
    does = [f'{does} {half}' for does, half in zip(_DOES, halves, strict=True)]
    return Table(rows, ('head', *_HEADER, *does))
  if part == 'layers':
    return _layer_table(result)
  rows = [
    (
      score.site,
      score.target,
      plus_minus(score.r2),
      plus_minus(score.untrained),
      plus_minus(score.permuted),
    )
    for score in result
  ]
  half = name_of_half(min((score.r2.num for score in result), default=math.inf))
  return Table(rows, ('site', 'target', f'R² {half}', 'untrained', 'permuted'))


def _layer_table(result: Readout) -> Table:
  """Returns each algorithm's nearest number of steps by layer, and its distance."""
  rows = []
  for name, match in result.matches.items():
    for layer, (k, low, high) in enumerate(
      zip(match.nearest, match.low, match.high, strict=True)
    ):
      steps = '-' if match.unexplained.shape[1] == 1 else f'{k} ({low} to {high})'
      of_nearest = match.unexplained[layer, k], match.stderr[layer, k]
      share = [f'{number:.3g}' for number in of_nearest]
      rows.append((NAMES.get(name, name), str(layer), steps, *share))
  header = (
    'algorithm',
    'layer',
    'steps (95 % of bootstraps)',
    'unexplained',
    'standard error',
  )
  return Table(rows, header)


def plot_effects(
  result: Effects, model: Any, context_length: int, *, ax: Axes | None = None
) -> Axes:
  """Draws recovered shares by site and token.

  Args:
    result: The effects.
    model: The model, whose layout names the tokens.
    context_length: The number of examples.
    ax: The axes. None makes a new figure.

  Returns:
    The axes.
  """
  sites = [*dict.fromkeys(row.site for row in result.rows)][:_MOST_ROWS]
  count = 1 + max(row.token or 0 for row in result.rows)
  values = np.full((len(sites), count), np.nan)
  for row in result.rows:
    if row.site in sites:  # A site without tokens fills its row.
      at = slice(None) if row.token is None else row.token
      values[sites.index(row.site), at] = _mean_of(row.recovered)
  if isinstance(model, TokenModel):
    names = named_tokens(token_names(model.layout, context_length), count)
  else:
    names = {i: str(i) for i in range(count)}
  heat_map = HeatMap(
    values,
    _scale(values),
    'share of the gap recovered',
    '',
    'token',
    '',
    dict(enumerate(sites)),
    names,
  )
  return _drawn(heat_map, ax)


def plot_scores(result: HeadMeasurements, *, ax: Axes | None = None) -> Axes:
  """Draws scores and shares by head.

  Args:
    result: The measurements of heads.
    ax: The axes. None makes a new figure.

  Returns:
    The axes.
  """
  of_heads = dict([*_by_head(result).items()][:_MOST_ROWS])
  values = [[*scores, *map(_mean_of, shares)] for scores, shares in of_heads.values()]
  label = 'score from 0 to 1, correlation of labels, or share of the gap'
  return _drawn(_written(values, [*of_heads], [*_HEADER, *_DOES], label), ax)


def plot_latents(result: Sequence[LatentScore], *, ax: Axes | None = None) -> Axes:
  """Draws R² by site and target.

  Args:
    result: The scores.
    ax: The axes. None makes a new figure.

  Returns:
    The axes.
  """
  sites = [*dict.fromkeys(score.site for score in result)][:_MOST_ROWS]
  targets = [*dict.fromkeys(score.target for score in result)]
  values = np.full((len(sites), len(targets)), np.nan)
  for score in result:
    if score.site in sites:
      values[sites.index(score.site), targets.index(score.target)] = score.r2.mean
  return _drawn(_written(values, sites, targets, 'R² on other prompts', 1.0), ax)


def _by_head(
  result: HeadMeasurements,
) -> dict[str, tuple[list[float], list[Share | None]]]:
  """Returns scores of each head, NaN where there is none, and what has an error.

  These are the label correlation and the shares.
  """
  scores = {
    f'{score.layer}, head {score.head}': [
      np.nan if (value := getattr(score, name)) is None else value for name in _SCORES
    ]
    for score in result.scores
  }
  correlations = {
    f'{score.layer}, head {score.head}': score.label_correlation
    for score in result.scores
  }
  shares = {
    f'{row.site.removesuffix(".mixer.heads")}, head {row.head}': [
      getattr(row, name) for name in _SHARES
    ]
    for row in result.effects.rows
  }
  unknown = [np.nan] * len(_SCORES)
  none = [None] * len(_SHARES)
  names = dict.fromkeys([*scores, *shares])
  return {
    name: (
      scores.get(name, unknown),
      [correlations.get(name), *shares.get(name, none)],
    )
    for name in names
  }


def _scale(values: np.ndarray, limit: float | None = None) -> Normalize:
  """Returns colours from 0, or for negative values from minus the limit, to the limit.

  The limit is the largest absolute value, at least 1, unless it is given.
  """
  if limit is None:
    limit = float(np.nanmax(np.abs(values), initial=1.0))
  is_signed = bool((np.round(values, 2) < 0).any())
  return Normalize(-limit if is_signed else 0.0, limit)


def _written(
  values: Any,
  rows: Sequence[str],
  columns: Sequence[str],
  label: str,
  limit: float | None = None,
) -> HeatMap:
  """Returns a heat map with each number written in its entry.

  The colours end at `limit`, by default at the largest value, at least 1.
  """
  array = np.asarray(values, np.float64)
  names: Mapping[int, str] = dict(enumerate(rows))
  texts = [[_number(value) for value in row] for row in array]
  return HeatMap(
    array,
    _scale(array, limit),
    label,
    rows=names,
    columns=dict(enumerate(columns)),
    texts=texts,
  )


def _drawn(heat_map: HeatMap, ax: Axes | None) -> Axes:
  height = 1.9 + 0.24 * len(heat_map.values)
  colours = SIGNED if heat_map.scale.vmin else AMOUNTS
  return plot_heat_maps([[heat_map]], height, colours=colours, ax=ax)[0]


def _number(value: float) -> str:
  return (
    '-' if np.isnan(value) else f'{round(value, 2) + 0.0:.2f}'
  )  # −0.00 becomes 0.00


def _mean_of(estimate: Share | None) -> float:
  """Returns the mean; without one NaN, which a heat map leaves blank."""
  return math.nan if estimate is None else estimate.mean
