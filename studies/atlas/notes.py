"""Notes: a file in the folder of a cell, with all that was found for it so far."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from studies.atlas import measure, search
from zoo.config.read import to_json
from zoo.config.run import Run
from zoo.core.errors import UserError
from zoo.host.files import read_json, write_atomically
from zoo.storage.rows import version_digest

# The cap on the steps of networks of linear attention. They have few weights, and would
# otherwise train for days. All other models spend their budget.
MOST_STEPS = 40_000
_FILE = 'notes.json'


class Settings(NamedTuple):
  """How a cell is trained.

  Attributes:
    scale: The name of the scale of the configs.
    seeds: The seeds with which the chosen learning rate is trained.
    budgets: The operations of training of each seed, in increasing order.
    search_seeds: The number of seeds over which the last round of the search takes the
      mean of the loss at each learning rate. If it is above 1, the search has no short
      runs: it tries all rates with the first seed and all steps, and the best third of
      them with all seeds.

  Example:
    >>> from studies.atlas import Settings
    >>> Settings('small', seeds=(0, 1), budgets=(1e12,)).seeds
    (0, 1)
  """

  scale: str
  seeds: tuple[int, ...]
  budgets: tuple[float, ...]
  search_seeds: int = 1

  @property
  def key(self) -> str:
    """The settings that must not change in a folder. Larger budgets may be added."""
    return json.dumps([self.scale, self.seeds, self.budgets[0], self.search_seeds])


@dataclasses.dataclass
class Found:
  """What was measured after a budget. A loss None is infinite or NaN.

  Attributes:
    rate: The learning rate.
    losses: The loss of each seed.
    by_length: The mean loss over seeds after each of `measure.lengths_of` examples.
    minutes: The minutes spent on the cell when this budget ended.
  """

  rate: float
  losses: list[float | None]
  by_length: list[float | None]
  minutes: float


@dataclasses.dataclass
class Notes:
  """All that was found for a cell so far, as its file has it.

  Attributes:
    settings: The key of the settings.
    digest: A digest of the config, of the constants of search and measurement, and of
      the version of the library.
    reason: Why the model cannot do the task. Empty if it can.
    lowest: The lowest risk known from theory, in place of training. None if theory has
      none.
    context_length: The number of examples in a prompt of training.
    weights: The number of weights.
    operations: The operations of a forward pass for one prompt.
    step_operations: The operations of one training step of one model.
    tried: The held-out losses of the search, by number of steps and then by learning
      rate: one loss for each seed that was tried. None is a loss that is infinite or
      NaN.
    found: What was measured after each budget, by number of steps.
    minutes: The minutes spent on the cell so far.
  """

  settings: str
  digest: str = ''
  reason: str = ''
  lowest: float | None = None
  context_length: int = 0
  weights: int = 0
  operations: float = 0.0
  step_operations: float = 0.0
  tried: dict[int, dict[float, list[float | None]]] = dataclasses.field(
    default_factory=dict
  )
  found: dict[int, Found] = dataclasses.field(default_factory=dict)
  minutes: float = 0.0


def digest_of(get_config: Callable[[], Run]) -> str:
  """Returns a digest of what the numbers of a cell depend on beside its settings."""
  try:
    config = to_json(get_config())
  except UserError as error:  # the model cannot do the task, and the cell has no loss
    config = str(error)
  constants = [
    search.SEED,
    f'{MOST_STEPS} of linear attention',
    search.HELD_OUT,
    search.AT_ONCE,
    search.MOST_RATES,
    *search.RATES,
    *measure.key(),
  ]
  return version_digest(config + json.dumps(constants))


def has_notes(folder: pathlib.Path) -> bool:
  """Returns whether a folder has the notes of a cell."""
  return (folder / _FILE).is_file()


def read_notes(
  folder: pathlib.Path, settings: Settings, get_config: Callable[[], Run]
) -> Notes:
  """Reads the notes of a cell, or returns new ones if its folder has none.

  Args:
    folder: The folder of the cell.
    settings: How the cell is to be trained.
    get_config: Returns the config of the cell.

  Returns:
    The notes of the cell.

  Raises:
    UserError: If the notes were written with another scale, other seeds, another
      smallest budget or another number of seeds of the search, or with another
      config, numbers of prompts or version of the library.
  """
  new = Notes(settings.key, digest_of(get_config))
  if not has_notes(folder):
    return new
  notes = read_json(folder / _FILE, Notes)
  if notes.settings != new.settings:
    raise UserError(
      f'{folder} was trained with the scale, seeds, smallest budget and number of '
      f'seeds of the search {notes.settings}, not {new.settings}; give another --out'
    )
  if notes.digest != new.digest:
    raise UserError(
      f'{folder} was trained with another config, numbers of prompts or version of '
      'the library; give another --out'
    )
  return notes


def write_notes(folder: pathlib.Path, notes: Notes) -> None:
  """Writes the notes of a cell into its folder."""
  content = json.dumps(dataclasses.asdict(notes), indent=1)
  write_atomically(folder / _FILE, content + '\n')
