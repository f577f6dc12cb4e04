"""The records of a run: `metrics.jsonl`, TensorBoard, steps, and what the bar shows."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from zoo.config.run import Run
from zoo.core.errors import RunError, UserError
from zoo.host import processes
from zoo.host.files import (
  failures,
  is_url,
  parse_json,
  read_text,
  said,
  write_atomically,
)
from zoo.sharding import State
from zoo.storage.checkpoints import Checkpoints, kept_steps
from zoo.storage.workdir import has_config, write_config
from zoo.training.hooks import Event, Hook
from zoo.training.summary import SUMMARY

_CURVE = 'curve'
_METRICS = 'metrics.jsonl'
_NUM_COPYING_THREADS = 8


class Records(Hook):
  """The records of one run in its workdir, for one launch; a context manager.

  Lines after the step from which a run resumes are dropped, since they will be written
  again. The wall time continues from the last remaining line. Only process 0 writes. A
  file in a bucket cannot grow, so that the records of a run in a bucket are written
  into a local `folder`, and copied at each save and at the end.

  A launch that trains nothing must change nothing. A folder that has a summary, or
  steps that were saved under another config, therefore keeps its config, its summary
  and its log until `replace` is called, directly after the first save. What is
  recorded before waits in memory.

  Attributes:
    workdir: The folder of the run.
    folder: The folder that is written into: the workdir, or a local one for a bucket.
    waits: Whether the folder still has the records of an earlier launch.
  """

  def __init__(self, workdir: pathlib.Path, step: int, config: Run):
    """Opens the records, and replaces those of an earlier launch if nothing is lost.

    Args:
      workdir: The folder of the run, which has a config.
      step: The step from which the launch goes on.
      config: The config of the launch.

    Raises:
      UserError: If the log cannot be read. The folder is as it was then.
    """
    self.workdir = self.folder = workdir
    self._config = config
    self._primary = jax.process_index() == 0
    self._lines: list[dict[str, Any]] = []
    waits = processes.run_on_main(functools.partial(self._read, step))
    last = self._lines[-1]['wall_time'] if self._lines else 0.0
    self._start = time.monotonic() - last
    self._stack = contextlib.ExitStack()
    self._is_copied = True
    if self._primary and is_url(workdir):
      temporary = tempfile.TemporaryDirectory(prefix='icl_zoo_')
      self.folder = pathlib.Path(self._stack.enter_context(temporary))
    self._path = self.folder / _METRICS
    self._waiting: list[Callable[[], None]] = []
    self.waits = True
    if not waits:
      with processes.propagate_errors():
        self.replace()

  def _read(self, step: int) -> bool:
    """Reads the log of the launches before.

    Returns:
      Whether they have results that this launch would replace: a summary, or steps that
      were saved under another config.
    """
    lines = read_lines(self.workdir)
    self._lines = [line for line in lines if line['step'] <= step]
    if (self.workdir / SUMMARY).exists():
      return True
    return step > 0 and not has_config(self.workdir, self._config)

  def replace(self) -> None:
    """Replaces the records of an earlier launch by those of this one, unless it has.

    It raises OSError.
    """
    if not self.waits:
      return
    self.waits = False
    if not self._primary:
      return
    text = ''.join(json.dumps(line) + '\n' for line in self._lines)
    write_atomically(self._path, text)
    self._inode = self._path.stat().st_ino
    for write in self._waiting:
      write()
    if not has_config(self.workdir, self._config):
      write_config(self.workdir, self._config)
    (self.workdir / SUMMARY).unlink(missing_ok=True)

  def when_replaced(self, write: Callable[[], None]) -> None:
    """Calls a function that writes a record: now, or directly after the first save."""
    if self.waits:
      self._waiting.append(write)
    else:
      write()

  def __enter__(self) -> Records:
    return self

  def __exit__(self, *exception: object) -> None:
    try:
      with self._stack:
        if not self._is_copied:
          copy_all([self])
    except (OSError, RunError):
      # An exception that is already being raised must not be replaced.
      if exception == (None, None, None):
        raise

  def copy(self) -> None:
    """Copies the records of a run in a bucket into it.

    Raises:
      RunError: If they cannot be written.
    """
    self._is_copied = True
    try:
      for path in self.folder.rglob('*'):
        if path.is_file():
          target = self.workdir / path.relative_to(self.folder)
          target.write_bytes(path.read_bytes())
    except failures(self.workdir) as error:
      raise RunError(f'{self.workdir} could not be written: {said(error)}') from error

  @property
  def wall_time(self) -> float:
    """Seconds spent on this run, including those before an interruption."""
    return time.monotonic() - self._start

  def on_chunk(self, event: Event) -> None:
    """Writes the line of a logged step.

    Raises:
      RunError: If the folder has been deleted, or the log is another program's.
    """
    self.write(event.metrics)

  def write(self, line: Mapping[str, Any]) -> None:
    """Writes a line.

    Raises:
      RunError: If the folder has been deleted, or the log is another program's.
    """
    if self._primary:
      text = json.dumps(line) + '\n'
      self.when_replaced(lambda: self._append(text))

  def _append(self, text: str) -> None:
    # The file is opened for each line, since a sweep has more records than a process
    # may have open files. The mode r+ makes no new file if the folder was deleted.
    try:
      file = self._path.open('r+')
    except FileNotFoundError as error:
      raise self._gone() from error
    with file:
      if os.fstat(file.fileno()).st_ino != self._inode:
        raise RunError(
          f'{self._path} was replaced by another program while this program was '
          'writing it; this program ends'
        )
      file.seek(0, os.SEEK_END)
      file.write(text)
    self._is_copied = False

  def _gone(self) -> RunError:
    return RunError(
      f'{self._path} has gone: the folder was deleted while this program was working '
      'in it; this program ends'
    )


class TensorBoard(Hook):
  """The files of one launch for TensorBoard, beside its records; a context manager.

  TensorBoard discards what an earlier launch wrote after the step from which this one
  goes on. Only process 0 writes, and nothing before the records are replaced.
  """

  def __init__(self, records: Records, step: int):
    self._writer: Any = None
    self._records = records
    if jax.process_index() == 0:
      records.when_replaced(lambda: self._open(step))

  def _open(self, step: int) -> None:
    # tensorboardX is slow to import, since it imports PyTorch if that is installed.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto import event_pb2

    self._proto: Any = event_pb2  # Its names are created at run time.
    board = self._records.folder / 'tensorboard'
    board.mkdir(exist_ok=True)
    # A full disk would end the thread of a SummaryWriter, and its next call would wait.
    # The name has the time in seconds, and each launch needs a file of its own.
    self._writer = EventsWriter(str(board / 'events'), f'.{time.time_ns()}')
    start = self._proto.SessionLog(status=self._proto.SessionLog.START)
    self._write(step=step + 1, session_log=start)

  def __enter__(self) -> TensorBoard:
    return self

  def __exit__(self, *exception: object) -> None:
    if self._writer is not None:
      self._writer.close()

  def on_chunk(self, event: Event) -> None:
    """Writes the numbers of a logged step."""
    if jax.process_index() == 0:
      scalars, at = scalars_of(event.metrics), time.time()
      self._records.when_replaced(
        lambda: self._write_scalars(event.step, scalars, wall_time=at)
      )

  def _write_scalars(
    self, step: int, scalars: Mapping[str, float], wall_time: float
  ) -> None:
    from tensorboardX.summary import scalar

    for name, value in scalars.items():
      self._write(step=step, wall_time=wall_time, summary=scalar(name, value))
    self._writer.flush()

  def _write(self, wall_time: float | None = None, **content: Any) -> None:
    now = time.time() if wall_time is None else wall_time
    self._writer.write_event(self._proto.Event(wall_time=now, **content))


class Saves:
  """Saves the states of one run, or of many models side by side.

  The clock of `checkpoint.every_minutes` starts when the object is made.
  """

  def __init__(
    self,
    config: Run,
    checkpoints: Checkpoints,
    step: int,
    records: Sequence[Records],
  ):
    """Starts the clock.

    Args:
      config: The config of the run, or that of one of the models.
      checkpoints: The checkpoints into which states are saved.
      step: The newest saved step; 0 if none is saved.
      records: The records of the run, or of each of the models.
    """
    self._config, self._checkpoints, self._records = config, checkpoints, records
    self._saved, self._last_save = step, time.monotonic()

  def due(self, step: int) -> bool:
    """Returns whether to save here; all processes must call this at the same step.

    Process 0 has the clock.
    """
    every, minutes = (
      self._config.checkpoint.every,
      self._config.checkpoint.every_minutes,
    )
    if step % every == 0 or step == self._config.train.num_steps:
      return True
    if step in kept_steps(self._config):
      return True
    if minutes is None:
      return False
    return processes.run_on_main(
      lambda: time.monotonic() > self._last_save + 60 * minutes
    )

  def save(self, step: int, state: State) -> None:
    """Saves the state, unless it is already saved.

    When everything is written, the records of a run in a bucket are copied into it.
    Records that wait for the first save are replaced when it is complete.

    Raises:
      RunError: If this save or the previous one cannot be written.
    """
    self._last_save = time.monotonic()
    if step > self._saved:
      self._checkpoints.save(step, state, lambda: copy_all(self._records))
      self._saved = step
      if any(records.waits for records in self._records):
        self._checkpoints.wait()
        for records in self._records:
          records.replace()
        copy_all(self._records)

  def save_last(self, step: int, state: State) -> None:
    """Saves the state, unless it is already saved, and waits until it is written."""
    self.save(step, state)
    self._checkpoints.wait()


def scalars_of(line: Mapping[str, Any]) -> dict[str, float]:
  """Returns the numbers of a line by name, as TensorBoard shows them.

  The loss after k examples has the name `curve/` and k. Values that are None are left
  out.
  """
  curve = enumerate(line[_CURVE] or [])
  scalars = {**line, **{f'{_CURVE}/{k:04}': value for k, value in curve}}
  return {
    name: value
    for name, value in scalars.items()
    if name not in ('step', _CURVE) and value is not None
  }


def copy_all(records: Sequence[Records]) -> None:
  """Copies the records of runs in a bucket into it, on process 0.

  Raises:
    RunError: If they cannot be written.
  """
  if not (is_url(records[0].workdir) and jax.process_index() == 0):
    return
  with concurrent.futures.ThreadPoolExecutor(_NUM_COPYING_THREADS) as threads:
    list(threads.map(Records.copy, records))


def show(bar: Any, line: Mapping[str, Any]) -> None:
  """Moves a progress bar to the step of a line, and shows the loss and the risk.

  The risk is the exact one, else that on held-out prompts.
  """
  exact, held_out = line['exact_risk'], line['eval_risk']
  values = {'loss': line['loss'], 'risk': held_out if exact is None else exact}
  bar.set_postfix(
    {name: f'{value:.4f}' for name, value in values.items() if value is not None},
    refresh=False,
  )
  bar.update(line['step'] - bar.n)


def read_lines(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the lines of a run's log; a last line that a kill has cut is left out.

  Raises:
    UserError: If the log cannot be read.
  """
  path = workdir / _METRICS
  if not path.exists():
    return []
  texts = read_text(path).splitlines(keepends=True)
  lines = []
  for number, text in enumerate(texts, start=1):
    if not text.endswith('\n'):
      continue
    where = f'line {number} of {path}'
    line = parse_json(text, dict, where)
    if missing := {'step', 'wall_time'} - line.keys():
      raise UserError(
        f'{where} is damaged: it has no {" and no ".join(sorted(missing))}'
      )
    for name in 'step', 'wall_time':
      if not isinstance(line[name], int | float):
        raise UserError(
          f'{where} is damaged: {name} is {line[name]!r}; it must be a number'
        )
    lines.append(line)
  return lines
