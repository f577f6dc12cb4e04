"""What a run tells while it trains: `metrics.jsonl`, TensorBoard, the progress bar."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import time
from typing import Any

import jax
from absl import logging
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2 as _event_pb2
from tensorboardX.summary import scalar
from tqdm import tqdm

from zoo.files import write_atomically

event_pb2: Any = _event_pb2  # its names are made at run time


class Progress:
  """The progress bar of one launch, and its clock; a context manager.

  Only process 0 shows a bar.
  """

  def __init__(self, label: str, step: int, num_steps: int):
    self._compiled: tuple[int, float, float] | None = None
    self._bar = tqdm(
      desc=label,
      initial=step,
      total=num_steps,
      unit='step',
      # A log file, unlike a terminal, keeps every refresh.
      mininterval=0.2 if sys.stderr.isatty() else 10.0,
      dynamic_ncols=True,
      disable=jax.process_index() != 0,
    )

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *exception: object) -> None:
    self._bar.close()

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
    """Moves the bar."""
    self._bar.update(step - self._bar.n)

  def show(self, **values: float | None) -> None:
    """Shows values behind the bar, those that there are."""
    self._bar.set_postfix(
      {name: f'{value:.4f}' for name, value in values.items() if value is not None},
      refresh=False,
    )


class Records:
  """The records of one run in its workdir, for one launch; a context manager.

  Lines behind the step that a run resumes from are dropped, as they will come again;
  the wall time goes on from the last line that stays. Only process 0 writes, for
  TensorBoard too if it shall.
  """

  def __init__(self, workdir: pathlib.Path, step: int, tensorboard: bool = True):
    self.workdir = workdir
    self._primary = jax.process_index() == 0
    self._path = path = workdir / 'metrics.jsonl'
    lines = []
    if self._primary:
      lines = [line for line in read_lines(path) if line['step'] <= step]
    self._start = time.monotonic() - (lines[-1]['wall_time'] if lines else 0.0)
    self._stack = contextlib.ExitStack()
    self._board: EventsWriter | None = None
    if not self._primary:
      return
    write_atomically(path, ''.join(json.dumps(line) + '\n' for line in lines))
    if not tensorboard:
      return
    board = workdir / 'tensorboard'
    board.mkdir(exist_ok=True)
    # Not SummaryWriter: its thread dies of a full disk, and the next call waits for it.
    self._board = EventsWriter(str(board / 'events'))
    self._stack.callback(self._board.close)
    # Tells TensorBoard to forget what an earlier launch wrote behind this step.
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._board.write_event(
      event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start)
    )

  def __enter__(self) -> Records:
    return self

  def __exit__(self, *exception: object) -> None:
    try:
      self._stack.close()
    except OSError:
      # While another exception passes through, that one is the news.
      if exception == (None, None, None):
        raise

  @property
  def wall_time(self) -> float:
    """Seconds spent on this run so far, those before an interruption included."""
    return time.monotonic() - self._start

  def write(self, line: dict[str, Any]) -> None:
    """Writes one logged step, with None for what does not exist."""
    if not self._primary:
      return
    line = {**line, 'wall_time': self.wall_time}
    # Opened for each line: a sweep has more records than a process may have open files.
    with self._path.open('a') as file:
      file.write(json.dumps(line) + '\n')
    if self._board is None:
      return
    for name, value in line.items():
      if name != 'step' and value is not None:
        summary = scalar(name, value)
        self._board.write_event(
          event_pb2.Event(wall_time=time.time(), step=line['step'], summary=summary)
        )
    self._board.flush()


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of a `metrics.jsonl`; a kill can leave half a line at the end.

  Lines that are damaged otherwise are left out too, with a warning.
  """
  lines = []
  texts = path.read_text(errors='replace').splitlines() if path.is_file() else []
  for number, text in enumerate(texts, start=1):
    try:
      line = json.loads(text)
      lines.append({**line, 'step': int(line['step']), 'wall_time': line['wall_time']})
    except (ValueError, TypeError, KeyError):
      if number < len(texts):
        logging.warning('line %d of %s is damaged, and left out', number, path)
  return lines
