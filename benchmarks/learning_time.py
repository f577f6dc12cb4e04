"""Measures the minutes until an architecture is near Bayes on linear regression.

  python -m benchmarks.learning_time --out=runs/learning_time            # many hours
  python -m benchmarks.learning_time --models=softmax,lstm --features=3 --limit=10

The models are those of the atlas, with 25,000 weights. They are trained with the
optimizer and the batches of the atlas, at a constant learning rate: the best one that
the atlas found for the model on its task `noisy`. They predict with the moving average
of their weights. The task is linear regression with d features, 2 d examples, weights
from N(0, I) and noise of standard deviation 1/2.

The distance from Bayes is the mean of (prediction − Bayes prediction)², divided by the
Bayes risk. It is measured every 200 steps. The minutes are wall-clock time from the
call that trains, with compiling, training and measuring. A model that has not come
within 1 % is stopped at the limit.

Use an idle machine with two cores. Finished cells are kept in rows.jsonl; a cell that
was interrupted begins again. N processes on N machines divide the cells with
--part=I/N.
"""

from __future__ import annotations

import math
import pathlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from jaxtyping import Array, Float

import zoo
from configs import atlas
from launch import cli
from studies.atlas.results import from_csv
from studies.rows import CellTable, fill
from zoo import theory
from zoo.config.building import build_task
from zoo.core.errors import UserError, check_name, check_number
from zoo.core.protocols import Predictor, Task
from zoo.core.tables import format_table
from zoo.host.files import write_atomically
from zoo.reports import Table
from zoo.storage.rows import Row

MODELS = (
  'softmax',
  'relu',
  'linear',
  'gla',
  'mamba2',
  'delta',
  'rwkv7',
  'looped',
  'set',
  'lstm',
  'gru',
  'deep_set',
  'mlp_mixer',
  'deep_lsa',
)
SHARES = 0.1, 0.01  # These are distances from Bayes, as shares of the Bayes risk.
_NUM_PROMPTS = 8192
_MEASURE_EVERY = 200  # This is a number of steps.
_SEEDS = range(3)
_ATLAS = pathlib.Path(__file__).parents[1] / 'docs' / 'results' / 'atlas.csv'

flags.adopt_module_key_flags(cli)
_MODELS = flags.DEFINE_list('models', None, 'Models of the atlas. Default: 14.')
_FEATURES = flags.DEFINE_list('features', ['3', '10'], 'Numbers of features, d.')
_LIMIT = flags.DEFINE_float('limit', 30.0, 'Minutes after which a model is stopped.')
_PART = cli.define_part('cells')
_OUT = flags.DEFINE(
  cli.Workdir(), 'out', 'runs/learning_time', 'Folder for rows.jsonl and the table.'
)


def main() -> None:
  for name in _MODELS.value or ():
    check_name('name in --models:', name, MODELS)
  if not all(text.isdecimal() and int(text) for text in _FEATURES.value):
    raise UserError(f'--features is {_FEATURES.value}; it must be numbers ≥ 1')
  limit = check_number('--limit', _LIMIT.value, above=0.0)
  cells = cells_of(_MODELS.value or MODELS, [*map(int, _FEATURES.value)], limit)
  rows = fill(CellTable(cells, compute, draw), _OUT.value, _PART.value)
  where = f'the rows are in {_OUT.value}'
  cli.print_results(rows, _text, where, _OUT.value, _PART.value)


def cells_of(
  models: Sequence[str], features: Sequence[int], limit: float
) -> dict[str, dict[str, Any]]:
  """Returns the cells by name: first all models with one seed, then with the next."""
  rate_of = rates()
  return {
    f'd={d}/{model}/seed={seed}': {
      'model': model,
      'num_features': d,
      'seed': seed,
      'rate': rate_of[model],
      'limit': limit,
    }
    for d in features
    for seed in _SEEDS
    for model in models
  }


def rates() -> dict[str, float]:
  """Returns the rate of each model at the largest budget of the atlas on `noisy`."""
  rows = from_csv(_ATLAS.read_text(), str(_ATLAS))
  trained = [row for row in rows if row.task == 'noisy' and math.isfinite(row.rate)]
  return {row.model: row.rate for row in sorted(trained, key=lambda row: row.budget)}


def config_of(cell: Mapping[str, Any]) -> Any:
  """Returns the config of a cell, whose run goes on until `compute` stops it."""
  config = atlas.get_config(cell['model'], 'noisy')
  config.task.num_features = cell['num_features']
  config.task.context_length = 2 * cell['num_features']
  config.seed = cell['seed']
  config.optimizer.learning_rate = cell['rate']
  config.optimizer.schedule = 'constant'
  config.optimizer.ema_decay = 0.999
  config.train.num_steps = 10**7
  config.train.log_every = config.eval.every = _MEASURE_EVERY
  config.checkpoint.every = config.train.num_steps
  return config


def compute(cell: Mapping[str, Any], folder: pathlib.Path) -> dict[str, Any] | None:
  """Trains a model until it is near Bayes, or until the limit; None after SIGTERM."""
  start = time.monotonic()
  config = config_of(cell)
  # A run that was interrupted begins again.
  shutil.rmtree(folder / 'run', ignore_errors=True)
  distance = _Distance(build_task(config))
  reached: dict[str, Any] = {}
  row = None
  for event in zoo.training_run(config, folder / 'run'):
    excess = distance(event.model)
    minutes = (time.monotonic() - start) / 60
    for share in SHARES:
      if excess <= share and f'minutes_{share}' not in reached:
        reached |= {f'minutes_{share}': minutes, f'steps_{share}': event.step}
    row = {'excess': excess, 'minutes': minutes, 'steps': event.step, **reached}
    if minutes >= cell['limit'] or len(reached) == 2 * len(SHARES):
      break
  else:
    return None
  shutil.rmtree(folder / 'run')
  return row


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
  """Writes the table."""
  write_atomically(folder / 'learning_time.md', table(rows) + '\n')


def table(rows: Mapping[str, Row]) -> str:
  """Returns the table in Markdown, with the median of the seeds and their range."""
  header, *lines = _lines(rows)
  return Table(lines, header).markdown(right=range(1, len(header)))


def _text(rows: Mapping[str, Row]) -> str:
  header, *lines = _lines(rows)
  return format_table(lines, header)


def _lines(rows: Mapping[str, Row]) -> list[list[str]]:
  """Returns the header, then a line for each model."""
  found: dict[str, dict[int, list[Row]]] = {}
  for name, row in rows.items():
    d, model, _ = name.split('/')
    found.setdefault(model, {}).setdefault(int(d.removeprefix('d=')), []).append(row)
  features = sorted({d for by_features in found.values() for d in by_features})
  columns = [(d, share) for d in features for share in SHARES]
  header = ['model', *(f'd = {d}, {100 * share:g} %' for d, share in columns)]
  lines = [
    [model, *(_minutes(by_features.get(d, ()), share) for d, share in columns)]
    for model, by_features in found.items()
  ]
  return [header, *lines]


def _minutes(rows: Sequence[Row], share: float) -> str:
  """Returns the median over seeds of the minutes to a share, and their range."""
  if not rows:
    return ''
  minutes = [row.get(f'minutes_{share}', math.inf) for row in rows]
  longest = max(row['minutes'] for row in rows)

  def text(value: float) -> str:
    return f'{value:.1f}' if math.isfinite(value) else f'> {longest:.0f}'

  middle, low, high = (text(f(minutes)) for f in (np.median, min, max))
  return middle if low == high else f'{middle} ({low} to {high})'


if __name__ == '__main__':
  cli.run(main)
