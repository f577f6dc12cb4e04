"""Interventions as a part of the report of a probe, which goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx

from zoo import reports
from zoo.core.errors import UserError, in_one_line
from zoo.core.protocols import Predictor, Task
from zoo.core.taps import places
from zoo.host.files import read_text, write_atomically
from zoo.probing.report.intervention_pictures import CAPTIONS, TITLES, picture, table
from zoo.probing.report.interventions import (
  PARTS,
  from_json,
  measure,
  sentence,
  to_json,
)
from zoo.reports.style import Figure


class Interventions:
  """The parts that are measured, which are kept in a file one by one."""

  def __init__(self, file: pathlib.Path, model: Predictor):
    """Reads the parts from the file, if it is of the same model with these weights.

    Raises UserError for a file that is damaged.
    """
    self.file, self.key = file, _digest(model)
    self.results: dict[str, Any] = {}  # by part; None: the model has none
    self.pictures: dict[str, Figure] = {}
    if file.exists():
      try:
        kept = json.loads(read_text(file))
        if kept['key'] == self.key:
          self.results = {
            part: from_json(part, content) for part, content in kept['parts'].items()
          }
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f'{file} is damaged; delete it') from error

  def measure(
    self,
    model: Predictor,
    task: Task,
    seconds: float | None,
    untrained: Sequence[Predictor] = (),
  ) -> None:
    """Measures the parts that are missing; begins none after this many seconds.

    The untrained models are of the same architecture, as a control. A part that fails
    is left out, after a warning. Raises UserError for a file that cannot be written.
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
        self.results[part] = measure(model, task, part, untrained=untrained)
      except Exception as error:  # a user's model may raise anything
        own = not isinstance(error, UserError)
        reason = in_one_line(error, 200)
        logging.warning('%s is left out: %s', TITLES[part], reason, exc_info=own)
        continue
      self._write()

  def save_pictures(self, model: Predictor, task: Task) -> None:
    """Draws all parts, and writes each as PNG beside the file; raises OSError."""
    for part, result in self.results.items():
      if result is not None:
        figure = picture(part, result, model, task.context_length)
        figure.savefig(self.file.with_name(f'{part}.png'))
        self.pictures[part] = figure

  def sentences(self) -> list[str]:
    """What survives its interval, by part."""
    return [
      f'{TITLES[part]}. {sentence(result)}'
      for part, result in self.results.items()
      if result is not None
    ]

  def section(self) -> list[reports.Section]:
    """The section of the report; none without parts."""
    if not self.pictures:
      return []
    figures = {
      part: reports.CaptionedFigure(
        TITLES[part],
        f'{sentence(self.results[part])} {CAPTIONS[part]}',
        [reports.Picture(figure, f'{TITLES[part]}. {CAPTIONS[part]}')],
        {'PNG': f'{part}.png'},
      )
      for part, figure in self.pictures.items()
    }
    tables = [table(part, self.results[part]) for part in self.pictures]
    return [reports.Section('Interventions', figures=figures, tables=tables)]

  def _write(self) -> None:
    parts = {part: to_json(result) for part, result in self.results.items()}
    content = json.dumps({'key': self.key, 'parts': parts}, indent=1)
    try:
      self.file.parent.mkdir(parents=True, exist_ok=True)
      write_atomically(self.file, content + '\n')
    except OSError as error:
      raise UserError(f'{self.file} cannot be written: {error.strerror}') from error


def _digest(model: Predictor) -> str:
  """Tells a model's weights and sites from those of others."""
  if not isinstance(model, nnx.Module):
    return ''
  sha = hashlib.sha256(' '.join(place.site for place in places(model)).encode())
  for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)):
    sha.update(np.asarray(leaf).tobytes())
  return sha.hexdigest()
