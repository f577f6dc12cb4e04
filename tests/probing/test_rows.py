"""Results as tables: printed, as records, in pandas and as CSV."""

import builtins
import csv
import dataclasses
import sys
import types
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.settings import isotropic
from zoo import probing
from zoo.probing import Estimate, Rows


class _Row(NamedTuple):
  name: str
  share: Estimate | None
  number: int
  array: np.ndarray


ROWS = Rows(
  [
    _Row('a', None, 1, np.zeros(2)),
    _Row('b', Estimate(0.5, 0.1, 64), np.int64(2), np.zeros(2)),  # pyright: ignore[reportArgumentType]
  ]
)
RECORDS = [
  {'name': 'a', 'share': None, 'share_stderr': None, 'share_num': None, 'number': 1},
  {'name': 'b', 'share': 0.5, 'share_stderr': 0.1, 'share_num': 64, 'number': 2},
]


def test_an_estimate_has_three_columns_and_arrays_none(tmp_path):
  assert ROWS.records() == RECORDS
  assert type(ROWS.records()[1]['number']) is int
  ROWS.to_csv(tmp_path / 'new' / 'rows.csv')
  with (tmp_path / 'new' / 'rows.csv').open() as file:
    first, second = csv.DictReader(file)
  assert first == dict.fromkeys(first, '') | {'name': 'a', 'number': '1'}
  assert [*first] == [*RECORDS[0]]
  assert float(second['share_stderr']) == 0.1
  assert second['share_num'] == '64'
  with refuses('cannot be written'):
    ROWS.to_csv(tmp_path / 'new' / 'rows.csv' / 'below.csv')
  assert Rows().records() == []


def test_a_table_shows_half_of_the_interval_and_says_how_much_it_leaves_out():
  lines = str(ROWS).splitlines()
  assert lines[0].split() == ['name', 'share', 'number']
  assert lines[1].split() == ['a', '-', '1']
  assert lines[2].split() == ['b', '0.500', '±', '0.200', '2']
  assert repr(ROWS) == str(ROWS)
  assert str(Rows([ROWS[1]] * 50)).endswith('… and 10 more rows')


def test_a_frame_is_made_of_the_records_and_needs_pandas(monkeypatch):
  made = types.SimpleNamespace(DataFrame=lambda records: ('frame', records))
  monkeypatch.setitem(sys.modules, 'pandas', made)
  assert ROWS.to_frame() == ('frame', RECORDS)
  monkeypatch.delitem(sys.modules, 'pandas')
  real = builtins.__import__

  def without(name, *arguments):
    if name == 'pandas':
      raise ImportError(name)
    return real(name, *arguments)

  monkeypatch.setattr(builtins, '__import__', without)
  with refuses('to_frame needs pandas, which is not installed: pip install pandas'):
    ROWS.to_frame()


@pytest.mark.slow
def test_results_of_instruments_are_tables():
  task = isotropic(2, 3, noise_std=0.5)
  model = zoo.models.Transformer(2, 3, num_layers=1, width=8, rngs=nnx.Rngs(0))
  clean = task.sample(jax.random.key(0), 16)
  corrupt = task.redraw(jax.random.key(1), clean, 'inputs')
  effects = probing.effects(model, task, clean, corrupt, ['layers.0.mixer.out'])
  baselines = task.baselines()
  known = {name: baselines[name] for name in ('ridge', 'zero')}
  strategies = probing.strategies(model, task, known, 64)
  layers = probing.layer_algorithms(model, task, 64, 1)
  results = {
    'site,recovered,resample_stderr': effects,
    'layer,previous': probing.head_scores(model, clean),
    'examples,predictor,weight,weight_stderr': strategies,
    'readout,layer,algorithm,steps,unexplained,is_nearest': layers,
  }
  for columns, result in results.items():
    records = result.records()
    for name in columns.split(','):
      # Shares without a gap are columns, too, but without an error.
      assert name.removesuffix('_stderr') in records[0]
    assert str(result)
  rows = [row for row in strategies.rows if row.examples == 3]
  assert {row.predictor: row.weight.mean for row in rows} == pytest.approx(
    strategies.by_length[3].weights
  )
  nearest = [row.algorithm for row in layers.rows if row.is_nearest and row.layer == 1]
  assert nearest == [*layers.own.nearest[1], *layers.fitted.nearest[1]]


def test_rows_of_a_dataclass():
  @dataclasses.dataclass
  class Loss:
    name: str
    loss: Estimate

  assert Rows([Loss('a', Estimate(1.0, 0.5))]).records() == [
    {'name': 'a', 'loss': 1.0, 'loss_stderr': 0.5, 'loss_num': None}
  ]


@pytest.mark.slow
def test_a_table_without_rows_says_why():
  task = isotropic(2, 3, noise_std=0.5)
  clean = task.sample(jax.random.key(0), 16)
  corrupt = task.redraw(jax.random.key(1), clean, 'inputs')
  plain: Any = task.baselines()['zero']

  class Plain(nnx.Module):
    def __call__(self, prompt):
      return plain(prompt) + prompt.y.sum(axis=1)

  gap, *rest = str(probing.effects(Plain(), task, clean, corrupt)).splitlines()
  assert gap.startswith('gap ')
  assert rest == [
    'Plain has no taps, so there is nothing to replace (see zoo.probing.Tap)'
  ]
  gru = zoo.create_model('gru', num_features=2, rngs=nnx.Rngs(0))
  none = str(probing.effects(gru, task, clean, corrupt, []))
  assert none.endswith('\nno sites are given, so nothing is replaced')
  said = 'GRU has no attention maps, so there are no heads to score: it has no taps of '
  assert str(probing.head_scores(gru, clean)).startswith(said + 'the kind pattern')
  assert str(Rows()) == ''
