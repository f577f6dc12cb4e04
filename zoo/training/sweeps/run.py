"""The run of a sweep, from the check of its points to the table of the results."""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Sequence

import jax
from absl import logging

from zoo.config.read import Readable, read, to_content, with_fields
from zoo.config.run import Run
from zoo.core.errors import RunError, UserError, check_object, shown
from zoo.core.tables import format_seconds
from zoo.host.devices import start_devices
from zoo.host.files import delete_folder, workdir_path
from zoo.host.interruption import Interruption, Stopped
from zoo.host.parts import Part
from zoo.storage.checkpoints import (
  Checkpoints,
  kept_steps,
  save_result,
)
from zoo.storage.together import delete_finished, folder_of_program
from zoo.storage.workdir import (
  POINTS,
  has_config,
  make_workdir,
  open_workdir,
  write_config,
)
from zoo.training.against_baselines import has_comparison
from zoo.training.compilation import compile_training, make_training
from zoo.training.experiment import Experiment
from zoo.training.hooks import Hook, checked_hooks
from zoo.training.initial import initial_weights, source_of
from zoo.training.measured_anew import fields_without_effect, missing_metrics
from zoo.training.run import (
  NotFiniteError,
  checked_state,
  finished_event,
  is_new,
  run_to_end,
)
from zoo.training.summary import (
  DIVERGED,
  finished_summary,
  is_lost,
  write_divergence,
  write_summary,
)
from zoo.training.sweeps.folders import is_done
from zoo.training.sweeps.groups import groups_to_train, points_of, side_by_side
from zoo.training.sweeps.many import Member, train_many
from zoo.training.sweeps.points import (
  Point,
  build_points,
  config_of_all,
  name_of,
  without_arrays,
)
from zoo.training.sweeps.stacking import make_many, unstack
from zoo.training.sweeps.table import Row, rows_of, write_table


class LostPointsError(RunError):
  """The error of a sweep in which points have become non-finite.

  Attributes:
    rows: The rows of all other points.
    table: The rows of all points. Lost points have None for every number.
  """

  def __init__(self, message: str, table: Sequence[Row] = ()):
    super().__init__(message)
    self.table = table
    self.rows = [row for row in table if not is_lost(row)]


def sweep(
  config: Readable,
  points: Sequence[Point],
  workdir: str | pathlib.Path,
  part: Part | None = None,
  hooks: Sequence[Hook] = (),
) -> list[Row] | None:
  """Trains a config at many points, and writes a table of the results.

  Points that fit into one program are trained side by side. Points that are finished
  already are not trained again.

  Args:
    config: The config that all points share.
    points: The fields that each point sets, such as those of `grid`.
    workdir: The folder of the sweep. It may be in a bucket: gs://bucket/sweeps/a.
    part: The part of the sweep to train; None trains all of it.
    hooks: Objects that are called for each point while it trains (see `zoo.Hook`). They
      are not called for points that are finished already.

  Returns:
    A row for each point: its fields, `workdir`, and its summary. Without `part`, the
    rows are also in `table.csv` and `table.json`. After SIGTERM the result is None, and
    the same call resumes.

  Raises:
    UserError: If the config, a point or the workdir is invalid, or if another process
      is training this part, the whole or a part of another number of parts. Nothing is
      written then.
    LostPointsError: If a point has become non-finite. All other points are done.
      Without `part`, the tables are written.
    RunError: If the folder cannot be written.
    KeyboardInterrupt: If Ctrl-C was pressed. The same call resumes.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps = config.eval.every = 10
    >>> rows = zoo.training.sweep(config, [{'seed': 0}, {'seed': 1}], 'sweeps/a')
    >>> [row['seed'] for row in rows]
    [0, 1]
  """
  start_devices()
  if jax.process_count() > 1:
    raise UserError(
      f'the processes of a sweep must not be connected, and this is one of '
      f'{jax.process_count()} that are; give each a part of the sweep instead'
    )
  hooks = checked_hooks(hooks)
  if part is not None:
    check_object(
      'a part of the sweep', part, Part, 'it must be a zoo.host.parts.Part or None'
    )
  points = without_arrays(points)
  workdir = workdir_path(workdir)
  shared = _with_source(read(config), workdir)
  experiments = build_points(shared, points)
  folders = [workdir / POINTS / name_of(point) for point in points]
  experiments = [
    dataclasses.replace(experiment, config=_with_source(experiment.config, folder))
    for experiment, folder in zip(experiments, folders, strict=True)
  ]
  shared = config_of_all(shared, points, experiments[0].task)
  of_all_parts = experiments
  if part is not None:
    members = points_of(part, experiments)
    points = [points[i] for i in members]
    experiments = [experiments[i] for i in members]
    folders = [folders[i] for i in members]
  # A sweep that exists may have new points, such as those of another part.
  new = [
    experiment
    for experiment, folder in zip(experiments, folders, strict=True)
    if is_new(folder)
  ]
  for experiment in of_all_parts if is_new(workdir) else new:
    initial_weights(experiment)  # It checks the weights that a run starts from.
  _check_models(new)
  return _train_and_write(
    workdir, shared, points, [*map(Member, experiments, folders)], part, hooks
  )


def _with_source(config: Run, folder: pathlib.Path) -> Run:
  """Returns the config with what identifies the source of its weights, if any."""
  return with_fields(config, source_of(config, folder))


def _check_models(experiments: Sequence[Experiment]) -> None:
  """Checks the model of the first point of each group, as `train` checks its own."""
  for group in side_by_side(experiments, range(len(experiments))):
    first = experiments[group[0]]
    logging.info('checking %s', first.config.model.name)
    checked_state(make_training(first))


def _train_and_write(
  workdir: pathlib.Path,
  config: Run,
  points: Sequence[Point],
  members: Sequence[Member],
  part: Part | None,
  hooks: Sequence[Hook],
) -> list[Row] | None:
  """Trains points with their experiments and folders; without a part, writes the table.

  Returns:
    A row for each point. None after SIGTERM.

  Raises:
    LostPointsError: If a point has become non-finite.
  """
  try:
    with open_workdir(workdir, config, 'sweep', part), Interruption() as interruption:
      for experiment, folder in members:
        make_workdir(folder, experiment.config)
      _train_missing(members, workdir, interruption, hooks)
      _measure_anew(members, interruption)
      configs = [experiment.config for experiment, _ in members]
      folders = [folder for _, folder in members]
      rows, lost = rows_of(points, configs, folders)
      if part is None:
        # Finished points keep the config that they were trained with. If this command
        # has trained none, the sweep keeps its config as well.
        is_of_a_point = any(map(has_config, folders, configs))
        if is_of_a_point and not has_config(workdir, config):
          write_config(workdir, config)
        write_table(rows, workdir)
        delete_finished(workdir, {folder.name for folder in folders})
  except Stopped:
    return None
  if lost:
    reasons = [f'{name} ({lost[name]["reason"]})' for name in sorted(lost)]
    # A program that keeps its steps has the weights of such a point, too.
    hint = '' if config.checkpoint.steps else ', or after this file is deleted'
    raise LostPointsError(
      f'{len(lost)} of {len(members)} points stopped being finite: {shown(reasons)}; '
      f'all other points are done. The folder of such a point has {DIVERGED}; the '
      f'point is trained again only in another folder{hint}',
      rows,
    )
  return rows


def _measure_anew(members: Sequence[Member], interruption: Interruption) -> None:
  """Measures what the configs of finished points ask for, and was not measured yet.

  Raises:
    KeyboardInterrupt: After Ctrl-C.
    Stopped: After another signal.
  """
  kept: dict[str, None] = {}
  for experiment, folder in members:
    config = experiment.config
    _stop_if_asked(interruption)
    summary = finished_summary(folder, config)
    if summary is None:
      continue
    compare = summary['comparison'] is not None
    is_compared = not compare or has_comparison(config, folder, summary)
    if missing_metrics(config, summary) or not is_compared:
      run_to_end(experiment, folder, (), compare)
    kept |= dict.fromkeys(fields_without_effect(config, folder))
  if kept:
    logging.warning('points that have ended keep their configs: %s', shown([*kept]))


def _train_missing(
  members: Sequence[Member],
  workdir: pathlib.Path,
  interruption: Interruption,
  hooks: Sequence[Hook],
) -> None:
  """Trains the points that have neither a summary nor a record of a divergence.

  Afterwards each point has one of them.

  Raises:
    KeyboardInterrupt: After Ctrl-C.
    Stopped: After another signal.
  """
  missing = [
    i
    for i, (experiment, folder) in enumerate(members)
    if not is_done(folder, experiment.config)
  ]
  groups = groups_to_train(missing, members, workdir)
  start = time.monotonic()
  num_steps = [
    sum(members[i].experiment.config.train.num_steps for i in group) for group in groups
  ]
  _stop_if_asked(interruption)
  for number, group in enumerate(groups, start=1):
    of_group = [members[i] for i in group]
    _train_group(of_group, workdir, f'{number}/{len(groups)}', interruption, hooks)
    # The signal may have come outside the loop of a run, such as while its model was
    # compared with baselines.
    _stop_if_asked(interruption)
    steps_left = sum(num_steps[number:])
    if steps_left:
      seconds_per_step = (time.monotonic() - start) / sum(num_steps[:number])
      logging.info(
        '%d of %d points are done; the sweep will take about %s more',
        len(members) - sum(map(len, groups[number:])),
        len(members),
        format_seconds(steps_left * seconds_per_step),
      )


def _train_group(
  group: Sequence[Member],
  workdir: pathlib.Path,
  label: str,
  interruption: Interruption,
  hooks: Sequence[Hook],
) -> None:
  """Trains a group, each point of which has an experiment and a folder.

  A point that becomes non-finite has a record of it afterwards.

  Raises:
    Stopped: If a signal has ended its training.
  """
  if len(group) > 1:
    # `train_many` raises it if all points diverge, after it has written their records.
    with contextlib.suppress(NotFiniteError):
      _train_stacked(group, workdir, label, interruption, hooks)
    return
  ((experiment, folder),) = group
  logging.info('program %s: %s', label, folder.name)
  try:
    summary = run_to_end(experiment, folder, hooks, compare=True)
  except NotFiniteError as error:
    logging.warning('%s: %s', folder.name, error)
    write_divergence(folder, error.divergence)
    return
  if summary is None:
    raise Stopped


def _train_stacked(
  group: Sequence[Member],
  workdir: pathlib.Path,
  label: str,
  interruption: Interruption,
  hooks: Sequence[Hook],
) -> None:
  """Trains points side by side. Raises Stopped, and NotFiniteError if all diverge."""
  experiments = [experiment for experiment, _ in group]
  logging.info('program %s: compiling %d models', label, len(group))
  # If it does not fit into memory, nothing is written.
  training = compile_training(make_many(experiments))
  names, first = [folder.name for _, folder in group], experiments[0].config
  folder_of_all, kept = folder_of_program(workdir, names), kept_steps(first)
  label = f'{label}: {len(group)} × {first.model.name}'
  with Checkpoints(
    folder_of_all, 1, to_content(first), kept, points=names
  ) as checkpoints:
    trained = train_many(
      training,
      group,
      checkpoints,
      interruption,
      label,
      hooks,
    )
  if trained is None:
    raise Stopped
  state, summaries = trained
  finals = unstack(experiments, state)
  for (experiment, folder), summary, state in zip(
    group, summaries, finals, strict=True
  ):
    config = experiment.config
    _stop_if_asked(interruption)  # The next launch writes the others.
    if summary is not None and finished_summary(folder, config) is None:
      content, num_steps = to_content(config), config.train.num_steps
      save_result(folder, num_steps, state, content, summary['history'])
      write_summary(folder, summary)
      event = finished_event(config, folder, summary)
      for hook in hooks:
        hook.on_end(event)
  if not kept:
    delete_folder(folder_of_all)


def _stop_if_asked(interruption: Interruption) -> None:
  """Raises KeyboardInterrupt after Ctrl-C, and Stopped after another signal."""
  interruption.raise_if_ctrl_c()
  if interruption.requested is not None:
    raise Stopped
