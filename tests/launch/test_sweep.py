"""launch.sweep: what --sweep means, and that mistakes are one line."""

import csv

import pytest

from launch.sweep import parse
from tests.compare import refuses
from tests.launch.processes import launch


@pytest.mark.parametrize(
  ('text', 'field', 'values'),
  [
    ('task.prior_mean=0,0.5,1', 'task.prior_mean', [0, 0.5, 1]),
    ('seed=0..4', 'seed', [0, 1, 2, 3, 4]),
    ('seed=7..7', 'seed', [7]),
    ('task.prior_mean=[1,2],[3,4]', 'task.prior_mean', [[1, 2], [3, 4]]),
    ('optimizer.name=adam,sgd', 'optimizer.name', ['adam', 'sgd']),
    ('optimizer.clip_norm=null,1.0', 'optimizer.clip_norm', [None, 1.0]),
  ],
)
def test_values_are_ranges_json_or_words(text, field, values):
  assert parse(text) == (field, values)


@pytest.mark.parametrize('text', ['seed', 'seed=', '=1', '', 'seed=4..0'])
def test_what_names_no_values_is_refused(text):
  with refuses('--sweep'):
    parse(text)


def test_a_sweep_from_the_command_line(tmp_path, cache):
  done = launch(
    '--config=configs/multi_head_lsa.py:smoke',
    '--sweep=model.num_heads=1,2',
    '--sweep=seed=0..1',
    f'--workdir={tmp_path / "sweep"}',
    cache=cache,
    module='launch.sweep',
  )
  assert done.returncode == 0, done.stderr
  with (tmp_path / 'sweep' / 'table.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert [(row['model.num_heads'], row['seed']) for row in rows] == [
    ('1', '0'),
    ('1', '1'),
    ('2', '0'),
    ('2', '1'),
  ]
  for row in rows:
    assert f'{float(row["exact_risk"]):.6f}' in done.stdout


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    ([], '--sweep is missing'),
    (['--sweep=task.prior_men=1'], "did you mean 'task.prior_mean'?"),
    (['--sweep=seed=1', '--sweep=seed=2'], 'twice'),
    (['--sweep=model.num_heads=0'], 'num_heads'),
    (['--sweep=seed=1', '--workdir='], '--workdir is empty'),
  ],
  ids=str,
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, cache, arguments, said):
  workdir = (
    [] if any('--workdir' in a for a in arguments) else [f'--workdir={tmp_path}/x']
  )
  done = launch(
    '--config=configs/multi_head_lsa.py:smoke',
    *workdir,
    *arguments,
    cache=cache,
    module='launch.sweep',
  )
  assert done.returncode == 2
  assert done.stderr.startswith('error: ')
  assert done.stderr.count('\n') == 1
  assert said in done.stderr
  assert not list(tmp_path.iterdir())
