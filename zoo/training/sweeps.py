"""Sweeps: training a config at many points, with one table of the results."""

import collections
import copy
import functools
import hashlib
import itertools
import json
import math
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

import jax
import numpy as np
from absl import logging
from flax import nnx
from flax.traverse_util import flatten_dict

from zoo import theory
from zoo.config.own import OBJECTIVES
from zoo.config.sharding import make_mesh
from zoo.config.validation import (
  Config,
  abstract_parts,
  build_task,
  check_fields,
  to_json,
  validate,
  with_full_path,
)
from zoo.core import tables
from zoo.core.errors import RunError, UserError, check_name, shown
from zoo.core.protocols import FollowsRule, HasExactForm, Model
from zoo.host.files import delete_folder, names_in, workdir_path, write_atomically
from zoo.host.interruption import Interruption, Stopped
from zoo.host.parts import Part
from zoo.measure.comparison import MODEL
from zoo.measure.intervals import interval
from zoo.storage.checkpoints import (
  Checkpoints,
  kept_steps,
  run_metadata,
  save_result,
)
from zoo.storage.loading import load
from zoo.storage.programs import (
  POINTS_FIELD,
  delete_finished,
  folder_of_program,
  load_together,
  saved_programs,
  saved_steps,
  steps_together,
)
from zoo.storage.steps import steps_in
from zoo.storage.workdir import (
  POINTS,
  check_number_of_parts,
  forget_number_of_parts,
  occupied,
  open_workdir,
)
from zoo.training.compilation import make_training
from zoo.training.many import compile_many, train_many, unstack
from zoo.training.run import NotFiniteError, checked_state, is_new, train
from zoo.training.step import initial_weights
from zoo.training.summary import (
  DIVERGED,
  SUMMARY,
  Divergence,
  Summary,
  finished_summary,
  is_lost,
  kind_of_risk,
  read_divergence,
  write_divergence,
  write_summary,
)

# Fields of a config, such as 'task.prior_mean', and their values.
Point = Mapping[str, object]
# A point, the folder of its run, and its summary.
Row = dict[str, Any]


# The fields of some axes of a grid: one, or several whose values go together.
Fields = str | tuple[str, ...]

_OPTIONS = 'model.mixer_options'
_PATH, _SHA256 = 'task.path', 'task.sha256'  # of the file of the task `arrays`
_PLAIN = {'seed', 'optimizer.learning_rate'}  # numbers that fit any model and task


class LostPointsError(NotFiniteError):
  """Points of a sweep have become non-finite.

  `rows` has all other points; `table` has those that are lost, too, in their places,
  with None in place of every number.
  """

  def __init__(self, message: str, table: Sequence[Row] = ()):
    super().__init__(message)
    self.table = table
    self.rows = [row for row in table if not is_lost(row)]


def sweep(
  config: Config,
  points: Sequence[Point],
  workdir: str | pathlib.Path,
  part: Part | None = None,
) -> list[Row] | None:
  """Trains the config at each point, or resumes from the workdir.

  Points that differ only in the seed, the learning rate, numbers of the task, or the
  values of the model's arrays are trained side by side in one program. Other points are
  trained one after the other. Each point has its own folder, like an ordinary run.

  With a `part`, such as `Part(2, 4)`, only the points of that part are trained, each
  program being cut into as many as there are parts, and no table is written. Processes
  that share the workdir may train different parts at the same time. Which points a part
  has depends on the config, the points and the part alone, so that a part that was
  stopped or killed is called again. After all parts the call without one trains what is
  left, if anything, and writes the table.

  Returns a row for each point: its fields, `workdir`, and its summary; the rows are
  also in `table.csv` and `table.json`. After SIGTERM it returns None, and after Ctrl-C
  it raises KeyboardInterrupt; the same call resumes. Raises UserError, before anything
  is written, if the config, a point or the workdir is invalid, or if the workdir
  belongs to another number of parts; LostPointsError, after all other points are done
  and the tables are written, if a point has become non-finite; RunError if the disk is
  full. A point that has become non-finite has `diverged.json` in its folder and is not
  trained again unless this file is deleted. The workdir may be in a bucket,
  gs://bucket/sweeps/a.
  """
  if jax.process_count() > 1:
    raise UserError(
      f'the processes of a sweep must not be connected, and this is one of '
      f'{jax.process_count()} that are; give each a part of the sweep instead'
    )
  config = _of_all(config, points)
  configs = _check_points(config, points)
  workdir = workdir_path(workdir)
  if is_new(workdir):
    for point_config in configs:
      initial_weights(point_config)  # checks them
    _check_models(configs, part)
  return _sweep(workdir, config, points, configs, part)


def _check_models(configs: Sequence[Config], part: Part | None) -> None:
  """Checks the model of the first point of each program, as a run checks its own."""
  own = range(len(configs)) if part is None else points_of(part, configs)
  for program in side_by_side(configs, own):
    config = configs[program[0]]
    checked_state(make_training(config, make_mesh(config)))


def _sweep(
  workdir: pathlib.Path,
  config: Config,
  points: Sequence[Point],
  configs: Sequence[Config],
  part: Part | None,
) -> list[Row] | None:
  if part is not None:
    own = points_of(part, configs)
    points, configs = [points[i] for i in own], [configs[i] for i in own]
  folders = [workdir / POINTS / name for name in _names_in(workdir, points)]
  try:
    with occupied(workdir, config, 'sweep', part), Interruption() as interruption:
      if part is not None:
        check_number_of_parts(workdir, part)
      open_workdir(workdir, config, 'sweep', held=True)
      for point_config, folder in zip(configs, folders, strict=True):
        open_workdir(folder, point_config, held=True)
      _train_missing(configs, folders, workdir, interruption)
      rows, lost = _rows(points, configs, folders)
      if part is None:
        _write_table(rows, workdir)
        delete_finished(workdir, {folder.name for folder in folders})
        forget_number_of_parts(workdir)
  except Stopped:
    return None
  if lost:
    reasons = [f'{name} ({lost[name]["reason"]})' for name in sorted(lost)]
    raise LostPointsError(
      f'{len(lost)} of {len(folders)} points stopped being finite, all others are '
      f'done: {shown(reasons)}; to train one of them again, delete {DIVERGED} in its '
      'folder',
      rows,
    )
  return rows


def is_finished(config: Config, points: Sequence[Point], workdir: pathlib.Path) -> bool:
  """Whether a sweep has trained all of the points in the workdir.

  That includes points that have become non-finite.
  """
  return all(
    _is_done(workdir / POINTS / name, _with_fields(config, point))
    for name, point in zip(_names_in(workdir, points), points, strict=True)
  )


def _is_done(folder: pathlib.Path, config: Config) -> bool:
  """Whether a point has its summary, or a record of why it has none."""
  ends = finished_summary(folder, config), read_divergence(folder, config)
  return ends != (None, None)


def kept_models(
  config: Config, points: Sequence[Point], workdir: str | pathlib.Path
) -> Iterator[tuple[list[int], int, Callable[[], list[Model]]]]:
  """Finds the steps that a sweep has kept, to load the models of a program at once.

  `zoo.load(folder of a point, step)` opens one of them alone.

  Args:
    config: The config of the sweep.
    points: The points that are wanted, as they were given to `sweep`.
    workdir: The folder of the sweep.

  Yields:
    For each kept step of each program: the indices in `points` of those that it
    trained, the step, and a function that loads their models. The newest step of each
    point follows in the same form, from the folder of the point, so that a step that
    is kept in both places comes twice.
  """
  folder = workdir_path(workdir)
  numbers = {name: i for i, name in enumerate(_names_in(folder, points))}
  programs = steps_together(folder)
  for names in programs:
    wanted = [place for place, name in enumerate(names) if name in numbers]
    if not wanted:
      continue
    members = [numbers[names[place]] for place in wanted]
    own = _with_fields(config, points[members[0]])

    def load_wanted(
      step: pathlib.Path, own: Config = own, size: int = len(names), wanted=wanted
    ) -> list[Model]:
      graph, alone = abstract_parts(own)
      states = load_together(step, alone, size, wanted)
      return [nnx.merge(graph, state) for state in states]

    for step in programs[names]:
      yield members, int(step.name), functools.partial(load_wanted, step)
  for name, i in numbers.items():
    at = folder / POINTS / name
    for step in steps_in(at / 'checkpoints'):
      yield [i], step, lambda at=at, step=step: [load(at, step).model]


def grid(axes: Mapping[Fields, Sequence[Any]]) -> list[Point]:
  """All combinations of the values of some fields; the last field varies fastest.

  The values of a tuple of fields are tuples, and go together: `{('model.mixer',
  'model.hidden_features'): [('softmax', 137), ('delta', 128)], 'seed': [0, 1]}` gives
  four points. Raises UserError for a tuple of another length, and for a field that is
  given twice.
  """
  groups = [(fields,) if isinstance(fields, str) else fields for fields in axes]
  names = [name for fields in groups for name in fields]
  if twice := [name for name in names if names.count(name) > 1]:
    raise UserError(f'the field {twice[0]} is given twice')
  points = []
  for chosen in itertools.product(*axes.values()):
    point: dict[str, object] = {}
    for fields, key, value in zip(groups, axes, chosen, strict=True):
      values = (value,) if isinstance(key, str) else value
      if not isinstance(values, tuple | list) or len(values) != len(fields):
        raise UserError(
          f'{", ".join(fields)} go together, and one of their values is {value!r}; it '
          f'must have {len(fields)}, one for each field'
        )
      point |= dict(zip(fields, values, strict=True))
    points.append(point)
  return points


def at_point(config: Config, point: Point) -> Config:
  """The validated config with the fields of a point; raises UserError."""
  return validate(_with_fields(config, point))


def _of_all(config: Config, points: Sequence[Point]) -> Config:
  """The whole config of a sweep, without a file of the task if each point names one.

  Raises UserError if it is invalid.
  """
  if not points or any(_PATH not in point for point in points):
    check_fields(config)
    return with_full_path(config)
  check_fields(config)
  config = with_full_path(_with_fields(config, {_PATH: points[0][_PATH]}))
  config.task.path = config.task.sha256 = None
  return config


def _with_fields(config: Config, point: Point) -> Config:
  config = copy.deepcopy(config)
  if _PATH in point and _SHA256 not in point and 'sha256' in config.task:
    config.task.sha256 = None  # of another file
  known = flatten_dict(
    config.to_dict(),
    keep_empty_nodes=True,
    is_leaf=lambda path, _: path == ('optimizer', 'scales'),
    sep='.',
  )
  for field, value in point.items():
    section, _, leaf = field.rpartition('.')
    if field.startswith('config.'):
      raise UserError(f'a sweep has the field {field!r}; leave out config.')
    # Of the options of mixers those that are set are known, and the mixers check all.
    if section != _OPTIONS or 'mixer_options' not in config.model:
      check_name('field of the config', field, known)
    try:
      with config.unlocked():
        (config[section] if section else config)[leaf] = value
    except TypeError:
      kind = type(known[field]).__name__
      raise UserError(
        f'config.{field} cannot be {value!r}; it must be of the type {kind}, and '
        'values of a sweep are written 1,2,3 or 1..3'
      ) from None
  return config


def format_table(rows: Sequence[Row], fields: Sequence[str]) -> str:
  """The rows as a table for a terminal: the fields of the points, and their risks.

  Points that have become non-finite are marked. With several seeds a second table has
  the mean over them and its 95 % interval, Student's t. Of points on one task it also
  has the difference to the best of them, paired by seed.
  """
  names = ('eval_risk', '.4f'), ('eval_risk_stderr', '.4f')
  names += ('exact_risk', '.6f'), ('excess_risk', '.2e')
  cells = []
  for row in rows:
    numbers = [_number(row[name], form) for name, form in names]
    if is_lost(row):
      numbers[0] = 'diverged'
    cells.append([*(str(row.get(field)) for field in fields), *numbers])
  header = [*fields, 'sampled risk', '± s.e.', 'exact risk', 'excess']
  return '\n\n'.join([tables.format_table(cells, header), *_means(rows, fields)])


def _number(value: float | None, form: str) -> str:
  """A number in a format; a dash if it is unknown or infinite."""
  return '-' if value is None or not math.isfinite(value) else format(value, form)


# What is alike in the points of an arm, by field.
_Arm = tuple[str, ...]


def _means(rows: Sequence[Row], fields: Sequence[str]) -> Iterator[str]:
  """A table of the mean risks over seeds, if a point has several."""
  kind, others = kind_of_risk(rows), [name for name in fields if name != 'seed']
  arms: dict[_Arm, dict[object, float]] = {}  # their risks by seed
  lost: collections.Counter[_Arm] = collections.Counter()
  for row in rows:
    arm = tuple(str(row.get(name)) for name in others)
    risks = arms.setdefault(arm, {})
    lost[arm] += is_lost(row)
    if row[kind] is not None:
      risks[row.get('seed')] = row[kind]
  if 'seed' not in fields or all(len(risks) <= 1 for risks in arms.values()):
    return
  best = _best_arms(arms, [_sets_prompts(name, kind) for name in others])
  form = '.6f' if kind == 'exact_risk' else '.4f'
  cells = []
  for arm, risks in arms.items():
    number = f'{len(risks)} ({lost[arm]} diverged)' if lost[arm] else str(len(risks))
    cells.append([*arm, number, *_mean_and_half(risks, form)])
    if best:
      shared = [seed for seed in risks if seed in arms[best[arm]]]
      gaps = {seed: risks[seed] - arms[best[arm]][seed] for seed in shared}
      is_best = best[arm] == arm
      cells[-1] += ['best', ''] if is_best else _mean_and_half(gaps, f'+{form}')
  what = 'mean exact risk' if kind == 'exact_risk' else 'mean sampled risk'
  half = '± 95 % interval'
  header = [*others, 'seeds', what, half]
  if best:
    header += ['minus the best, paired', half]
  yield tables.format_table(cells, header)
  if kind == 'eval_risk':
    yield (
      'Intervals are over seeds. All seeds are measured on the same held-out prompts, '
      'whose error, ± s.e., is not in them.'
    )


def _mean_and_half(risks: Mapping[object, float], form: str) -> list[str]:
  """The mean over seeds, and half its 95 % interval."""
  if not risks:
    return ['-', '-']
  estimate = interval([*risks.values()])
  return [_number(estimate.mean, form), _number(estimate.half, form.lstrip('+'))]


def _sets_prompts(field: str, kind: str) -> bool:
  """Whether points that differ in a field are measured on other prompts or tasks."""
  sampled = field.startswith('eval.') or field == 'train.batch_size'
  return field.startswith('task.') or (sampled and kind == 'eval_risk')


def _best_arms(
  arms: Mapping[_Arm, Mapping[object, float]], sets_prompts: Sequence[bool]
) -> dict[_Arm, _Arm]:
  """For each arm the best of those on the same prompts, of those with the most seeds.

  Empty if no two arms are on the same prompts.
  """
  alike: dict[_Arm, list[_Arm]] = {}
  for arm in arms:
    alike.setdefault((*itertools.compress(arm, sets_prompts),), []).append(arm)
  if all(len(members) == 1 for members in alike.values()):
    return {}

  def rank(arm: _Arm) -> tuple[int, float]:
    risks = [*arms[arm].values()]
    return -len(risks), interval(risks).mean if risks else math.inf

  return {
    arm: best
    for members in alike.values()
    for best in [min(members, key=rank)]
    for arm in members
  }


def _check_points(config: Config, points: Sequence[Point]) -> list[Config]:
  """The validated config of each point; UserError if there is none, or one twice."""
  configs = [_with_fields(config, point) for point in points]
  # All but the file of the task is complete.
  configs = [
    with_full_path(point_config) if _PATH in point else point_config
    for point_config, point in zip(configs, points, strict=True)
  ]
  validated: set[str] = set()
  for point_config, point in zip(configs, points, strict=True):
    # A whole validation builds the model, for which these two fields do not matter.
    others = {name: value for name, value in point.items() if name not in _PLAIN}
    text = json.dumps(others, default=repr)
    (check_fields if text in validated else validate)(point_config)
    validated.add(text)
  if not points:
    raise UserError('there is no point to train; at least one is needed')
  names = [_name(point) for point in points]
  if len(set(names)) < len(names):
    twice = next(i for i, name in enumerate(names) if name in names[:i])
    raise UserError(f'the point {points[twice]} is given twice')
  return configs


def _train_missing(
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
  interruption: Interruption,
) -> None:
  """Trains the points that have neither a summary nor a record of a divergence.

  Afterwards each point has one of them. Raises Stopped.
  """
  missing = [
    i
    for i, (config, folder) in enumerate(zip(configs, folders, strict=True))
    if not _is_done(folder, config)
  ]
  programs = programs_of(missing, configs, folders, workdir)
  start = time.monotonic()
  sizes = [sum(configs[i].train.num_steps for i in program) for program in programs]
  for number, program in enumerate(programs, start=1):
    group = [(configs[i], folders[i]) for i in program]
    label = f'{number}/{len(programs)}'
    try:
      if len(group) > 1:
        _train_stacked(group, workdir, label, interruption)
      else:
        logging.info('program %s: %s', label, group[0][1].name)
        if train(*group[0]) is None:
          raise Stopped
    except NotFiniteError as error:
      if error.divergence is not None and len(group) == 1:
        folder = group[0][1]
        logging.warning('%s: %s', folder.name, error)
        write_divergence(folder, error.divergence)
    if left := sum(sizes[number:]):
      left *= (time.monotonic() - start) / sum(sizes[:number])
      logging.info(
        '%d of %d points are done; the sweep will take about %s more',
        sum(map(len, programs[:number])),
        len(missing),
        _in_words(left),
      )


def points_of(part: Part, configs: Sequence[Config]) -> list[int]:
  """The indices of a part's points, which depend on nothing but the configs.

  The points of each program are cut into as many runs of neighbours as there are parts,
  and these are dealt to the parts in turn.
  """
  cut = [
    few.tolist()
    for program in side_by_side(configs, range(len(configs)))
    for few in np.array_split(program, min(part.number, len(program)))
  ]
  return sorted(i for few in part.of(cut) for i in few)


def programs_of(
  missing: Sequence[int],
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
) -> list[list[int]]:
  """The programs that train the `missing` points, each the indices of its points.

  A program that was stopped goes on with all its points, and a point that has saved a
  step goes on alone. The others are trained side by side where that is possible.
  """
  indices = {folder.name: i for i, folder in enumerate(folders)}
  programs, rest = [], [*missing]
  for names in saved_programs(workdir):
    stopped = [indices[name] for name in names if name in indices]
    whole = len(stopped) == len(names) and not {*rest}.isdisjoint(stopped)
    if whole and len(side_by_side(configs, stopped)) == 1:
      programs.append(stopped)
      rest = sorted({*rest} - {*stopped})
  alone = {i for i in rest if saved_steps(folders[i])}
  programs += [[i] for i in sorted(alone)]
  return programs + side_by_side(configs, [i for i in rest if i not in alone])


def side_by_side(configs: Sequence[Config], points: Sequence[int]) -> list[list[int]]:
  """Divides points into those that one program can train.

  They share all fields but the seed, the learning rate and those of task and model;
  the structure of the task; and what the models compute from their arrays.
  """
  alike: dict[object, list[int]] = {}
  models: dict[str, Any] = {}  # each is traced once for all points that have it
  for i in points:
    key = (i,) if configs[i].mesh.fsdp else _shared(configs[i], models)
    alike.setdefault(key, []).append(i)
  programs = []
  for members in alike.values():
    bodies: list[tuple[object, list[int]]] = []
    for i in members:
      body = _body(configs[i], models)
      for other, same in bodies:
        if _is_same(body, other):
          same.append(i)
          break
      else:
        bodies.append((body, [i]))
    programs += [same for _, same in bodies]
  return programs


def _parts_of(config: Config, models: dict[str, Any]) -> tuple[Any, Any]:
  """Graph and abstract state of a model, from the `models` that were traced before."""
  key = to_json(config.model) + to_json(config.task)
  if key not in models:
    models[key] = abstract_parts(config)
  return models[key]


def _shared(config: Config, models: dict[str, Any]) -> tuple:
  """What models of one program share besides their bodies; it can be hashed."""
  fields = json.loads(to_json(config))
  name = fields.pop('model')['name']
  del fields['seed'], fields['optimizer']['learning_rate']
  task, task_fields = build_task(config), fields.pop('task')
  model = nnx.merge(*_parts_of(config, models))
  has_own = config.objective.name in OBJECTIVES or bool(config.eval.metrics)
  if has_own or isinstance(model, HasExactForm):  # the task's numbers are compiled in
    return json.dumps([fields, name, task_fields]), None
  exact = config.objective.name == 'exact' and isinstance(model, FollowsRule)
  if exact and theory.covers(task):  # which needs the moments of the task alone
    return json.dumps([fields, name]), task.num_features
  shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(task))
  return json.dumps([fields, name]), (jax.tree.structure(task), shapes)


def _body(config: Config, models: dict[str, Any]) -> object:
  """The graph of a model, and the shapes of its arrays."""
  graph, state = _parts_of(config, models)
  return graph, [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]


def _is_same(body: object, other_body: object) -> bool:
  try:
    return bool(body == other_body)
  except ValueError:  # a static array, for which == is no truth value
    return False


def _in_words(seconds: float) -> str:
  """A time in seconds, minutes or hours."""
  for unit, length in ('h', 3600), ('min', 60):
    if seconds >= 1.5 * length:
      return f'{seconds / length:.3g} {unit}'
  return f'{seconds:.0f} s'


def _train_stacked(
  group: Sequence[tuple[Config, pathlib.Path]],
  workdir: pathlib.Path,
  label: str,
  interruption: Interruption,
) -> None:
  """Trains points side by side. Raises Stopped, and NotFiniteError if all diverge."""
  configs, folders = zip(*group, strict=True)
  training = compile_many(configs)  # so that nothing is written if it does not fit
  names = [folder.name for folder in folders]
  folder_of_all, kept = folder_of_program(workdir, names), kept_steps(configs[0])
  note = {**run_metadata(configs[0]), POINTS_FIELD: names}
  label = f'{label}: {len(configs)} × {configs[0].model.name}'
  with Checkpoints(folder_of_all, 1, note, kept) as checkpoints:
    trained = train_many(training, configs, folders, checkpoints, interruption, label)
  if trained is None:
    raise Stopped
  state, summaries = trained
  finals = unstack(configs, state)
  for config, folder, summary, state in zip(
    configs, folders, summaries, finals, strict=True
  ):
    _stop_if_asked(interruption)  # the next launch writes the others
    if summary is not None and finished_summary(folder, config) is None:
      save_result(folder, config.train.num_steps, state, run_metadata(config))
      write_summary(folder, summary)
  if not kept:
    delete_folder(folder_of_all)
  _stop_if_asked(interruption)


def _stop_if_asked(interruption: Interruption) -> None:
  """Raises KeyboardInterrupt after Ctrl-C, and Stopped after another signal."""
  interruption.raise_if_ctrl_c()
  if interruption.requested is not None:
    raise Stopped


def _rows(
  points: Sequence[Point],
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
) -> tuple[list[Row], dict[str, Divergence]]:
  """The rows of the points, and why some are lost, by the name of the point.

  A row of a lost point has None for each number. Raises RunError if a point has neither
  a summary nor a record of a divergence.
  """
  rows: list[Row] = []
  lost: dict[str, Divergence] = {}
  for point, config, folder in zip(points, configs, folders, strict=True):
    summary = finished_summary(folder, config)
    divergence = read_divergence(folder, config) if summary is None else None
    if divergence is not None:
      lost[folder.name] = divergence
    elif summary is None:
      raise RunError(
        f'{folder} was trained, but its {SUMMARY} cannot be read, so that no table is '
        'written; rerun the same command'
      )
    always = [name for name in get_type_hints(Summary) if name != 'metrics']
    numbers = summary or dict.fromkeys(always)
    rows.append({**point, 'workdir': folder, **numbers})
  return rows, lost


def _write_table(rows: Sequence[Row], workdir: pathlib.Path) -> None:
  plain = [{**row, 'workdir': str(row['workdir'].relative_to(workdir))} for row in rows]
  write_atomically(workdir / 'table.json', json.dumps(plain, indent=2) + '\n')
  flat = [_flat(row) for row in plain]
  names = dict.fromkeys(name for row in flat for name in row)
  write_atomically(workdir / 'table.csv', tables.to_csv(names, flat))


def _flat(row: Row) -> Row:
  """A row of numbers, with the loss of each baseline at the query for a comparison."""
  row = dict(row)
  row |= row.pop('metrics', None) or {}
  for name, measured in (row.pop('comparison', None) or {}).items():
    if name != MODEL:
      row[f'{name}_loss'] = measured['mean'][-1]
      row[f'{name}_difference'] = measured['difference']
      row[f'{name}_difference_stderr'] = measured['difference_stderr']
  return row


def _name(point: Point) -> str:
  """A folder name: the fields and values, or their digest if they are unwieldy.

  Points with equal numbers have one name, whether these are written 0 or 0.0.
  """
  return _joined({field: _plain(value) for field, value in point.items()})


def _names_in(workdir: pathlib.Path, points: Sequence[Point]) -> list[str]:
  """The names of the folders of points in a workdir.

  A folder of an earlier version of the library, in whose name each number is as it was
  written, such as `seed=0.0`, is found by this spelling.
  """
  there = names_in(workdir / POINTS)
  names = [_name(point) for point in points]
  return [
    as_written
    if name not in there and (as_written := _joined(point)) in there
    else name
    for name, point in zip(names, points, strict=True)
  ]


def _joined(point: Point) -> str:
  """The fields and values of a point in one word, or its digest."""
  name = ','.join(f'{field}={json.dumps(value)}' for field, value in point.items())
  name = name.replace('"', '')
  if re.fullmatch(r'[\w.,=+-]{1,100}', name):
    return name
  return hashlib.sha256(name.encode()).hexdigest()[:16]


def _plain(value: object) -> object:
  """A value in which each float that is written with .0 at its end is an int."""
  if isinstance(value, list | tuple):
    return [_plain(element) for element in value]
  return int(value) if isinstance(value, float) and f'{value}'[-2:] == '.0' else value
