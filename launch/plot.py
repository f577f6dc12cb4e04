"""Plots the in-context risk of one or several runs against the training step.

python -m launch.plot --workdir=checkpoints/runs/yq_lsa
python -m launch.plot --workdir=runs/a --workdir=runs/b --out=risk.svg
"""

from absl import flags

from launch import cli
from zoo.errors import UserError
from zoo.files import user_path

flags.adopt_module_key_flags(cli)
_WORKDIRS = flags.DEFINE_multi_string(
  'workdir', [], 'Folder of a run; repeat for more.'
)
_OUT = flags.DEFINE_string(
  'out',
  None,
  'The picture, .png, .svg or .pdf. Default: risk.png in the first workdir.',
)


def main() -> None:
  if not _WORKDIRS.value:
    raise UserError('--workdir is missing; try --workdir=checkpoints/runs/yq_lsa')
  if _OUT.value is None:
    out = user_path(_WORKDIRS.value[0]) / 'risk.png'
  else:
    out = user_path(_OUT.value)
  if out.suffix not in ('.png', '.svg', '.pdf'):
    raise UserError(f'--out is {_OUT.value!r}; it must end in .png, .svg or .pdf')
  # Imported here so that a mistyped flag is reported at once.
  from zoo.training.curves import plot_risk

  figure = plot_risk(_WORKDIRS.value)
  try:
    figure.savefig(out, dpi=150)
  except OSError as error:
    raise UserError(f'{out} cannot be written: {error.strerror}') from error
  print(out)


if __name__ == '__main__':
  cli.run(main)
