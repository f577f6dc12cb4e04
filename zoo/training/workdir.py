"""A workdir belongs to one config: claiming it, and what a run writes there."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import jax
from tensorboardX import SummaryWriter
from tqdm import tqdm

from zoo.errors import UserError
from zoo.training.config import Config, differences, to_json


def claim(workdir: pathlib.Path, config: Config) -> None:
  """Makes `workdir` this config's own, or finds that it is already.

  Raises UserError, with nothing written, when it holds a run of another config, holds
  something else, or cannot be written.
  """
  saved = workdir / 'config.json'
  try:
    if saved.is_file():
      differing = differences(json.loads(saved.read_text()), config)
      if differing:
        raise UserError(
          f'{workdir} holds a run of another config; it differs in '
          f'{", ".join(differing)}; give another --workdir'
        )
      if not os.access(workdir, os.W_OK):
        raise PermissionError(None, 'Permission denied')
    elif workdir.is_dir() and any(workdir.iterdir()):
      raise UserError(
        f'{workdir} is not empty and holds no run; give a new or empty --workdir'
      )
    elif jax.process_index() == 0:
      workdir.mkdir(parents=True, exist_ok=True)
      write_atomically(saved, to_json(config))
  except OSError as error:
    raise UserError(
      f'the workdir {workdir} cannot be written: {error.strerror}; give another '
      '--workdir'
    ) from error
  except json.JSONDecodeError as error:
    raise UserError(f'{saved} is not JSON ({error}); give another --workdir') from error


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a whole file, or leaves the old one as it was."""
  temporary = path.with_name(f'.{path.name}.tmp')
  temporary.write_text(text)
  temporary.replace(path)


class Records:
  """`metrics.jsonl`, TensorBoard and the progress bar; a context manager.

  Lines behind the step that a run resumes from are dropped, as they will come again;
  the wall time goes on from the last line that stays. Only process 0 writes.
  """

  def __init__(self, workdir: pathlib.Path, config: Config, step: int):
    self._primary = jax.process_index() == 0
    self._path = workdir / 'metrics.jsonl'
    lines = [line for line in read_lines(self._path) if line['step'] <= step]
    self._start = time.monotonic() - (lines[-1]['wall_time'] if lines else 0.0)
    self._compiled: tuple[int, float, float] | None = None
    self._stack = contextlib.ExitStack()
    if not self._primary:
      return
    write_atomically(self._path, ''.join(json.dumps(line) + '\n' for line in lines))
    self._file = self._stack.enter_context(self._path.open('a', buffering=1))
    self._board = self._stack.enter_context(
      SummaryWriter(str(workdir / 'tensorboard'), purge_step=step + 1)
    )
    self._bar = self._stack.enter_context(
      tqdm(
        desc=config.model.name,
        initial=step,
        total=config.train.num_steps,
        unit='step',
        # A log file, unlike a terminal, keeps every refresh.
        mininterval=0.2 if sys.stderr.isatty() else 10.0,
        dynamic_ncols=True,
      )
    )

  def __enter__(self) -> Records:
    return self

  def __exit__(self, *exception: object) -> None:
    self._stack.close()

  @property
  def wall_time(self) -> float:
    """Seconds spent on this run so far, those before an interruption included."""
    return time.monotonic() - self._start

  def start_clock(self, step: int) -> None:
    """Tells that all is compiled, and `step` done: from here on speed is measured."""
    self._compiled = step, time.monotonic(), time.process_time()

  def speed(self, step: int) -> tuple[float | None, float | None]:
    """Steps a second and CPU-ms a step of this launch, compiling left out, if known.

    The CPU time is that of all threads of this process.
    """
    if self._compiled is None or step <= self._compiled[0]:
      return None, None
    steps = step - self._compiled[0]
    seconds = time.monotonic() - self._compiled[1]
    cpu_seconds = time.process_time() - self._compiled[2]
    return steps / seconds, 1e3 * cpu_seconds / steps

  def advance(self, step: int) -> None:
    """Moves the progress bar."""
    if self._primary:
      self._bar.update(step - self._bar.n)

  def write(self, line: dict[str, Any]) -> None:
    """Writes one logged step, with None for what does not exist."""
    if not self._primary:
      return
    rate, _ = self.speed(line['step'])
    line = {**line, 'steps_per_second': rate, 'wall_time': self.wall_time}
    self._file.write(json.dumps(line) + '\n')
    for name, value in line.items():
      if name != 'step' and value is not None:
        self._board.add_scalar(name, value, line['step'])
    shown = {'loss': line['loss'], 'risk': line['eval_risk']}
    self._bar.set_postfix(
      {name: f'{value:.4f}' for name, value in shown.items() if value is not None},
      refresh=False,
    )


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """The whole lines of a `metrics.jsonl`; a kill can leave half a line at the end."""
  lines = []
  if path.is_file():
    for text in path.read_text().splitlines():
      try:
        lines.append(json.loads(text))
      except json.JSONDecodeError:
        break
  return lines
