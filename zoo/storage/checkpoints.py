"""The checkpoints of a run: Orbax's `Checkpointer`, with checksums.

A step is one folder of `<workdir>/checkpoints`, local or in a bucket. It has the items
`model` and `optimizer`, and the JSON item `origin`: the step, the config and the
versions that made it, and its history. Orbax saves in the background, commits a step
whole or not at all and deletes the oldest. This module adds `SHA256SUMS` to what Orbax
commits.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from zoo.config.run import Run
from zoo.config.saved import changed_fields, differences
from zoo.core.errors import RunError, UserError, in_one_line, shown
from zoo.core.saved_arrays import array_name
from zoo.host import processes
from zoo.host.files import delete_folder, is_url, names_in, read_json
from zoo.storage.steps import (
  ORIGIN,
  Launch,
  Origin,
  checked_origin,
  damage_of,
  new_origin,
  steps_in,
  write_sums,
)

_MOST_LISTED_ARRAYS = 8


class Checkpoints:
  """The checkpoints of the run that is being trained; a context manager.

  All processes of the run make the same calls. Process 0 checks, names and deletes
  steps; all write their arrays.

  Attributes:
    history: Each launch that has led to the newest step, the first one first.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    keep: int,
    content: Mapping[str, Any],
    steps: Sequence[int] = (),
    points: Sequence[str] = (),
    history: Sequence[Launch] = (),
  ):
    """Opens the checkpoints, and checks the newest step.

    Args:
      workdir: The folder of the run.
      keep: The number of newest steps to keep.
      content: The config of each step, as JSON holds it.
      steps: Further steps to keep.
      points: The names of the points of a sweep that are saved together, if any.
      history: The history of each step; by default this launch and those before.

    Raises:
      RunError: If the newest step is damaged.
      UserError: If the newest step was saved by another run.
      OSError: If the folder cannot be read.
    """  # noqa: DOC501
    from orbax.checkpoint import v1 as ocp  # It is slow to import.

    self._folder = workdir / 'checkpoints'
    self._own, self._points = new_origin(content, 0), [*points]
    self._saving: tuple[int, Callable[[], None]] = 0, lambda: None
    self._response: Any = None  # Orbax returned it for the last save.
    newest = processes.run_on_main(
      lambda: check_newest(self._folder, content, self._points)
    )
    self._newest = self._own if newest is None else newest
    self._given_history = [*history]
    self.history = self._newest.get('history', [])
    context = orbax_context()
    # Orbax copies its context. A method in it would bring this object along.
    context.asynchronous.post_finalization_callback = lambda: self._before_commit()
    policies: Any = ocp.training.preservation_policies
    kept = [policies.LatestN(keep), policies.CustomSteps(steps)]
    try:
      self._orbax = ocp.training.Checkpointer(
        str(self._folder),
        context=context,
        preservation_policy=policies.AnyPreservationPolicy(kept),
        cleanup_tmp_directories=True,
      )
    except Exception as error:
      raise cannot_be_read(self._folder, error) from error

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, kind: object, error: object, traceback: object) -> None:
    if error is not None and jax.process_count() > 1:
      return  # The save would wait for processes that may be lost.
    try:
      try:
        self.wait()
      finally:
        self._orbax.close()
    except Exception as failure:
      if error is None:  # Otherwise the user must see the first error.
        raise self._not_written(failure) from failure

  @property
  def latest(self) -> int | None:
    """The newest step, or None."""
    return None if self._orbax.latest is None else self._orbax.latest.step

  def load(self, step: int, abstract: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Returns the state at a step, with the shapes and shardings of `abstract`.

    Raises:
      UserError: If its weights have other names, shapes or types.
      RunError: If it cannot be read.
    """  # noqa: DOC501
    folder = self._folder / str(step)
    check_fits(folder, abstract['model'])
    try:
      return self._orbax.load_checkpointables(step, dict(abstract))
    except Exception as error:
      raise cannot_be_read(folder, error) from error

  def save(
    self,
    step: int,
    state: Mapping[str, PyTree],
    before_commit: Callable[[], None] = lambda: None,
  ) -> None:
    """Starts to save a state, and returns as soon as its arrays may be donated.

    When everything is written, `before_commit` is called in the background, on process
    0.

    Raises:
      RunError: If this save or the previous one could not be written.
    """  # noqa: DOC501
    self.wait()
    self._saving = step, before_commit
    own, newest = self._own, self._newest
    launch = Launch(
      from_step=newest['step'],
      to_step=step,
      changed=changed_fields(newest['config'], own['config']),
      versions=own['versions'],
    )
    self.history = self._given_history or [*newest.get('history', []), launch]
    origin: Origin = {**own, 'step': step, 'history': self.history}
    if self._points:
      origin['points'] = self._points
    items = {**state, 'origin': origin}
    try:
      if not is_url(self._folder) and not self._folder.exists():
        raise FileNotFoundError('it was deleted while this program was working in it')
      self._response = self._orbax.save_checkpointables_async(step, items, force=True)
    except Exception as error:
      raise self._not_written(error) from error

  def wait(self) -> None:
    """Waits until the last save is complete.

    Raises:
      RunError: If it failed.
    """
    response, self._response = self._response, None
    try:
      try:
        if response is not None:
          response.result()  # This ends its thread.
      finally:
        self._orbax.wait()
    except Exception as error:
      raise self._not_written(error) from error

  def _before_commit(self) -> None:
    """Adds the checksums; Orbax calls it on process 0 when all files are written."""
    step, before_commit = self._saving
    before_commit()
    # A step in a bucket has its final name already. On a disk it is called
    # `8.orbax-checkpoint-tmp`.
    form = rf'{step}(\.orbax.*)?'
    (written,) = [n for n in names_in(self._folder) if re.fullmatch(form, n)]
    write_sums(self._folder / written)

  def _not_written(self, error: Exception) -> RunError:
    if isinstance(error, RunError):
      return error
    steps = []
    with contextlib.suppress(Exception):  # The message has the first reason anyway.
      steps = steps_in(self._folder)
    saved = f'there are good ones at steps {steps}' if steps else 'there is none yet'
    return RunError(
      f'a checkpoint could not be written to {self._folder}; {saved}; the reason: '
      f'{one_line(error)}'
    )


def check_newest(
  folder: pathlib.Path, content: Mapping[str, Any], points: Sequence[str]
) -> Origin | None:
  """Checks the newest step in a folder.

  Args:
    folder: The folder of the checkpoints.
    content: The config of this launch, as JSON holds it.
    points: The names of the points that are saved together, if any.

  Returns:
    The origin of the newest step; None if there is none.

  Raises:
    RunError: If the step is damaged.
    UserError: If the step belongs to another run.
  """  # noqa: DOC501
  steps = sorted(int(name) for name in names_in(folder) if name.isdecimal())
  if is_url(folder):  # A step that a kill left has no checksums; Orbax deletes it.
    steps = steps_in(folder)
  if not steps:
    return None
  newest = folder / str(steps[-1])
  if reason := damage_of(newest):
    raise damaged(newest, reason)
  saved = checked_origin(newest, read_json(newest / ORIGIN, dict))
  differing = differences(saved['config'], content)
  if saved.get('points', []) != [*points]:
    differing.append('points')
  if differing:
    raise UserError(
      f'{newest} was saved by a run of another config, and cannot be resumed from '
      f'here; it differs in {shown(differing)}; move it out of this folder'
    )
  return saved


def damaged(folder: pathlib.Path, reason: str) -> RunError:
  """Returns the error of a damaged step, which names an older step that is good."""
  others = []
  if folder.name.isdecimal():
    with contextlib.suppress(OSError):
      others = [step for step in steps_in(folder.parent) if step < int(folder.name)]
  good = next((s for s in others[::-1] if not damage_of(folder.parent / str(s))), None)
  hint = ''
  if good is not None:
    hint = f'; step {good} is good: delete {folder} and give the same command again'
  elif folder.parent.name == 'checkpoints':
    hint = f'; no older step is good: delete {folder.parent} to begin anew'
  return RunError(f'the checkpoint {folder} is damaged: {reason}{hint}')


def kept_steps(config: Run) -> tuple[int, ...]:
  """Returns the steps whose checkpoints a run keeps besides the newest, in order."""
  steps, last = config.checkpoint.steps, config.train.num_steps
  if steps == 'log':
    steps = {round(2 ** (i / 2)) for i in range(2 * last.bit_length())}
  return tuple(sorted(step for step in steps or () if step <= last))


def save_result(
  workdir: pathlib.Path,
  step: int,
  state: Mapping[str, PyTree],
  content: Mapping[str, Any],
  history: Sequence[Launch] = (),
) -> None:
  """Saves a single step of a run, unless it is there; raises RunError and OSError."""
  folder = workdir / 'checkpoints' / str(step)
  if damage_of(folder) is None:
    return
  delete_folder(folder)
  with Checkpoints(workdir, 1, content, history=history) as checkpoints:
    checkpoints.save(step, state)


def orbax_context() -> Any:
  """Returns the `ocp.Context` with which all steps are written and read."""
  from orbax.checkpoint import v1 as ocp  # It is slow to import.

  context = ocp.Context()
  handlers = ocp.handlers.local_registry()
  handlers.add(ocp.handlers.JsonHandler, checkpointable_name='origin')
  context.checkpointables.registry = handlers
  # Orbax measures a timeout by the system's clock, which may be set during a save. A
  # process that is lost is detected by its heartbeat.
  context.asynchronous.timeout_secs = 365 * 24 * 3600
  # Otherwise threads that write into the folder wait for minutes if the disk is full.
  context.asynchronous.create_directories_asynchronously = False
  return context


def saved_arrays(folder: pathlib.Path) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes and types of the arrays of a saved model, by name.

  Raises:
    RunError: If they cannot be read.
  """  # noqa: DOC501
  from orbax.checkpoint import v1 as ocp  # It is slow to import.

  try:
    tree = ocp.metadata(str(folder), checkpointable_name='model').metadata
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
      array_name(path): jax.ShapeDtypeStruct(tuple(leaf.shape), jnp.dtype(leaf.dtype))
      for path, leaf in leaves
    }
  except Exception as error:
    raise cannot_be_read(folder, error) from error


def check_fits(folder: pathlib.Path, abstract: PyTree) -> None:
  """Checks that a saved model has the arrays of an abstract one, of the same types.

  Orbax would convert other types without notice.

  Raises:
    UserError: If the names, shapes or types differ.
  """
  saved = saved_arrays(folder)
  check_same_arrays(
    f'{folder} does not fit the model as its class is now',
    {name: array.shape for name, array in saved.items()},
    shapes_of(abstract),
  )
  leaves, _ = jax.tree_util.tree_flatten_with_path(abstract)
  for path, leaf in leaves:
    name = array_name(path)
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    if is_float and name in saved and saved[name].dtype != leaf.dtype:
      raise UserError(
        f'{folder} holds {name} as {saved[name].dtype}, and this program would train '
        f'it as {leaf.dtype}; jax_enable_x64 must be as it was when the run was started'
      )


def shapes_of(state: PyTree) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a state's arrays by name, as they are saved."""

  def shape(leaf: Any) -> tuple[int, ...]:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.eval_shape(jax.random.key_data, leaf)
    return leaf.shape

  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  return {array_name(path): shape(leaf) for path, leaf in leaves}


def check_same_arrays(
  subject: str, shapes: Mapping[str, tuple], wanted: Mapping[str, tuple]
) -> None:
  """Raises UserError unless saved arrays have the names and shapes of a model's.

  Args:
    subject: The beginning of the message: what was read, and from where.
    shapes: The shapes of the saved arrays, by name.
    wanted: The shapes of the model's arrays, by name.

  Raises:
    UserError: If a name or a shape differs. The message lists up to 8 of them.
  """

  def differing(some: Mapping[str, tuple], others: Mapping[str, tuple]) -> str:
    own = [f'{name} {some[name]}' for name in some if others.get(name) != some[name]]
    return shown(sorted(own), _MOST_LISTED_ARRAYS)

  if shapes != wanted:
    saved, of_model = differing(shapes, wanted), differing(wanted, shapes)
    if not saved:
      raise UserError(f'{subject}: it lacks {of_model}')
    if not of_model:
      raise UserError(f'{subject}: it has {saved}, which the model lacks')
    raise UserError(f'{subject}: it has {saved}, and the model {of_model}')


def cannot_be_read(folder: pathlib.Path, error: Exception) -> RunError:
  """Returns an error that says in one line what Orbax raised when it read a step."""
  reason: BaseException = error
  while reason.__cause__ is not None:  # Orbax wraps errors in less specific ones.
    reason = reason.__cause__
  return RunError(f'{folder} cannot be read: {one_line(reason)}')


def one_line(error: BaseException) -> str:
  """Returns the type and message of an error, shortened.

  TensorStore appends its whole configuration and its source locations.
  """
  text, *_ = re.split(r'\[(?:tensorstore_spec|source locations)=', str(error))
  text = in_one_line(text, None)
  return f'{type(error).__name__}: {text if len(text) <= 300 else f"…{text[-300:]}"}'
