"""Plots the risk of runs against the training step or the number of examples.

python -m launch.plot --workdir=checkpoints/runs/yq_lsa
python -m launch.plot --workdir=runs/a --workdir=runs/b --out=risk.svg
python -m launch.plot --workdir=runs/a --against=examples   # with the task's baselines
python -m launch.plot --workdir=runs/heads   # the risk at the end of a sweep
"""

from absl import flags

from launch import cli
from zoo.core.errors import UserError
from zoo.host.files import user_path, workdir_path

flags.adopt_module_key_flags(cli)
_WORKDIRS = flags.DEFINE_multi_string(
  'workdir',
  [],
  'Folder of a run or a sweep, or gs://bucket/folder; repeat for more runs.',
)
_AGAINST = flags.DEFINE_enum(
  'against',
  'step',
  ['step', 'examples'],
  'The horizontal axis: the training step, or the number of examples before the query; '
  'the latter also shows the baselines of the first run.',
)
_OUT = flags.DEFINE_string(
  'out',
  None,
  'File for the plot, .png, .svg or .pdf. Default: risk.png or examples.png in the '
  'first workdir.',
)


def main() -> None:
  if not _WORKDIRS.value:
    raise UserError('--workdir is missing; try --workdir=checkpoints/runs/yq_lsa')
  name = 'risk.png' if _AGAINST.value == 'step' else 'examples.png'
  swept = _AGAINST.value == 'step' and _is_sweep(_WORKDIRS.value)
  if _OUT.value is None:
    out = workdir_path(_WORKDIRS.value[0]) / ('sweep.png' if swept else name)
  else:
    out = user_path(_OUT.value)
  if out.suffix not in ('.png', '.svg', '.pdf'):
    raise UserError(f'--out is {_OUT.value!r}; it must end in .png, .svg or .pdf')
  # Imported here so that a mistyped flag is reported at once.
  from zoo.training.curves import plot_examples, plot_risk, plot_sweep

  plot = plot_risk if _AGAINST.value == 'step' else plot_examples
  figure = plot_sweep(_WORKDIRS.value[0]) if swept else plot(_WORKDIRS.value)
  try:
    figure.savefig(out)
  except OSError as error:
    raise UserError(f'{out} cannot be written: {error.strerror or error}') from error
  print(out)


def _is_sweep(workdirs: list[str]) -> bool:
  """Whether there is one folder, with the table of a sweep."""
  return len(workdirs) == 1 and (workdir_path(workdirs[0]) / 'table.json').is_file()


if __name__ == '__main__':
  cli.run(main)
