"""Pictures of what probing finds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from zoo.probing.attention_heads import Head
from zoo.probing.distribution_shift import Shift, ShiftedRisk
from zoo.probing.implicit import ImplicitAlgorithm
from zoo.probing.paths import Interpolation
from zoo.probing.report import Report
from zoo.probing.sampling import Answer, answer

# Okabe and Ito's colours, which colour-blind readers tell apart.
_BLUE, _ORANGE, _GREEN = '#0072B2', '#D55E00', '#009E73'
_MOST_HEADS = 12


def pictures(report: Report, subject: Any, other: Any, task: Any) -> dict[str, Figure]:
  """The figures of a report, by the name that a file of each should have."""
  figures = {'alignment': draw_alignment(subject, other, task, report.against)}
  if report.algorithm is not None:
    figures['step_matrix'] = draw_step_matrix(report.algorithm)
  if report.heads is not None:
    figures['heads'] = draw_heads(report.heads)
  if report.to_optimum is not None:
    figures['interpolation'] = draw_interpolation(report.to_optimum)
  if report.shifts:
    figures['shift'] = draw_shifts(report.shifts, report.against)
  return figures


def draw_heads(heads: list[Head]) -> Figure:
  """Heat maps of b_h and A_h, each over its largest entry; the twelve that count most.

  A head's strength, the norm of its product `|b_h| |A_h|`, is in its title.
  """
  shown = sorted(range(len(heads)), key=lambda head: -heads[head].pruning_cost)
  shown = sorted(shown[:_MOST_HEADS])
  columns = min(len(shown), 6)
  rows = -(-len(shown) // columns)
  e = heads[0].value.size
  figure = Figure(figsize=(1.2 + 2.2 * columns, 0.7 + 2.9 * rows), layout='constrained')
  grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[1, e] * rows)
  for axes in grid.flat:
    axes.set_axis_off()
  image = None
  for place, number in enumerate(shown):
    head = heads[number]
    row, column = divmod(place, columns)
    top, bottom = grid[2 * row, column], grid[2 * row + 1, column]
    _heat(top, _over_largest(head.value[None]), 1.0)
    image = _heat(bottom, _over_largest(head.form), 1.0)
    strength = np.linalg.norm(head.value) * np.linalg.norm(head.form)
    title = (
      f'head {number}, strength {strength:.2g}\npruning costs {head.pruning_cost:.3g}'
    )
    top.set_title(title, size=8)
    if column == 0:
      top.set_ylabel('$b_h$', rotation=0, ha='right', va='center')
      bottom.set_ylabel('$A_h$, by entry of the key', size=8)
    bottom.set_xlabel('entry of the query, label last', size=8)
  assert image is not None  # a model has a head
  figure.colorbar(image, ax=grid, label='over the largest entry', shrink=0.7)
  left_out = f': {len(shown)} of {len(heads)}' if len(shown) < len(heads) else ''
  figure.suptitle(f'Value vectors and bilinear forms of the heads{left_out}', size=10)
  return figure


def draw_step_matrix(found: ImplicitAlgorithm) -> Figure:
  """Heat maps of the step matrix, of the optimum's, and of their difference."""
  figure = Figure(figsize=(10, 3.4), layout='constrained')
  panels = figure.subplots(1, 3)
  gap = found.step_matrix - found.best_step_matrix
  limit = float(
    max(np.abs(found.step_matrix).max(), np.abs(found.best_step_matrix).max())
  )
  parts = (
    ('step matrix Γ of the model', found.step_matrix, limit),
    ('Γ of the optimum', found.best_step_matrix, limit),
    ('difference', gap, float(np.abs(gap).max())),
  )
  for axes, (title, matrix, bound) in zip(panels, parts, strict=True):
    image = _heat(axes, matrix, bound or 1.0)
    axes.set_title(title, size=10)
    axes.set_xlabel("entry of $(1/C)\\,\\sum_i y_i' x_i$")
    figure.colorbar(image, ax=axes, shrink=0.8)
  panels[0].set_ylabel('entry of the weights learned')
  return figure


def draw_alignment(subject: Any, other: Any, task: Any, against: str) -> Figure:
  """Both predictors on 512 prompts: predictions, gradients and their cosine."""
  prompt = task.sample(jax.random.key(0), 512)
  with jax.default_matmul_precision('highest'):
    (f, gradient), (other_f, other_gradient) = (
      _on_host(answer(predictor, prompt)) for predictor in (subject, other)
    )
  figure = Figure(figsize=(11, 3.6), layout='constrained')
  left, middle, right = figure.subplots(1, 3)
  _scatter(left, other_f, f)
  left.set(xlabel=f'prediction of {against}', ylabel='prediction of the model')
  _scatter(middle, other_gradient.ravel(), gradient.ravel())
  middle.set(
    xlabel=f'$\\partial f/\\partial x_q$ of {against}, all entries',
    ylabel='$\\partial f/\\partial x_q$ of the model',
  )
  scale = np.linalg.norm(gradient, axis=1) * np.linalg.norm(other_gradient, axis=1)
  products = np.sum(gradient * other_gradient, axis=1)
  cosine = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)
  # Of two that agree to rounding all cosines are one number.
  lowest = min(cosine.min(), cosine.max() - 1e-6)
  right.hist(cosine, bins=40, range=(lowest, cosine.max()), color=_BLUE)
  right.ticklabel_format(useOffset=False)
  right.locator_params('x', nbins=4)
  right.set(xlabel='cosine similarity of the gradients', ylabel='prompts of 512')
  return figure


def draw_interpolation(path: Interpolation) -> Figure:
  """The exact risk on the lines to the constructed optimum."""
  figure = Figure(figsize=(6, 3.8), layout='constrained')
  axes = figure.add_subplot(
    xlabel='part of the way from the model to the constructed optimum',
    ylabel='exact in-context risk',
  )
  if path.weight_risk is not None:
    axes.plot(
      path.fraction,
      path.weight_risk,
      'o-',
      ms=3,
      color=_ORANGE,
      label='through the weights',
    )
  axes.plot(
    path.fraction,
    path.rule_risk,
    's--',
    ms=3,
    color=_BLUE,
    label='through the learning rules',
  )
  axes.ticklabel_format(useOffset=False)
  axes.grid(alpha=0.3)
  axes.legend()
  return figure


def draw_shifts(shifts: list[Shift], against: str) -> Figure:
  """The risk under each shift: exact lines, sampled points with their errors."""
  figure = Figure(figsize=(12, 6.4), layout='constrained')
  panels = figure.subplots(2, 3).flat
  for axes, one in zip(panels, shifts, strict=False):
    values = [risk.value for risk in one.risks]
    _curve(axes, one, 'the model', _BLUE, 'o', _own)
    _curve(axes, one, against, _ORANGE, 's', _others)
    axes.plot(
      values,
      [risk.optimal for risk in one.risks],
      '--',
      color=_GREEN,
      label='best learning rule of the shifted task',
    )
    axes.axvline(one.trained, color='grey', linewidth=1, linestyle=':')
    axes.set_yscale('log')
    _limit(axes, one, against)
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_locator(NullLocator())
    if one.name in ('context_length', 'feature_condition', 'query_scale'):
      axes.set_xscale('log', base=2)
      axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, [f'{value:g}' for value in values])
    axes.set_xlabel(one.description, size=9)
    axes.grid(alpha=0.3)
  figure.supylabel('in-context risk (log scale)', size=10)
  handles, labels = figure.axes[0].get_legend_handles_labels()
  handles.append(figure.axes[0].lines[-1])
  labels.append('trained here')
  figure.legend(handles, labels, loc='outside upper center', ncols=3)
  return figure


def _limit(axes: Axes, one: Shift, against: str) -> None:
  """Shows all of the model and of the best rule; the other one may leave the panel."""
  shown = [risk.sampled.mean for risk in one.risks]
  shown += [risk.optimal for risk in one.risks if risk.optimal > 0]
  low, high = min(shown) / 1.5, max(shown) * 1.5
  axes.set_ylim(low, high)
  # Within a decade, where most risks lie, a log scale would name two ticks at most.
  subs = (1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
  axes.yaxis.set_major_locator(LogLocator(subs=subs))
  others = [risk.other_sampled.mean for risk in one.risks]
  for beyond, where, height, align in (
    (min(others) < low, 'below', 0.02, 'bottom'),
    (max(others) > high, 'above', 0.98, 'top'),
  ):
    if beyond:
      note = f'{against} goes {where} this range'
      axes.text(
        0.5, height, note, ha='center', va=align, size=8, transform=axes.transAxes
      )


def _own(risk: ShiftedRisk) -> tuple[Any, float | None]:
  return risk.sampled, risk.exact


def _others(risk: ShiftedRisk) -> tuple[Any, float | None]:
  return risk.other_sampled, risk.other_exact


def _curve(
  axes: Axes, one: Shift, name: str, colour: str, marker: str, part: Any
) -> None:
  values = [risk.value for risk in one.risks]
  sampled, exact = zip(*(part(risk) for risk in one.risks), strict=True)
  axes.errorbar(
    values,
    [estimate.mean for estimate in sampled],
    [estimate.stderr for estimate in sampled],
    fmt=marker,
    markersize=4,
    capsize=2,
    color=colour,
    label=f'{name}, sampled ± s.e.',
  )
  if any(risk is not None for risk in exact):
    known = [risk or np.nan for risk in exact]  # 0 has no place on a log scale
    axes.plot(values, known, '-', color=colour, label=f'{name}, exact')


def _over_largest(matrix: np.ndarray) -> np.ndarray:
  return matrix / (np.abs(matrix).max() or 1.0)


def _heat(axes: Axes, matrix: np.ndarray, limit: float) -> Any:
  axes.set_axis_on()
  axes.set_xticks([])
  axes.set_yticks([])
  # Orange and purple, which colour-blind readers tell apart; white is 0.
  return axes.imshow(matrix, cmap='PuOr', vmin=-limit, vmax=limit)


def _scatter(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
  low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
  axes.plot([low, high], [low, high], color='grey', linewidth=1, zorder=0)
  axes.scatter(x, y, s=4, color=_BLUE, alpha=0.5, linewidths=0)


def _on_host(found: Answer) -> tuple[np.ndarray, np.ndarray]:
  prediction, gradient = (np.asarray(part, np.float64) for part in found)
  return prediction, gradient
