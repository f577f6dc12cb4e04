"""launch.sweep: what --sweep means, and that mistakes are one line."""

import csv
import importlib

import pytest

from tests.compare import refuses
from tests.training.runs import compile_init

SMOKE = (
  *('--config=configs/multi_head_lsa.py:smoke', '--config.eval.num_compared=0'),
  *('--config.model.num_heads=2', '--config.task.num_features=2'),
)

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.fixture
def parse():
  return importlib.import_module('launch.axes').parse


@pytest.mark.parametrize(
  ('text', 'field', 'values'),
  [
    ('task.prior_mean=0,0.5,1', 'task.prior_mean', [0, 0.5, 1]),
    ('seed=0..4', 'seed', [0, 1, 2, 3, 4]),
    ('seed=7..7', 'seed', [7]),
    ('task.prior_mean=[1,2],[3,4]', 'task.prior_mean', [[1, 2], [3, 4]]),
    ('optimizer.name=adam,sgd', 'optimizer.name', ['adam', 'sgd']),
    ('optimizer.clip_norm=null,1.0', 'optimizer.clip_norm', [None, 1.0]),
    ('optimizer.clip_norm=None,1.0', 'optimizer.clip_norm', [None, 1.0]),
    ('optimizer.learning_rate=0.1,abc', 'optimizer.learning_rate', [0.1, 'abc']),
    ('task.c=None,[[1,0],[0,2]]', 'task.c', [None, [[1, 0], [0, 2]]]),
    ('mesh.fsdp=True', 'mesh.fsdp', [True]),
    ('mesh.fsdp=False,True', 'mesh.fsdp', [False, True]),
    (
      'model.mixer,model.width=softmax:16,delta:8',
      ('model.mixer', 'model.width'),
      [('softmax', 16), ('delta', 8)],
    ),
    ('a,b=[1,2]:"x:y,z",null:True', ('a', 'b'), [([1, 2], 'x:y,z'), (None, True)]),
  ],
)
def test_values_are_ranges_json_or_words(parse, text, field, values):
  assert parse(text) == (field, values)


@pytest.mark.parametrize(
  'text',
  [
    *('seed', 'seed=', '=1', '', 'seed=4..0'),
    *('a,b=1', 'a,b=1:2:3', 'a,b=1:2,3', 'a,b=1:', 'a,=1:2', 'a,b=1..3'),
    *('seed=0..99999999999', f'seed={"[" * 100_000}'),
  ],
  ids=lambda text: text[:20],
)
def test_what_names_no_values_is_refused(parse, text):
  with refuses('--sweep'):
    parse(text)


@pytest.mark.slow
def test_a_sweep_from_the_command_line(call, tmp_path, monkeypatch):
  compile_init(monkeypatch)
  answer = call(
    *('sweep', '--config=configs/yq_lsa.py:smoke', '--config.eval.num_compared=0'),
    *('--config.eval.num_batches=0', '--config.checkpoint.every=20'),
    '--sweep=task.noise_std=0.1,0.2',
    '--sweep=seed=0..1',
    f'--workdir={tmp_path / "sweep"}',
  )
  assert answer.code == 0, answer.err
  with (tmp_path / 'sweep' / 'table.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert [(row['task.noise_std'], row['seed']) for row in rows] == [
    ('0.1', '0'),
    ('0.1', '1'),
    ('0.2', '0'),
    ('0.2', '1'),
  ]
  for row in rows:
    assert f'{float(row["exact_risk"]):.6f}' in answer.out


@pytest.mark.slow
@pytest.mark.full
def test_fields_whose_values_go_together_are_columns_of_the_table(call, tmp_path):
  flags = '--sweep=task.prior_mean,task.noise_std=1:0.5,2:0.1', f'--workdir={tmp_path}'
  answer = call('sweep', *SMOKE, *flags)
  assert answer.code == 0, answer.err
  with (tmp_path / 'table.csv').open(newline='') as file:
    rows = [*csv.DictReader(file)]
  values = [(row['task.prior_mean'], row['task.noise_std']) for row in rows]
  assert values == [('1', '0.5'), ('2', '0.1')]
  assert 'task.prior_mean  task.noise_std' in answer.out


def test_a_field_is_swept_once(call, tmp_path):
  fields = '--sweep=task.prior_mean,task.noise_std=1:0.5', '--sweep=task.noise_std=1,2'
  answer = call('sweep', *SMOKE, *fields, f'--workdir={tmp_path}')
  assert (answer.code, answer.err) == (2, 'error: --sweep gives task.noise_std twice\n')


@pytest.mark.slow
def test_a_point_that_diverges_does_not_hide_the_table(call, tmp_path):
  rates = '--sweep=optimizer.learning_rate=0.001,1e30'
  answer = call('sweep', *SMOKE, rates, f'--workdir={tmp_path}')
  assert answer.code == 1
  good, lost = answer.out.splitlines()[2:4]
  assert good.split()[0] == '0.001'
  assert lost.split() == ['1e+30', 'diverged', '-', '-', '-']
  assert f'the table is in {tmp_path}/table.csv' in answer.out
  lost = (
    'points stopped being finite: optimizer.learning_rate=1e+30 (step 2 is not finite'
  )
  assert lost in answer.err
  remedy = 'only in another folder, or after this file is deleted\n'
  assert answer.err.endswith(f'the point is trained again {remedy}')
