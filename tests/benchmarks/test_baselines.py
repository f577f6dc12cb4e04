"""The command that compares baselines with their known values."""

import csv

import pytest

from benchmarks.reference_values import Reference

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
  assert lines[1].split()[7:10] == ['0', '±', '0.01']
  assert lines[-1] == '2 values, 0 beyond 4 standard errors'
  header, *rows = csv.reader(page.read_text().splitlines())
  assert header[:5] == ['task', 'baseline', 'k', 'quantity', 'known']
  assert [row[1] for row in rows] == ['ols', 'zero']
  assert rows[0][:5] == [name, 'ols', '2', 'loss / 2', '0 ± 0.01']
  assert rows[0][-1] == 'formula'


def test_a_value_that_differs_is_an_error_and_one_task_can_be_asked_for(call, values):
  folder = values(ols=0.9)
  answer = call(
    'benchmarks.baselines', folder, '--num_prompts=40', '--task=linear_regression'
  )
  assert answer.code == 1
  assert '1 values, 1 beyond 4 standard errors' in answer.out
  assert 'quadratic_regression' not in answer.out
  assert '1 values differ from the known ones' in answer.err
