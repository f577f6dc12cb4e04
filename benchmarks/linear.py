"""The speed of training, compared with a first naive program and with lower bounds.

All contenders are timed in one process and in turns, so that their ratios hold although
the machine's speed drifts. `literal` is the paper's equation on whole tokens, one
compiled step at a time from a Python loop, with each array sampled in its own shape;
`zoo` is the loop exactly as `launch.main` runs it, metrics and checkpoints included;
`chunk` is its compiled steps alone; `draws` only samples what the steps read, which may
be the statistics of prompts; `examples` only samples whole prompts.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Key, PyTree
from matplotlib.ticker import NullLocator
from tqdm import tqdm

from zoo.config.mesh import make_mesh, replicate
from zoo.config.validation import Config, build_model, build_task, num_heads, validate
from zoo.core.prompt import Prompt
from zoo.core.tables import format_table
from zoo.models import LinearAttention
from zoo.reports.style import (
  BLUE,
  VERMILION,
  Figure,
  in_style,
  label_log_axis,
  legend_above,
)
from zoo.tasks import LinearRegression
from zoo.training.objective import sample
from zoo.training.step import TRAIN_STREAM, init_state, stream_key
from zoo.training.sweeps import at_point, grid, sweep
from zoo.training.trainer import make_plan, train

# The programs that are timed, as the top of this module describes them.
CONTENDERS = ('literal', 'zoo', 'chunk', 'draws', 'examples')


class Timing(NamedTuple):
  """The speed of one run of a contender."""

  steps_per_second: float
  cpu_ms_per_step: float  # of all threads of the process


@runtime_checkable
class Timer(Protocol):
  """An object that times contenders by name."""

  def time(self, contender: str, seconds: float) -> Timing:
    """Runs a contender for about `seconds` and returns its speed."""
    ...


@runtime_checkable
class TimedRow(Protocol):
  """All runs of one contender."""

  @property
  def label(self) -> str:
    """The row's name in a table."""
    ...

  @property
  def contender(self) -> str:
    """The name of the contender."""
    ...

  @property
  def timings(self) -> list[Timing]:
    """The speeds of its runs."""
    ...


class Row(NamedTuple):
  """All runs of one contender for one config."""

  model: str
  heads: int
  context_length: int
  contender: str
  timings: list[Timing]

  @property
  def label(self) -> str:
    """The row's name in a table."""
    return f'{self.model}, {self.heads} heads, {self.contender}'

  def summary(self) -> dict[str, Any]:
    """The row as JSON: minimum, median and maximum over the runs."""
    rates = [timing.steps_per_second for timing in self.timings]
    cpu = [timing.cpu_ms_per_step for timing in self.timings]
    return {
      'model': self.model,
      'heads': self.heads,
      'context_length': self.context_length,
      'contender': self.contender,
      'steps_per_second': {
        'min': min(rates),
        'median': statistics.median(rates),
        'max': max(rates),
      },
      'cpu_ms_per_step': statistics.median(cpu),
    }


def literal_step(
  config: Config,
) -> tuple[Callable[[PyTree, Key[Array, '']], PyTree], PyTree]:
  """`(step, state)` of the plain program, with `state = step(state, key)`."""
  task = build_task(config)
  assert isinstance(task, LinearRegression)
  model = nnx.jit(lambda: build_model(config, nnx.Rngs(0)))()
  graph, weights, rest = nnx.split(model, nnx.Param, ...)
  optimizer = optax.adam(5e-4)
  d, c, b = task.num_features, task.context_length, config.train.batch_size

  def loss(weights: Any, key: jax.Array) -> jax.Array:
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (b, c, d))
    x_query = jax.random.normal(keys[1], (b, d))
    deviation = jax.random.normal(keys[2], (b, d))
    w = jnp.asarray(task.prior_mean, x.dtype)[None] + deviation
    y = jnp.einsum('bcd,bd->bc', x, w)
    target = jnp.einsum('bd,bd->b', x_query, w)
    model = nnx.merge(graph, weights, rest)
    assert isinstance(model, LinearAttention)
    tokens = model.embed(Prompt(x=x, y=y, x_query=x_query, y_query=target))
    prediction = model.forward_tokens(tokens)[:, -1, -1]
    return jnp.mean(jnp.square(prediction - target))

  @jax.jit
  def step(state: Any, key: jax.Array) -> Any:
    weights, moments = state
    grads = jax.grad(loss)(weights, key)
    updates, moments = optimizer.update(grads, moments)
    return optax.apply_updates(weights, updates), moments

  return step, (weights, optimizer.init(weights))


def time_steps(run: Callable[[int], object], seconds: float) -> Timing:
  """The speed of `run`, which runs a number of steps, over about `seconds`."""
  # The first call compiles and warms caches; the second gives the number of steps.
  run(2)
  start = time.perf_counter()
  run(2)
  steps = max(2, round(2 * seconds / (time.perf_counter() - start)))
  start, cpu_start = time.perf_counter(), time.process_time()
  run(steps)
  wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
  return Timing(steps / wall, 1e3 * cpu / steps)


class Contest:
  """The contenders for one config, compiled and ready to be timed again and again."""

  def __init__(self, config: Config):
    validate(config)
    self._config = config
    self._task = build_task(config)
    self.model = config.model.name
    self.heads = num_heads(config)
    self._mesh = make_mesh(config)
    self._key = replicate(stream_key(config, TRAIN_STREAM), self._mesh)
    self._literal, self._literal_state = literal_step(config)
    with jax.set_mesh(self._mesh):
      plan = make_plan([config], self._mesh)
      self._state = init_state(config, plan.layout)
      self._steps = plan.train_steps
      self._numbers = replicate(plan.numbers, self._mesh)
      self._draws = jax.jit(functools.partial(self._draw, plan.statistics))
      self._examples = jax.jit(functools.partial(self._draw, False))

  def time(self, contender: str, seconds: float) -> Timing:
    """Runs a contender for about `seconds` and returns its speed."""
    if contender == 'zoo':
      return self._time_zoo()
    return time_steps(functools.partial(self.run, contender), seconds)

  def run(self, contender: str, steps: int) -> PyTree:
    """Runs steps of a contender other than `zoo`, and waits for them to finish.

    Returns the training state or the last sample. `chunk` continues from the state of
    its last call, whose arrays it donates.
    """
    precision = self._config.train.matmul_precision
    with jax.set_mesh(self._mesh), jax.default_matmul_precision(precision):
      match contender:
        case 'literal':
          result, key = self._literal_state, jax.random.key(0)
          for step in range(steps):
            result = self._literal(result, jax.random.fold_in(key, step))
        case 'chunk':
          limits = (replicate(np.int32(step), self._mesh) for step in (0, steps))
          self._state, _ = self._steps(self._state, self._key, *limits, self._numbers)
          result = self._state
        case 'draws':
          result = self._draws(self._key, replicate(np.int32(steps), self._mesh))
        case _:
          result = self._examples(self._key, replicate(np.int32(steps), self._mesh))
      return jax.block_until_ready(result)

  def _time_zoo(self) -> Timing:
    """The speed that a whole run reports in its summary."""
    with (
      tempfile.TemporaryDirectory() as folder,
      contextlib.redirect_stderr(io.StringIO()),  # its progress bar
    ):
      summary = train(self._config, pathlib.Path(folder) / 'run')
    if summary is None:
      raise KeyboardInterrupt
    wall, cpu = summary['steps_per_second'], summary['cpu_ms_per_step']
    assert wall is not None  # it took steps
    assert cpu is not None
    return Timing(wall, cpu)

  def _draw(self, statistics: bool, key: jax.Array, steps: jax.Array) -> Any:
    batch_size = self._config.train.batch_size

    def drawn(step: jax.Array | int) -> Any:
      stream = jax.random.fold_in(key, step)
      return sample(self._task, stream, batch_size, statistics)

    # The loop carries the whole sample, since XLA does not compute unused values.
    nothing = jax.tree.map(
      lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(drawn, 0)
    )
    return jax.lax.fori_loop(0, steps, lambda step, _: drawn(step), nothing)


def compare(
  entries: Sequence[tuple[Config, Sequence[str]]], repeats: int, seconds: float
) -> list[Row]:
  """Times the contenders of each config `repeats` times, in turns.

  A timing takes about `seconds`, but that of `zoo` a whole run. Shows a progress bar.
  Raises UserError for an invalid config.
  """
  pairs = []
  for config, contenders in entries:
    contest = Contest(config)
    of = contest.model, contest.heads, config.task.context_length
    pairs += [(contest, Row(*of, contender, [])) for contender in contenders]
  time_in_turns(pairs, repeats, seconds)
  return [row for _, row in pairs]


def time_in_turns(
  pairs: Sequence[tuple[Timer, TimedRow]], repeats: int, seconds: float
) -> None:
  """Adds `repeats` timings by its timer to each row, in turns.

  Shows a progress bar.
  """
  with tqdm(total=repeats * len(pairs), unit='timing') as bar:
    for _ in range(repeats):
      for contest, row in pairs:
        bar.set_description(row.label)
        row.timings.append(contest.time(row.contender, seconds))
        bar.update()


def growth(sizes: Sequence[float], step_times: Sequence[float]) -> float:
  """The exponent p of the least-squares fit `time ∝ size^p`, on logarithms."""
  return float(np.polyfit(np.log(sizes), np.log(step_times), 1)[0])


def ratios(rows: Sequence[Row]) -> dict[str, float]:
  """The ratios that the benchmark reports, from the median speeds of the rows."""
  speed = {row[:-1]: row.summary()['steps_per_second']['median'] for row in rows}
  found = {}
  for case in dict.fromkeys(row[:3] for row in rows):
    name, zoo = _case(*case), speed[*case, 'zoo']
    if (*case, 'literal') in speed:
      found[f'{name}: speed over literal'] = zoo / speed[*case, 'literal']
    for floor in ('draws', 'examples', 'chunk'):
      if (*case, floor) in speed:
        found[f'{name}: step time over {floor}'] = speed[*case, floor] / zoo
  for few, many in _COMPARED:
    if (*few, 'zoo') in speed and (*many, 'zoo') in speed:
      ratio = speed[*few, 'zoo'] / speed[*many, 'zoo']
      found[f'step time of {_case(*many)} over that of {_case(*few)}'] = ratio
  return found


# Pairs of cases whose cost should be almost the same.
_COMPARED = (
  (('multi_head_lsa', 11, 10), ('multi_head_lsa', 64, 10)),
  (('yq_lsa', 1, 10), ('yq_lsa', 1, 10_000)),
)


def _case(model: str, heads: int, context_length: int) -> str:
  return f'{model}, H = {heads}, C = {context_length}'


def time_sweep(config: Config, num_points: int) -> dict[str, Any]:
  """Seconds for a sweep over prior means, and for one of its points trained alone.

  They include compilation, records, evaluation and checkpoints, but not imports.
  """
  points: list[Any] = grid({'task.prior_mean': np.linspace(0, 4, num_points).tolist()})
  seconds = {}
  with (
    tempfile.TemporaryDirectory() as folder,
    contextlib.redirect_stderr(io.StringIO()),  # the progress bars
  ):
    for objective in ('sampled', 'exact'):
      config = copy.deepcopy(config)
      config.objective.name = objective
      start = time.perf_counter()
      train(at_point(config, points[-1]), pathlib.Path(folder, f'{objective} alone'))
      seconds[f'{objective}_alone'] = time.perf_counter() - start
      start = time.perf_counter()
      sweep(config, points, pathlib.Path(folder, objective))
      seconds[f'{objective}_sweep'] = time.perf_counter() - start
  ratio = seconds['sampled_sweep'] / (num_points * seconds['sampled_alone'])
  return {'num_points': num_points, 'seconds': seconds, 'sweep_over_alone': ratio}


def table(found: dict[str, Any]) -> str:
  """The results of the benchmark as tables for a terminal."""
  speeds = []
  for row in found['rows']:
    case = _case(row['model'], row['heads'], row['context_length'])
    speed = [
      f'{row["steps_per_second"][name]:.1f}' for name in ('min', 'median', 'max')
    ]
    cpu = f'{row["cpu_ms_per_step"]:.2f}'
    speeds.append([f'{case}: {row["contender"]}', *speed, cpu])
  many = found['sweep']
  seconds = {name: f'{value:.1f}' for name, value in many['seconds'].items()}
  sweeps = [
    ['sampled', seconds['sampled_sweep'], seconds['sampled_alone']],
    ['exact', seconds['exact_sweep'], seconds['exact_alone']],
  ]
  return '\n\n'.join(
    [
      format_table(speeds, ('steps/s', 'min', 'median', 'max', 'CPU-ms/step')),
      format_table([[name, f'{r:.2f}'] for name, r in found['ratios'].items()]),
      format_table(sweeps, ('s', f'sweep of {many["num_points"]} points', 'one point')),
      f'time of the sampled sweep over that of its points one by one: '
      f'{many["sweep_over_alone"]:.2f}',
    ]
  )


def scale(
  cases: dict[str, list[tuple[int, Config]]], repeats: int, seconds: float
) -> dict[str, Any]:
  """The time of a compiled step by size, for each quantity that is varied."""
  found = {}
  for label, sized_configs in cases.items():
    entries = [(config, ('chunk',)) for _, config in sized_configs]
    rows = compare(entries, repeats, seconds)
    sizes = [size for size, _ in sized_configs]
    speeds = [row.summary()['steps_per_second']['median'] for row in rows]
    times = [1e3 / speed for speed in speeds]
    exponent = growth(sizes, times)
    found[label] = {'sizes': sizes, 'ms_per_step': times, 'exponent': exponent}
  return found


@in_style()
def plot_scaling(scaling: dict[str, Any]) -> Figure:
  """Step time against each size, on logarithmic axes, with the fitted power."""
  figure = Figure(6.0)
  for axes, (label, found) in zip(
    figure.subplots(2, 2, sharey=True).flat, scaling.items(), strict=True
  ):
    sizes, times = np.array(found['sizes']), np.array(found['ms_per_step'])
    offset = np.mean(np.log(times) - found['exponent'] * np.log(sizes))
    fit = np.exp(offset) * sizes ** found['exponent']
    axes.loglog(sizes, times, 'o', color=BLUE, label='measured')
    axes.loglog(sizes, fit, '--', color=VERMILION, label='fitted power')
    axes.set_title(f'power {found["exponent"]:.2f}')
    axes.set_xlabel(f'{label} (log scale)')
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
  label_log_axis(figure.axes[0].yaxis)  # which all of them share
  figure.supylabel('time of a training step (ms, log scale)')
  legend_above(figure)
  return figure
