"""The pictures of a probe, and the page of its report."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from zoo import reports
from zoo.core.errors import in_one_line
from zoo.core.losses import ROUNDING
from zoo.core.protocols import Predictor, Task
from zoo.measure.intervals import Estimate
from zoo.measure.predict import run_once, sample_batches
from zoo.measure.table import name_of_half
from zoo.models.token_model import TokenModel
from zoo.models.tokens import token_names
from zoo.probing.activations import mean_attention
from zoo.probing.attention_heads import Head
from zoo.probing.compare import TaskShift, answers, in_short
from zoo.probing.nearest.implicit import ImplicitAlgorithm
from zoo.probing.report import Report
from zoo.reports.comparison_plots import plot_by_examples
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.interval_plots import RowPoint, plot_rows
from zoo.reports.probe.summaries import opening, tables
from zoo.reports.style import (
  BASELINES,
  BLUE,
  FIGURE_INCHES,
  GREY,
  SIGNED,
  VERMILION,
  Ax,
  Figure,
  drawing_of,
  given_axes,
  house_style,
)

_MODEL = 'the model'
_AXES_OF_ATTENTION = 'token attended to', 'token that attends'
_MOST_HEADS = 12
_MOST_COLUMNS = 4  # At most this many maps stand side by side.
_MOST_ROWS = 8  # At most this many layers, or calls of layers, are drawn.
_MOST_NAMES = 11  # An axis with more tokens than this has no names.
# Each picture has a title and a caption.
_CAPTIONS = {
  'alignment': (
    'Alignment',
    'The model and the other predictor on 512 prompts: predictions, gradients in the '
    'query, and the cosine of the two gradients of a prompt.',
  ),
  'examples': (
    'By number of examples',
    'The loss of the model and of the baselines of its task after each number of '
    'examples, {half} over prompts.',
  ),
  'step_matrix': (
    'Step matrix',
    "The matrix Γ of the model's step in context, that of the optimum of the linear "
    'family, and their difference.',
  ),
  'attention': (
    'Attention',
    'The attention of each token to each other token, by layer and head: the mean over '
    '256 prompts of the absolute weight. Each row is divided by its largest weight; '
    'that of the query, the last row, is in the title. Dark blue is 0.',
  ),
  'heads': (
    'Heads',
    'The value vector b_h and the bilinear form A_h of each head, each divided by its '
    'largest entry.',
  ),
  'out_of_distribution': (
    'Out of distribution',
    'The loss on the shifted tasks that the task defines: by theory where it has no '
    'bar, and otherwise sampled, {half}. An arrow at the left edge is '
    'a loss of 0, up to rounding, for which a log axis has no place.',
  ),
}


def pictures(
  report: Report,
  subject: Predictor,
  other: Predictor,
  task: Task,
  only: Collection[str] = (),
) -> dict[str, Figure]:
  """Draws the figures of a report.

  A figure that fails is left out, with a warning.

  Args:
    report: The report, from `probe`.
    subject: The predictor that was probed.
    other: The predictor with which it was compared.
    task: The task.
    only: The parts of the report that were measured, as in `probe`. Empty means all.

  Returns:
    The figures by the name of their file.
  """
  drawings: dict[str, Callable[[], Any]] = {
    'alignment': lambda: (
      report.alignment and plot_alignment(subject, other, task, report.against)
    ),
    'examples': lambda: (
      report.comparison and plot_by_examples({_MODEL: [report.comparison]})
    ),
    'step_matrix': lambda: report.algorithm and plot_step_matrix(report.algorithm),
    'attention': lambda: (
      plot_attention_on(subject, task) if not only or 'attention' in only else None
    ),
    'heads': lambda: report.heads and plot_heads(report.heads),
    'out_of_distribution': lambda: (
      report.task_shifts and plot_task_shifts(report.task_shifts, report.against)
    ),
  }
  figures = {}
  for name, draw in drawings.items():
    try:
      drawn = draw()  # The picture is None if the report has no such part.
    except Exception as error:  # A user's model may raise any error.
      reason = f'{type(error).__name__}: {in_one_line(error, 200)}'
      logging.warning(
        'the picture %s is left out of the report: %s', name, reason, exc_info=True
      )
      continue
    if drawn:
      figures[name] = drawing_of(drawn)
    elif name in only:
      logging.warning('there is no picture %s: the model or its task has none', name)
  return figures


def page(
  report: Report,
  title: str,
  pictures: Mapping[str, Figure],
  further: Sequence[reports.Section] = (),
  formats: Sequence[str] = ('png',),
) -> str:
  """Returns the HTML of a report.

  Args:
    report: The report, from `probe`.
    title: The title of the page.
    pictures: The figures, from `pictures`.
    further: More sections.
    formats: The formats in which each picture stands beside the page.

  Returns:
    The page.
  """
  nums = [shift.num_prompts for shift in report.task_shifts or () if shift.num_prompts]
  nums += [measured['num_prompts'] for measured in (report.comparison or {}).values()]
  half = name_of_half(min(nums, default=math.inf))
  figures = {}
  for name, picture in pictures.items():
    heading, caption = _CAPTIONS[name]
    caption = caption.replace('{half}', half)
    shown = reports.Picture(picture, f'{heading}. {caption}')
    figures[name] = reports.CaptionedFigure(
      heading,
      caption,
      [shown],
      {suffix.upper(): f'{name}.{suffix}' for suffix in formats},
    )
  return reports.render(
    title,
    opening(report),
    [
      reports.Section('Numbers', tables=tables(report)),
      reports.Section('Pictures', figures=figures),
      *further,
    ],
  )


@house_style
def plot_alignment(
  subject: Predictor, other: Predictor, task: Task, against: str, *, ax: Ax = None
) -> list[Axes]:
  """Draws two predictors on 512 prompts: predictions, gradients and their cosine.

  Args:
    subject: The predictor that was probed.
    other: The predictor with which it is compared.
    task: The task.
    against: The name of the other predictor.
    ax: Three axes. None makes a new figure.

  Returns:
    The three axes.
  """
  prompt = next(sample_batches(task, 0, 512, 512))
  (f, gradient), (other_f, other_gradient) = jax.tree.map(
    lambda array: np.asarray(array, np.float64),
    run_once(answers, [subject, other], prompt),
  )
  given = given_axes(ax, 3)
  axes = [*Figure(2.9).subplots(1, 3)] if given is None else given
  left, middle, right = axes
  _scatter(left, other_f, f)
  # A name may be that of a folder, where a $ does not begin a formula.
  left.set_xlabel(f'prediction of {against}', parse_math=False)
  left.set_ylabel('prediction of the model')
  _scatter(middle, other_gradient.ravel(), gradient.ravel())
  middle.set_xlabel(f'∂f/∂x_q of {against}, all entries', parse_math=False)
  middle.set_ylabel('∂f/∂x_q of the model')
  scale = np.linalg.norm(gradient, axis=1) * np.linalg.norm(other_gradient, axis=1)
  products = np.sum(gradient * other_gradient, axis=1)
  cosine = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)
  # If both predictors agree up to rounding, all cosines are equal.
  lowest = min(cosine.min(), cosine.max() - 1e-6)
  right.hist(cosine, bins=40, range=(lowest, cosine.max()), color=BLUE)
  right.ticklabel_format(useOffset=False)
  right.locator_params('x', nbins=4)
  right.set(xlabel='cosine of the gradients', ylabel='prompts of 512')
  if given is None:
    numbers = zip(f, other_f, cosine, strict=True)
    lines = [
      f'{mine!r},{its!r},{angle!r}'
      for mine, its, angle in np.array([*numbers]).tolist()
    ]
    header = 'prediction_of_the_model,prediction_of_the_other,cosine_of_the_gradients'
    drawing_of(axes).numbers = '\n'.join([header, *lines, ''])
  return axes


def _scatter(
  axes: Axes, x: Float[np.ndarray, ' n'], y: Float[np.ndarray, ' n']
) -> None:
  low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
  axes.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
  axes.scatter(x, y, s=4, color=BLUE, alpha=0.5, linewidths=0)


def plot_task_shifts(
  shifts: Sequence[TaskShift], against: str, *, ax: Axes | None = None
) -> Axes:
  """Draws the losses of two predictors on shifted tasks, one task in each row.

  Exact risks have no bars. Below the axis stand the tasks without a loss.

  Args:
    shifts: The losses.
    against: The name of the other predictor.
    ax: The axes. None makes a new figure.

  Returns:
    The axes.
  """
  # The colour of a baseline is the same in all pictures.
  colours = {_MODEL: BLUE, against: BASELINES.get(against, VERMILION)}
  points, missing = [], {}
  for shift in shifts:
    losses = {
      _MODEL: _shown_loss(shift.risk, shift.exact_risk),
      against: _shown_loss(shift.other_risk, shift.other_exact_risk),
    }
    unknown = [label for label, (mean, _) in losses.items() if math.isnan(mean)]
    if unknown:
      missing.setdefault(' and '.join(unknown), []).append(shift.name)
    if len(unknown) == len(losses):
      continue
    largest = max((mean for mean, _ in losses.values() if mean < math.inf), default=0.0)
    for label, (mean, half) in losses.items():
      known = (0.0, math.nan) if mean <= ROUNDING * largest else (mean, half)
      points.append(RowPoint(shift.name, label, *known))
  lines = ['loss (log scale)']
  lines += [f'without a loss: {who} on {in_short(on)}' for who, on in missing.items()]
  return plot_rows({'': points}, '\n'.join(lines), colours, x_scale='log', ax=ax)[0]


def _shown_loss(sampled: Estimate | None, exact: float | None) -> tuple[float, float]:
  """Returns a loss and half of its interval.

  The loss is NaN if it is unknown; the interval is NaN if the loss is by a formula.
  """
  if exact is not None:
    return exact, math.nan
  return (math.nan, math.nan) if sampled is None else (sampled.mean, sampled.half)


def plot_step_matrix(algorithm: ImplicitAlgorithm, *, ax: Ax = None) -> list[Axes]:
  """Draws heat maps of the model's and the optimum's step matrix, and their difference.

  Args:
    algorithm: The algorithm, from `implicit_algorithm`.
    ax: Three axes. None makes a new figure.

  Returns:
    The three axes.
  """
  gap = algorithm.step_matrix - algorithm.best_step_matrix
  both, of_gap = (
    _signed(algorithm.step_matrix, algorithm.best_step_matrix),
    _signed(gap),
  )
  x_axis, y_axis = "entry of $(1/C)\\,\\sum_i y_i' x_i$", 'entry of the weights'
  maps = [
    HeatMap(matrix, scale, label, title, x_axis, y_axis)
    for matrix, scale, label, title in (
      (algorithm.step_matrix, both, 'entry of Γ', 'step matrix Γ of the model'),
      (algorithm.best_step_matrix, both, 'entry of Γ', 'Γ of the optimum'),
      (gap, of_gap, 'difference', 'difference'),
    )
  ]
  return plot_heat_maps([maps], 3.7, colours=SIGNED, ax=ax)


def _signed(*matrices: Float[np.ndarray, 'r c']) -> Normalize:
  """Returns colours from minus to plus the largest entry."""
  limit = max(float(np.abs(matrix).max()) for matrix in matrices) or 1.0
  return Normalize(-limit, limit)


def plot_heads(heads: Sequence[Head], *, ax: Ax = None) -> list[Axes]:
  """Draws heat maps of b_h above A_h, for the heads with the highest pruning cost.

  There are at most twelve heads. b_h and A_h are divided by their largest entries. The
  title has the strength of each head, `|b_h| |A_h|`.

  Args:
    heads: The heads, from `heads`.
    ax: Axes, one for each head that is shown. None makes a new figure.

  Returns:
    The axes.
  """
  numbers = sorted(range(len(heads)), key=lambda head: -heads[head].pruning_cost)
  scale, maps = Normalize(-1, 1), []
  for number in sorted(numbers[:_MOST_HEADS]):
    value, form = heads[number].value, heads[number].form
    strength = np.linalg.norm(value) * np.linalg.norm(form)
    title = (
      f'head {number}, strength {strength:.2g}\n'
      f'pruning costs {heads[number].pruning_cost:.3g}'
    )
    parts = _over_largest(value), np.full(value.size, np.nan), _over_largest(form)
    rows = {0: '$b_h$', 1 + (value.size + 1) // 2: '$A_h$'}
    axes = 'entry of the query', 'entry of the key'
    maps.append(
      HeatMap(
        np.vstack(parts),
        scale,
        'entry, divided by the largest of its b or A',
        title,
        *axes,
        rows,
      )
    )
  grid = [maps[i : i + _MOST_COLUMNS] for i in range(0, len(maps), _MOST_COLUMNS)]
  left_out = f': {len(maps)} of {len(heads)}' if len(maps) < len(heads) else ''
  return plot_heat_maps(
    grid,
    1.2 + 2.5 * len(grid),
    min(1.6 + 2.2 * len(grid[0]), FIGURE_INCHES),
    colours=SIGNED,
    title=f'Value vectors and bilinear forms of the heads{left_out}',
    ax=ax,
  )


def _over_largest(entries: Float[np.ndarray, '*n']) -> Float[np.ndarray, '*n']:
  return entries / (np.abs(entries).max() or 1.0)


def plot_attention_on(
  subject: Predictor, task: Task, *, ax: Ax = None
) -> list[Axes] | None:
  """Draws the mean attention on 256 prompts of a task.

  The tokens of a `TokenModel` have the names of what they hold. Other tokens have
  numbers.

  Args:
    subject: The predictor.
    task: The task.
    ax: Axes, one for each map. None makes a new figure.

  Returns:
    The axes. None for a predictor without attention.
  """
  if not isinstance(subject, nnx.Module):
    return None
  prompt = next(sample_batches(task, 0, 256, 256))
  attention = mean_attention(subject, prompt)
  if not attention:
    return None
  if isinstance(subject, TokenModel):
    tokens = token_names(subject.layout, task.context_length)
  else:
    most = max(weights.shape[1] for weights in attention.values())
    tokens = [str(i) for i in range(1, most + 1)]
  maps = {name: np.asarray(weights) for name, weights in attention.items()}
  return plot_attention(maps, tokens, ax=ax)


def plot_attention(
  maps: Mapping[str, Float[np.ndarray, 'h q k']],
  tokens: Sequence[str],
  *,
  ax: Ax = None,
) -> list[Axes]:
  """Draws heat maps of the attention of layers and heads, with one row for each layer.

  There are at most eight layers, evenly spaced, and the first four heads of each. Every
  row of a map is divided by its largest weight, because the first tokens see few
  others, and so have larger weights. The title has the largest weight of the last row,
  that of the query.

  Args:
    maps: The attention of each layer, by the name of the layer.
    tokens: The names of the tokens.
    ax: Axes, one for each map. None makes a new figure.

  Returns:
    The axes.
  """
  at = np.linspace(0, len(maps) - 1, min(len(maps), _MOST_ROWS)).round().astype(int)
  shown = [list(maps.items())[i] for i in at]
  most = max(len(heads) for _, heads in shown)
  columns = min(most, _MOST_COLUMNS)
  scale, grid = Normalize(0, 1), []
  for layer, heads in shown:
    row = []
    for head, weights in enumerate(heads[:columns]):
      largest = weights.max(axis=1, keepdims=True)
      title = f'{layer}, head {head}: to {largest[-1, 0]:.2g}'
      of_rows, of_columns = (named_tokens(tokens, count) for count in weights.shape)
      shares = weights / np.where(largest > 0, largest, 1)
      label = 'weight, divided by the largest of its row'
      texts = label, title, *_AXES_OF_ATTENTION
      row.append(HeatMap(shares, scale, *texts, of_rows, of_columns))
    grid.append(row)
  counts = []
  if len(shown) < len(maps):
    counts.append(f'{len(shown)} of {len(maps)} layers')
  if columns < most:
    counts.append(f'{columns} of {most} heads')
  left_out = f': {", ".join(counts)}' if counts else ''
  return plot_heat_maps(
    grid,
    0.9 + 2.4 * len(grid),
    min(1.8 + 2.1 * columns, FIGURE_INCHES),
    title=f'Mean absolute weight, relative to its row{left_out}',
    ax=ax,
  )


def named_tokens(tokens: Sequence[str], count: int) -> dict[int, str]:
  """Returns the names of the first `count` tokens by number.

  If there are many, only some of them are named, and the last one.
  """
  apart = -(-len(tokens) // _MOST_NAMES)
  # Features and labels alternate in interleaved tokens. An odd distance names both.
  apart += 1 - apart % 2
  names = [re.sub(r'([xy])_(\w+)', r'$\1_{\2}$', name) for name in tokens]
  return {i: names[i] for i in (*range(0, count - apart // 2, apart), count - 1)}
