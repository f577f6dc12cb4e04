"""The report of an atlas: pictures first, then the cells."""

from __future__ import annotations

import pathlib

from zoo import reports
from zoo.host.files import write_atomically
from zoo.reports.style import Figure
from zoo.studies.atlas import pictures
from zoo.studies.atlas.results import (
  Result,
  Results,
  cells_table,
  changes,
  changes_table,
  reasons_table,
  trained_cells,
)


def write(found: Results, command: str, out: pathlib.Path) -> None:
  """Writes the pictures, and `report.html` with all of them, to a folder."""
  results = trained_cells(found)
  if not results:
    return
  figures = _figures(results)
  for name, figure in figures.items():
    for suffix in ('png', 'svg'):
      figure.pictures[0].drawing.savefig(out / f'{name}.{suffix}')
  write_atomically(out / 'report.html', _page(found, results, figures, command))


def _figures(results: list[Result]) -> dict[str, reports.Figure]:
  """The figures by file name."""
  figures = {
    'atlas': _figure(
      'What each architecture learns',
      pictures.heat_map(results),
      '0 is the loss of Bayes, or of the best baseline where Bayes is not known; 1 is '
      'the loss without examples. An arrow marks a loss on held-out prompts that '
      'still fell by more than its standard error in the last tenth of training. The '
      'learning rate decays to 0, so longer training may help without an arrow, too.',
    )
  }
  found_changes = changes(results)
  of_guesses = [one for one in found_changes if one.result.cell.guess is not None]
  if len({one.result.cell.prompts for one in of_guesses}) > 1:
    figures['guesses'] = _figure(
      'What a guess changes',
      pictures.shares(found_changes),
      'Differences on the same prompts, in percent of the loss with the guess 0. The '
      'bars are 95 % intervals over seeds and prompts; with one seed there are none.',
    )
  for task in dict.fromkeys(one.cell.task for one in results):
    of = [one for one in results if one.cell.task == task]
    if len({one.context_length for one in of}) > 1:
      figures[f'contexts_{task}'] = _figure(
        f'By the context length of training: {task}',
        pictures.contexts(of),
        'Each dot was trained and measured at its own context length. Lines of linear '
        'attention are their lowest known exact risks. A ratio is the loss with a '
        'guess divided by that with the guess 0 on the same prompts; bars are 95 % '
        'intervals over seeds and prompts.',
      )
  for task, of in pictures.by_prompts(results).items():
    on_task = [one for one in of_guesses if one.result.cell.prompts == task]
    if on_task:
      figures[f'guess_{task}'] = _figure(
        f'What the guess changes: {task}',
        pictures.gains(on_task),
        'Differences of losses on the same prompts. The bars are 95 % intervals over '
        'seeds and prompts; with one seed there are none.',
      )
    figures[f'losses_{task}'] = _figure(
      f'Losses: {task}',
      pictures.losses(of),
      'After as many examples as in training. The bars are 95 % '
      'intervals over seeds and prompts; with one seed there are none.',
    )
    figures[f'curves_{task}'] = _figure(
      f'By number of examples: {task}',
      pictures.curves(of),
      'Trained on prompts of one length, measured on shorter and longer ones. Models '
      'for a fixed number of examples cannot take more.',
    )
  return figures


def _figure(title: str, drawing: Figure, caption: str) -> reports.Figure:
  return reports.Figure(title, caption, [reports.Picture(drawing, title)])


def _page(
  found: Results,
  results: list[Result],
  figures: dict[str, reports.Figure],
  command: str,
) -> str:
  first, by_prompts = results[0], pictures.by_prompts(results)
  models, num_seeds = {one.cell.model for one in results}, len(first.by_seed)
  lead = (
    f'{len(models)} architectures, tasks {", ".join(by_prompts)}. Each cell has '
    f'{num_seeds} seed{"s" * (num_seeds > 1)} and {first.num_steps} steps, and the '
    f'learning rate that is best on held-out prompts; losses are on other prompts. '
    f'In {sum(one.still_falls for one in results)} of {len(results)} cells the loss '
    'still fell at the end.'
  )
  tables = [cells_table(of, task) for task, of in by_prompts.items()]
  if differences := changes(results):
    tables.append(changes_table(differences))
  if (reasons := reasons_table(found)).rows:
    tables.append(reasons)
  cells = reports.Section(
    'Cells',
    'The intervals of 95 % are over seeds and prompts, by Student’s t with one degree '
    'of freedom less than there are seeds: two seeds tell very little. One seed has no '
    'interval. Exact risks, of linear attention and of baselines, are not sampled. The '
    'column seeds has the least and the largest loss of a seed, which are not an '
    'interval. The time is for all seeds and learning rates together. The name of a '
    'cell has its model, task, guess and context length, if it has them. A cell alone '
    f'has the same numbers; this command trains that of the first row: '
    f'{_command(command, first)}',
    {'atlas.csv': 'atlas.csv'},
    tables=tables,
  )
  return reports.render(
    'Atlas of architectures and tasks',
    lead,
    [reports.Section('Pictures', figures=figures), cells],
  )


def _command(command: str, result: Result) -> str:
  cell = result.cell
  rest = f' --guesses={cell.guess}' if cell.guess else ''
  if cell.context_length is not None:
    rest += f' --context_lengths={cell.context_length}'
  return f'{command} --models={cell.model} --tasks={cell.task}{rest} --out=runs/cell'
