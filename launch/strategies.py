"""Shows which known predictors a model follows at each step of its training.

  python -m launch.strategies --checkpoint=runs/a
  python -m launch.strategies --config=configs/strategies.py \\
      --predictors=memorising,generalising \\
      --sweep=task.num_urns=4,16,64,256,1024 --sweep=seed=0..2

The predictors are baselines of the task. At each step that a run has kept
(config.checkpoint.steps), the command fits the weighted mean of the predictors that is
nearest to the model's predictions. A part of the predictions may be left unexplained.

With --checkpoint it fits the steps of one run, and plots the weights and the
unexplained part against the step.

With --config it trains a sweep and draws a phase diagram: the horizontal axis is the
step, the vertical axis the first swept field. The colour shows the predictor with the
largest weight, and is paler where more is left unexplained. With two predictors, lines
show the log odds of the first against the second, given all prompts so far. There is
one diagram for each value of the other swept fields except the seed. Unless the config
sets checkpoint.steps, runs keep steps at equal ratios.

A second picture, strategies_lines, shows the weights as lines, with confidence
intervals of the mean over seeds as bands. --title, --xlabel and --ylabel apply to the
first picture.

Runs are kept, and each fit is a row of rows.jsonl. Rerun the same command to resume. N
processes divide the points if each is started with --part=I/N, I = 1, …, N; afterwards
the command without --part draws the pictures.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from launch import cli, config_flag
from launch.axes import parse_all
from launch.drawing import Drawing
from zoo.core.errors import UserError
from zoo.host.files import checkpoint_path, is_url, user_path, write_atomically

if TYPE_CHECKING:
  from studies.strategies.series import FittedRun
  from zoo.host.parts import Part
  from zoo.reports.style import Figure

flags.adopt_module_key_flags(cli)
_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'Run to analyse: its workdir, or the folder of a point of a sweep.',
)
_CONFIG = config_flag.define(
  'Config file of a sweep, with variants of it after a colon, as for `launch.main`.'
)
_SWEEP = flags.DEFINE_multi_string(
  'sweep', [], 'Field of the config and its values, as for `launch.sweep`.'
)
_WORKDIR = flags.DEFINE(
  cli.Folder(),
  'workdir',
  None,
  'Folder of the sweep and of its pictures. Default: `checkpoints/runs/strategies-` '
  'and the name of the config.',
)
_PART = cli.define_part('points')
_PREDICTORS = flags.DEFINE_list(
  'predictors',
  None,
  'Baselines of the task that a model may follow. Default: all except `zero` and those '
  'that are slow to compute.',
)
_NUM_PROMPTS = flags.DEFINE_integer(
  'num_prompts',
  2048,
  'Number of prompts. One half is used to fit the weights of the predictors, the other '
  'half to measure what they leave unexplained.',
  lower_bound=4,
)
_OUT = flags.DEFINE(
  cli.Folder(),
  'out',
  None,
  'With `--checkpoint`: folder for `strategies.png`, `strategies.csv` and '
  '`rows.jsonl`. Default: `checkpoints/probes/` and a name made of the checkpoint.',
)
_DRAWING = Drawing(has_formats=True)
_TABLE, _PICTURE = 'strategies.csv', 'strategies.png'
_LINES = 'strategies_lines.png'


def main() -> None:
  if (_CHECKPOINT.value is None) == (not _CONFIG.present):
    raise UserError('give either --checkpoint=RUN, or --config=FILE with --sweep')
  of_sweeps, of_runs = (_SWEEP, _WORKDIR, _PART), (_OUT,)
  for flag in of_runs if _CONFIG.present else of_sweeps:
    if flag.present:
      mode = '--checkpoint' if flag is _OUT else '--config'
      raise UserError(f'--{flag.name} belongs to {mode}')
  _DRAWING.check()
  if _CHECKPOINT.value is not None:
    _show_run(_CHECKPOINT.value)
  else:
    _show_sweep()


def _show_run(checkpoint: str) -> None:
  if is_url(checkpoint):
    raise UserError(
      f'--checkpoint is {checkpoint!r}; it must be a folder on this machine'
    )
  # Imported here so that a mistyped flag is reported at once.
  import zoo
  from studies.strategies import phases
  from studies.strategies.pictures import plot_series
  from studies.strategies.series import Fitter, named
  from zoo.reports.style import drawing_of
  from zoo.storage.loading import steps_of
  from zoo.storage.rows import weights_digest

  out = cli.folder_of(_OUT) or cli.default_folder(checkpoint, ['strategies'])
  workdir = checkpoint_path(checkpoint)
  newest = zoo.load(workdir)
  steps = steps_of(workdir) or [newest.step]
  fitter = Fitter(newest.config, _PREDICTORS.value, _NUM_PROMPTS.value)
  number = len(named(newest.task, _PREDICTORS.value))
  _check_told_apart([newest.config], [{}], number)
  # The weights count, too: a model may have been saved again, with the same config.
  numbers = {f'step={step}': step for step in steps}
  cells = {
    name: {
      **fitter.parameters(step),
      'weights': weights_digest(zoo.load(workdir, step).model),
    }
    for name, step in numbers.items()
  }

  def compute(name: str) -> dict[str, Any]:
    return fitter.row(zoo.load(workdir, numbers[name]).model)

  rows = _rows(cells, compute, out)
  if rows is None:
    return cli.print_results(None, phases.series_table, '', out)
  run = fitter.fitted({numbers[name]: row for name, row in rows.items()})
  with _DRAWING.wishes():
    figures = {_PICTURE: drawing_of(plot_series(run))}
  _write(out, phases.rows_of([{}], [run]), figures)
  print(phases.series_table(run))
  print(f'\n{_where(out)}')


def _show_sweep() -> None:
  from zoo.config.read import read, with_fields

  config = read(config_flag.get(_CONFIG))
  axes, names = parse_all(_SWEEP.value)
  from studies.strategies import phases
  from studies.strategies.pictures import plot_diagrams, plot_lines
  from zoo.reports.style import drawing_of
  from zoo.training import sweeps

  if config.checkpoint.steps is None:
    config = with_fields(config, {'checkpoint.steps': 'log'})
  run_name = config_flag.run_name(_CONFIG)
  default = f'checkpoints/runs/strategies-{run_name}'
  workdir, part = _WORKDIR.value or user_path(default), _PART.value
  points, lost = sweeps.grid(axes), None
  _check_predictors(config, points)
  try:
    rows = sweeps.sweep(config, points, workdir, part)
  except sweeps.LostPointsError as error:  # The results of the others are shown first.
    rows, lost = error.rows, error
  diagrams = None
  if rows is not None:
    points = [{name: row[name] for name in names} for row in rows]
    folders = [row['workdir'] for row in rows]
    runs = _fit_points(config, points, folders, workdir, part)
    if runs is not None:
      diagrams = []
    if runs is not None and part is None:
      fitted = phases.rows_of(points, runs)
      diagrams = phases.diagrams(fitted)
      with _DRAWING.wishes():
        figures = {
          _PICTURE: drawing_of(plot_diagrams(diagrams)),
          _LINES: drawing_of(plot_lines(diagrams)),
        }
      _write(workdir, fitted, figures)
  cli.print_results(diagrams, phases.summary, _where(workdir), workdir, part)
  if lost is not None:
    raise lost


def _check_predictors(config: Any, points: Sequence[Mapping[str, Any]]) -> None:
  """Raises UserError unless the tasks of all points have the same predictors."""
  from studies.strategies.series import named
  from zoo.config.building import build_task
  from zoo.probing.nearest.mixtures import check_mixture
  from zoo.training import sweeps

  names: list[str] = []
  configs = [sweeps.at_point(config, point) for point in points]
  for point_config in configs:
    task = build_task(point_config)
    predictors = named(task, _PREDICTORS.value)
    check_mixture(task, predictors)
    names = names or [*predictors]
    if names != [*predictors]:
      raise UserError(
        f'the points have other predictors, {", ".join(names)} and '
        f'{", ".join(predictors)}; name those of all by --predictors'
      )
  _check_told_apart(configs, points, len(names))


def _check_told_apart(
  configs: Sequence[Any], points: Sequence[Mapping[str, Any]], number: int
) -> None:
  """Prints which predictors make the same predictions.

  Raises UserError if all of them do so at every point, or if there is one predictor
  alone; `number` is how many they are.
  """
  from studies.strategies.series import coinciding

  if number < 2:
    raise UserError(
      'there is one predictor, so that its weight would be 1 for every model; name two '
      'or more by --predictors'
    )
  tried: dict[str, Any] = {}
  found: dict[str, int] = {}
  for config in configs:
    for group in coinciding(config, _PREDICTORS.value, _NUM_PROMPTS.value, tried):
      names = ' and '.join(group)
      found[names] = found.get(names, 0) + 1
      if len(group) == number and found[names] == len(points):
        of_task = 'this task' if len(points) == 1 else 'the task of each point'
        raise UserError(
          f'{names} predict the same on the prompts of {of_task}, so that their weight '
          'would be 1 for every model; name others by --predictors'
        )
  for names, count in found.items():
    where = f' at {count} of {len(points)} points' if len(points) > 1 else ''
    print(f'{names} predict the same{where}, and have one weight there')


def _fit_points(
  config: Any,
  points: Sequence[Mapping[str, Any]],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
  part: Part | None,
) -> list[FittedRun] | None:
  """Fits the points of a sweep at the steps that they have kept.

  Returns None if SIGTERM has stopped it.
  """
  from studies.strategies.series import Fitter
  from zoo.storage.checkpoints import kept_steps
  from zoo.training import sweeps

  shared: dict[str, Any] = {}
  configs = [sweeps.at_point(config, point) for point in points]
  fitters = [
    Fitter(
      point_config,
      _PREDICTORS.value,
      _NUM_PROMPTS.value,
      by_prompt=False,
      shared=shared,
    )
    for point_config in configs
  ]
  kept = [*sweeps.kept_models(config, points, workdir)]
  for i, point_config in enumerate(configs):
    steps = {step for members, step, _ in kept if i in members}
    wanted = kept_steps(point_config)
    if missing := [step for step in wanted if step not in steps]:
      raise UserError(
        f'{folders[i]} has not kept step {missing[0]}: it was trained without '
        'config.checkpoint.steps; give another --workdir'
      )
  # By point and step: the number of the group of models, and the model's place in it.
  # In this order each group is loaded only once.
  places: dict[tuple[int, int], tuple[int, int]] = {}
  for number, (members, step, _) in enumerate(kept):
    for place, i in enumerate(members):
      places.setdefault((i, step), (number, place))
  names = {f'{folders[i].name}/step={step}': (i, step) for i, step in places}
  loaded: dict[int, list[Any]] = {}

  def compute(name: str) -> dict[str, Any]:
    number, place = places[names[name]]
    if number not in loaded:
      loaded.clear()
      loaded[number] = kept[number][2]()
    i, _ = names[name]
    return fitters[i].row(loaded[number][place])

  cells = {name: fitters[i].parameters(step) for name, (i, step) in names.items()}
  rows = _rows(cells, compute, workdir, part)
  if rows is None:
    return None
  by_point: list[dict[int, Any]] = [{} for _ in points]
  for name, row in rows.items():
    i, step = names[name]
    by_point[i][step] = row
  return [
    fitter.fitted(of_point) for fitter, of_point in zip(fitters, by_point, strict=True)
  ]


def _rows(
  cells: Mapping[str, Mapping[str, Any]],
  compute: Callable[[str], Mapping[str, Any]],
  out: pathlib.Path,
  part: Part | None = None,
) -> dict[str, dict[str, Any]] | None:
  """Returns the rows of the cells, and computes those that the folder lacks.

  All cells belong to the part, as its points do. Fits with other predictors or on other
  prompts are computed again. Returns None after SIGTERM.
  """
  from studies.cell_table import complete
  from studies.runner import run_in

  with run_in(out) as (folder, interruption):
    return complete(cells, [*cells], compute, folder, interruption, part, again=True)
  return None


def _where(out: pathlib.Path) -> str:
  names = [(out / _PICTURE).with_suffix(f'.{name}') for name in _DRAWING.formats]
  shown = ' and '.join(map(str, names))
  return f'the picture is {shown}, all numbers are in {out / _TABLE}'


def _write(
  out: pathlib.Path, rows: list[dict[str, Any]], figures: Mapping[str, Figure]
) -> None:
  """Writes the table and the pictures; raises UserError if a file fails."""
  from zoo.core import tables

  names = dict.fromkeys(name for row in rows for name in row)
  with cli.writing(out):
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / _TABLE, tables.to_csv(names, rows))
    for name, figure in figures.items():
      is_first = name == _PICTURE  # The table has the numbers of the first picture.
      _DRAWING.save(figure, out / name, has_texts=is_first, has_numbers=not is_first)


if __name__ == '__main__':
  cli.run(main)
