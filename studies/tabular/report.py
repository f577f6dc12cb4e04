"""The picture and the page of a comparison."""

from __future__ import annotations

import numpy as np
import sklearn

from studies.runner import facts, sections_of
from studies.tabular.methods import ABOUT
from studies.tabular.scores import Comparison, Trial
from studies.tabular.tables import REGRESSION
from zoo import reports
from zoo.core.errors import shown
from zoo.measure.calibrate import PitHistogram, Reliability
from zoo.measure.table import plus_minus
from zoo.reports.calibration_plots import plot_calibration
from zoo.reports.style import Figure, drawing_of

_HEADERS = {
  'r2': 'R²',
  'rmse': 'RMSE',
  'nll': 'negative log likelihood, nats',
  'accuracy': 'accuracy',
  'log_loss': 'log loss, nats',
  'auc': 'AUC',
}


def calibration_picture(trial: Trial, found: PitHistogram | Reliability) -> Figure:
  """Draws the calibration of the model.

  Args:
    trial: The model and the table.
    found: The calibration, from `Comparison.calibration`.

  Returns:
    The picture.
  """
  title = f'{trial.name} on {trial.table.name}'
  if isinstance(found, Reliability):
    title += f': expected calibration error {found.ece:.3f}'
  return drawing_of(plot_calibration(found, title))


def title_of(trial: Trial) -> str:
  """Returns the title of the page."""
  return f'{trial.name} beside methods of scikit-learn on {trial.table.name}'


def page(
  trial: Trial, comparison: Comparison, figure: Figure | None, formats: list[str]
) -> str:
  """Renders the scores, the calibration, the table and the methods as one HTML page.

  Args:
    trial: The model and the table.
    comparison: The scores and the calibration.
    figure: The picture of the calibration. None leaves it out.
    formats: The file formats in which the picture was written, for links.

  Returns:
    The HTML of the page.
  """
  sections = [
    reports.Section(
      'Scores',
      comparison.note,
      {'results.csv': 'results.csv', 'rows.jsonl': 'rows.jsonl'},
      tables=[_table_of(comparison)],
    )
  ]
  if figure is not None and comparison.calibration is not None:
    label = in_words(comparison.calibration)
    files = {name: f'calibration.{name}' for name in (*formats, 'csv')}
    pictures = [reports.Picture(figure, label)]
    captioned = reports.CaptionedFigure('Calibration', label, pictures, files)
    sections.append(
      reports.Section('Is the model as sure as it is right?', figures={'c': captioned})
    )
  sections += sections_of(
    {'The table': _facts_of(trial), 'Methods': _methods_of(trial, comparison)}
  )
  return reports.render(
    title_of(trial), _lead(comparison), [*sections, *sections_of(facts())]
  )


def in_words(found: PitHistogram | Reliability) -> str:
  """Returns sentences on the calibration and on how to read its picture."""
  if isinstance(found, Reliability):
    return (
      'How often the most probable class is the label, by its probability. Points '
      'below the line are too sure. The expected calibration error is '
      f'{found.ece:.3f}; that of a calibrated predictor exceeds '
      f'{found.null:.3f} on the queries of one split with a probability of 5 %.'
    )
  outer = found.bins[0].share.mean + found.bins[-1].share.mean
  return (
    'How often the probability of a smaller number is in each tenth (the probability '
    'integral transform). All shares are 0.1 for a calibrated predictor; a '
    'distribution that is too narrow has more in the outer bins. '
    f'These two have {outer:.3f} of the numbers.'
  )


def _table_of(comparison: Comparison) -> reports.Table:
  fields = [
    field
    for field in comparison.rows[0]._fields[1:]
    if any(getattr(row, field) is not None for row in comparison.rows)
  ]
  cells = [
    [row.method, *(plus_minus(getattr(row, field)) for field in fields)]
    for row in comparison.rows
  ]
  return reports.Table(cells, ['method', *(_HEADERS[field] for field in fields)])


def _lead(comparison: Comparison) -> str:
  """Returns a sentence with the place of the model among the methods."""
  model, *others = comparison.rows
  is_of_numbers = hasattr(model, 'r2')
  field = 'r2' if is_of_numbers else 'log_loss'
  sign = 1 if is_of_numbers else -1
  best = max(others, key=lambda row: sign * getattr(row, field).mean)
  scores = getattr(model, field), getattr(best, field)
  place = 1 + sum(
    sign * getattr(row, field).mean > sign * scores[0].mean for row in others
  )
  return (
    f'By {"R²" if is_of_numbers else "log loss"} {model.method} is number {place} of '
    f'{len(others) + 1} methods: it has {plus_minus(scores[0])}, and {best.method}, '
    f'the best of the others, has {plus_minus(scores[1])}.'
  )


def _facts_of(trial: Trial) -> dict[str, str]:
  table = trial.table
  found = {
    'Rows': f'{len(table.y):,}',
    'Features': f'{len(table.columns)}: {shown(table.columns, 40)}',
    'Target': table.target,
  }
  if table.kind == REGRESSION:
    found['Range of the target'] = f'{table.y.min():g} to {table.y.max():g}'
  else:
    counts = np.unique(table.y, return_counts=True)[1]
    names = [
      f'{name} ({count})' for name, count in zip(table.classes, counts, strict=True)
    ]
    found['Classes and their rows'] = shown(names, 40)
  missing = np.isnan(table.x)
  found['Missing values'] = (
    f'{missing.sum():,} ({missing.mean():.1%}), in {shown(table.incomplete, 40)}'
    if missing.any()
    else 'none'
  )
  return found


def _methods_of(trial: Trial, comparison: Comparison) -> dict[str, str]:
  names = [row.method for row in comparison.rows[1:]]
  known = {name: ABOUT[name] for name in names}
  known = {trial.name: f'{trial.model}, whose weights are not changed'} | known
  return known | {'Version of scikit-learn': sklearn.__version__}
