"""What is known of a cell of an atlas so far, kept as a file of its folder."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from studies.atlas import measure, search
from zoo.config.building import Config
from zoo.config.saved import to_json
from zoo.core.errors import UserError
from zoo.host.files import read_json, write_atomically
from zoo.storage.rows import version_digest

# A budget of operations is never more steps than these. Only networks of linear
# attention reach them, whose few weights would otherwise train for days.
MOST_STEPS = 40_000
_FILE = 'notes.json'


class Settings(NamedTuple):
  """How cells are trained; `seeds` may differ from cell to cell."""

  scale: str
  seeds: tuple[int, ...]
  budgets: tuple[float, ...]  # operations of each seed, increasing

  @property
  def key(self) -> str:
    """What results depend on: larger budgets may be added."""
    return json.dumps([self.scale, self.seeds, self.budgets[0]])


@dataclasses.dataclass
class Found:
  """What was found with a budget."""

  rate: float
  losses: list[float | None]  # of the seeds
  by_length: list[float | None]  # their means, after each of `measure.lengths_of`
  minutes: float  # of the cell at its end


@dataclasses.dataclass
class Notes:
  """What is known of a cell so far, as its file has it; a loss None is not finite."""

  settings: str
  digest: str = ''  # of the config, the numbers of prompts and the version
  reason: str = ''  # why the model cannot do the task
  lowest: float | None = None
  context_length: int = 0
  weights: int = 0
  operations: float = 0.0
  step_operations: float = 0.0  # of a step of training of one model
  # The held-out loss by the number of steps and the rate.
  search: dict[int, dict[float, float | None]] = dataclasses.field(default_factory=dict)
  found: dict[int, Found] = dataclasses.field(default_factory=dict)  # by steps
  minutes: float = 0.0


def digest_of(get_config: Callable[[], Config]) -> str:
  """What the numbers of a cell depend on beside its settings, as a digest."""
  try:
    config = to_json(get_config())
  except UserError as error:  # the cell has no loss, for this reason
    config = str(error)
  constants = [
    search.SEED,
    MOST_STEPS,
    search.HELD_OUT,
    search.AT_ONCE,
    search.MOST_RATES,
    *search.RATES,
    *measure.key(),
  ]
  return version_digest(config + json.dumps(constants))


def has_notes(folder: pathlib.Path) -> bool:
  """Whether a cell was begun in a folder."""
  return (folder / _FILE).is_file()


def read_notes(
  folder: pathlib.Path, settings: Settings, get_config: Callable[[], Config]
) -> Notes:
  """The notes of a cell in its folder; new ones if it has none.

  Raises UserError if they are of other settings, another config or version, or of
  losses on other numbers of prompts.
  """
  new = Notes(settings.key, digest_of(get_config))
  if not has_notes(folder):
    return new
  notes = read_json(folder / _FILE, Notes)
  if notes.settings != new.settings:
    raise UserError(
      f'{folder} was trained with the scale, seeds and smallest budget '
      f'{notes.settings}, not {new.settings}; give another --out'
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
