"""The pictures of a probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Float
from matplotlib.axes import Axes

from zoo.core.errors import in_one_line
from zoo.core.protocols import Predictor, Task
from zoo.measure.predict import run, sample_batches
from zoo.models.token_model import TokenModel
from zoo.models.tokens import num_tokens, token_names
from zoo.probing.activations import mean_attention
from zoo.probing.heat_maps import plot_attention as plot_attention
from zoo.probing.heat_maps import plot_heads as plot_heads
from zoo.probing.heat_maps import plot_step_matrix as plot_step_matrix
from zoo.probing.paths import Interpolation
from zoo.probing.report import Report
from zoo.probing.shift_pictures import plot_shifts as plot_shifts
from zoo.probing.shift_pictures import plot_task_shifts as plot_task_shifts
from zoo.probing.similarity import answers
from zoo.reports.comparison_plots import plot_by_examples
from zoo.reports.style import BLUE, GREY, VERMILION, Figure, in_style, legend_above


def pictures(
  report: Report, subject: Predictor, other: Predictor | None, task: Task
) -> dict[str, Figure]:
  """The figures of a report, by file name; one that fails is left out, with a warning.

  `other` is None for a report without another predictor.
  """
  against = report.against
  drawings: dict[str, Callable[[], Figure | None]] = {}
  if report.alignment is not None and other is not None:
    drawings['alignment'] = lambda: plot_alignment(subject, other, task, against or '')
  if (comparison := report.comparison) is not None:
    drawings['examples'] = lambda: plot_by_examples({'the model': comparison})
  if (algorithm := report.algorithm) is not None:
    drawings['step_matrix'] = lambda: plot_step_matrix(algorithm)
  drawings['attention'] = lambda: _plot_attention(subject, task)
  if (heads := report.heads) is not None:
    drawings['heads'] = lambda: plot_heads(heads)
  if (path := report.to_optimum) is not None:
    drawings['interpolation'] = lambda: plot_interpolation(path)
  if report.shifts:
    drawings['shift'] = lambda: plot_shifts(report.shifts, against or '')
  if report.task_shifts:
    drawings['out_of_distribution'] = lambda: plot_task_shifts(
      report.task_shifts, against
    )
  figures = {}
  for name, draw in drawings.items():
    try:
      figure = draw()
    except Exception as error:  # a user's model may raise anything
      reason = f'{type(error).__name__}: {in_one_line(error, 200)}'
      logging.warning('the picture %s is left out of the report: %s', name, reason)
      continue
    if figure is not None:
      figures[name] = figure
  return figures


def _plot_attention(subject: Predictor, task: Task) -> Figure | None:
  maps = attention_of(subject, task)
  return plot_attention(maps, names_of_tokens(subject, maps)) if maps else None


def attention_of(
  subject: Predictor, task: Task
) -> dict[str, Float[np.ndarray, 'h q k']]:
  """The mean attention on 256 prompts, by layer; empty for subjects without layers."""
  if not isinstance(subject, nnx.Module):
    return {}
  prompt = next(sample_batches(task, 0, 256, 256))
  maps = mean_attention(subject, prompt)
  return {name: np.asarray(weights) for name, weights in maps.items()}


def names_of_tokens(
  subject: Predictor, maps: Mapping[str, Float[np.ndarray, 'h q k']]
) -> list[str]:
  """The contents of a TokenModel's tokens; numbers for the tokens of other models."""
  count = max(weights.shape[1] for weights in maps.values())
  if isinstance(subject, TokenModel):
    context_length = next(
      c for c in range(count) if num_tokens(subject.layout, c) == count
    )
    return token_names(subject.layout, context_length)
  return [str(i) for i in range(1, count + 1)]


@in_style()
def plot_alignment(
  subject: Predictor, other: Predictor, task: Task, against: str
) -> Figure:
  """Both predictors on 512 prompts: predictions, gradients and their cosine."""
  prompt = next(sample_batches(task, 0, 512, 512))
  (f, gradient), (other_f, other_gradient) = jax.tree.map(
    lambda array: np.asarray(array, np.float64),
    run(answers, [subject, other], prompt),
  )
  figure = Figure(2.9)
  left, middle, right = figure.subplots(1, 3)
  _scatter(left, other_f, f)
  # The name of a folder is plain text: a $ in it does not begin a formula.
  left.set_xlabel(f'prediction of {against}', parse_math=False)
  left.set_ylabel('prediction of the model')
  _scatter(middle, other_gradient.ravel(), gradient.ravel())
  middle.set_xlabel(f'∂f/∂x_q of {against}, all entries', parse_math=False)
  middle.set_ylabel('∂f/∂x_q of the model')
  scale = np.linalg.norm(gradient, axis=1) * np.linalg.norm(other_gradient, axis=1)
  products = np.sum(gradient * other_gradient, axis=1)
  cosine = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)
  # If both agree up to rounding, all cosines are equal.
  lowest = min(cosine.min(), cosine.max() - 1e-6)
  right.hist(cosine, bins=40, range=(lowest, cosine.max()), color=BLUE)
  right.ticklabel_format(useOffset=False)
  right.locator_params('x', nbins=4)
  right.set(xlabel='cosine of the gradients', ylabel='prompts of 512')
  return figure


@in_style()
def plot_interpolation(path: Interpolation) -> Figure:
  """The exact risk on the lines to the constructed optimum."""
  figure = Figure(4.0)
  axes = figure.add_subplot(
    xlabel='fraction of the path from the model to the constructed optimum',
    ylabel='exact in-context risk',
  )
  for risk, style, colour, name in (
    (path.weight_risk, 'o-', VERMILION, 'through the weights'),
    (path.rule_risk, 's--', BLUE, 'through the learning rules'),
  ):
    if risk is not None:
      axes.plot(path.fraction, risk, style, color=colour, label=name)
  axes.ticklabel_format(useOffset=False)
  legend_above(figure)
  return figure


def _scatter(
  axes: Axes, x: Float[np.ndarray, ' n'], y: Float[np.ndarray, ' n']
) -> None:
  low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
  axes.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
  axes.scatter(x, y, s=4, color=BLUE, alpha=0.5, linewidths=0)
