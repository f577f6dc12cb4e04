"""Pictures of training: the in-context risk against the step, for runs side by side."""

import json
import pathlib
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from zoo.errors import UserError
from zoo.training.records import read_lines
from zoo.training.summary import read_summary

# Okabe and Ito's colours, which colour-blind readers tell apart.
_COLOURS = '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9'


def plot_risk(workdirs: Sequence[str | pathlib.Path]) -> Figure:
  """The risk of each run by step, exact where it is known, else sampled.

  One-step gradient descent of the first run's task is dashed. Raises UserError for a
  folder that holds no run, or one that has logged nothing yet.
  """
  figure = Figure(figsize=(7, 4), layout='constrained')
  axes = figure.add_subplot(
    xlabel='training step', ylabel='in-context risk (log scale)'
  )
  axes.set_yscale('log')
  for count, workdir in enumerate(map(pathlib.Path, workdirs)):
    try:
      model = json.loads((workdir / 'config.json').read_text())['model']
    except OSError:
      raise UserError(
        f'{workdir} holds no run: there is no config.json in it'
      ) from None
    except (ValueError, KeyError, TypeError):
      raise UserError(f'{workdir}/config.json is damaged; it is no config') from None
    lines = read_lines(workdir / 'metrics.jsonl')
    exact = any(line['exact_risk'] is not None for line in lines)
    field = 'exact_risk' if exact else 'eval_risk'
    points = [(line['step'], line[field]) for line in lines if line[field] is not None]
    if not points:
      raise UserError(f'{workdir} has logged no risk yet; train it further first')
    heads = model.get('num_heads', 1)
    label = f'{model["name"]}, {heads} head{"s" * (heads > 1)}'
    steps, risks = zip(*points, strict=True)
    colour = _COLOURS[count % len(_COLOURS)]
    style = '-' if exact else 'o-'
    axes.plot(
      steps, risks, style, color=colour, markersize=3, label=f'{label}: {risks[-1]:.3f}'
    )
  summary = read_summary(pathlib.Path(workdirs[0]) / 'summary.json')
  if summary is not None and summary['gd_risk'] is not None:
    gd_risk = summary['gd_risk']
    label = f'one step of gradient descent: {gd_risk:.3f}'
    axes.axhline(gd_risk, color='black', linestyle='--', linewidth=1, label=label)
  # Most risks lie within a decade, where a log scale would name two ticks at the most.
  axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
  axes.yaxis.set_major_formatter('{x:g}')
  axes.yaxis.set_minor_locator(NullLocator())
  axes.grid(alpha=0.3)
  axes.legend(title='risk at the end' if len(workdirs) > 1 else None)
  return figure
