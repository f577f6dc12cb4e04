"""Plots the loss of runs against steps, operations or the number of examples.

python -m launch.plot --workdir=checkpoints/runs/yq_lsa
python -m launch.plot --workdir=runs/a --workdir=runs/b --out=risk.svg
python -m launch.plot --workdir=runs/a --against=examples   # with the task's baselines
python -m launch.plot --workdir=runs/a --loss=training --against=operations
python -m launch.plot --workdir=runs/a --metric=norm/weights   # a metric of your own
python -m launch.plot --workdir=runs/heads   # the risk at the end of a sweep
python -m launch.plot --workdir=runs/heads --metric=loss   # mean over seeds, by step
python -m launch.plot --workdir=runs/mixers --x=model.mixer
python -m launch.plot --workdir=runs/mixers --against=examples --baselines=bayes,ridge
python -m launch.plot --workdir=runs/a --size=column --legend=right --out=risk.pdf
python -m launch.plot --csv=runs/a/risk.csv --title=Risk --out=risk.pdf   # redraws it

Beside the picture the command writes a CSV with the numbers that it shows.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from absl import flags

from launch import cli
from launch.drawing import OF_PLOT, Drawing
from zoo.core.errors import UserError
from zoo.host.files import read_text, user_path, workdir_path

if TYPE_CHECKING:
  from zoo.reports.style import Figure

flags.adopt_module_key_flags(cli)
_WORKDIRS = flags.DEFINE_multi_string(
  'workdir',
  [],
  'Folder of a run or of a sweep, or `gs://bucket/folder`. If the flag is repeated, '
  'the picture shows several runs.',
)
_AGAINST = flags.DEFINE_enum(
  'against',
  'step',
  ['step', 'operations', 'examples'],
  'Horizontal axis: the training step, the operations of training, or the number of '
  'examples before the query. A plot against examples also shows baselines. A sweep is '
  'plotted against one of its fields (`--x`), or against the number of examples.',
)
_X = flags.DEFINE_string(
  'x',
  None,
  'Horizontal axis of a sweep: one of its fields except the seed. Default: the numeric '
  'field with the most values; if it has fewer than three, the field with the most '
  'values, numeric or not.',
)
_BASELINES = flags.DEFINE_list(
  'baselines',
  None,
  'Baselines to show in a plot against examples. Default: all of the first run; for a '
  'sweep, `bayes` and the two best others.',
)
_LOSS = flags.DEFINE_enum(
  'loss',
  'risk',
  ['risk', 'training'],
  'What is plotted against steps or operations: the risk, exact if it is known for all '
  'runs and else on held-out prompts, or the training loss.',
)
_METRIC = flags.DEFINE_string(
  'metric',
  None,
  'Name of another number of `metrics.jsonl` to plot against steps or operations in '
  'place of the loss, such as `norm/weights` of a metric of your own. Points of a '
  'sweep that differ only in the seed are drawn as their mean, with a 95 % interval.',
)
_CSV = flags.DEFINE_string(
  'csv',
  None,
  'In place of `--workdir`: a CSV that this command wrote beside a picture, or the '
  '`figure_NAME.csv` of a study. Its picture is drawn again.',
)
_DRAWING = Drawing(has_names=True)
_OUT = flags.DEFINE_string(
  'out',
  None,
  'File for the picture. Default: `risk.png`, `loss.png`, `metric.png`, `sweep.png` or '
  '`examples.png` in the first workdir, by what is plotted; with `--csv`, a PNG beside '
  'the CSV.',
)


def main() -> None:
  if _CSV.value is not None:
    _draw_again(_CSV.value)
    return
  if not _WORKDIRS.value:
    raise UserError('--workdir is missing; try --workdir=checkpoints/runs/yq_lsa')
  training, examples = _LOSS.value == 'training', _AGAINST.value == 'examples'
  if training and examples:
    raise UserError('--loss=training has a value at each step; give --against=step')
  if _BASELINES.value is not None and not examples:
    raise UserError('--baselines is for plots with --against=examples')
  if _METRIC.value is not None and (training or examples):
    other = '--loss=training' if training else '--against=examples'
    raise UserError(f'--metric is {_METRIC.value!r}; it cannot stand beside {other}')
  is_sweep = _is_sweep(_WORKDIRS.value)
  if is_sweep and _AGAINST.value == 'operations':
    raise UserError(
      '--against is operations, and --workdir is a sweep; only runs that were trained '
      'alone have operations'
    )
  if is_sweep and training:
    raise UserError(
      '--loss is training, and --workdir is a sweep; give --metric=loss, or the '
      'folders of its points'
    )
  swept = is_sweep and not training and not examples and _METRIC.value is None
  if _X.value is not None and not swept:
    raise UserError(f'--x is {_X.value!r}; it is for the risk at the end of a sweep')
  name = 'sweep' if swept else 'examples' if examples else 'risk'
  if training or _METRIC.value is not None:
    name = 'loss' if training else 'metric'
  out = _out(workdir_path(_WORKDIRS.value[0]) / f'{name}.png')
  with _DRAWING.wishes():
    figure = _draw(swept, examples, is_sweep, training)
  _save(figure, out)


def _draw(swept: bool, examples: bool, is_sweep: bool, training: bool) -> Figure:
  """Returns the picture of runs, or of a sweep."""
  # Imported here so that a mistyped flag is reported at once.
  from zoo.reports.style import drawing_of
  from zoo.training import run_plots

  workdirs = _WORKDIRS.value
  if swept:
    return drawing_of(run_plots.plot_sweep(workdirs[0], _X.value))
  if examples and is_sweep:
    return drawing_of(run_plots.plot_sweep_examples(workdirs[0], _BASELINES.value))
  if examples:
    return drawing_of(run_plots.plot_examples(workdirs, _BASELINES.value))
  operations = _AGAINST.value == 'operations'
  if _METRIC.value is None:
    axes = run_plots.plot_risk(workdirs, training=training, operations=operations)
  else:
    axes = run_plots.plot_metric(workdirs, _METRIC.value, operations=operations)
  return drawing_of(axes)


def _draw_again(file: str) -> None:
  """Draws the picture of the CSV again, and saves it."""
  flags_of_runs = _WORKDIRS, _X, _BASELINES, _METRIC, _LOSS, _AGAINST
  for flag in flags_of_runs:
    if flag.present:
      raise UserError(f'--{flag.name} cannot stand beside --csv')
  path = workdir_path(file)
  if not path.is_file():
    raise UserError(f'--csv is {file!r}, which does not exist')
  from zoo.reports.plots import from_csv, plot_panels, render_figure
  from zoo.reports.style import drawing_of

  name = path.stem.removeprefix('figure_')
  panels = from_csv(name, read_text(path)).panels
  out = _out(path.with_suffix('.png'))
  with _DRAWING.wishes():
    if name == path.stem:
      # The functions that draw runs have the same heights.
      height = 3.3 if len(panels) == 1 else 3.5
      figure = drawing_of(plot_panels(panels, len(panels), height))
    else:  # The CSV is one of a study.
      figure = render_figure(panels)
  _save(figure, out)


def _out(default: pathlib.Path) -> pathlib.Path:
  """Returns the file of the picture; raises UserError if it would not be a picture."""
  out = default if _OUT.value is None else user_path(_OUT.value)
  if out.suffix not in ('.png', '.svg', '.pdf'):
    raise UserError(f'--out is {_OUT.value!r}; it must end in .png, .svg or .pdf')
  numbers = out.with_suffix('.csv')
  if numbers.is_file() and not read_text(numbers).startswith(OF_PLOT):
    raise UserError(
      f'{numbers} would have the numbers of the picture, and is another table; give '
      'another --out'
    )
  return out


def _save(figure: Figure, out: pathlib.Path) -> None:
  try:
    _DRAWING.save(figure, out)
  except OSError as error:
    raise UserError(f'{out} cannot be written: {error.strerror or error}') from error
  print(out)


def _is_sweep(workdirs: list[str]) -> bool:
  """Returns whether there is one folder, which has the table of a sweep."""
  return len(workdirs) == 1 and (workdir_path(workdirs[0]) / 'table.json').is_file()


if __name__ == '__main__':
  cli.run(main)
