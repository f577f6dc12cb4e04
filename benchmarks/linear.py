"""The speed of training linear attention beside a simple program and parts of the work.

Five programs are timed:

- `literal` computes the paper's equation on whole tokens. A Python loop calls one
  compiled step at a time, and each array is sampled in its own shape.
- `zoo` is the loop of `launch.main`, with metrics and checkpoints.
- `chunk` is only the compiled steps of that loop.
- `draws` only samples what the steps read. This may be the sufficient statistics of
  prompts.
- `examples` only samples whole prompts.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Key, PyTree
from matplotlib.axes import Axes

import configs
from benchmarks.harness import Contender, Steps, Timing, of_steps, time_in_turns
from zoo.config.building import build_model, build_task, num_heads
from zoo.config.read import read, with_fields
from zoo.config.run import Run
from zoo.core.errors import check_name
from zoo.core.prompt import Prompt
from zoo.core.tables import format_table
from zoo.models import LinearAttention
from zoo.objectives.base import sample
from zoo.reports.plots import Panel, plot_panels, series
from zoo.reports.style import BLUE, VERMILION, Ax
from zoo.sharding import replicate
from zoo.tasks import LinearRegression
from zoo.training.records import read_lines
from zoo.training.run import train
from zoo.training.sweeps import at_point, grid, sweep

# By case: the config of the model, the fields that are changed, and the programs that
# are timed. With 64 heads a step of `literal` would take a second.
_ALL = 'literal', 'zoo', 'chunk', 'draws', 'examples'
_CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
  'lsa': ('lsa', {}, _ALL),
  'yq_lsa': ('yq_lsa', {}, _ALL),
  'ltb': ('ltb', {}, _ALL),
  'multi_head_lsa': ('multi_head_lsa', {'model.num_heads': 11}, _ALL),
  'heads': ('multi_head_lsa', {'model.num_heads': 64}, ('zoo', 'chunk')),
  'context': ('yq_lsa', {'task.context_length': 10_000}, ('zoo', 'chunk')),
}
# This case is a sweep over 32 prior means, beside one of its points trained alone.
_SWEEP = 'sweep'
NAMES = *_CASES, _SWEEP
_NUM_STEPS = 1000  # A run of `zoo` has at most so many steps.
# Pairs of cases that should cost almost the same.
_COMPARED = (
  (('multi_head_lsa', 11, 10), ('multi_head_lsa', 64, 10)),
  (('yq_lsa', 1, 10), ('yq_lsa', 1, 10_000)),
)
_SCALED = {
  'batch size B': ('train.batch_size', (256, 512, 1024, 2048, 4096)),
  'context length C': ('task.context_length', (5, 10, 15, 100, 10_000)),
  'features d': ('task.num_features', (5, 10, 20, 40)),
  'heads H': ('model.num_heads', (1, 4, 16, 64, 256)),
}


class Case(NamedTuple):
  """What is trained: a model, its number of heads and the number of examples."""

  model: str
  heads: int
  context_length: int

  def __str__(self) -> str:
    return f'{self.model}, H = {self.heads}, C = {self.context_length}'


# The programs by case and name, with their timings.
Results = Mapping[tuple[Case, str], Contender]


def config_of(name: str, variant: str, fields: Mapping[str, Any]) -> Run:
  """Returns the config of a model with some fields changed."""
  return with_fields(read(configs.get_config(name, variant)), fields)


def measure(
  names: Sequence[str], variant: str, repeats: int, seconds: float
) -> dict[str, Any]:
  """Measures the speeds of cases and their ratios, and the times of a sweep.

  Args:
    names: Cases, some of NAMES.
    variant: Variant of the configs.
    repeats: Number of timings of each program.
    seconds: Duration of a timing; one of `zoo` takes a whole run.

  Returns:
    The results, which can be written as JSON.

  Raises:
    UserError: If a name is not one of NAMES.
  """
  entries = []
  for name in names:
    if check_name('--cases:', name, NAMES) == _SWEEP:
      continue
    model, fields, contenders = _CASES[name]
    config = config_of(model, variant, fields)
    steps = min(config.train.num_steps, _NUM_STEPS)
    config = with_fields(config, {'train.num_steps': steps})
    entries.append((config, contenders))
  results = compare(entries, repeats, seconds)
  measured: dict[str, Any] = {
    'rows': [
      {
        **case._asdict(),
        'contender': name,
        'steps_per_second': contender.rates,
        'cpu_ms_per_step': contender.cpu_ms_per_step,
      }
      for (case, name), contender in results.items()
    ],
    'ratios': ratios(results),
  }
  if _SWEEP in names:
    eleven = config_of('multi_head_lsa', variant, {'model.num_heads': 11})
    measured['sweep'] = time_sweep(eleven, num_points=32)
  return measured


def compare(
  entries: Sequence[tuple[Run, Sequence[str]]], repeats: int, seconds: float
) -> Results:
  """Times the programs of each config in turns.

  Args:
    entries: Configs, each with the names of the programs to time.
    repeats: Number of timings of each program.
    seconds: Duration of a timing; one of `zoo` takes a whole run.

  Returns:
    The programs by case and name, with their timings.

  Raises:
    UserError: If a config is invalid.
  """
  results = {}
  for config, names in entries:
    length = build_task(config).context_length
    case = Case(config.model.name, num_heads(config), length)
    contest = Contest(config)
    results |= {
      (case, name): contest.contender(name, f'{case}, {name}') for name in names
    }
  time_in_turns([*results.values()], repeats, seconds)
  return results


class Contest:
  """The programs of one config, compiled and ready to be timed again and again."""

  def __init__(self, config: Run):
    self.steps = Steps(config)
    self._config = config
    self._literal, self._literal_state = literal_step(config)
    self._draws = jax.jit(functools.partial(self._draw, self.steps.uses_statistics))
    self._examples = jax.jit(functools.partial(self._draw, False))

  def contender(self, name: str, label: str) -> Contender:
    """Returns the program of that name, to be timed."""
    if name == 'zoo':
      return Contender(label, lambda seconds: self._time_zoo())
    return of_steps(label, functools.partial(self.run, name))

  def run(self, name: str, steps: int) -> PyTree:
    """Runs steps of a program, waits for them to finish, and returns their result."""
    if name == 'chunk':
      return self.steps.run(steps)
    with self.steps.computing():
      if name == 'literal':
        result, key = self._literal_state, jax.random.key(0)
        for step in range(steps):
          result = self._literal(result, jax.random.fold_in(key, step))
      else:
        draw = self._draws if name == 'draws' else self._examples
        result = draw(self.steps.key, replicate(np.int32(steps), self.steps.mesh))
      return jax.block_until_ready(result)

  def _time_zoo(self) -> Timing:
    """Measures the speed of a whole run after compilation, up to the last log line."""
    with (
      tempfile.TemporaryDirectory() as folder,
      contextlib.redirect_stderr(io.StringIO()),  # This hides the progress bar.
    ):
      summary = train(self._config, pathlib.Path(folder) / 'run')
      lines = read_lines(pathlib.Path(folder) / 'run')
    if summary is None:
      raise KeyboardInterrupt
    cpu = summary['cpu_ms_per_step']
    assert cpu is not None  # It is None only for a run without steps.
    # The speed in the summary would be that of the steps alone.
    return Timing(summary['step'] / lines[-1]['wall_time'], cpu)

  def _draw(self, statistics: bool, key: jax.Array, steps: jax.Array) -> Any:
    batch_size = self._config.train.batch_size

    def drawn(step: jax.Array | int) -> Any:
      stream = jax.random.fold_in(key, step)
      return sample(self.steps.task, stream, batch_size, statistics)

    # The loop carries the whole sample, since XLA skips values that are not used.
    nothing = jax.tree.map(
      lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(drawn, 0)
    )
    return jax.lax.fori_loop(0, steps, lambda step, _: drawn(step), nothing)


def literal_step(
  config: Run,
) -> tuple[Callable[[PyTree, Key[Array, '']], PyTree], PyTree]:
  """Returns `step` and `state` of the program `literal`: state = step(state, key)."""
  task = build_task(config)
  assert isinstance(task, LinearRegression)
  model = nnx.jit(lambda: build_model(config, task, nnx.Rngs(0)))()
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


def ratios(results: Results) -> dict[str, float]:
  """Returns the ratios of median speeds that the benchmark reports."""
  speed = {of: contender.rates['median'] for of, contender in results.items()}
  by_name = {}
  for case in dict.fromkeys(case for case, _ in speed):
    zoo = speed[case, 'zoo']
    if (case, 'literal') in speed:
      by_name[f'{case}: speed over literal'] = zoo / speed[case, 'literal']
    for floor in ('draws', 'examples', 'chunk'):
      if (case, floor) in speed:
        by_name[f'{case}: step time over {floor}'] = speed[case, floor] / zoo
  for few, many in ((Case(*case), Case(*other)) for case, other in _COMPARED):
    if (few, 'zoo') in speed and (many, 'zoo') in speed:
      ratio = speed[few, 'zoo'] / speed[many, 'zoo']
      by_name[f'step time of {many} over that of {few}'] = ratio
  return by_name


def time_sweep(config: Run, num_points: int) -> dict[str, Any]:
  """Measures the seconds of a sweep over prior means, and of one point trained alone.

  The seconds include compilation, records, evaluation and checkpoints, but not imports.
  """
  points: list[Any] = grid({'task.prior_mean': np.linspace(0, 4, num_points).tolist()})
  seconds = {}
  with (
    tempfile.TemporaryDirectory() as folder,
    contextlib.redirect_stderr(io.StringIO()),  # This hides the progress bars.
  ):
    for objective in ('sampled', 'exact'):
      config = with_fields(config, {'objective.name': objective})
      start = time.perf_counter()
      train(at_point(config, points[-1]), pathlib.Path(folder, f'{objective} alone'))
      seconds[f'{objective}_alone'] = time.perf_counter() - start
      start = time.perf_counter()
      sweep(config, points, pathlib.Path(folder, objective))
      seconds[f'{objective}_sweep'] = time.perf_counter() - start
  ratio = seconds['sampled_sweep'] / (num_points * seconds['sampled_alone'])
  return {'num_points': num_points, 'seconds': seconds, 'sweep_over_alone': ratio}


def table(results: dict[str, Any]) -> str:
  """Returns the results of the benchmark as tables for a terminal."""
  tables = []
  if results['rows']:
    speeds = []
    for row in results['rows']:
      case = Case(row['model'], row['heads'], row['context_length'])
      rates = row['steps_per_second']
      speed = [f'{rates[name]:.1f}' for name in ('min', 'median', 'max')]
      cpu = f'{row["cpu_ms_per_step"]:.2f}'
      speeds.append([f'{case}: {row["contender"]}', *speed, cpu])
    ratios = [[name, f'{ratio:.2f}'] for name, ratio in results['ratios'].items()]
    header = 'steps/s', 'min', 'median', 'max', 'CPU-ms/step'
    tables = [format_table(speeds, header), format_table(ratios)]
  if 'sweep' in results:
    tables.append(_sweep_table(results['sweep']))
  return '\n\n'.join(tables)


def _sweep_table(sweep: dict[str, Any]) -> str:
  seconds = {name: f'{value:.1f}' for name, value in sweep['seconds'].items()}
  rows = [
    ['sampled', seconds['sampled_sweep'], seconds['sampled_alone']],
    ['exact', seconds['exact_sweep'], seconds['exact_alone']],
  ]
  header = 's', f'sweep of {sweep["num_points"]} points', 'one point'
  return (
    f'{format_table(rows, header)}\n\n'
    f'time of the sampled sweep over that of its points one by one: '
    f'{sweep["sweep_over_alone"]:.2f}'
  )


def scale(
  variant: str, repeats: int, seconds: float, num_sizes: int | None
) -> dict[str, Any]:
  """Measures the time of a compiled step while one size at a time is varied.

  Args:
    variant: Variant of the config.
    repeats: Number of timings of each size.
    seconds: Duration of a timing.
    num_sizes: How many sizes are tried, the smallest first. None tries all.

  Returns:
    By varied quantity: the sizes, the milliseconds of a step, and the exponent of the
    fitted power.
  """
  scaling = {}
  for label, (field, sizes) in _SCALED.items():
    sizes = sizes[:num_sizes]
    entries = [
      (config_of('multi_head_lsa', variant, {'model.num_heads': 11, field: size}), size)
      for size in sizes
    ]
    contenders = [
      of_steps(f'{label}, {size}', Steps(config).run) for config, size in entries
    ]
    time_in_turns(contenders, repeats, seconds)
    times = [1e3 / contender.rates['median'] for contender in contenders]
    exponent = growth(sizes, times)
    scaling[label] = {'sizes': list(sizes), 'ms_per_step': times, 'exponent': exponent}
  return scaling


def growth(sizes: Sequence[float], step_times: Sequence[float]) -> float:
  """Returns p of `time ∝ size^p`, fitted to the logarithms by least squares."""
  return float(np.polyfit(np.log(sizes), np.log(step_times), 1)[0])


def plot_scaling(scaling: dict[str, Any], *, ax: Ax = None) -> list[Axes]:
  """Draws the step time against each size, on logarithmic axes, with the fitted power.

  Args:
    scaling: What `scale` has returned.
    ax: Axes for each varied quantity; by default those of a new figure.

  Returns:
    The axes.
  """
  panels = []
  for label, measured in scaling.items():
    sizes, times = np.array(measured['sizes']), np.array(measured['ms_per_step'])
    offset = np.mean(np.log(times) - measured['exponent'] * np.log(sizes))
    fit = np.exp(offset) * sizes ** measured['exponent']
    shown = (
      series('measured', 'dots', BLUE, sizes, times),
      series('fitted power', 'dashed', VERMILION, sizes, fit),
    )
    title, axis = f'power {measured["exponent"]:.2f}', f'{label} (log scale)'
    time_axis = 'time of a training step (ms, log scale)'
    panels.append(Panel(title, axis, time_axis, shown, 'log', 'log'))
  return plot_panels(panels, 2, 2.6, sharey=True, ax=ax)
