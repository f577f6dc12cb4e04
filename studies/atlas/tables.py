"""The tables of an atlas: the effects of guesses, and all cells."""

import math
from collections.abc import Sequence

from studies.atlas.comparisons import GuessChange, changes, differences, pooled
from studies.atlas.results import TRAINED, AtlasRow
from zoo.measure.intervals import Estimate
from zoo.reports import Table


def tables(rows: Sequence[AtlasRow]) -> list[Table]:
  """Returns the table of the effects of guesses, if any, and the table of cells.

  Returns:
    One or two tables.
  """
  effects = changes(rows)
  return [*([_changes_table(effects)] if effects else []), _cells_table(rows)]


def _cells_table(rows: Sequence[AtlasRow]) -> Table:
  """Returns a table with a line for each baseline and for each cell and budget."""
  header = ('cell', 'loss, ± 95 %', 'beside softmax', 'weights', 'operations a prompt')
  header += ('operations', 'steps', 'rate', 'minutes')
  words = {id(one.row): one.word for one in differences(rows)}
  shown = sorted(rows, key=lambda row: (row.is_model, row.prompts, row.guess))
  cells = [_cells_of(row, words.get(id(row), '')) for row in shown]
  return Table(cells, header, 'cells and baselines')


def _cells_of(row: AtlasRow, word: str) -> list[str]:
  name = ','.join([row.model, row.task, *filter(None, [row.guess])])
  reason, _, _ = row.reason.partition('; ')
  loss, sizes, training = reason, ['', ''], ['', '', '', '']
  if row.losses:
    how = '' if row.known == TRAINED else f', {row.known}'
    loss = f'{_format(row.loss)}{how}'
    if row.weights:
      sizes = [f'{row.weights:,}', f'{row.operations:,.0f}']
    if row.steps:
      edge = ', at the edge' if row.at_edge else ''
      training = [f'{row.training_operations:.3g}', f'{row.steps:,}']
      training += [f'{row.rate:.2g}{edge}', f'{row.minutes:.1f}']
  return [f'{name}, C = {row.context_length}', loss, word, *sizes, *training]


def _changes_table(effects: Sequence[GuessChange]) -> Table:
  """Returns a table of the effects of guesses: pooled ones, then each with its p."""
  rows = [
    [
      f'{pool.task}, {pool.guess}, C = {pool.context_length}: {pool.kind}',
      '',
      _percent(effect),
      '',
    ]
    for pool, effect in pooled(effects).items()
  ]
  for change in sorted(effects, key=lambda change: change.share.mean):
    name = f'{",".join(change.row.cell[:3])}, C = {change.row.context_length}'
    p_value = '' if math.isnan(change.p_value) else f'{change.p_value:.2g}'
    rows.append([name, _format(change.loss), _percent(change.share), p_value])
  header = 'cell', 'minus guess 0, ± 95 %', 'in %', 'p, by Holm'
  return Table(rows, header, 'what the guess changes, paired by seed and prompt')


def _percent(share: Estimate) -> str:
  percent = Estimate(100 * share.mean, 100 * share.stderr, share.num)
  return _format(percent, '.1f')


def _format(measured: Estimate, form: str = '.3g') -> str:
  """Returns a mean ± half its interval; the mean alone if it has no interval."""
  if measured.half == 0 or math.isnan(measured.half):
    return f'{measured.mean:{form}}' + (' (one seed)' if measured.half else '')
  return f'{measured.mean:{form}} ± {measured.half:{form}}'
