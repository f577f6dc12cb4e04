"""Reports which known algorithm a trained model follows, such as gradient descent.

python -m launch.probe --checkpoint=checkpoints/yq_lsa
python -m launch.probe --checkpoint=runs/a --against=bayes --out=runs/a-probe
python -m launch.probe --checkpoint=runs/a --against=runs/b --json=probe.json
python -m launch.probe --checkpoint=checkpoints/lsa --only=algorithm,task_shifts
python -m launch.probe --checkpoint=checkpoints/transformer --interventions

With --interventions the report also measures, by patching, ablation and linear probes,
which parts of the model matter, what its heads do, and where it represents the weights
of the task.

Beside each picture the command writes a CSV with its numbers. --title, --xlabel and
--ylabel need a single picture, as with --only=attention. Finished parts are kept in
--out. Rerun the same command to resume after an interruption, or after --seconds.
"""

from __future__ import annotations

import html
import os
import pathlib
from typing import TYPE_CHECKING

from absl import flags, logging

from launch import cli
from launch.drawing import Drawing
from zoo.core.errors import UserError, nearest
from zoo.host.files import checkpoint_path, is_url, read_text, write_atomically

if TYPE_CHECKING:
  from zoo.core.protocols import Predictor, Task

# The control of the interventions: so many untrained models of the same config.
_NUM_UNTRAINED = 8

flags.adopt_module_key_flags(cli)
_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'Model to probe: the workdir of a run, its folder `checkpoints`, or what `zoo.save` '
  'or `zoo.export` wrote. It may be `gs://bucket/folder`.',
)
_STEP = flags.DEFINE_integer(
  'step', None, 'Step of the run whose model is probed. Default: the newest step.'
)
_AGAINST = flags.DEFINE_string(
  'against',
  None,
  'Predictor with which the model is compared on the same prompts: a baseline of its '
  'task, such as `gd`, `gd_beta` or `bayes`, or another checkpoint. Default: the first '
  'baseline of the task.',
)
_ONLY = flags.DEFINE_list(
  'only',
  [],
  'Parts of the report to measure: `algorithm`, `risks`, `comparison`, `alignment`, '
  '`guess`, `heads`, `lens`, `task_shifts` or `attention`. Default: all.',
)
_INTERVENTIONS = flags.DEFINE_bool(
  'interventions',
  False,
  'Also measure which parts of the model matter, by patching, ablation and linear '
  'probes.',
)
_SECONDS = flags.DEFINE_float(
  'seconds',
  None,
  'With `--interventions`: number of seconds after which no new part begins. Default: '
  'no limit.',
  lower_bound=0.0,
)
_JSON = flags.DEFINE(
  cli.File(),
  'json',
  None,
  'JSON file for all numbers. Default: `probe.json` in `--out`.',
)
_OUT = flags.DEFINE(
  cli.Folder(),
  'out',
  None,
  'Folder for `report.html`, `probe.json` and the pictures. A folder with the report '
  'of another probe is refused. Default: `checkpoints/probes/` and a name made of the '
  'checkpoint and its step.',
)
_DRAWING = Drawing(has_formats=True)


def main() -> None:
  if _CHECKPOINT.value is None:
    raise UserError('--checkpoint is missing; try --checkpoint=checkpoints/yq_lsa')
  if _SECONDS.present and not _INTERVENTIONS.value:
    raise UserError('--seconds belongs to --interventions')
  is_one = len(_ONLY.value) == 1 and not _INTERVENTIONS.value
  why = 'name its part by --only'
  _DRAWING.check(is_one, why)
  out = cli.folder_of(_OUT)
  # Imported here so that a mistyped flag is reported at once.
  import zoo
  from zoo.config.read import to_json
  from zoo.probing.report import COMPARING, check_sections
  from zoo.reports.probe.intervention_report import Interventions
  from zoo.reports.probe.pictures import page, pictures
  from zoo.reports.probe.summaries import summary

  only = _ONLY.value
  check_sections(only)
  is_comparing = not only or not {*only}.isdisjoint(COMPARING)
  if _AGAINST.present and not is_comparing:
    raise UserError(
      f'--against is for the parts {", ".join(COMPARING)}, and --only is '
      f'{", ".join(only)}'
    )
  saved = zoo.load(_CHECKPOINT.value, _STEP.value)
  other, name = _other(saved.task)
  words = [str(saved.step), *filter(None, [_AGAINST.value]), *only]
  out = out or cli.default_folder(_CHECKPOINT.value, words)
  title = f'{saved.config.model.name} after step {saved.step}, of {_CHECKPOINT.value}'
  title += f', against {_AGAINST.value or name}' if is_comparing else ''
  title += f', only {", ".join(only)}' if only else ''
  _refuse_another(out / 'report.html', title)
  report = zoo.probing.probe(saved.model, saved.task, other, name, only=only)
  logging.info('probe: pictures')
  with _DRAWING.wishes(is_one=is_one, why=why):
    figures = pictures(report, saved.model, other, saved.task, only)
  json_file = _JSON.value or out / 'probe.json'
  parts = Interventions(out, saved.model, to_json(saved.config))
  if _INTERVENTIONS.value:
    seeds = [saved.config.seed + 1 + i for i in range(_NUM_UNTRAINED)]
    untrained = [saved.untrained(seed) for seed in seeds]
    parts.measure(saved.model, saved.task, _SECONDS.value, untrained)
  with cli.writing(out):
    out.mkdir(parents=True, exist_ok=True)
    with _DRAWING.wishes(is_one=is_one, why=why):
      parts.draw(saved.model, saved.task)
    parts.save_tables()
    write_atomically(json_file, report.to_json() + '\n')
    for picture, figure in figures.items():
      _DRAWING.save(figure, out / f'{picture}.png')
    # The tables of these pictures have all their numbers.
    for picture, figure in parts.pictures.items():
      _DRAWING.save(figure, out / f'{picture}.png', has_numbers=False)
    formats = _DRAWING.formats
    further = parts.section(formats)
    whole = page(report, title, figures, further, formats)
    write_atomically(out / 'report.html', whole)
  print('\n\n'.join([title, summary(report), *parts.sentences()]))
  print(f'\nthe report is {out / "report.html"}, its numbers are in {json_file}')


def _refuse_another(page: pathlib.Path, title: str) -> None:
  """Raises UserError if `page` exists without this title."""
  whole = f'>{title}<'  # The tags matter: other titles may begin with this one.
  text = html.unescape(read_text(page)) if page.exists() else whole
  if whole not in text:
    raise UserError(
      f'{page} is the report of something else than {title}; give another --out'
    )


def _other(task: Task) -> tuple[Predictor, str]:
  """Returns the predictor to compare with, and its name."""
  import zoo

  known = zoo.probing.baselines_of(task)
  name = next(iter(known)) if _AGAINST.value is None else _AGAINST.value
  if name in known:
    return known[name], name
  path = checkpoint_path(name)
  if is_url(name) or path.exists():
    other = zoo.load(path)
    if other.task.num_features != task.num_features:
      raise UserError(
        f'--against is {name!r}, which has {other.task.num_features} features; it must '
        f'have {task.num_features}, as the checkpoint'
      )
    return other.model, os.path.basename(os.path.abspath(name))
  near = nearest(name, known)
  raise UserError(
    f'--against is {name!r}; it must be one of {", ".join(known)}, or a checkpoint'
    f'{f"; did you mean {near!r}?" if near else ""}'
  )


if __name__ == '__main__':
  cli.run(main)
