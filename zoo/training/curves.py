"""Plots of training: the in-context risk of one or several runs by step."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from zoo.errors import UserError
from zoo.files import read_json, user_path
from zoo.plots import BLACK, PALETTE
from zoo.training.records import read_lines
from zoo.training.summary import SUMMARY, read_summary


class Curve(NamedTuple):
  """The risk of a run at the steps where it was measured, at least one."""

  label: str
  is_exact: bool  # else sampled
  steps: list[int]
  risks: list[float]


def plot_risk(workdirs: Sequence[str | pathlib.Path]) -> Figure:
  """The risk of each run by step, exact where it is known, else sampled.

  A dashed line shows one-step gradient descent on the first run's task. Raises
  UserError for a folder that holds no run, or one that has logged nothing yet.
  """
  folders = [user_path(workdir) for workdir in workdirs]
  figure = Figure(figsize=(7, 4), layout='constrained')
  axes = figure.add_subplot(
    xlabel='training step', ylabel='in-context risk (log scale)'
  )
  axes.set_yscale('log')
  for number, folder in enumerate(folders):
    curve = read_curve(folder)
    axes.plot(
      curve.steps,
      curve.risks,
      '-' if curve.is_exact else 'o-',
      color=PALETTE[number % len(PALETTE)],
      markersize=3,
      label=f'{curve.label}: {curve.risks[-1]:.3f}',
    )
  _plot_gradient_descent(axes, folders[0])
  # Most risks lie within a decade, where a log scale would label at most two ticks.
  axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
  axes.yaxis.set_major_formatter('{x:g}')
  axes.yaxis.set_minor_locator(NullLocator())
  axes.grid(alpha=0.3)
  legend = axes.legend(title='risk at the end' if len(folders) > 1 else None)
  for text in legend.get_texts():
    text.set_parse_math(False)  # the name of a model is plain text
  return figure


def read_curve(workdir: pathlib.Path) -> Curve:
  """The risk by step that a run has logged; raises UserError if there is none."""
  path = workdir / 'config.json'
  if not path.is_file():
    raise UserError(f'{workdir} holds no run: there is no config.json in it')
  config = read_json(path)
  model = config.get('model') if isinstance(config, dict) else None
  if not isinstance(model, dict) or not isinstance(model.get('name'), str):
    raise UserError(f'{path} is damaged: it names no model')
  heads = model.get('num_heads', 1)
  label = f'{model["name"]:.80}, {heads} head{"" if heads == 1 else "s"}'
  lines = read_lines(workdir / 'metrics.jsonl')
  for field in ('exact_risk', 'eval_risk'):
    points = [(line['step'], line[field]) for line in lines if line[field] is not None]
    if points:
      steps, risks = zip(*points, strict=True)
      return Curve(label, field == 'exact_risk', list(steps), list(risks))
  raise UserError(f'{workdir} has logged no risk yet; train it further first')


def _plot_gradient_descent(axes: Axes, workdir: pathlib.Path) -> None:
  summary = read_summary(workdir / SUMMARY)
  if summary is not None and summary['gd_risk'] is not None:
    risk = summary['gd_risk']
    label = f'one step of gradient descent: {risk:.3f}'
    axes.axhline(risk, color=BLACK, linestyle='--', linewidth=1, label=label)
