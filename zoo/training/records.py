"""What a run writes and shows: `metrics.jsonl`, TensorBoard, steps, progress bar."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import PyTree
from tqdm.auto import tqdm

from zoo.config.building import Config
from zoo.config.sharding import State
from zoo.core.errors import RunError
from zoo.host import processes
from zoo.host.files import (
  failures,
  finite_or_null,
  is_url,
  parse_json,
  read_text,
  said,
  write_atomically,
)
from zoo.storage.checkpoints import Checkpoints, kept_steps

_CURVE = 'curve'
_METRICS = 'metrics.jsonl'
_THREADS = 8  # copy at the same time


class Progress:
  """The progress bar of one launch and its clocks; a context manager.

  Only process 0 shows a bar.
  """

  def __init__(self, label: str, step: int, num_steps: int):
    self._start = step, time.process_time()
    self._seconds = 0.0  # that the devices have spent on steps
    self._free = 0.0  # when they had done all that came before the next steps
    # A log file, unlike a terminal or a notebook, would record every refresh.
    is_watched = sys.stderr.isatty() or hasattr(sys, 'ps1')
    self._bar = tqdm(
      desc=label,
      initial=step,
      total=num_steps,
      unit='step',
      mininterval=0.2 if is_watched else 10.0,
      dynamic_ncols=True,
      disable=jax.process_index() != 0,
    )

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *exception: object) -> None:
    self._bar.close()

  def fetch(self, called: float, metrics: PyTree, measured: PyTree) -> tuple[Any, Any]:
    """Waits for steps and the evaluation after them; returns both results on the host.

    `called` is when the steps were called, by `time.monotonic`. Their time counts from
    then, or from the end of the evaluation before if the devices were still busy with
    it, until the metrics of the last step are there.
    """
    for leaf in jax.tree.leaves((metrics, measured)):
      leaf.copy_to_host_async()  # begins as soon as a result is there
    jax.block_until_ready(metrics)
    self._seconds += time.monotonic() - max(called, self._free)
    fetched = jax.device_get((metrics, measured))
    self._free = time.monotonic()
    return fetched

  def speed(self, step: int) -> tuple[float | None, float | None]:
    """Steps per second and CPU-ms per step since the start; None if there was none.

    The first counts the time of the steps alone, as `fetch` measures it: neither
    evaluation, nor records, nor what the caller of a run does between two events, nor
    the time in which a save stops training. Saves that are written in the background
    may slow the steps down. The CPU time is that of all threads of this process since
    the start, whatever they do.
    """
    start, cpu = self._start
    if step <= start:
      return None, None
    cpu_seconds = time.process_time() - cpu
    # A coarse clock may say that a few steps took no time.
    rate = (step - start) / self._seconds if self._seconds else None
    return rate, 1e3 * cpu_seconds / (step - start)

  def show(self, step: int, **values: float | None) -> None:
    """Moves the bar to a step, and shows the values that are not None after it."""
    self._bar.set_postfix(
      {name: f'{value:.4f}' for name, value in values.items() if value is not None},
      refresh=False,
    )
    self._bar.update(step - self._bar.n)

  @contextlib.contextmanager
  def hidden(self) -> Iterator[None]:
    """Takes the bar off a terminal inside the block, where another may print."""
    if sys.stderr.isatty():
      self._bar.clear()
    yield
    if sys.stderr.isatty():
      self._bar.refresh()


class Records:
  """The records of one run in its workdir, for one launch; a context manager.

  Lines after the step from which a run resumes are dropped, since they will be written
  again; the wall time continues from the last remaining line. Only process 0 writes;
  without `tensorboard` it writes no files for TensorBoard. A file in a bucket cannot
  grow, so records of a run in a bucket are written into a local folder, and copied at
  each save and at the end.
  """

  def __init__(self, workdir: pathlib.Path, step: int, tensorboard: bool = True):
    self.workdir = workdir
    self._primary = jax.process_index() == 0
    lines = []
    if self._primary:
      saved = read_lines(workdir)
      lines = [line for line in saved if line['step'] <= step]
    self.line: dict[str, Any] = lines[-1] if lines else {}  # the newest
    self._start = time.monotonic() - self.line.get('wall_time', 0.0)
    self._stack = contextlib.ExitStack()
    self._board: Any = None
    self._is_copied = True
    if not self._primary:
      return
    self._local = workdir
    if is_url(workdir):
      temporary = tempfile.TemporaryDirectory(prefix='icl_zoo_')
      self._local = pathlib.Path(self._stack.enter_context(temporary))
    self._path = self._local.resolve() / _METRICS
    write_atomically(self._path, ''.join(json.dumps(line) + '\n' for line in lines))
    self._inode = self._path.stat().st_ino
    if not tensorboard:
      return
    # Slow to import, since it imports PyTorch where that is installed.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto import event_pb2

    events: Any = event_pb2  # its names are created at run time
    board = self._local / 'tensorboard'
    board.mkdir(exist_ok=True)
    # Not SummaryWriter: a full disk ends its thread, and the next call waits for it.
    self._board = EventsWriter(str(board / 'events'))
    self._stack.callback(self._board.close)
    # Makes TensorBoard discard what an earlier launch wrote after this step.
    start = events.SessionLog(status=events.SessionLog.START)
    self._board.write_event(
      events.Event(wall_time=time.time(), step=step + 1, session_log=start)
    )

  def __enter__(self) -> Records:
    return self

  def __exit__(self, *exception: object) -> None:
    try:
      with self._stack:
        if not self._is_copied:
          copy_all([self])
    except (OSError, RunError):
      # This exception must not replace one that is already being raised.
      if exception == (None, None, None):
        raise

  def copy(self) -> None:
    """Copies the records of a run in a bucket into it; raises RunError."""
    self._is_copied = True
    try:
      for path in self._local.rglob('*'):
        if path.is_file():
          target = self.workdir / path.relative_to(self._local)
          target.write_bytes(path.read_bytes())
    except failures(self.workdir) as error:
      raise RunError(f'{self.workdir} could not be written: {said(error)}') from error

  @property
  def wall_time(self) -> float:
    """Seconds spent on this run, including those before an interruption."""
    return time.monotonic() - self._start

  def write(self, line: dict[str, Any]) -> None:
    """Writes one logged step, with None for values that are missing or overflow.

    Raises RunError if the folder has been deleted, or the log is another program's.
    """
    self.line = line = finite_or_null({**line, 'wall_time': self.wall_time})
    if not self._primary:
      return
    # Opened for each line: a sweep has more records than a process may have open files.
    # Mode r+ makes no new file where the folder was deleted.
    try:
      file = self._path.open('r+')
    except FileNotFoundError as error:
      raise self._gone() from error
    with file:
      if os.fstat(file.fileno()).st_ino != self._inode:
        raise self._gone()
      file.seek(0, os.SEEK_END)
      file.write(json.dumps(line) + '\n')
    self._is_copied = False
    if self._board is None:
      return
    from tensorboardX.proto import event_pb2
    from tensorboardX.summary import scalar

    events: Any = event_pb2
    curve = enumerate(line.get(_CURVE) or [])
    scalars = line | {f'{_CURVE}/{k:04}': value for k, value in curve}
    for name, value in scalars.items():
      if name not in ('step', _CURVE) and value is not None:
        summary = scalar(name, value)
        self._board.write_event(
          events.Event(wall_time=time.time(), step=line['step'], summary=summary)
        )
    self._board.flush()

  def _gone(self) -> RunError:
    return RunError(
      f'{self._path} has gone: the folder was deleted while this program was working '
      'in it; this program ends'
    )


def copy_all(records: Sequence[Records]) -> None:
  """Copies the records of runs in a bucket into it, on process 0; raises RunError."""
  if not (is_url(records[0].workdir) and jax.process_index() == 0):
    return
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
    list(threads.map(Records.copy, records))


class Saves:
  """Saves the states of a run from `step` on, whose clock starts now."""

  def __init__(self, config: Config, checkpoints: Checkpoints, step: int):
    self._config, self._checkpoints = config, checkpoints
    self._saved, self._last_save = step, time.monotonic()

  def due(self, step: int) -> bool:
    """Whether to save here; all processes must call this at the same step.

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

  def save(self, step: int, state: State, records: Sequence[Records]) -> None:
    """Saves the state, unless it is already saved; raises RunError.

    When all is written, the records of a run in a bucket are copied into it.
    """
    self._last_save = time.monotonic()
    if step > self._saved:
      self._checkpoints.save(step, state, lambda: copy_all(records))
      self._saved = step

  def save_last(self, step: int, state: State, records: Sequence[Records]) -> None:
    """Saves the state, unless it is already saved, and waits until it is."""
    self.save(step, state, records)
    self._checkpoints.wait()


def risk_of(line: Mapping[str, Any]) -> float | None:
  """The risk of a line of `metrics.jsonl`: exact, else on held-out prompts."""
  exact = line.get('exact_risk')
  return line.get('eval_risk') if exact is None else exact


def read_lines(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of a run's log, but for a last one that a kill has cut.

  Raises UserError if the log cannot be read.
  """
  path = workdir / _METRICS
  if not path.exists():
    return []
  texts = read_text(path).splitlines(keepends=True)
  return [parse_json(text, dict, str(path)) for text in texts if text.endswith('\n')]
