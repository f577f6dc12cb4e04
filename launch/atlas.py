"""Trains architectures × tasks × initial guesses, and compares them in one table.

  python -m launch.atlas                                  # all models on three tasks
  python -m launch.atlas --tasks=prior --guesses=zero,linear,residual --out=runs/guess
  python -m launch.atlas --models=softmax,delta,lstm --tasks=linear --seeds=1

The models and tasks are in configs/atlas/__init__.py. Rerun the same command to resume
after an interruption, or with more names to add them.
"""

from __future__ import annotations

from absl import flags

from configs import atlas as cells
from launch import cli
from zoo.errors import UserError, check_count, check_name, check_number

flags.adopt_module_key_flags(cli)
_MODELS = flags.DEFINE_list(
  'models', None, 'Mixers, and models of configs/atlas/__init__.py. Default: all.'
)
_TASKS = flags.DEFINE_list(
  'tasks', ['linear', 'noisy', 'logistic'], 'Tasks of configs/atlas/__init__.py.'
)
_GUESSES = flags.DEFINE_list('guesses', ['zero'], 'zero, linear, residual.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Runs of each cell: seeds 0, 1, …')
_RATES = flags.DEFINE_list(
  'learning_rates',
  None,
  'The best is chosen on held-out prompts. Default: 0.0003, 0.001, 0.003, 0.01.',
)
_STEPS = flags.DEFINE_integer('steps', None, 'Training steps. Default: 3000.')
_OUT = flags.DEFINE_string(
  'out', 'checkpoints/runs/atlas', 'Folder for the runs, the table and the pictures.'
)


def main() -> None:
  models = _names(_MODELS, cells.list_models())
  tasks, guesses = _names(_TASKS, cells.list_tasks()), _names(_GUESSES, cells.GUESSES)
  num_seeds = check_count('--seeds', _SEEDS.value)
  num_steps = None if _STEPS.value is None else check_count('--steps', _STEPS.value)
  rates = None if _RATES.value is None else [_rate(text) for text in _RATES.value]
  out = cli.folder_of(_OUT, _OUT.default)
  # Imported here so that a mistyped flag is reported at once.
  from zoo import atlas

  grid = [
    atlas.Cell(model, task, guess)
    for task in tasks
    for model in models
    for guess in (guesses if cells.has_guess(model) else [None])
  ]
  found = atlas.run(
    grid, cells.get_config, out, num_seeds, rates or atlas.LEARNING_RATES, num_steps
  )
  if found is None:
    cli.print_stopped(out)
  else:
    print(f'\n{atlas.table(found)}\n\nthe table and the pictures are in {out}')


def _names(flag: flags.FlagHolder, known: list[str] | tuple[str, ...]) -> list[str]:
  names = list(known) if flag.value is None else list(dict.fromkeys(flag.value))
  if not names:
    raise UserError(f'--{flag.name} is empty; known: {", ".join(known)}')
  for name in names:
    check_name(f'name in --{flag.name}:', name, known)
  return names


def _rate(text: str) -> float:
  try:
    return check_number('--learning_rates', float(text), above=0.0)
  except ValueError:
    raise UserError(f'--learning_rates has {text!r}; it must be numbers > 0') from None


if __name__ == '__main__':
  cli.run(main)
