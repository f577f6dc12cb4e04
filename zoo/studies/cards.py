"""Cards: the descriptions of the shipped checkpoints, and the index of them all."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shlex
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from flax import nnx

from zoo import theory
from zoo.config.validation import Config, num_heads
from zoo.core.errors import RunError, UserError, check_count, check_number
from zoo.host.files import MIB, read_json, write_atomically
from zoo.host.interruption import Interruption
from zoo.storage.metadata import run_metadata
from zoo.storage.saved_models import load
from zoo.storage.saving import save
from zoo.storage.steps import MANIFEST
from zoo.storage.workdir import locked
from zoo.tasks import LinearRegression
from zoo.training.trainer import train

CARD = 'card.json'  # its name in the folder of a checkpoint
INDEX = 'README.md'
TOLERANCE = 0.005  # a model whose risk is further above the lowest known is not shipped

# The columns of the index and of launch.catalog, in this order.
FIGURES = {
  'num_heads': 'd',
  'num_params': 'd',
  'exact_risk': '.6f',
  'lowest_known': '.6f',
  'relative_excess': '.0e',
}

Card = dict[str, Any]

_INTRODUCTION = """\
# Checkpoints

Trained models in the setting of Table 1 of arXiv 2512.04268: d = C = 10, prior mean
w\\* = [2, …, 2], no noise. `zoo.load('checkpoints/yq_lsa')` opens one, and
`python -m launch.probe --checkpoint=checkpoints/yq_lsa` reports what it has learned.

All were trained on the exact risk. The lowest known risk is that of models with the
same guess, fixed or learned, and number of heads; the excess is relative to it. With a
learned guess, and from ten heads on, it is proved to be the infimum. With fewer heads
it is the lowest that a search found, and no proof rules out a lower one: for one head,
as `lsa` has, the proved bounds are 10.33 and 14.43
([theory](../docs/theory.md#5-the-number-of-heads)).
"""

_CLOSING = """\
Each folder has a card: the config, the command that trains the model anew, the seed,
the figures to all digits, and the versions. Its `sha256` is that of `SHA256SUMS` beside
it, which has the checksum of every file that is read.

`python -m launch.catalog --train` trains all of them again and writes this page.
"""


def write_checkpoints(
  configs: Mapping[str, tuple[Config, str]], folder: str | os.PathLike[str]
) -> list[Card] | None:
  """Trains each config, and writes checkpoints, cards and the index into a folder.

  `configs` maps the name of a checkpoint to a config and the command that trains it.
  Existing checkpoints of these names are replaced once all are trained. Returns the
  cards, or None after SIGTERM. Raises UserError when another process does the same;
  RunError for a model that ends more than `TOLERANCE` above the lowest known, or when
  the folder cannot be written.
  """
  folder = pathlib.Path(folder)
  training = folder / '.training'
  try:
    training.mkdir(parents=True, exist_ok=True)
    with locked(training), Interruption() as interruption:
      _clean_up(training)  # after a process that was killed
      try:
        for name, (config, command) in configs.items():
          workdir = training / 'runs' / name
          if not _train_one(config, command, workdir, training / name):
            return None
          interruption.raise_if_ctrl_c()
          if interruption.requested:
            return None
        _replace(configs, training)
        cards = read_cards(folder)
        write_atomically(folder / INDEX, index(cards))
      finally:
        _clean_up(training)
        shutil.rmtree(training)
  except OSError as error:
    raise RunError(f'{folder} cannot be written: {error.strerror or error}') from error
  return cards


def _train_one(
  config: Config, command: str, workdir: pathlib.Path, made: pathlib.Path
) -> bool:
  """Trains a model and writes its checkpoint and card; False after SIGTERM."""
  workdir.mkdir(parents=True)
  if train(config, workdir) is None:
    return False
  trained = load(workdir)
  save(trained.model, made, config=config, step=trained.step)
  _write_card(made, command)
  return True


def _replace(names: Iterable[str], training: pathlib.Path) -> None:
  """Replaces older checkpoints; each is set aside until the new ones are in place."""
  replaced = training / 'replaced'
  replaced.mkdir()
  for name in names:
    target = training.parent / name
    if target.exists():
      target.rename(replaced / name)
    (training / name).rename(target)


def _clean_up(training: pathlib.Path) -> None:
  """Restores checkpoints whose replacement is missing, and deletes everything else."""
  for old in (training / 'replaced').glob('*'):
    if not (training.parent / old.name).exists():
      old.rename(training.parent / old.name)
  for path in training.iterdir():
    if path.is_dir():
      shutil.rmtree(path)


def read_cards(folder: str | os.PathLike[str]) -> list[Card]:
  """The cards of the checkpoints in a folder; raises UserError for a damaged one."""
  cards = [_read_card(path) for path in pathlib.Path(folder).glob(f'*/{CARD}')]
  return sorted(
    cards, key=lambda card: (card['model'], card['num_heads'], card['name'])
  )


def _read_card(path: pathlib.Path) -> Card:
  try:
    card = read_json(path, MIB)
    if isinstance(card, dict) and 'lowest_known' not in card and 'infimum' in card:
      card['lowest_known'] = card.pop('infimum')  # its older name
    for field in ('name', 'model', *FIGURES):
      if not isinstance(card, dict) or field not in card:
        raise UserError(f'it has no {field!r}')
      if field in FIGURES:
        check = check_count if FIGURES[field] == 'd' else check_number
        check(field, card[field])
      elif not isinstance(card[field], str):
        raise UserError(f'its {field} is {card[field]!r}; it must be text')
  except UserError as error:
    raise UserError(f'{path} is not a card: {error}') from error
  return card


def index(cards: list[Card]) -> str:
  """The page, in Markdown, that lists all cards."""
  titles = ['checkpoint', *(name.replace('_', ' ') for name in FIGURES), 'card']
  lines = [titles, ['---', *['--:'] * len(FIGURES), '---']]
  for card in cards:
    name, *figures = row(card)
    lines.append([f'`{name}`', *figures, f'[{CARD}]({name}/{CARD})'])
  table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
  return f'{_INTRODUCTION}\n{table}\n\n{_CLOSING}'


def row(card: Card) -> list[str]:
  """The name and the figures of a card, as they are shown."""
  return [card['name'], *(format(card[name], form) for name, form in FIGURES.items())]


def lowest_known(config: Config, task: LinearRegression) -> float:
  """The lowest known exact risk of the models that a config can be trained to.

  It is the infimum with a learned guess, and with d heads or more if labels have no
  noise; with fewer it comes from a search (`theory.head_limited_risk`). A learned guess
  is taken to be the prior mean. That is the best guess wherever the result is the
  optimum of the linear family, as for the priors of the shipped models.
  """
  section = config.model
  guess = section.get('initial_guess', task.prior_mean)
  bias = section.get('initial_bias', 0.0)
  return theory.head_limited_risk(task, num_heads(config), guess, bias).lowest_found


def training_command(config_file: str, fields: Mapping[str, object]) -> str:
  """The command that trains a config file with some of its fields set."""
  flags = [f'--config.{field}={value}' for field, value in fields.items()]
  return shlex.join(['python', '-m', 'launch.main', f'--config={config_file}', *flags])


def _write_card(folder: pathlib.Path, command: str) -> None:
  """Writes the card of a checkpoint, with the figures of the loaded model."""
  saved = load(folder)
  config, name = saved.config, folder.name
  risk = float(theory.exact_risk(saved.model, saved.task))
  least = lowest_known(config, saved.task)
  if risk > (1 + TOLERANCE) * least:
    raise RunError(
      f'{name} ends at the exact risk {risk:.6f}, more than {100 * TOLERANCE:g} % '
      f'above the lowest known risk {least:.6f}; no checkpoint is written'
    )
  parameters = nnx.to_flat_state(nnx.state(saved.model, nnx.Param))
  described = run_metadata(config)
  card = {
    'name': name,
    'model': config.model.name,
    'command': command,
    'seed': config.seed,
    'step': saved.step,
    'num_heads': num_heads(config),
    'num_params': sum(leaf.get_value().size for _, leaf in parameters),
    'exact_risk': risk,
    'lowest_known': least,
    'relative_excess': risk / least - 1,
    'optimal_risk': float(
      theory.exact_risk(theory.optimal_rule(saved.task), saved.task)
    ),
    'sha256': hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest(),
    **described,
  }
  (folder / CARD).write_text(json.dumps(card, indent=2) + '\n')
