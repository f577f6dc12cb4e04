"""The loop as a whole: what it writes, and that interruptions leave no trace."""

import itertools
import json
import shutil
import signal
import threading
import time
import types
from typing import Any

import jax
import numpy as np
import pytest

from tests.built import task_of
from tests.checkpoints.states import files_of, flip
from tests.compare import refuses
from tests.marks import FULL
from tests.training.runs import (
  assert_same_bits,
  lines_of,
  saved_arrays,
  share_programs,
  small_config,
)
from zoo import theory
from zoo.config.read import read
from zoo.core.errors import RunError
from zoo.host.files import read_json
from zoo.storage.checkpoints import kept_steps
from zoo.storage.loading import load
from zoo.storage.steps import damage_of
from zoo.storage.workdir import make_workdir
from zoo.training import loop, records, run, train


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The workdir of a run of `small_config` that has ended."""
  workdir = tmp_path_factory.mktemp('finished')
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion('standard'):
    share_programs(patch)
    summary = train(small_config(), workdir)
  assert summary == read_json(workdir / 'summary.json', dict)
  return workdir


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(('mesh', 'steps'), [((1, 1), range(1, 12)), ((4, 2), (3, 8))])
def test_interrupted_at_any_step_and_resumed_is_uninterrupted_bit_for_bit(
  tmp_path, stop_at, mesh, steps
):
  config = small_config(
    'multi_head_lsa', model__num_heads=2, mesh__data=mesh[0], mesh__model=mesh[1]
  )
  stop_at(None)
  train(config, tmp_path / 'whole')
  whole = saved_arrays(tmp_path / 'whole', 12)
  assert any('optimizer' in path for path in whole)
  for step in steps:
    stop_at(step)
    assert train(config, tmp_path / f'cut_{step}') is None
    assert (tmp_path / f'cut_{step}' / 'checkpoints' / str(step)).is_dir()
    stop_at(None)
    assert train(config, tmp_path / f'cut_{step}') is not None
    assert_same_bits(saved_arrays(tmp_path / f'cut_{step}', 12), whole)


def test_a_resumed_run_has_the_bits_and_the_lines_of_an_uninterrupted_one(
  tmp_path, finished, stop_at, monkeypatch
):
  config = small_config()
  stop_at(7)
  with monkeypatch.context() as patch:  # the second launch alone compiles anew
    share_programs(patch)
    assert train(config, tmp_path / 'cut') is None
  assert (tmp_path / 'cut/checkpoints/7').is_dir()
  with (tmp_path / 'cut' / 'metrics.jsonl').open('a') as file:
    # What a kill can leave: a line of a step that was not saved, and half a line.
    file.write('{"step": 8, "loss": 1.0, "wall_time": 1.0}\n{"step": 9, "lo')
  stop_at(None)
  assert train(config, tmp_path / 'cut') is not None
  arrays = saved_arrays(finished, 12)
  assert any('optimizer' in path for path in arrays)
  assert_same_bits(saved_arrays(tmp_path / 'cut', 12), arrays)

  def timeless(lines):
    for line in lines:
      rate = line.pop('steps_per_second')
      assert rate is None or rate > 0
      assert line.pop('wall_time') > 0
    return {line['step']: line for line in lines}

  whole, cut = timeless(lines_of(finished)), timeless(lines_of(tmp_path / 'cut'))
  assert list(whole) == [4, 6, 8, 12]
  assert list(cut) == [4, 6, 7, 8, 12]
  assert {step: cut[step] for step in whole} == whole


@pytest.mark.usefixtures('shared_programs')
def test_chosen_steps_are_kept_beside_the_newest_and_change_no_bit(
  tmp_path, finished, stop_at
):
  config = small_config(checkpoint__steps=(2, 8), checkpoint__keep=1)
  stop_at(5)
  train(config, tmp_path)
  stop_at(None)
  train(config, tmp_path)
  steps = sorted(int(folder.name) for folder in (tmp_path / 'checkpoints').iterdir())
  assert steps == [2, 8, 12]
  for step in 8, 12:
    arrays = saved_arrays(tmp_path, step)
    assert_same_bits(arrays, saved_arrays(finished, step))
  assert load(tmp_path, 2).step == 2
  # Other steps need no other training: a finished run stays as it is.
  other = small_config(checkpoint__steps=(3, 7), checkpoint__keep=1)
  assert train(other, tmp_path) is not None


def test_steps_that_are_kept_do_not_go_on_when_training_does():
  config = small_config(checkpoint__steps='log', train__num_steps=100)
  assert kept_steps(read(config)) == (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91)
  config = small_config(checkpoint__steps=(50, 7, 12))
  assert kept_steps(read(config)) == (7, 12)
  assert kept_steps(read(small_config())) == ()


def test_a_run_leaves_what_the_design_promises(finished):
  summary = json.loads((finished / 'summary.json').read_text())
  fields = (
    'model num_params step eval_risk eval_risk_stderr exact_risk gd_risk optimal_risk '
    'excess_risk steps_per_second wall_time jax_version device_kind num_devices '
    'num_processes tokens_per_second peak_memory_bytes peak_memory_of'
  )
  assert set(fields.split()) <= summary.keys()
  assert summary['model'] == 'yq_lsa'
  assert summary['step'] == 12
  assert summary['num_params'] == 4 * 4 * 4 + 3
  assert summary['jax_version'] == jax.__version__
  assert summary['eval_risk'] > 0
  assert summary['eval_risk_stderr'] > 0
  lines = lines_of(finished)
  wanted = 'step loss eval_risk exact_risk grad_norm steps_per_second wall_time'
  assert all(set(wanted.split()) <= line.keys() for line in lines)
  assert [line['step'] for line in lines if line['eval_risk'] is not None] == [6, 12]
  config = json.loads((finished / 'config.json').read_text())
  assert config['train']['num_steps'] == 12
  (events,) = (finished / 'tensorboard').iterdir()
  assert b'grad_norm' in events.read_bytes()
  kept = sorted(path.name for path in (finished / 'checkpoints').iterdir())
  assert [name for name in kept if name.isdecimal()] == ['12', '4', '8']
  for step in '4', '8', '12':
    assert damage_of(finished / 'checkpoints' / step) is None
  # A step explains itself.
  origin = json.loads((finished / 'checkpoints/12/origin/data.json').read_text())
  assert origin['config'] == config
  assert origin['versions']['jax'] == jax.__version__
  assert origin['format'] == 1


def test_a_finished_run_is_left_as_it_is(tmp_path, finished):
  shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
  before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}
  assert train(small_config(), tmp_path) == read_json(finished / 'summary.json', dict)
  after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}
  for times in before, after:
    del times[tmp_path / '.lock']
  assert after == before


def test_a_damaged_log_costs_nothing(tmp_path, finished, monkeypatch):
  """The log is read before the folder gets another config or loses its summary."""
  shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
  # Compiling would be in vain.
  monkeypatch.setattr(run, 'compile_training', lambda training: training)
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines(keepends=True)
  kept = {
    name: (tmp_path / name).read_bytes() for name in ('config.json', 'summary.json')
  }
  for line, said in (
    ('x', 'cannot be read as JSON'),
    ('{"step": "2", "wall_time": 1}', "is damaged: step is '2'; it must be a number"),
  ):
    log = ''.join([lines[0], f'{line}\n', *lines[2:]])
    (tmp_path / 'metrics.jsonl').write_text(log)
    with refuses(f'line 2 of {tmp_path}/metrics.jsonl {said}'):
      train(small_config(train__num_steps=24), tmp_path)
    assert kept == {name: (tmp_path / name).read_bytes() for name in kept}


def test_a_finished_run_without_its_checkpoints_shows_its_result(tmp_path, finished):
  shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
  shutil.rmtree(tmp_path / 'checkpoints')
  lines = lines_of(tmp_path)
  assert train(small_config(), tmp_path) == read_json(finished / 'summary.json', dict)
  assert lines_of(tmp_path) == lines


@pytest.mark.usefixtures('shared_programs')
def test_a_summary_that_is_missing_or_damaged_is_made_anew(tmp_path, finished):
  shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
  path, summary = tmp_path / 'summary.json', read_json(finished / 'summary.json', dict)
  # Or it is of another run.
  others = [{**summary, **fields} for fields in ({'step': 7}, {'model': 'lsa'})]
  for content in None, '[]', *map(json.dumps, others):
    path.unlink(missing_ok=True)
    if content is not None:
      path.write_text(content)
    assert run.finished_run(read(small_config()), tmp_path, 12) is None
  again = train(small_config(), tmp_path)
  assert again is not None
  assert again['exact_risk'] == summary['exact_risk']
  assert again['eval_risk'] == summary['eval_risk']
  assert read_json(path, dict) == again


def test_a_step_of_another_config_is_refused(tmp_path, finished):
  make_workdir(tmp_path, small_config(seed=1))
  shutil.copytree(finished / 'checkpoints', tmp_path / 'checkpoints')
  said = 'it differs in seed (0 there, 1 here)'
  with refuses('checkpoints/12 was saved by a run of another config', said):
    train(small_config(seed=1), tmp_path)


@pytest.mark.usefixtures('shared_programs')
def test_a_damaged_newest_step_is_deleted_by_hand_and_the_run_ends_at_the_same_bits(
  tmp_path, finished
):
  shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
  newest = tmp_path / 'checkpoints/12'
  flip(newest / files_of(newest)[0])
  with pytest.raises(RunError, match=r'12 is damaged: .*; step 8 is good: delete'):
    train(small_config(), tmp_path)
  shutil.rmtree(newest)
  train(small_config(), tmp_path)
  assert_same_bits(saved_arrays(tmp_path, 12), saved_arrays(finished, 12))


@pytest.mark.slow
def test_prompts_are_fresh_at_every_step_and_the_held_out_ones_always_the_same(
  tmp_path,
):
  # At a vanishing learning rate only the prompts could change a loss.
  train(small_config(optimizer__learning_rate=1e-30, train__log_every=1), tmp_path)
  lines = lines_of(tmp_path)
  assert len({line['loss'] for line in lines}) == len(lines) == 12
  risks = {line['eval_risk'] for line in lines} - {None}
  assert len(risks) == 1


@pytest.mark.slow
def test_without_held_out_prompts_only_the_exact_risk_is_known(tmp_path):
  summary: Any = train(small_config('yq_lsa', eval__num_batches=0), tmp_path)
  assert summary is not None
  assert summary['eval_risk'] is None
  assert summary['exact_risk'] > summary['optimal_risk']


@pytest.mark.slow
def test_a_mesh_trains_as_one_device_does(tmp_path):
  config = small_config('multi_head_lsa', model__num_heads=2)
  train(config, tmp_path / 'one')
  config.mesh.data, config.mesh.model = 4, 2
  train(config, tmp_path / 'many')
  on_one, on_many = (
    saved_arrays(tmp_path / 'one', 12),
    saved_arrays(tmp_path / 'many', 12),
  )
  for path, array in on_one.items():
    # Reductions run in another order: a few float32 roundings a step, 12 steps; Adam
    # divides by the gradient's size, so that they count relative to it.
    np.testing.assert_allclose(on_many[path], array, rtol=1e-4, atol=1e-6, err_msg=path)


@pytest.mark.slow
def test_a_run_goes_on_from_one_mesh_on_another(tmp_path, stop_at):
  config = small_config(
    'multi_head_lsa', model__num_heads=2, mesh__data=4, mesh__model=2
  )
  stop_at(6)
  assert train(config, tmp_path) is None
  stop_at(None)
  config.mesh.data, config.mesh.model = 1, 1
  assert train(config, tmp_path) is not None


def test_no_checkpoint_of_a_diverging_run_holds_a_nan(tmp_path):
  config = small_config(
    optimizer__name='sgd',
    optimizer__learning_rate=30.0,
    optimizer__schedule='constant',
    train__num_steps=50,
    eval__num_batches=0,
    checkpoint__every=1,
    checkpoint__keep=100,
  )
  with pytest.raises(run.NotFiniteError, match='not finite') as stopped:
    train(config, tmp_path)
  steps = [
    int(p.name) for p in (tmp_path / 'checkpoints').iterdir() if p.name.isdecimal()
  ]
  assert stopped.value.divergence['step'] == max(steps) + 1
  assert f'last good checkpoint: step {max(steps)};' in str(stopped.value)
  for step in steps:
    for path, array in saved_arrays(tmp_path, step).items():
      assert np.isfinite(array).all(), (step, path)


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.slow
def test_a_state_is_saved_after_some_minutes_at_the_latest(
  tmp_path, finished, monkeypatch
):
  clock = itertools.count(step=12)  # seconds, each time that it is asked
  quick = types.SimpleNamespace(
    monotonic=lambda: float(next(clock)),
    time=time.time,
    time_ns=time.time_ns,
    process_time=time.process_time,
  )
  for module in (loop, records):
    monkeypatch.setattr(module, 'time', quick)
  config = small_config(
    checkpoint__every=12,
    checkpoint__every_minutes=1.0,
    checkpoint__keep=9,
    train__log_every=1,
  )
  train(config, tmp_path)
  steps = [int(path.name) for path in (tmp_path / 'checkpoints').glob('*[0-9]')]
  assert len(steps) > 3
  assert max(np.diff(sorted([0, *steps]))) <= 2
  assert_same_bits(saved_arrays(tmp_path, 12), saved_arrays(finished, 12))


@pytest.mark.slow
def test_training_works_outside_the_main_thread(tmp_path):
  summaries = []
  thread = threading.Thread(
    target=lambda: summaries.append(train(small_config(), tmp_path))
  )
  thread.start()
  thread.join()
  assert summaries[0]['step'] == 12


def test_a_request_is_taken_once_and_the_handlers_are_put_back():
  before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
  with run.Interruption() as interruption:
    assert interruption.requested is None
    signal.raise_signal(signal.SIGTERM)
    assert interruption.requested == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) == before[1]  # a second one acts as usual
  assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize(
  ('name', 'lowest'),
  [
    ('yq_lsa', 1.5),
    pytest.param('multi_head_lsa', None, marks=FULL),
    pytest.param('lsa', None, marks=FULL),
  ],
)
def test_on_the_exact_risk_models_reach_the_lowest_known(tmp_path, name, lowest):
  config = small_config(name, objective__name='exact', optimizer__learning_rate=2e-2)
  config.train.num_steps, config.train.log_every = 2000, 500
  config.checkpoint.every = config.eval.every = 2000
  summary: Any = train(config, tmp_path)
  assert summary is not None
  if lowest is None:
    heads = config.model.get('num_heads', 1)
    lowest = theory.head_limited_risk(task_of(config), heads).lowest_found
  assert -1e-9 < summary['exact_risk'] - lowest < 1e-6
  assert summary['gd_risk'] == pytest.approx(1.5, abs=1e-12)
  assert summary['excess_risk'] == summary['exact_risk'] - summary['optimal_risk']
  # The loss that was minimised is the exact risk, one step earlier.
  assert lines_of(tmp_path)[-1]['loss'] == pytest.approx(
    summary['exact_risk'], rel=1e-5
  )
