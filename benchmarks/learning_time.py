"""Measures the minutes until an architecture is near Bayes on linear regression.

  python -m benchmarks.learning_time --out=runs/learning_time            # seven hours
  python -m benchmarks.learning_time --models=softmax,lstm --seeds=0 --limit=1
  python -m benchmarks.learning_time --search --out=runs/learning_rates  # an hour

The models are those of the atlas, with 25,000 weights; `deep_lsa` has 128. They are
trained with Adam in the batches of the atlas, and predict with the moving average of
their weights. The schedule of the learning rate does not depend on the length of the
run: after t steps the rate is r / √(1 + t/T), where T is the number of steps for which
the atlas trained the model on its task `noisy`. The task is linear regression with d
features, 2 d examples, weights from N(0, I) and noise of standard deviation 1/2.

The command with --search finds r for each model and d, with a seed of its own. It tries
the rate that the atlas found, four times it and a quarter of it for 1.2 minutes each,
and further factors of 4 while the best rate is at an edge. It writes
learning_rates.csv. The command without --search reads this file in docs/results.

The distance from Bayes is the mean of (prediction − Bayes prediction)², divided by the
Bayes risk. It is measured whenever the minutes have grown by 5 %. Minutes are those of
processor time, of all threads, from the call that trains: with checks, compiling,
training and measuring. A model is stopped when it is within 1 %, or at the limit.

On one core of an idle machine, minutes of processor time are those of a clock. Two
processes measure at the same time on two cores:

  taskset -c 0 python -m benchmarks.learning_time --out=runs/learning_time --part=1/2 &
  taskset -c 1 python -m benchmarks.learning_time --out=runs/learning_time --part=2/2

Finished cells are kept in rows.jsonl; a cell that was interrupted begins again. After
all parts the command without --part writes the curves, as learning_time.csv, their
picture and the tables. It computes cells that are missing, so it needs taskset, too.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import flags
from flax import nnx
from jaxtyping import Array, Float

import zoo
from benchmarks.learning_curves import (
  PANELS,
  SHARES,
  Point,
  picture,
  points_from,
  tables,
  to_csv,
)
from configs import atlas
from launch import cli
from studies.atlas.results import AtlasRow, from_csv
from studies.cell_table import CellTable, fill
from zoo import theory
from zoo.config.building import build_task
from zoo.config.read import read
from zoo.core.errors import UserError, check_name, check_number
from zoo.core.protocols import Predictor, Task
from zoo.host.files import write_atomically
from zoo.reports import plots
from zoo.storage.rows import Row
from zoo.training.run import NotFiniteError

MODELS = tuple(itertools.chain(*PANELS.values()))
_NUM_PROMPTS = 8192
_LOG_EVERY = 200  # This is a number of steps.
_GROWTH = 1.05  # The distance is measured when the minutes have grown by this factor.
_MEASURED = _NUM_PROMPTS, _LOG_EVERY, _GROWTH, *SHARES  # A row depends on these.
_FACTOR = 4.0  # The search tries rates that differ by this factor.
_SEARCH_SEED = 1_000_000
_SEARCH_LIMIT = 1.2  # These are minutes.
_RESULTS = pathlib.Path(__file__).parents[1] / 'docs' / 'results'

flags.adopt_module_key_flags(cli)
_MODELS = flags.DEFINE_list('models', None, 'Models of the atlas. Default: all 14.')
_FEATURES = flags.DEFINE_list('features', ['3'], 'Numbers of features, d.')
_SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'], 'Seeds of the training.')
_LIMIT = flags.DEFINE_float('limit', 10.0, 'Minutes after which a model is stopped.')
_SEARCH = flags.DEFINE_bool(
  'search', False, 'Tries learning rates in place of the cells of the table.'
)
_PART = cli.define_part('cells')
_AGAIN = cli.define_again()
_OUT = flags.DEFINE(
  cli.Workdir(), 'out', 'runs/learning_time', 'Folder for the rows and the tables.'
)


# Minutes, steps, and the distance from Bayes then, which is None after a divergence.
Measured = tuple[float, int, float | None]


def main() -> None:
  # Otherwise a program would be compiled for the first seed, and read for the others.
  jax.config.update('jax_enable_compilation_cache', False)
  for name in _MODELS.value or ():
    check_name('name in --models:', name, MODELS)
  if not all(text.isdecimal() and int(text) for text in _FEATURES.value):
    raise UserError(f'--features is {_FEATURES.value}; it must be numbers ≥ 1')
  if not all(text.isdecimal() for text in _SEEDS.value):
    raise UserError(f'--seeds is {_SEEDS.value}; it must be numbers ≥ 0')
  limit = check_number('--limit', _LIMIT.value, above=0.0)
  for flag in (_SEEDS, _LIMIT):
    if _SEARCH.value and flag.present:
      raise UserError(f'--{flag.name} has no meaning with --search; leave it out')
  models, features = _MODELS.value or MODELS, [*map(int, _FEATURES.value)]
  if _SEARCH.value:
    table = CellTable(search_cells(models, features), search, draw_search)
    where = f'the rates are in {_OUT.value}/learning_rates.csv'
  else:
    cells = cells_of(models, features, [*map(int, _SEEDS.value)], limit)
    table = CellTable(cells, compute, draw)
    where = f'the curves are in {_OUT.value}/learning_time.csv'
  rows = fill(table, _OUT.value, _PART.value, again=_AGAIN.value)
  text = _search_text if _SEARCH.value else _text
  cli.print_results(rows, text, where, _OUT.value, _PART.value)


def search_cells(
  models: Sequence[str], features: Sequence[int]
) -> dict[str, dict[str, Any]]:
  """Returns the cells of the search by name."""
  rows = rows_of_atlas()
  return {
    f'd={d}/{model}': {
      **_cell(rows[model], d, _SEARCH_SEED, rows[model].rate, _SEARCH_LIMIT),
      'factor': _FACTOR,
    }
    for d in features
    for model in models
  }


def cells_of(
  models: Sequence[str], features: Sequence[int], seeds: Sequence[int], limit: float
) -> dict[str, dict[str, Any]]:
  """Returns the cells by name: first all models with one seed, then with the next."""
  rows, rates = rows_of_atlas(), best_rates()
  for d in features:
    for model in models:
      if (d, model) not in rates:
        raise UserError(
          f'docs/results/learning_rates.csv has no learning rate for {model} with d = '
          f'{d}; --search finds it'
        )
  return {
    f'd={d}/{model}/seed={seed}': _cell(rows[model], d, seed, rates[d, model], limit)
    for seed in seeds
    for d in features
    for model in models
  }


def _cell(
  row: AtlasRow, num_features: int, seed: int, rate: float, limit: float
) -> dict[str, Any]:
  """Returns what `compute` needs to train the model of a row of the atlas."""
  return {
    'model': row.model,
    'num_features': num_features,
    'seed': seed,
    'rate': rate,
    'rate_steps': row.steps,
    'limit': limit,
    'measured': _MEASURED,
  }


def best_rates() -> dict[tuple[int, str], float]:
  """Returns the rate that the search found, by number of features and model."""
  tried: dict[tuple[int, str], list[Point]] = {}
  for point in points_from((_RESULTS / 'learning_rates.csv').read_text()):
    tried.setdefault((point.features, point.model), []).append(point)
  return {
    cell: min(points, key=lambda point: point.distance).rate
    for cell, points in tried.items()
  }


def rows_of_atlas() -> dict[str, AtlasRow]:
  """Returns the row of the atlas of each model on `noisy`, at the largest budget."""
  path = _RESULTS / 'atlas.csv'
  rows = from_csv(path.read_text(), str(path))
  trained = [row for row in rows if row.task == 'noisy' and math.isfinite(row.rate)]
  return {row.model: row for row in sorted(trained, key=lambda row: row.budget)}


def config_of(cell: Mapping[str, Any]) -> Any:
  """Returns the config of a cell, and registers the optimizer that it names.

  The run goes on until `compute` stops it.
  """
  steps = cell['rate_steps']
  optimizer = f'adam_that_slows_after_{steps}_steps'

  # Unlike Adam of the library it does not compute on flat arrays. For ten of these
  # models this changed the steps per second by 3 % at most.
  @zoo.register_optimizer(optimizer)
  def make(rate: optax.Schedule) -> optax.GradientTransformation:
    return optax.adam(lambda step: rate(step) / jnp.sqrt(1 + step / steps))

  config = atlas.get_config(cell['model'], 'noisy')
  config.task.num_features = cell['num_features']
  config.task.context_length = 2 * cell['num_features']
  config.seed = cell['seed']
  config.optimizer.name = optimizer
  config.optimizer.learning_rate = cell['rate']
  config.optimizer.schedule = 'constant'
  config.optimizer.ema_decay = 0.999
  config.train.num_steps = 10**9
  config.train.log_every = config.eval.every = _LOG_EVERY
  config.checkpoint.every = config.train.num_steps
  return config


def compute(cell: Mapping[str, Any], folder: pathlib.Path) -> dict[str, Any] | None:
  """Trains a model until it is near Bayes, or until the limit; None after SIGTERM."""
  # Nothing that an earlier cell has compiled is used again.
  jax.clear_caches()
  start = time.process_time()
  config = config_of(cell)
  # A run that was interrupted begins again.
  shutil.rmtree(folder / 'run', ignore_errors=True)
  distance = _Distance(build_task(read(config)))
  curve: list[Measured] = []
  step = 0

  def minutes_now() -> float:
    return (time.process_time() - start) / 60

  try:
    for event in zoo.training_run(config, folder / 'run'):
      minutes, step = minutes_now(), event.step
      if curve and minutes < min(_GROWTH * curve[-1][0], cell['limit']):
        continue
      excess = distance(event.model)
      curve.append((minutes, step, excess))
      if minutes >= cell['limit'] or excess <= min(SHARES):
        break
    else:
      return None
  except NotFiniteError:
    curve.append((minutes_now(), step, None))
  shutil.rmtree(folder / 'run')
  return {**cell, 'curve': curve}


def search(cell: Mapping[str, Any], folder: pathlib.Path) -> dict[str, Any] | None:
  """Tries learning rates until the best one is between two others."""
  last: dict[float, Measured] = {}
  rates = {cell['rate']}
  while rates:
    for rate in sorted(rates):
      row = compute({**cell, 'rate': rate}, folder)
      if row is None:
        return None
      last[rate] = row['curve'][-1]
    best = min(last, key=lambda rate: _or_infinite(last[rate]))
    rates = {best / _FACTOR, best * _FACTOR} - last.keys()
  return {**cell, 'last': sorted(last.items())}


class _Distance:
  """The distance of a model from Bayes, as a share of the Bayes risk."""

  def __init__(self, task: Task):
    self._prompt = task.sample(jax.random.key(1), _NUM_PROMPTS)
    self._bayes = task.baselines()['bayes'](self._prompt)
    lower, upper = theory.bayes_risk(task)
    assert upper - lower < 1e-3 * upper
    self._risk = (lower + upper) / 2

  def __call__(self, model: Predictor) -> float:
    squares = jnp.square(_predict(model, self._prompt) - self._bayes)
    return float(jnp.mean(squares)) / self._risk


@nnx.jit
def _predict(model: Predictor, prompt: zoo.Prompt) -> Float[Array, ' b']:
  return model(prompt)


def draw(rows: Mapping[str, Row], folder: pathlib.Path) -> None:
  """Writes the curves, their picture, and the tables in Markdown."""
  text = to_csv(points_of(rows))
  write_atomically(folder / 'learning_time.csv', text)
  points = points_from(text)  # The picture and the tables have the digits of the file.
  plots.write_plot(picture(points), folder)
  texts = [table.markdown(right=range(1, 6)) for table in tables(points).values()]
  write_atomically(folder / 'learning_time.md', '\n\n'.join(texts) + '\n')


def draw_search(rows: Mapping[str, Row], folder: pathlib.Path) -> None:
  """Writes the last point of each trial of the search."""
  write_atomically(folder / 'learning_rates.csv', _search_text(rows))


def _search_text(rows: Mapping[str, Row]) -> str:
  """Returns the last point of each trial of the search as CSV."""
  return to_csv(
    _point({**row, 'rate': rate}, last)
    for row in rows.values()
    for rate, last in row['last']
  )


def points_of(rows: Mapping[str, Row]) -> list[Point]:
  """Returns the points of all curves from the rows of the cells."""
  return [_point(row, measured) for row in rows.values() for measured in row['curve']]


def _point(row: Row, measured: Measured) -> Point:
  minutes, steps, _ = measured
  cell = row['num_features'], row['model'], row['seed'], row['rate']
  return Point(*cell, minutes, steps, _or_infinite(measured))


def _or_infinite(measured: Measured) -> float:
  *_, distance = measured
  return math.inf if distance is None else distance


def _text(rows: Mapping[str, Row]) -> str:
  """Returns the tables as plain text."""
  return '\n\n'.join(
    f'd = {features}\n\n{table.text()}'
    for features, table in tables(points_of(rows)).items()
  )


if __name__ == '__main__':
  cli.run(main)
