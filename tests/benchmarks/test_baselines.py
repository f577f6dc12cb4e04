"""The command that compares baselines with their known values."""

import csv
from typing import Any

import pytest

from benchmarks.deviations import plot_deviations
from benchmarks.reference_values import Reference, Row
from tests.trees import ROOT

_ARGUMENTS = '"{""num_features"": 2, ""context_length"": 3}"'


@pytest.fixture
def values(tmp_path):
  """Writes a folder of known values of two tasks; that of OLS may be wrong."""

  def values(ols: float = 0.0) -> str:
    rows = [
      ','.join(Reference._fields),
      f'linear_regression,{_ARGUMENTS},ols,2,loss,2,{ols},0.01,formula',
      f'quadratic_regression,{_ARGUMENTS},zero,2,median,1,0.5,,a guess',
    ]
    (tmp_path / 'values').mkdir()
    (tmp_path / 'values' / 'some.csv').write_text('\n'.join(rows))
    return f'--values={tmp_path}/values'

  return values


def test_a_deviation_has_a_sign_and_0_is_a_value_that_agrees_to_rounding():
  def cell(value: float, measured: float) -> str:
    reference = Reference('a', '{}', 'ols', '2', 'loss', 1.0, value, 0.1, 'formula')
    return Row(reference, measured, 0.0).cells()[-1]

  assert [cell(0.5, m) for m in (0.5, 0.5001, 0.4999)] == ['0', '+0.00', '-0.00']
  assert cell(0.5, 0.62) == '+1.20'


def test_documents_count_the_values_that_are_kept():
  with (ROOT / 'docs/results/baselines.csv').open(newline='') as file:
    written = [row['deviation'] for row in csv.DictReader(file)]
  sizes = [abs(float(text)) for text in written if text not in ('', '0')]
  exact, number = written.count('0'), len(sizes)
  beyond = [sum(size > limit for size in sizes) for limit in (2, 3, 4)]
  assert beyond[2] == 0
  for page, said in (
    (
      'results.md',
      f'of {len(written)} values {exact} agree to rounding, and none of the other '
      f'{number}',
    ),
    ('results/README.md', f'| {len(written)}, {number}, none beyond 4 |'),
    ('tasks.md', f'the {exact} values that\nagree to rounding are left out'),
    ('tasks.md', f'{beyond[0]} of {number} are beyond 2, {beyond[1]} beyond 3'),
  ):
    assert said in (ROOT / 'docs' / page).read_text()


def test_the_histogram_has_deviations_that_are_printed_as_0():
  axes = plot_deviations([-0.0, 0.0, 0.1, 2.2])
  bars: Any = axes.patches
  assert sum(bar.get_height() for bar in bars) == 4


@pytest.mark.slow
def test_the_table_is_written(call, tmp_path, values):
  page = tmp_path / 'found.csv'
  answer = call('benchmarks.baselines', values(), '--num_prompts=40', f'--out={page}')
  assert answer.code == 0, answer.err
  lines = answer.out.splitlines()
  assert lines[0].split()[:3] == ['task', 'baseline', 'k']
  name = 'linear_regression(num_features=2, context_length=3)'
  assert lines[1].startswith(f'{name}  ')
  assert lines[1].split()[3:7] == ['2', 'loss', '/', '2']
  assert lines[1].split()[7:10] == ['0', '±', '0.02']
  assert lines[-1] == '2 values, 0 beyond 4 standard errors'
  header, *rows = csv.reader(page.read_text().splitlines())
  assert header[:6] == ['task', 'baseline', 'k', 'quantity', 'known', 'known_stderr']
  assert [row[1] for row in rows] == ['ols', 'zero']
  assert rows[0][:6] == [name, 'ols', '2', 'loss / 2', '0', '0.01']
  assert rows[0][-1] == 'formula'


@pytest.mark.slow
def test_a_value_that_differs_is_an_error_and_one_task_can_be_asked_for(call, values):
  folder = values(ols=0.9)
  answer = call(
    'benchmarks.baselines', folder, '--num_prompts=40', '--task=linear_regression'
  )
  assert answer.code == 1
  assert '1 values, 1 beyond 4 standard errors' in answer.out
  assert 'quadratic_regression' not in answer.out
  assert '1 values differ from the known ones' in answer.err
