"""Interventions as a part of the report of a probe, which goes on where it stopped."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import Any

from absl import logging
from flax import nnx

from zoo import reports
from zoo.core.errors import UserError, in_one_line
from zoo.core.protocols import Predictor, Task
from zoo.core.taps import places
from zoo.probing.attention_heads import HeadScore
from zoo.probing.latents import LatentScore
from zoo.reports.probe.intervention_pictures import CAPTIONS, TITLES, picture, table
from zoo.reports.probe.interventions import (
  PARTS,
  from_json,
  measure,
  sentence,
  tables,
  to_json,
)
from zoo.reports.style import Figure
from zoo.storage.rows import FILE, keep_row, read_rows, version_digest, weights_digest


class Interventions:
  """The parts that are measured. Each is kept as a row of a file in a folder."""

  def __init__(self, folder: pathlib.Path, model: Predictor, config: str):
    """Reads the parts from `rows.jsonl` of a folder.

    Parts that belong to other weights, another config, or another version of this
    library, are stale, and are measured again.

    Args:
      folder: The folder of the report, which need not exist.
      model: The model that is measured.
      config: The config of the model and its task, as text.

    Raises:
      UserError: If the file of rows is damaged.
    """
    self.folder, self.digest = folder, version_digest(_digest(model, config))
    # A result is None if the model has no such part.
    self.results: dict[str, Any] = {}
    self.pictures: dict[str, Figure] = {}
    kept = read_rows(folder)
    for part in PARTS:
      if part in kept and kept[part]['digest'] == self.digest:
        self.results[part] = from_json(part, kept[part]['row']['result'])

  def measure(
    self,
    model: Predictor,
    task: Task,
    seconds: float | None,
    untrained: Sequence[Predictor] = (),
  ) -> None:
    """Measures the parts that are missing.

    A part that fails is left out, after a warning.

    Args:
      model: The model.
      task: The task.
      seconds: No part begins after so many seconds. None sets no limit.
      untrained: Untrained models of the same architecture, as a control.

    Raises:
      UserError: If the file of rows cannot be written.
    """
    start = time.monotonic()
    missing = [part for part in PARTS if part not in self.results]
    for i, part in enumerate(missing):
      spent = time.monotonic() - start
      if seconds is not None and spent > seconds:
        left = ', '.join(missing[i:])
        logging.warning(
          'probe: %.0f of %.0f seconds are spent; left for another run: %s',
          spent,
          seconds,
          left,
        )
        return
      try:
        result = measure(model, task, part, untrained=untrained)
      except Exception as error:  # A user's model may raise any error.
        own = not isinstance(error, UserError)
        reason = in_one_line(error, 200)
        logging.warning('%s is left out: %s', TITLES[part], reason, exc_info=own)
        continue
      self._keep(part, result)

  def draw(self, model: Predictor, task: Task) -> None:
    """Draws the pictures of all parts that are measured."""
    self.pictures = {
      part: picture(part, result, model, task.context_length)
      for part, result in self.results.items()
      if result is not None
    }

  def save_tables(self) -> None:
    """Writes the numbers of each part as CSV into the folder.

    Raises UserError if a file cannot be written.
    """
    for part, result in self.results.items():
      if result is not None:
        for name, rows in tables(part, result).items():
          rows.to_csv(self.folder / f'{name}.csv')

  def sentences(self) -> list[str]:
    """Returns a sentence for each part, with what survives its interval."""
    return [
      f'{TITLES[part]}. {sentence(result)}'
      for part, result in self.results.items()
      if result is not None
    ]

  def section(self, formats: Sequence[str] = ('png',)) -> list[reports.Section]:
    """Returns the section of the report; an empty list without parts.

    Each picture is expected beside the report, in these formats.
    """
    if not self.pictures:
      return []
    figures = {
      part: reports.CaptionedFigure(
        TITLES[part],
        f'{sentence(self.results[part])} {CAPTIONS[part]}',
        [reports.Picture(figure, f'{TITLES[part]}. {CAPTIONS[part]}')],
        {suffix.upper(): f'{part}.{suffix}' for suffix in formats}
        | {
          f'CSV ({name})' if name != part else 'CSV': f'{name}.csv'
          for name in tables(part, self.results[part])
        },
      )
      for part, figure in self.pictures.items()
    }
    shown = [table(part, self.results[part]) for part in self.pictures]
    return [reports.Section('Interventions', figures=figures, tables=shown)]

  def _keep(self, part: str, result: Any) -> None:
    try:
      self.folder.mkdir(parents=True, exist_ok=True)
      keep_row(self.folder, part, self.digest, {'result': to_json(result)})
    except OSError as error:
      file = self.folder / FILE
      raise UserError(f'{file} cannot be written: {error.strerror}') from error
    self.results[part] = result


def _digest(model: Predictor, config: str) -> str:
  """Returns a hash of a config, a model's weights and sites, and names of scores."""
  if not isinstance(model, nnx.Module):
    return config
  names = [config, *(place.site for place in places(model))]
  names += [*HeadScore._fields, *LatentScore._fields]
  return weights_digest(model, ' '.join(names))
