"""The report of an atlas: pictures first, then the cells."""

import math
import pathlib
from collections.abc import Sequence

from studies.atlas.comparisons import Difference, differences
from studies.atlas.pictures import draw
from studies.atlas.results import (
  LIKE_BAYES,
  LOWEST,
  TRAINED,
  AtlasRow,
  at_budget,
  common_budgets,
  is_like_bayes,
  scale_of,
  share_in_words,
)
from studies.atlas.tables import tables
from zoo import reports
from zoo.host.files import write_atomically
from zoo.reports import Table

# The title and the caption of each picture, by its name.
ABOUT = {
  'atlas': (
    'What each architecture learns with the same operations',
    'Each number is (loss − Bayes loss) / (loss without examples − Bayes loss): 0 is '
    'as good as Bayes, and 1 means that nothing was learned. Where Bayes is not known '
    'its loss counts as 0; where the loss without examples is not known, that of the '
    'answer 0 is used. A star marks a model that reaches the limit of steps with fewer '
    'operations. “theory” is the lowest known risk of a layer of linear attention. '
    '“Bayes” means that the whole interval over seeds is less than 0.01 above Bayes. A '
    'dash means that there is no number: the model cannot do the task, or has no such '
    'guess. Models are ordered by the geometric mean of their numbers, the lowest '
    'first.',
  ),
  'atlas_slopes': (
    'What more operations bring',
    'The share that is not learned with the largest budget of a task, divided by the '
    'share with a smaller budget. The labels say how many times larger the largest '
    'budget is. Cells with a star are left out.',
  ),
  'atlas_guesses': (
    'What a guess changes',
    'A “linear” guess is a trained w·x of the query, written in the tokens; a '
    '“residual” one is outside the model: subtracted from the labels, and added to the '
    'prediction. Differences from the guess 0 are paired by seed and prompt. Bars are '
    '95 % intervals: over seeds for one model, and over models for means. Models are '
    'ordered by the lower of their two changes.',
  ),
  'atlas_contexts': (
    'By the context length of training',
    'Each point was trained and measured at its own context length.',
  ),
}


def write(rows: Sequence[AtlasRow], command: str, out: pathlib.Path) -> None:
  """Writes the pictures, and `report.html` with pictures and tables, to a folder.

  Args:
    rows: The rows of the atlas.
    command: The command that made the atlas, which the report shows.
    out: The folder, which exists.
  """
  figures = {}
  for name, drawing in draw(rows).items():
    for suffix in ('png', 'svg', 'pdf'):
      drawing.savefig(out / f'{name}.{suffix}')
    title, caption = ABOUT[name]
    picture = reports.Picture(drawing, title)
    figures[name] = reports.CaptionedFigure(title, caption, [picture])
  text = (
    'The intervals of 95 % are over seeds, by Student’s t; each seed is measured on '
    'prompts of its own. Whether a model differs from softmax attention is decided by '
    'Welch’s t-test of shares, where Holm’s method corrects for all models and tasks. '
    'The differences of shares have the intervals of the same test, without a '
    'correction. Effects of guesses are paired by seed, and Holm’s method corrects '
    'their p values. '
    f'The command: {command}'
  )
  cells = reports.Section(
    'Cells',
    text,
    {'atlas.csv': 'atlas.csv'},
    tables=[table for table in _tables_of(rows) if table.rows],
  )
  page = reports.render(
    'Atlas of architectures and tasks',
    summary(rows),
    [reports.Section('Pictures', figures=figures), cells],
  )
  write_atomically(out / 'report.html', page)


def _tables_of(rows: Sequence[AtlasRow]) -> list[Table]:
  """Returns all tables of the report."""
  names = dict.fromkeys(difference.row.task for difference in differences(rows))
  by_task = [shares_beside_softmax(rows, task) for task in names]
  return [beside_softmax(rows), *by_task, *tables(rows)]


def summary(rows: Sequence[AtlasRow]) -> str:
  """Returns a paragraph: how many cells there are, and how many have which result.

  Returns:
    The paragraph.
  """
  cells = at_budget(rows)
  trained = [row for row in cells if row.known == TRAINED]
  like_bayes = sum(is_like_bayes(row, rows) for row in trained)
  theory = sum(row.known == LOWEST for row in cells)
  hours = sum({row.cell: row.minutes for row in rows}.values()) / 60
  budgets = ', '.join(f'{budget:.3g}' for budget in common_budgets(rows))
  capped = sum(row.is_capped for row in trained)
  others = {row.budget for row in rows} - {0.0, *common_budgets(rows)}
  more = ''.join(
    f'; {sum(row.budget == budget for row in rows)} also with {budget:.3g}'
    for budget in sorted(others)
  )
  return (
    f'{len({row.model for row in cells})} architectures, {len(cells)} cells. '
    f'{len(trained)} cells are trained: {len(trained) - capped} with {budgets} '
    f'operations for each seed, {capped} with fewer (they reach the limit of steps)'
    f'{more}. All of it took {hours:.1f} hours of a core. {like_bayes} of the trained '
    f'cells reach Bayes: the 95 % interval over seeds ends below a share of '
    f'{LIKE_BAYES:g}. {theory} cells have a value of theory instead of a trained '
    f'loss, and {len(cells) - len(trained) - theory} have no loss.'
  )


def beside_softmax(rows: Sequence[AtlasRow]) -> Table:
  """Returns a table of the models that differ from softmax attention, by task.

  Each name is followed by its share as `LossScale.share` gives it. The last column
  counts the models that were not seen to differ (`Difference.word`).

  Returns:
    A table with a row for each task and context length.
  """
  groups: dict[tuple[str, int], list[Difference]] = {}
  for difference in differences(rows):
    groups.setdefault(difference.row.prompts, []).append(difference)
  lines = []
  for (task, context_length), of in groups.items():
    share = scale_of(rows, (task, context_length)).share
    of.sort(key=lambda difference: difference.row.loss.mean)
    names = {
      word: ', '.join(
        f'{other.row.model} {share_in_words(share(other.row.loss.mean))}'
        for other in of
        if other.word == word
      )
      for word in ('lower', 'higher')
    }
    alike = sum(other.word == 'not seen to differ' for other in of)
    softmax = share_in_words(share(of[0].reference.loss.mean))
    lines.append([task, softmax, names['lower'], names['higher'], str(alike)])
  header = 'task', 'softmax', 'lower', 'higher', 'not seen to differ'
  return Table(lines, header, 'shares not learned, beside that of softmax attention')


def shares_beside_softmax(rows: Sequence[AtlasRow], task: str) -> Table:
  """Returns a table of the shares of all trained models on one task, lowest first.

  Each model has its mean share ± half of its 95 % t interval over seeds, the difference
  from softmax attention with a 95 % interval that is not corrected
  (`Difference.share`), and the verdict of the same test after Holm's correction
  (`Difference.word`).

  Args:
    rows: The rows of the atlas.
    task: The name of a task of the atlas.

  Returns:
    A table with a row for each model; of a task with several context lengths it has a
    row for each model and length.
  """
  found = [one for one in differences(rows) if one.row.task == task]
  lines = {one.row.cell: [one.row.model, *_beside(rows, one)] for one in found}
  for one in found:
    lines[one.reference.cell] = [
      one.reference.model,
      _share(rows, one.reference),
      '',
      '',
    ]
  losses = {one.row.cell: one.row.loss.mean for one in found}
  losses |= {one.reference.cell: one.reference.loss.mean for one in found}
  shown = [lines[cell] for cell in sorted(lines, key=lambda cell: losses[cell])]
  header = ('model', 'share, ± 95 %', 'minus softmax, 95 % uncorrected', 'after Holm')
  return Table(shown, header, f'shares not learned on {task}')


def _beside(rows: Sequence[AtlasRow], difference: Difference) -> list[str]:
  """Returns the share of a model, its difference from softmax, and the verdict."""
  found = difference.share
  gap = f'{found.mean:+.3f}'
  if not math.isnan(found.low):
    gap += f' ({found.low:+.3f} to {found.high:+.3f})'
  return [_share(rows, difference.row), gap.replace('-', '−'), difference.word]


def _share(rows: Sequence[AtlasRow], row: AtlasRow) -> str:
  """Returns the mean share of a row ± half of its interval; one seed has none."""
  share = scale_of(rows, row.prompts).share
  mean, high = share(row.loss.mean), share(row.loss.high)
  return f'{mean:.3f} ± {high - mean:.3f}' if math.isfinite(high) else f'{mean:.3f}'
