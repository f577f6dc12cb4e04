"""Plots of risks under shift: exact lines, and sampled points with error bars."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from zoo.intervals import Estimate
from zoo.plots import BLUE, GREEN, VERMILION
from zoo.probing.distribution_shift import Shift
from zoo.probing.task_shifts import TaskShift

_NOTHING = Estimate(math.nan, math.nan)  # for a predictor that failed


def plot_shifts(shifts: list[Shift], against: str) -> Figure:
  """The risks of both predictors, and of the optimum, under each shift."""
  figure = Figure(figsize=(12, 6.4), layout='constrained')
  for axes, one in zip(figure.subplots(2, 3).flat, shifts, strict=False):
    _plot_shift(axes, one, against)
  figure.supylabel('in-context risk (log scale)', size=10)
  handles, labels = figure.axes[0].get_legend_handles_labels()
  handles.append(figure.axes[0].lines[-1])
  labels.append('trained here')
  legend = figure.legend(handles, labels, loc='outside upper center', ncols=3)
  for text in legend.get_texts():
    text.set_parse_math(False)  # the name of a folder is plain text
  return figure


def plot_task_shifts(found: list[TaskShift], against: str) -> Figure:
  """The sampled losses of both predictors on each shifted task, one task per line.

  Losses below 1e-5 of the largest, such as rounding errors, are not shown.
  """
  figure = Figure(figsize=(7, 1.2 + 0.28 * len(found)), layout='constrained')
  axes = figure.add_subplot(xlabel='loss (log scale)')
  axes.set_xscale('log')
  names = [one.name for one in found]
  for estimates, label, colour, marker in (
    ([one.risk for one in found], 'the model', BLUE, 'o'),
    ([one.other_risk for one in found], against, VERMILION, 's'),
  ):
    known = [estimate or _NOTHING for estimate in estimates]
    axes.errorbar(
      [_positive(estimate.mean) for estimate in known],
      range(len(found)),
      xerr=[estimate.stderr for estimate in known],
      fmt=marker,
      markersize=4,
      capsize=2,
      color=colour,
      label=label,
    )
  low, high = axes.get_xlim()
  axes.set_xlim(max(low, 1e-5 * high), high)
  axes.set_yticks(range(len(found)), names, parse_math=False)
  axes.invert_yaxis()
  axes.grid(alpha=0.3)
  legend = figure.legend(loc='outside upper center', ncols=2)
  for text in legend.get_texts():
    text.set_parse_math(False)  # the name of a folder is plain text
  return figure


def _plot_shift(axes: Axes, one: Shift, against: str) -> None:
  values = [risk.value for risk in one.risks]
  own = [risk.sampled or _NOTHING for risk in one.risks]
  others = [risk.other_sampled or _NOTHING for risk in one.risks]
  optima = [risk.optimal for risk in one.risks]
  _curve(axes, values, own, [risk.exact for risk in one.risks], 'the model', BLUE, 'o')
  other_exact = [risk.other_exact for risk in one.risks]
  _curve(axes, values, others, other_exact, against, VERMILION, 's')
  label = 'optimum of the linear family, for the shifted task'
  axes.plot(values, [*map(_positive, optima)], '--', color=GREEN, label=label)
  axes.axvline(one.trained, color='grey', linewidth=1, linestyle=':')
  other_risks = [estimate.mean for estimate in others]
  _limit(axes, [*(estimate.mean for estimate in own), *optima], other_risks, against)
  axes.set_yscale('log')  # limits are positive even if no risk is
  axes.yaxis.set_major_formatter('{x:g}')
  axes.yaxis.set_minor_locator(NullLocator())
  if one.name in ('context_length', 'feature_condition', 'query_scale'):
    axes.set_xscale('log', base=2)
    axes.xaxis.set_minor_locator(NullLocator())
  axes.set_xticks(values, [f'{value:g}' for value in values])
  axes.set_xlabel(one.description, size=9)
  axes.grid(alpha=0.3)


def _limit(axes: Axes, shown: list[float], others: list[float], against: str) -> None:
  """Shows all of `shown`; the risks of the other predictor may leave the panel."""
  shown = [risk for risk in shown if risk > 0] or [1.0]
  low, high = min(shown) / 1.5, max(shown) * 1.5
  axes.set_ylim(low, high)
  # Most risks lie within a decade, where a log scale would label at most two ticks.
  subs = (1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
  axes.yaxis.set_major_locator(LogLocator(subs=subs))
  for beyond, where, height, align in (
    (any(risk < low for risk in others), 'below', 0.02, 'bottom'),
    (any(risk > high for risk in others), 'above', 0.98, 'top'),
  ):
    if beyond:
      axes.text(
        *(0.5, height, f'{against} goes {where} this range'),
        ha='center',
        va=align,
        size=8,
        transform=axes.transAxes,
        parse_math=False,
      )


def _curve(
  axes: Axes,
  values: list[float],
  sampled: list[Estimate],
  exact: list[float | None],
  name: str,
  colour: str,
  marker: str,
) -> None:
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
    known = [_positive(risk) for risk in exact]
    axes.plot(values, known, '-', color=colour, label=f'{name}, exact')


def _positive(risk: float | None) -> float:
  """The risk, or NaN, which is not plotted, if the risk is not positive."""
  return risk or math.nan
