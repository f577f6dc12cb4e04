"""Plots of risks under shift: exact lines, and sampled points with error bars."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from zoo.measure.intervals import Estimate
from zoo.probing.shifts import Shift, TaskShift
from zoo.reports.style import (
  BLUE,
  GREEN,
  GREY,
  SMALL,
  VERMILION,
  Figure,
  in_style,
  label_log_axis,
  legend_above,
)

_NOTHING = Estimate(math.nan, math.nan)  # for a predictor that failed


@in_style()
def plot_shifts(shifts: list[Shift], against: str) -> Figure:
  """The risks of both predictors, and of the optimum, under each shift."""
  figure = Figure(8.4)
  for axes, one in zip(figure.subplots(3, 2).flat, shifts, strict=False):
    _plot_shift(axes, one, against)
  figure.supylabel('in-context risk (log scale)')
  legend_above(figure)
  return figure


@in_style()
def plot_task_shifts(found: list[TaskShift], against: str | None) -> Figure:
  """The sampled losses of both predictors on each shifted task, one task per line.

  Without the name of another predictor only the model's are shown. Losses below 1e-5 of
  the largest, such as rounding errors, are not shown.
  """
  figure = Figure(1.2 + 0.28 * len(found))
  axes = figure.add_subplot(xlabel='loss (log scale)')
  axes.set_xscale('log')
  names = [one.name for one in found]
  plain = {'fmt': 'o', 'color': BLUE, 'zorder': 3}
  # The model is seen in the hollow squares where both agree.
  hollow = {'fmt': 's', 'color': VERMILION, 'markersize': 8, 'markerfacecolor': 'none'}
  shown: list[tuple[list[Estimate | None], str, dict[str, Any]]] = [
    ([one.risk for one in found], 'the model', plain)
  ]
  if against is not None:
    shown.append(([one.other_risk for one in found], against, hollow))
  for estimates, label, look in shown:
    known = [estimate or _NOTHING for estimate in estimates]
    axes.errorbar(
      [_positive(estimate.mean) for estimate in known],
      range(len(found)),
      xerr=[estimate.stderr for estimate in known],
      capsize=2,
      label=label,
      **look,
    )
  low, high = axes.get_xlim()
  axes.set_xlim(max(low, 1e-5 * high), high)
  axes.set_yticks(range(len(found)), names, parse_math=False)
  axes.invert_yaxis()
  label_log_axis(axes.xaxis)
  legend_above(figure)
  return figure


def _plot_shift(axes: Axes, one: Shift, against: str) -> None:
  values = [risk.value for risk in one.risks]
  own = [risk.sampled or _NOTHING for risk in one.risks]
  others = [risk.other_sampled or _NOTHING for risk in one.risks]
  optima = [risk.optimal for risk in one.risks]
  own_exact = [risk.exact for risk in one.risks]
  other_exact = [risk.other_exact for risk in one.risks]
  # Where both agree, the model is seen on the broad line and in the hollow squares.
  behind = {'linewidth': 4, 'alpha': 0.5, 'zorder': 1.8}
  hollow = {'markersize': 8, 'markerfacecolor': 'none', 'zorder': 1.9}
  _curve(axes, values, own, own_exact, 'the model', BLUE, 'o', {}, {'zorder': 3})
  _curve(axes, values, others, other_exact, against, VERMILION, 's', behind, hollow)
  label = 'optimum of the linear family, for the shifted task'
  axes.plot(values, [*map(_positive, optima)], '--', color=GREEN, label=label)
  axes.axvline(one.trained, color=GREY, linestyle=':', label='trained here')
  other_risks = [estimate.mean for estimate in others]
  _limit(axes, [*(estimate.mean for estimate in own), *optima], other_risks, against)
  axes.set_yscale('log')  # limits are positive even if no risk is
  label_log_axis(axes.yaxis)
  if one.name in ('context_length', 'feature_condition', 'query_scale'):
    axes.set_xscale('log', base=2)
    axes.xaxis.set_minor_locator(NullLocator())
  axes.set_xticks(values, [f'{value:g}' for value in values])
  axes.set_xlabel(textwrap.fill(one.description, 45))


def _limit(axes: Axes, shown: list[float], others: list[float], against: str) -> None:
  """Shows all of `shown`; the risks of the other predictor may leave the panel."""
  shown = [risk for risk in shown if risk > 0] or [1.0]
  low, high = min(shown) / 1.5, max(shown) * 1.5
  axes.set_ylim(low, high)
  for beyond, where, height, align in (
    (any(risk < low for risk in others), 'below', 0.02, 'bottom'),
    (any(risk > high for risk in others), 'above', 0.98, 'top'),
  ):
    if beyond:
      axes.text(
        *(0.5, height, f'{against} goes {where} this range'),
        ha='center',
        va=align,
        size=SMALL,
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
  line: dict[str, Any],
  points: dict[str, Any],
) -> None:
  axes.errorbar(
    values,
    [estimate.mean for estimate in sampled],
    [estimate.stderr for estimate in sampled],
    fmt=marker,
    capsize=2,
    color=colour,
    label=f'{name}, sampled ± s.e.',
    **points,
  )
  if any(risk is not None for risk in exact):
    known = [_positive(risk) for risk in exact]
    axes.plot(values, known, '-', color=colour, label=f'{name}, exact', **line)


def _positive(risk: float | None) -> float:
  """The risk, or NaN, which is not plotted, if the risk is not positive."""
  return risk or math.nan
