"""launch.strategies: a run's series, a sweep's diagram, and that both go on."""

import csv
import random
import types

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.checkpoints.states import zeros_of
from tests.compare import refuses
from tests.marks import FULL
from tests.training.runs import small_config
from zoo.config.read import to_content, to_json
from zoo.reports.plots import from_csv
from zoo.storage.checkpoints import Checkpoints
from zoo.storage.together import folder_of_program

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')

SWEEP = (
  '--config=configs/multi_head_lsa.py:smoke',
  '--config.model.num_heads=2',
  '--config.eval.num_compared=0',
  '--config.eval.num_batches=0',
  '--config.task.noise_std=0.5',
  '--config.task.num_features=2',
  '--config.task.context_length=3',
  '--config.checkpoint.steps=(5,)',
  '--sweep=task.prior_mean=0.5,1.0',
  '--sweep=seed=0,1',
  '--predictors=gd,bayes',
  '--num_prompts=64',
)


def _rows(folder):
  with (folder / 'strategies.csv').open() as file:
    return [*csv.DictReader(file)]


@pytest.mark.slow
def test_a_diagram_goes_on_after_a_kill(call, tmp_path):
  whole = tmp_path / 'whole'
  answer = call('strategies', *SWEEP, f'--workdir={whole}')
  assert answer.code == 0, answer.err
  assert 'task.prior_mean' in answer.out
  assert (whole / 'strategies.png').stat().st_size > 5000
  assert (whole / 'strategies_lines.png').stat().st_size > 5000
  lines = (whole / 'strategies_lines.csv').read_text()
  assert from_csv('lines', lines).panels[0].key == 'task.prior_mean = 0.5'
  rows = _rows(whole)
  assert [(row['task.prior_mean'], row['seed'], row['step']) for row in rows] == [
    (mean, seed, step)
    for mean in ('0.5', '1.0')
    for seed in ('0', '1')
    for step in ('5', '20')
  ]
  for row in rows:
    weights = [float(row[name] or 0) for name in row if name.startswith('weight')]
    assert sum(weights) == pytest.approx(1)
  # As after a kill: what is cut off is fitted again, to the same numbers.
  file = whole / 'rows.jsonl'
  kept = file.read_bytes()
  file.write_bytes(kept[: random.Random(0).randrange(len(kept))])
  assert call('strategies', *SWEEP, f'--workdir={whole}').code == 0
  assert file.read_bytes() == kept
  assert _rows(whole) == rows


@pytest.mark.slow
@pytest.mark.full
def test_a_diagram_does_not_depend_on_parts(call, tmp_path):
  whole, divided = tmp_path / 'whole', tmp_path / 'divided'
  answer = call('strategies', *SWEEP, f'--workdir={whole}')
  assert answer.code == 0, answer.err
  for part in '1/2', '2/2':
    answer = call('strategies', *SWEEP, f'--workdir={divided}', f'--part={part}')
    assert answer.code == 0, answer.err
    assert not (divided / 'strategies.csv').exists()
    fitted = (divided / 'rows.jsonl').read_text().count('\n')
    assert fitted == (4 if part == '1/2' else 8)
  assert call('strategies', *SWEEP, f'--workdir={divided}').code == 0
  for mine, expected in zip(_rows(divided), _rows(whole), strict=True):
    for name, value in expected.items():
      # Trained by other programs, whose sums are in another order.
      if name == 'together':
        assert mine[name] == value
      elif value:
        assert float(mine[name]) == pytest.approx(float(value), abs=1e-3), name


@pytest.mark.slow
def test_a_run_is_drawn_step_by_step(call, tmp_path):
  run, out = tmp_path / 'run', tmp_path / 'out'
  run.mkdir()
  config = small_config(task__noise_std=0.5)
  with Checkpoints(run, 2, to_content(config), (5,)) as checkpoints:
    for step in (5, 8, 10, 20):
      weights = jax.tree.map(lambda leaf, step=step: leaf + step / 20, zeros_of(config))
      checkpoints.save(step, {'model': weights})
  arguments = f'--checkpoint={run}', '--predictors=gd,bayes', '--num_prompts=64'
  answer = call('strategies', *arguments, f'--out={out}')
  assert answer.code == 0, answer.err
  rows = _rows(out)
  steps = [row.pop('step') for row in rows]
  assert steps == ['5', '10', '20']  # that which is kept, and the two newest
  assert len({tuple(row.values()) for row in rows}) == 3
  names = {path.name for path in out.iterdir() if not path.name.startswith('.')}
  assert names == {'strategies.png', 'strategies.csv', 'rows.jsonl'}


@pytest.mark.slow
def test_a_point_of_a_sweep_is_drawn_at_the_steps_of_its_program(call, tmp_path):
  names, config = ['seed=0', 'seed=1'], small_config(task__noise_std=0.5)
  program = folder_of_program(tmp_path, names)
  with Checkpoints(program, 1, to_content(config), (2, 5), names) as checkpoints:
    for step in (2, 5, 12):
      weights = jax.tree.map(
        lambda leaf, step=step: np.stack([leaf - 1, leaf + step / 20]), zeros_of(config)
      )
      checkpoints.save(step, {'model': weights})
  point = tmp_path / 'points' / 'seed=1'
  point.mkdir(parents=True)
  (point / 'config.json').write_text(to_json(config))
  arguments = f'--checkpoint={point}', '--predictors=gd,bayes', '--num_prompts=64'
  answer = call('strategies', *arguments, f'--out={tmp_path / "out"}')
  assert answer.code == 0, answer.err
  rows = _rows(tmp_path / 'out')
  assert [row.pop('step') for row in rows] == ['2', '5', '12']
  assert len({tuple(row.values()) for row in rows}) == 3


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    ((), 'give either --checkpoint=RUN, or --config=FILE'),
    (('--checkpoint=a', '--config=configs/yq_lsa.py'), 'give either'),
    (('--config=configs/yq_lsa.py',), '--sweep is missing'),
    (('--checkpoint=a', '--part=1/2'), '--part belongs to --config'),
    ((*SWEEP[:10], '--predictors=rigde', '--workdir=never'), "predictor 'rigde'"),
    (
      (
        '--config=configs/strategies.py:smoke',
        '--config.model.num_layers=1',
        '--sweep=task.num_urns=4,null',
        '--workdir=never',
      ),
      'name those of all by --predictors',
    ),
    pytest.param(
      (*SWEEP[:10], '--predictors=gd,gd_beta', '--workdir=never'),
      'gd and gd_beta predict the same on the prompts of the task of each point',
      marks=FULL,
    ),
    pytest.param(
      (
        '--checkpoint=checkpoints/yq_lsa',
        '--predictors=gd,gd_beta',
        '--num_prompts=32',
        '--out=never',
      ),
      'gd and gd_beta predict the same on the prompts of this task',
      marks=FULL,
    ),
    (
      ('--checkpoint=checkpoints/yq_lsa', '--predictors=gd', '--out=never'),
      'there is one predictor',
    ),
    (('--checkpoint=no/such/run',), 'no/such/run does not exist'),
    (
      ('--checkpoint=checkpoints/yq_lsa', '--predictors=bayse'),
      "unknown predictor 'bayse'",
    ),
  ],
)
def test_mistakes_are_one_line(call, arguments, said, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  answer = call('strategies', *arguments)
  assert answer.code == 2
  assert said in answer.err
  assert not [*tmp_path.iterdir()]
  assert len(answer.err.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.full
def test_a_shipped_checkpoint_has_one_step(call, tmp_path):
  arguments = '--checkpoint=checkpoints/yq_lsa', '--num_prompts=32'
  answer = call('strategies', *arguments, f'--out={tmp_path}')
  assert answer.code == 0, answer.err
  assert len(_rows(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.full
def test_a_model_that_is_saved_again_is_fitted_again(call, tmp_path):
  """Its config has no more than a model and a task, and its step is 0."""
  task = {'name': 'linear_regression', 'num_features': 3, 'context_length': 6}
  config = {'model': {'name': 'yq_lsa'}, 'task': task}
  found = []
  for seed in 0, 1:
    model = zoo.models.YqLSA(3, init_scale=0.3, rngs=nnx.Rngs(seed))
    zoo.save(model, tmp_path / f'model{seed}', config)
    checkpoint = f'--checkpoint={tmp_path / f"model{seed}"}'
    arguments = '--predictors=gd,averaging', '--num_prompts=64'
    answer = call('strategies', checkpoint, *arguments, f'--out={tmp_path / "out"}')
    assert answer.code == 0, answer.err
    assert 'Warning' not in answer.err
    (row,) = _rows(tmp_path / 'out')
    found.append(row['unexplained'])
  assert found[0] != found[1]


@pytest.mark.slow
@pytest.mark.full
def test_fewer_points_and_points_without_kept_steps(call, tmp_path):
  both = call('strategies', *SWEEP, f'--workdir={tmp_path}')
  assert both.code == 0, both.err
  fewer = call('strategies', *SWEEP, f'--workdir={tmp_path}', '--sweep=seed=0')
  assert fewer.code == 2  # seed is given twice
  fewer = [flag for flag in SWEEP if not flag.startswith('--sweep=seed')]
  answer = call('strategies', *fewer, '--sweep=seed=0', f'--workdir={tmp_path}')
  assert answer.code == 0, answer.err
  assert {row['seed'] for row in _rows(tmp_path)} == {'0'}
  more = [flag for flag in SWEEP if 'steps' not in flag]
  plain = [flag for flag in more if 'predictors' not in flag and 'num_pr' not in flag]
  assert call('sweep', *plain, f'--workdir={tmp_path}').code == 0
  assert call('strategies', *SWEEP, f'--workdir={tmp_path}').code == 0  # still there
  answer = call('strategies', *more, f'--workdir={tmp_path}')
  assert answer.code == 2
  assert 'has not kept step 1' in answer.err


def test_predictors_that_are_one_at_some_points_are_said(monkeypatch, capsys):
  """They are refused only if all of them are one at every point."""
  from launch import strategies
  from studies.strategies import series

  flag = types.SimpleNamespace(value=None)
  monkeypatch.setattr(strategies, '_PREDICTORS', flag)
  monkeypatch.setattr(strategies, '_NUM_PROMPTS', flag)
  groups = {'first': [['ols', 'ridge']], 'second': []}
  monkeypatch.setattr(series, 'coinciding', lambda name, *_: groups[name])
  points = [{'task.noise_std': 0.0}, {'task.noise_std': 0.5}]
  strategies._check_told_apart(['first', 'second'], points, 2)
  said = 'ols and ridge predict the same at 1 of 2 points, and have one weight there'
  assert said in capsys.readouterr().out
  with refuses('ols and ridge predict the same on the prompts of the task of each'):
    strategies._check_told_apart(['first', 'first'], points, 2)
