"""Runs that go on: for more steps, and from other weights."""

import json
import os
import pathlib
import re
import shutil
import sys

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.launch.processes import run as launched
from tests.marks import mostly_full
from tests.training.runs import (
  assert_close_arrays,
  assert_same_bits,
  saved_arrays,
  share_programs,
  small_config,
)
from zoo.config.read import FIELDS
from zoo.config.run import Named
from zoo.config.saved import other_function
from zoo.core.errors import RunError, UserError
from zoo.sharding import on_mesh
from zoo.storage import checkpoints
from zoo.training import grid, run, sweep
from zoo.training.compilation import make_training
from zoo.training.experiment import build
from zoo.training.initial import initial_weights
from zoo.training.metrics import METRICS
from zoo.training.records import read_lines
from zoo.training.sweeps.stacking import make_many


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.slow
def test_a_finished_run_goes_on_as_one_that_was_longer_from_the_start(tmp_path):
  """To the same bits, where the learning rate does not depend on the end."""
  config = small_config(optimizer__schedule='constant')
  zoo.train(config, tmp_path / 'raised')
  config.train.num_steps = 20
  summary = zoo.train(config, tmp_path / 'raised')
  zoo.train(config, tmp_path / 'whole')
  assert summary is not None
  assert summary['step'] == 20
  raised, whole = (saved_arrays(tmp_path / name, 20) for name in ('raised', 'whole'))
  assert_same_bits(raised, whole)
  saved = json.loads((tmp_path / 'raised/config.json').read_text())
  assert saved['train']['num_steps'] == 20
  lines = read_lines(tmp_path / 'raised')
  assert [line['step'] for line in lines] == [4, 6, 8, 12, 16, 18, 20]


@pytest.mark.slow
def test_a_finished_run_whose_step_cannot_be_loaded_stays_as_it_is(
  tmp_path, monkeypatch, thirty
):
  shutil.copytree(thirty, tmp_path, dirs_exist_ok=True)
  before = _content(tmp_path)
  # Compiling would be in vain.
  monkeypatch.setattr(run, 'compile_training', lambda training: training)
  with jax.enable_x64(True), refuses('as float32', 'as float64; jax_enable_x64 must'):
    zoo.train(_of_steps(60), tmp_path)
  assert _content(tmp_path) == before


def _content(folder):
  """All files but locks, and what a save that was not completed has left.

  Orbax may still be deleting what such a save has left.
  """
  content = {}
  for parent, folders, names in os.walk(folder):
    folders[:] = [name for name in folders if 'orbax-checkpoint-tmp' not in name]
    for path in (pathlib.Path(parent, name) for name in names):
      if not path.name.startswith('.lock'):
        content[path.relative_to(folder)] = path.read_bytes()
  return content


class _Killed(BaseException):
  """Stands for a kill, after which nothing of the process runs."""


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize('place', ['start', 'step', 'save'])
def test_a_longer_launch_that_saves_no_step_changes_nothing(
  tmp_path, monkeypatch, thirty, no_step, place
):
  folder = tmp_path / 'run'
  shutil.copytree(thirty, folder)
  before = _content(folder)

  def stop(*arguments):
    raise _Killed

  class Hook(zoo.Hook):
    def on_chunk(self, event):
      stop()

  hooks = [Hook()] if place == 'step' else []
  with monkeypatch.context() as patch:
    if place == 'start':
      patch.setattr(run, 'Loop', stop)
    if place == 'save':
      patch.setattr(checkpoints, 'write_sums', stop)
    with pytest.raises((_Killed, RunError)):
      zoo.train(_of_steps(60), folder, hooks)
  assert _content(folder) == before
  no_step()
  assert zoo.train(_of_steps(30), folder) == json.loads(
    before[pathlib.Path('summary.json')]
  )
  assert _content(folder) == before


# A process that trains longer what is finished, and is killed at a place.
_KILLED = """
import os, signal, sys
import zoo
from tests.training import test_going_on
from zoo.storage import checkpoints
from zoo.training import records, run

def kill(*arguments):
  os.kill(os.getpid(), signal.SIGKILL)

class Hook(zoo.Hook):
  on_chunk = kill

hooks, place = [], sys.argv[1]
if place == 'start':
  run.Loop = kill
elif place == 'step':
  hooks = [Hook()]
elif place == 'save':
  checkpoints.write_sums = kill
elif place == 'replace':
  records.Records.replace = kill
test_going_on.train_longer(*sys.argv[2:], hooks=hooks)
"""
_POINTS = [{'seed': seed} for seed in range(6)]


def train_longer(kind, folder, hooks=()):
  """Trains a finished run, or one of six finished points, for ten times longer."""
  config = small_config(train__num_steps=120)
  if kind == 'run':
    return zoo.train(config, folder, hooks)
  return sweep(config, _POINTS[3:4], folder, hooks=hooks)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The folders of a run and of a sweep that have ended, and their results."""
  folders = {kind: tmp_path_factory.mktemp(kind) for kind in ('run', 'sweep')}
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion('standard'):
    share_programs(patch)
    zoo.train(small_config(), folders['run'])
    sweep(small_config(), _POINTS, folders['sweep'])
  return folders


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize('place', mostly_full(['replace'], ['start', 'step', 'save']))
def test_a_longer_launch_that_is_killed_changes_nothing_before_its_first_save(
  tmp_path, finished, cache, no_step, place, full
):
  folders = {kind: tmp_path / kind for kind in (finished if full else ['run'])}
  for kind, folder in folders.items():
    shutil.copytree(finished[kind], folder)
    killed = launched([sys.executable, '-c', _KILLED, place, kind, folder], cache)
    assert killed.returncode == -9, killed.stderr
  if place == 'replace':  # The first step is saved, so that there is no way back.
    for kind, folder in folders.items():
      with refuses('train.num_steps (120 there, 12 here)'):
        _train_again(kind, folder)
      assert train_longer(kind, folder) is not None
      run_folder = folder if kind == 'run' else folder / 'points/seed=3'
      summary = json.loads((run_folder / 'summary.json').read_text())
      steps = [(each['from_step'], each['to_step']) for each in summary['history']]
      assert steps == [(0, 12), (12, 16), (16, 120)]
    return
  no_step()
  for kind, folder in folders.items():
    before = _content(finished[kind])
    assert _content(folder) == before
    _train_again(kind, folder)
    assert _content(folder) == before


def _train_again(kind, folder):
  if kind == 'run':
    assert zoo.train(small_config(), folder) is not None
  else:
    assert sweep(small_config(), _POINTS, folder) is not None


# Another value of each field that may change and changes no bit. The fields of the mesh
# that are missing change the order of sums.
_MAY_CHANGE = {
  'checkpoint.every': 5,
  'checkpoint.every_minutes': 1e-6,
  'checkpoint.keep': 7,
  'checkpoint.steps': (7, 9),
  'eval.every': 5,
  'eval.metrics': ('size',),
  'eval.num_compared': 16,
  'mesh.heartbeat_timeout': 20,
  'mesh.start_timeout': 200,
  'train.log_every': 3,
}


# Those that change which programs run, or when; with --full, all.
_MAY_CHANGE_BITS = ['checkpoint.every']


@pytest.fixture(scope='module')
def twelve(tmp_path_factory):
  """The workdir of a run of 12 steps that nothing has interrupted."""
  workdir = tmp_path_factory.mktemp('twelve')
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion('standard'):
    share_programs(patch)
    zoo.train(small_config(), workdir)
  return workdir


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize(
  'field', mostly_full(['eval.every'], _MAY_CHANGE, slow=_MAY_CHANGE_BITS)
)
def test_a_field_that_may_change_when_a_run_goes_on_changes_no_bit(
  tmp_path, stop_at, twelve, field, monkeypatch
):
  monkeypatch.setitem(METRICS, 'size', lambda model, task, key: {'of it': 1.0})
  stop_at(4)
  assert zoo.train(small_config(), tmp_path) is None
  stop_at(None)
  changed = small_config(**{field.replace('.', '__'): _MAY_CHANGE[field]})
  summary = zoo.train(changed, tmp_path)
  assert summary is not None
  wanted = json.loads((twelve / 'summary.json').read_text())
  assert_same_bits(saved_arrays(tmp_path, 12), saved_arrays(twelve, 12))
  for name in 'eval_risk', 'eval_risk_stderr', 'exact_risk':
    assert summary[name] == wanted[name]


# Another value of each field that may change and changes the order of sums, and what
# the run has that goes on with it.
_OTHER_SUMS = {
  'mesh.data': (2, {}),
  'mesh.fsdp': (True, {'mesh__data': 2}),
  'mesh.model': (2, {}),
}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('field', _OTHER_SUMS)
def test_a_mesh_that_changes_when_a_run_goes_on_changes_sums_alone(
  tmp_path, stop_at, field
):
  value, changes = _OTHER_SUMS[field]
  of_run = {'model__num_heads': 2, **changes}
  before = small_config('multi_head_lsa', **of_run)
  after = small_config('multi_head_lsa', **(of_run | {field.replace('.', '__'): value}))
  assert zoo.train(before, tmp_path / 'whole') is not None
  stop_at(4)
  assert zoo.train(before, tmp_path / 'other') is None
  stop_at(None)
  assert zoo.train(after, tmp_path / 'other') is not None
  other, whole = (saved_arrays(tmp_path / name, 12) for name in ('other', 'whole'))
  assert_close_arrays(other, whole)


def test_each_field_that_may_change_is_tried_and_is_in_the_docs():
  always = {name for name, field in FIELDS.items() if field.may_change == 'always'}
  assert always == {*_MAY_CHANGE, *_OTHER_SUMS}
  page = (pathlib.Path(__file__).parents[2] / 'docs/scaling.md').read_text()
  (part,) = (part for part in page.split('\n\n') if 'may differ from the run' in part)
  said, _, of_more_steps = part.partition('`train.num_steps`')
  known = {*FIELDS, 'mesh'}
  named = {name for name in re.findall(r'`([\w.]+)`', said) if name in known}
  assert named - {'mesh'} == {name for name in always if not name.startswith('mesh.')}
  assert {name for name in FIELDS if name.startswith('mesh.')} <= always
  assert 'all of `mesh`' in ' '.join(said.split())
  more = {n for n, field in FIELDS.items() if field.may_change == 'with more steps'}
  named = {*re.findall(r'`([\w.]+)`', of_more_steps), 'train.num_steps'}
  assert named == more


def _of_steps(number, **changes):
  """The warm-up of this config is a tenth of the steps."""
  config = small_config(
    train__num_steps=number,
    train__log_every=30,
    eval__every=30,
    eval__num_batches=0,
    checkpoint__every=30,
    **changes,
  )
  config.optimizer.warmup_steps = number // 10
  return config


@pytest.fixture(scope='module')
def thirty(tmp_path_factory):
  """The workdir of a run of 30 steps that has ended."""
  workdir = tmp_path_factory.mktemp('thirty')
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion('standard'):
    share_programs(patch)
    zoo.train(_of_steps(30), workdir)
  return workdir


def test_a_finished_run_that_may_not_go_on_is_left_as_it_is(
  tmp_path, monkeypatch, thirty
):
  shutil.copytree(thirty, tmp_path, dirs_exist_ok=True)
  before = _content(tmp_path)
  config = _of_steps(60)

  def refuse(model, task, batch_size):
    raise UserError('the model has changed')

  with monkeypatch.context() as patch:
    patch.setattr(
      run, 'compile_training', lambda training: training
    )  # compiling would be in vain
    patch.setattr(run, 'has_own_classes', lambda *_: True)
    patch.setattr(run, 'check_agreement', refuse)
    with refuses('the model has changed'):
      zoo.train(config, tmp_path)
  assert _content(tmp_path) == before
  sums = tmp_path / 'checkpoints/30/SHA256SUMS'
  content = sums.read_bytes()
  sums.write_bytes(b'of other files')
  with pytest.raises(RunError, match='damaged'):
    zoo.train(config, tmp_path)
  sums.write_bytes(content)
  assert _content(tmp_path) == before
  summary = json.loads(before[pathlib.Path('summary.json')])
  assert zoo.train(_of_steps(30), tmp_path) == summary


@pytest.mark.usefixtures('shared_programs')
def test_more_steps_are_all_that_may_change(tmp_path, thirty):
  shutil.copytree(thirty, tmp_path, dirs_exist_ok=True)
  assert _of_steps(30).optimizer.warmup_steps == 3
  fewer = _of_steps(20)
  with refuses('belongs to another config', 'train.num_steps (30 there, 20 here)'):
    zoo.train(fewer, tmp_path)
  with refuses('differs in seed (0 there, 1 here);'):
    zoo.train(_of_steps(60, seed=1), tmp_path)
  summary = zoo.train(_of_steps(60), tmp_path)
  assert summary is not None
  assert summary['step'] == 60
  # It is told from a run that was given 60 steps at once.
  first, second = summary['history']
  assert [first] == json.loads((thirty / 'summary.json').read_text())['history']
  assert (first['from_step'], first['to_step'], first['changed']) == (0, 30, {})
  assert (second['from_step'], second['to_step']) == (30, 60)
  changed = {'optimizer.warmup_steps': [3, 6], 'train.num_steps': [30, 60]}
  assert second['changed'] == changed
  assert second['versions']['jax'] == jax.__version__


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.slow
def test_the_points_of_a_sweep_go_on(tmp_path):
  def of_steps(number, **changes):
    # The learning rate does not depend on the end.
    fields = {'optimizer__schedule': 'constant', 'train__num_steps': number}
    return small_config(**fields, **changes)

  points = grid({'seed': [0, 1]})
  sweep(of_steps(12), points, tmp_path)
  rows = sweep(of_steps(16), points, tmp_path)
  assert rows is not None
  assert [row['step'] for row in rows] == [16, 16]
  folder, alone = rows[1]['workdir'], tmp_path / 'alone'
  assert [line['step'] for line in read_lines(folder)] == [4, 6, 8, 12, 16]
  zoo.train(of_steps(16, seed=1), alone)
  # For 12 steps they were trained side by side.
  assert_close_arrays(saved_arrays(folder, 16), saved_arrays(alone, 16))
  with refuses('train.num_steps'):
    sweep(of_steps(12), points, tmp_path)


def test_training_starts_from_the_weights_of_another_run():
  """Of another task and another optimizer; side by side as alone."""
  fields = {
    'train__init_from': 'checkpoints/yq_lsa',
    'task__num_features': 10,
    'task__noise_std': 0.5,
    'optimizer__name': 'sgd',
    'optimizer__ema_decay': 0.9,
  }
  saved = zoo.load('checkpoints/yq_lsa')
  wanted = jax.tree.leaves(nnx.state(saved.model, nnx.Param))
  configs = [small_config('yq_lsa', seed=seed, **fields) for seed in (0, 1)]
  experiments = [build(config) for config in configs]
  first = experiments[0]
  for training in make_training(first), make_many(experiments):
    with on_mesh(first.mesh, first.config):
      state = jax.device_get(training.init(True))
    weights = jax.tree.leaves(nnx.filter_state(state['model'], nnx.Param))
    trained = jax.tree.leaves(state['optimizer']['opt_state']['trained'])
    for leaf, averaged, array in zip(weights, trained, wanted, strict=True):
      expected = np.broadcast_to(array, leaf.shape)
      np.testing.assert_array_equal(leaf, expected)
      np.testing.assert_array_equal(averaged, expected)


@pytest.mark.usefixtures('shared_programs')
def test_a_fine_tuned_run_goes_on_after_its_source_is_gone(tmp_path, twelve):
  """To the bits of a run that was never stopped; a new run needs the source."""
  source = tmp_path / 'source'
  shutil.copytree(twelve, source)
  for step in 8, 12:  # It has come to its step 4, and goes on later.
    shutil.rmtree(source / 'checkpoints' / str(step))
  config = small_config(seed=1, train__init_from=str(source))
  zoo.train(config, tmp_path / 'whole')
  for event in zoo.training_run(config, tmp_path / 'stopped'):
    if event.step == 4:
      break
  # From other weights it is another run, unless the config names those that it had.
  shutil.copytree(twelve, source, dirs_exist_ok=True)
  for name in 'whole', 'stopped':
    with refuses('train.init_from_digest', 'train.init_from_step (4 there, 12 here)'):
      zoo.train(config, tmp_path / name)
  pinned = small_config(seed=1, train__init_from=str(source), train__init_from_step=4)
  assert zoo.train(pinned, tmp_path / 'whole') is not None
  shutil.rmtree(source)
  zoo.train(config, tmp_path / 'stopped')
  saved = json.loads((tmp_path / 'stopped/config.json').read_text())['train']
  assert saved['init_from'] == str(source)
  assert saved['init_from_step'] == 4
  whole = saved_arrays(tmp_path / 'whole', 12)
  assert_same_bits(saved_arrays(tmp_path / 'stopped', 12), whole)
  with refuses('source does not exist'):
    zoo.train(config, tmp_path / 'new')
  assert not (tmp_path / 'new').exists()
  # A folder in which nothing was saved begins anew, and is left as it is.
  shutil.rmtree(tmp_path / 'stopped/checkpoints')
  (tmp_path / 'stopped/summary.json').unlink()
  before = _content(tmp_path / 'stopped')
  with refuses('source does not exist'):
    zoo.train(config, tmp_path / 'stopped')
  assert _content(tmp_path / 'stopped') == before


@pytest.mark.parametrize(
  ('name', 'before', 'after', 'said'),
  [
    ('transformer', {}, {'num_heads': 4}, 'model.num_heads (2 there, 4 here)'),
    ('transformer', {}, {'tokens': 'joint'}, "('interleaved' there, 'joint' here)"),
    ('transformer', {}, {'causal': False}, 'model.causal (True there, False here)'),
    (
      *('transformer', {'mixer': 'delta'}),
      {'mixer': 'delta', 'mixer_options': {'negative_eigenvalues': True}},
      'model.mixer_options.negative_eigenvalues (False there, True here)',
    ),
    (
      *('transformer', {'mixer': 'ttt', 'mixer_options': {'mini_batch_size': 4}}),
      {'mixer': 'ttt'},
      'model.mixer_options.mini_batch_size (4 there, 16 here)',
    ),
    ('gru', {'guess': 'linear'}, {'guess': 'residual'}, "('linear' there, 'residual'"),
    ('multi_head_lsa', {}, {'initial_guess': 1.0}, 'initial_guess (0.0 there, 1.0'),
    ('transformer', {}, {'init_scale': 0.5, 'remat': True}, None),
    (
      *('transformer', {'mixer': 'delta'}),
      {'mixer': 'delta', 'mixer_options': {'negative_eigenvalues': False}},
      None,
    ),
  ],
)
def test_what_a_model_computes_from_its_weights(name, before, after, said):
  sections = (Named(name, fields) for fields in (before, after))
  differing = other_function(*sections)
  assert len(differing) == bool(said)
  assert all(said in text for text in differing)


def test_weights_are_not_taken_for_a_model_that_computes_something_else(tmp_path):
  config = small_config(
    'multi_head_lsa',
    model__num_heads=2,
    model__initial_guess=1.0,
    train__init_from='checkpoints/multi_head_lsa_2',
    task__num_features=10,
    task__noise_std=0.3,
    optimizer__name='sgd',
  )
  with refuses('differs in model.initial_guess (0.0 there, 1.0 here); config.tr'):
    zoo.train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  config.train.init_from_other = True
  assert initial_weights(build(config)) is not None
  config.train.init_from_other = False
  config.model.initial_guess = 0.0
  assert initial_weights(build(config)) is not None
  config.train.init_from_digest = 16 * 'a'
  with refuses('weights at step ', 'init_from_digest is aaaa'):
    zoo.train(config, tmp_path / 'run')


@pytest.mark.parametrize(
  ('path', 'said'),
  [
    ('checkpoints/yq_lsa', "whose weights do not fit the model 'yq_lsa': it has"),
    ('nowhere', 'nowhere does not exist'),
    ('', "init_from is ''; it must be a path"),
  ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_is_written(
  tmp_path, path, said
):
  config = small_config(train__init_from=path)
  with refuses(said):
    zoo.train(config, tmp_path / 'run')
  with refuses(said):
    sweep(config, grid({'seed': [0, 1]}), tmp_path / 'sweep')
  assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.slow
def test_a_run_that_fails_before_its_first_checkpoint_does_not_spend_its_folder(
  tmp_path,
):
  config = small_config(
    optimizer__name='sgd',
    optimizer__learning_rate=30.0,
    optimizer__schedule='constant',
    train__log_every=1,
    checkpoint__every=12,
  )
  with pytest.raises(RunError, match=r'no checkpoint yet.*clip_norm may help'):
    zoo.train(config, tmp_path)
  assert read_lines(tmp_path)
  config.optimizer.learning_rate = 1e-3
  assert zoo.train(config, tmp_path) is not None
  steps = [line['step'] for line in read_lines(tmp_path)]
  assert steps == [*range(1, 13)]
