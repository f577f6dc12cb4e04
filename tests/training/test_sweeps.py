"""Sweeps: many points in one program are what each would have been alone."""

import copy
import csv
import functools
import json
import shutil
import signal
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from configs import common
from tests.compare import refuses
from tests.marks import mostly_full
from tests.training.runs import (
  OF_THE_LAUNCH,
  assert_close_arrays,
  assert_same_bits,
  compile_init,
  lines_of,
  saved_arrays,
  share_programs,
  signal_at_step_4,
  small_config,
)
from zoo.config.read import read
from zoo.core.tables import format_seconds
from zoo.measure.comparison import compare
from zoo.storage.loading import steps_of
from zoo.training import grid, run, sweeps, train
from zoo.training.metrics import METRICS
from zoo.training.sweeps import groups
from zoo.training.sweeps import run as sweep_run
from zoo.training.sweeps.many import Member
from zoo.training.sweeps.points import (
  build_points,
  config_at,
  name_of,
  without_arrays,
)

_POINTS = [
  {'model.num_heads': 2, 'task.prior_mean': 1.0, 'seed': 0},
  {'model.num_heads': 2, 'task.prior_mean': [0.5, -1.0, 2.0], 'seed': 0},
  {
    **{'model.num_heads': 2, 'task.noise_std': 0.6, 'model.initial_bias': 0.5},
    **{'model.init_scale': 0.2, 'optimizer.learning_rate': 2e-3, 'seed': 1},
  },
  {'model.num_heads': 2, 'model.initial_guess': 1.0, 'seed': 0},
  {'model.num_heads': 2, 'task.prior_mean': 1.0, 'seed': 1},
]


class _Killed(BaseException):
  """Stands for a kill, after which nothing of the process runs."""


def sweep(*arguments) -> list[dict[str, Any]]:
  rows = sweeps.sweep(*arguments)
  assert rows is not None, 'it was told to stop'
  return rows


def _config(**changes):
  # With noise in all points, as those without are trained apart.
  return small_config('multi_head_lsa', **{'task__noise_std': 0.3, **changes})


@pytest.fixture
def trained(monkeypatch) -> list[int]:
  """The numbers of points that are trained together, program by program."""
  return _count_points(monkeypatch)


def _count_points(monkeypatch) -> list[int]:
  sizes, make, alone = [], sweep_run.make_many, run.compile_training
  monkeypatch.setattr(
    sweep_run,
    'make_many',
    lambda experiments: sizes.append(len(experiments)) or make(experiments),
  )
  monkeypatch.setattr(
    run, 'compile_training', lambda *arguments: sizes.append(1) or alone(*arguments)
  )
  return sizes


@pytest.fixture(scope='module')
def all_points(tmp_path_factory):
  """`_POINTS` swept on an objective: the config and the rows."""

  @functools.cache
  def run(objective):
    config = _config(objective__name=objective, optimizer__name='adamw')
    with pytest.MonkeyPatch.context() as patch:
      compile_init(patch)
      trained = _count_points(patch)
      rows = sweep(config, _POINTS, tmp_path_factory.mktemp(objective) / 'sweep')
    assert trained == [5]
    return config, rows

  return run


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize('i', mostly_full([2], range(3)))
def test_a_point_of_a_sweep_is_the_run_that_it_would_be_alone(three, tmp_path, i):
  _assert_as_alone(_config(), _POINTS[i], three[i], tmp_path / 'alone')


@pytest.mark.slow
def test_a_model_that_contradicts_itself_is_refused_before_anything_is_written(
  register, tmp_path
):
  @register('own')
  class Own(zoo.models.MultiHeadLSA):
    def __call__(self, prompt):
      return super().__call__(prompt) + 1

  config = _config(model={'name': 'own', 'num_heads': 1})
  with refuses('does not predict the same as Own.__call__()'):
    sweeps.sweep(config, [{'seed': 0}, {'seed': 1}], tmp_path / 'sweep')
  assert not (tmp_path / 'sweep').exists()


def test_a_model_that_reads_its_target_is_refused_in_a_sweep_that_exists(
  register, tmp_path, three
):
  @register('own')
  class Own(zoo.models.MultiHeadLSA):
    def __call__(self, prompt):
      return super().__call__(prompt) + prompt.y_query

  shutil.copytree(_folder(three), tmp_path, dirs_exist_ok=True)
  before = _files_of(tmp_path)
  points = [{'model.name': 'own', 'seed': seed} for seed in (0, 1)]
  with refuses('reads the target'):
    sweeps.sweep(_config(), [*_POINTS[:3], *points], tmp_path)
  assert _files_of(tmp_path) == before


@pytest.mark.slow
@pytest.mark.usefixtures('shared_programs')
def test_chosen_steps_of_each_point_are_kept(tmp_path, monkeypatch):
  config = _config(checkpoint__steps=(2, 7), checkpoint__every=12)
  points = _POINTS[:3]
  with monkeypatch.context() as patch:
    signal_at_step_4(patch)
    assert sweeps.sweep(config, points, tmp_path / 'sweep') is None
  # An unfinished point opens at the newest step of its program.
  folder = tmp_path / 'sweep' / 'points' / name_of(points[2])
  assert zoo.load(folder).step == 6  # where the loop stops next after the signal
  assert not (folder / 'checkpoints').exists()
  sweep(config, points, tmp_path / 'sweep')
  kept = [*sweeps.kept_models(config, points, tmp_path / 'sweep')]
  together = [([0, 1, 2], step) for step in (2, 7, 12)]
  own = [([i], 12) for i in range(3)]  # in the folders of the points
  assert [(members, step) for members, step, _ in kept] == [*together, *own]
  train(sweeps.at_point(config, points[2]), tmp_path / 'alone')
  for _, step, load_models in kept[:3]:
    *_, model = load_models()
    alone = zoo.load(tmp_path / 'alone', step).model
    states = [nnx.to_pure_dict(nnx.state(which)) for which in (model, alone)]
    for array, expected in zip(*map(jax.tree.leaves, states), strict=True):
      np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)
    # The folder of the point opens as that of a run does.
    loaded = zoo.load(folder, step)
    assert (loaded.step, loaded.config.task.noise_std) == (step, 0.6)
    loaded_arrays, arrays = map(jax.tree.leaves, map(nnx.state, (loaded.model, model)))
    assert all(map(np.array_equal, loaded_arrays, arrays))
  assert steps_of(folder) == steps_of(folder / 'checkpoints') == [2, 7, 12]
  assert zoo.load(folder / 'checkpoints', 7).step == 7
  assert zoo.load(folder).step == 12
  with refuses('has no step 5; it has [2, 7, 12]'):
    zoo.load(folder, 5)


def test_a_point_may_have_numbers_of_numpy():
  points = [{'task.prior_mean': np.array([0.5, -1.0]), 'seed': np.int64(3)}]
  plain = [{'task.prior_mean': [0.5, -1.0], 'seed': 3}]
  assert without_arrays(points) == plain
  assert type(without_arrays(points)[0]['seed']) is int
  (kept,) = without_arrays([{'checkpoint.steps': (np.int64(3), 4)}])
  steps: Any = kept['checkpoint.steps']
  assert steps == (3, 4)
  assert type(steps[0]) is int
  assert name_of(without_arrays(points)[0]) == name_of(plain[0])


@pytest.mark.parametrize(
  ('call', 'said'),
  [
    (lambda out: _grid([('seed', [0, 1])]), 'the axes of a grid are a list'),
    (lambda out: _grid({3: [0, 1]}), 'a field of the grid is 3'),
    (lambda out: _sweep({'seed': [0, 1]}, out), 'the points of the sweep are a dict'),
    (lambda out: _sweep([{3: 3}], out), 'a point of the sweep is {3: 3}'),
    (
      lambda out: _sweep([{'seed': 0}], out, part='1/2'),
      'str is not a part of the sweep',
    ),
    (
      lambda out: _sweep([{'optimizer.scales': {'a.b': 2.0}}], out),
      'no config can hold a key with a dot',
    ),
    (lambda out: train(small_config(), ''), "the path is ''; it must be the name of"),
  ],
)
def test_a_mistake_in_the_arguments_of_a_sweep_is_one_line(
  call, said, tmp_path, unchecked
):
  with refuses(said):
    call(tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def _sweep(points: Any, out: Any, **options: Any) -> Any:
  return sweeps.sweep(small_config(), points, out, **options)


def _grid(axes: Any) -> Any:
  return grid(axes)


def test_a_point_whose_fields_have_another_order_is_the_same(tmp_path):
  one: dict[str, Any] = {'seed': 0, 'optimizer.learning_rate': 0.1}
  other = dict([*one.items()][::-1])
  with refuses('is given twice'):
    _sweep([one, other], tmp_path)
  assert name_of(other) == name_of(one) == 'optimizer.learning_rate=0.1,seed=0'


def test_a_point_is_the_same_whether_its_numbers_are_written_0_or_0_0(tmp_path):
  points = [{'task.prior_mean': value} for value in (0, 0.0, [0, 1.0], [0.0, 1])]
  first, second, *lists = map(name_of, points)
  assert first == second == 'task.prior_mean=0'
  assert lists[0] == lists[1] != first
  assert name_of({'seed': True}) != name_of({'seed': 1})
  with refuses('is given twice'):
    sweeps.sweep(_config(), points[:2], tmp_path / 'sweep')
  assert not (tmp_path / 'sweep').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('objective', 'i'),
  mostly_full([('sampled', 2)], ['sampled', 'exact'], range(5)),
)
@pytest.mark.full
def test_so_it_is_with_weights_that_decay(all_points, tmp_path, objective, i):
  config, rows = all_points(objective)
  _assert_as_alone(config, _POINTS[i], rows[i], tmp_path / 'alone')


def _assert_as_alone(config, point, row, workdir):
  alone = train(sweeps.at_point(config, point), workdir)
  assert alone is not None
  assert {name: row[name] for name in point} == point
  assert_close_arrays(saved_arrays(row['workdir'], 12), saved_arrays(workdir, 12))
  _assert_alike(row, alone, workdir)


def _assert_alike(row, alone, workdir):
  """A row has the summary and the lines of a run alone, up to rounding."""
  for name, value in alone.items():
    if value is not None and name.endswith(('risk', 'stderr')):
      # In float32 a mean over 32 prompts, or the risk of weights 1e-5 apart.
      assert row[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    elif name not in OF_THE_LAUNCH:
      assert row[name] == value, name
  logged = [lines_of(folder) for folder in (row['workdir'], workdir)]
  assert [line.keys() for line in logged[0]] == [line.keys() for line in logged[1]]
  for mine, theirs in zip(*logged, strict=True):
    assert mine['step'] == theirs['step']
    assert mine['loss'] == pytest.approx(theirs['loss'], rel=1e-3)


@pytest.fixture(scope='module')
def three(tmp_path_factory):
  """The rows of three points that were trained without an interruption."""
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion('standard'):
    share_programs(patch)
    return sweep(_config(), _POINTS[:3], tmp_path_factory.mktemp('three'))


def _folder(rows):
  """The workdir of the sweep that has these rows."""
  return rows[0]['workdir'].parents[1]


def _movable(rows):
  """The rows with the folders of the points as they are in any workdir."""
  return [{**row, 'workdir': row['workdir'].name} for row in rows]


def test_a_point_is_a_workdir_like_any_other(three):
  for row, point in zip(three, _POINTS, strict=False):
    summary = train(sweeps.at_point(_config(), point), row['workdir'])
    assert summary == {k: v for k, v in row.items() if k not in {*point, 'workdir'}}
  assert not (_folder(three) / 'programs').exists()


def test_the_table_is_there_as_json_and_csv(three):
  workdir = _folder(three)
  plain = [
    {**row, 'workdir': str(row['workdir'].relative_to(workdir))} for row in three
  ]
  assert json.loads((workdir / 'table.json').read_text()) == plain
  with (workdir / 'table.csv').open(newline='') as file:
    read = list(csv.DictReader(file))
  assert [float(row['exact_risk']) for row in read] == [r['exact_risk'] for r in three]
  assert read[1]['task.prior_mean'] == '[0.5, -1.0, 2.0]'
  # Time and speed are those of the program that trained all three.
  for name in 'wall_time', 'steps_per_second', 'cpu_ms_per_step':
    assert len({row[name] for row in three}) == 1
  shown = sweeps.format_table(three, ['model.num_heads'])
  assert f'{three[0]["exact_risk"]:.6f}' in shown
  assert 'mean' not in shown


def test_the_printed_table_has_the_metrics_of_ones_own():
  first, lost = _sampled('optimizer.name', {'adam': [1.0, None]})
  rows = [first | {'metrics': {'norm/w': 2.5, 'norm/v': None}}, lost]
  header, first, lost = sweeps.format_table(rows, ['seed']).split('\n')
  assert header.split() == ['seed', 'sampled', 'risk', 'norm/w']
  assert (first.split(), lost.split()) == (
    ['0', '1.0000', '2.5'],
    ['1', 'diverged', '-'],
  )


def test_a_sampled_risk_is_the_loss_of_the_comparison_where_all_points_have_one():
  measured = {'mean': [5.0, 1.0], 'stderr': [5.0, 0.5]}
  rows = [
    {'seed': seed, 'step': 12, 'eval_risk': 9.0, 'eval_risk_stderr': 9.0}
    | {'exact_risk': None, 'excess_risk': None}
    | {'comparison': {'model': {**measured, 'num_prompts': 64}}}
    for seed in range(2)
  ]
  first, means, _ = sweeps.format_table(rows, ['seed']).split('\n\n')
  assert first.split('\n')[0].endswith('± t·s.e.')
  assert first.split('\n')[1].split() == ['0', '1.0000', '0.9992']  # t = 1.998
  assert means.split('\n')[1].split()[:2] == ['2', '1.0000']
  rows[1]['comparison'] = None
  first, *_ = sweeps.format_table(rows, ['seed']).split('\n\n')
  assert first.split('\n')[1].split()[1] == '9.0000'


def test_the_table_has_means_over_seeds_with_students_intervals():
  rows = _sampled('train.num_steps', {n: [n + 0.0, n + 1.0, n + 2.0] for n in (3, 7)})
  fields = ['train.num_steps', 'seed']
  header, *_, few, _, note = sweeps.format_table(rows[:-1], fields).split('\n')
  assert few.split()[:4] == ['7', '2', '7.5000', '6.3531']  # t = 12.706, error 1/2
  *_, three, _, _, _ = sweeps.format_table(rows, fields).split('\n')
  assert three.split()[:4] == ['3', '3', '4.0000', '2.4841']  # t = 4.3027, error 1/√3
  assert 'seed' in header
  assert note.startswith('Intervals are over seeds. All seeds share the held-out')


def _sampled(field, risks):
  """The rows of a sweep over a field and seeds; a loss of None is not finite."""
  return [
    {field: value, 'seed': seed, 'step': risk and 12, 'eval_risk': risk}
    | dict.fromkeys(['eval_risk_stderr', 'exact_risk', 'excess_risk', 'comparison'])
    for value, losses in risks.items()
    for seed, risk in enumerate(losses)
  ]


def _means(rows, field):
  _, means, *_ = sweeps.format_table(rows, [field, 'seed']).split('\n\n')
  header, *lines = means.splitlines()
  return header, [line.split() for line in lines]


def test_differences_to_the_best_are_paired_by_seed():
  # Seeds differ by far more than the two mixers do, which differ alike at every seed.
  rows = _sampled('model.mixer', {'a': [5.0, 5.6, 4.6], 'b': [4.9, 5.6, 4.5]})
  header, (a, b) = _means(rows, 'model.mixer')
  assert header.endswith('minus the best, paired  ± 95 % interval')
  gap, spread = 0.2 / 3, 0.1 / 3**0.5  # 0.1, 0.0, 0.1: deviation 0.1/√3
  half = 4.3027 * spread / 3**0.5
  assert a[-2:] == [f'{gap:+.4f}', f'{half:.4f}']
  assert float(a[-1]) < 0.2 * float(a[3])  # of the interval that is not paired
  assert b[-1] == 'best'


def test_a_seed_that_is_lost_is_no_pair_and_is_said():
  rows = _sampled('model.mixer', {'a': [5.0, 5.6, 4.6], 'b': [None, 5.5, 4.4]})
  first, *_ = sweeps.format_table(rows, ['model.mixer', 'seed']).split('\n\n')
  # No row has a standard error or an exact risk, so that their columns are left out.
  assert first.splitlines()[0].split() == ['model.mixer', 'seed', 'sampled', 'risk']
  assert first.splitlines()[4].split() == ['b', '0', 'diverged']
  _, (a, b) = _means(rows, 'model.mixer')
  assert a[-1] == 'best'  # of those with the most seeds
  assert b[:4] == ['b', '2', '(1', 'diverged)']
  assert b[-2:] == ['-0.1500', '0.6353']


def test_a_seed_without_a_risk_is_said():
  rows = _sampled('model.mixer', {'a': [5.0, 5.6, 4.6], 'b': [None, 5.5, 4.4]})
  rows[-1]['eval_risk'] = None  # It has a step: its risk is not finite.
  _, (_, b) = _means(rows, 'model.mixer')
  assert b[:7] == ['b', '1', '(1', 'diverged,', '1', 'without', 'a']


def test_a_point_with_another_source_has_no_step_or_digest_of_the_first():
  fields = {'init_from': 'a', 'init_from_step': 5, 'init_from_digest': 16 * 'a'}
  config = read(small_config(**{f'train__{name}': fields[name] for name in fields}))
  other = config_at(config, {'train.init_from': 'b'})
  assert other.train.init_from_step is other.train.init_from_digest is None
  assert config_at(config, {'seed': 1}).train.init_from_step == 5


def test_points_on_other_prompts_are_not_compared():
  for field in 'task.noise_std', 'train.batch_size', 'eval.num_batches':
    header, _ = _means(_sampled(field, {1: [5.0, 5.6], 2: [4.9, 5.6]}), field)
    assert 'best' not in header, field


def test_numbers_of_heads_are_trained_apart():
  points = [{'model.num_heads': heads} for heads in (2, 4, 2)]
  experiments = build_points(
    read(_config()), [{**p, 'seed': i} for i, p in enumerate(points)]
  )
  assert sweeps.side_by_side(experiments, range(3)) == [[0, 2], [1]]


def test_points_that_have_saved_steps_of_their_own_go_on_alone(
  tmp_path, monkeypatch, caplog
):
  caplog.set_level('INFO')
  experiments = build_points(read(_config()), [{'seed': seed} for seed in range(4)])
  folders = [tmp_path / str(seed) for seed in range(4)]
  members = [*map(Member, experiments, folders)]
  saved = {'1', '3'}
  monkeypatch.setattr(
    groups, 'saved_steps', lambda folder: [12] * (folder.name in saved)
  )
  divided = groups.groups_to_train(range(4), members, tmp_path)
  assert divided == [[1], [3], [0, 2]]
  assert '2 points have saved steps of their own, and go on one after' in caplog.text


def test_a_sweep_that_trains_nothing_keeps_its_configs_and_measures_what_is_new(
  tmp_path, monkeypatch, three, no_step, caplog
):
  shutil.copytree(_folder(three), tmp_path, dirs_exist_ok=True)
  points, before = _POINTS[:3], _files_of(tmp_path)

  def stop(*arguments):
    raise _Killed

  with monkeypatch.context() as patch:  # One point is to be trained for longer.
    patch.setattr(run, 'compile_training', lambda training: training)
    patch.setattr(run, 'Loop', stop)
    with pytest.raises(_Killed):
      sweep(_config(train__num_steps=120), points[1:2], tmp_path)
  assert _files_of(tmp_path) == before
  no_step()
  assert _movable(sweep(_config(), points, tmp_path)) == _movable(three)
  assert _files_of(tmp_path) == before
  # Fields that have no effect any more, and a metric.
  monkeypatch.setitem(METRICS, 'bias', lambda model, task, key: {'is': 2.0})
  fields = {'train__log_every': 3, 'mesh__start_timeout': 99}
  rows = sweep(_config(eval__metrics=('bias',), **fields), points, tmp_path)
  assert [row['metrics'] for row in rows] == [{'bias/is': 2.0}] * 3
  (said,) = [text for text in caplog.messages if 'keep their configs' in text]
  assert 'mesh.start_timeout (300 there, 99 here)' in said
  assert 'train.log_every (4 there, 3 here)' in said
  after = _files_of(tmp_path)
  changed = {path for path in after if after[path] != before[path]}
  folders = [row['workdir'].relative_to(tmp_path) for row in rows]
  names = 'config.json', 'summary.json'
  written = {str(folder / name) for folder in folders for name in names}
  assert changed == {'table.csv', 'table.json', *written}
  for folder in folders:
    config, other = (
      json.loads(files[f'{folder}/config.json']) for files in (before, after)
    )
    assert other['eval'].pop('metrics') == ['bias']
    assert config['eval'].pop('metrics') == []
    assert other == config


def _files_of(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file() and not path.name.startswith('.lock')
  }


@pytest.mark.slow
@pytest.mark.full
def test_points_that_are_done_are_not_trained_again(tmp_path, three, trained):
  shutil.copytree(_folder(three), tmp_path, dirs_exist_ok=True)
  again = sweep(_config(), _POINTS[:3], tmp_path)
  assert _movable(again) == _movable(three)
  assert not trained
  more = sweep(_config(), _POINTS, tmp_path)
  assert more[:3] == again
  assert trained == [2]


def _assert_same_results(rows, others):
  for row, other in zip(rows, others, strict=True):
    assert_same_bits(
      saved_arrays(row['workdir'], 12), saved_arrays(other['workdir'], 12)
    )
    for name in ('eval_risk', 'eval_risk_stderr', 'exact_risk', 'step'):
      assert row[name] == other[name], name


@pytest.mark.slow
@pytest.mark.usefixtures('shared_programs')
def test_a_sweep_killed_between_a_checkpoint_and_its_summary_is_finished(
  tmp_path, monkeypatch, three, no_step
):
  write, calls = sweep_run.write_summary, []

  def killed(folder, summary):
    calls.append(folder)
    if len(calls) > 1:
      raise _Killed
    write(folder, summary)

  with monkeypatch.context() as patch:
    patch.setattr(sweep_run, 'write_summary', killed)
    with pytest.raises(_Killed):
      sweep(_config(), _POINTS[:3], tmp_path)
  assert len(list(tmp_path.glob('points/*/checkpoints/12'))) == 2
  no_step()
  _assert_same_results(sweep(_config(), _POINTS[:3], tmp_path), three)
  assert not (tmp_path / 'programs').exists()


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.slow
def test_a_signal_while_points_are_written_is_heeded_and_all_is_kept(
  tmp_path, monkeypatch, three, no_step
):
  write = sweep_run.write_summary

  def stop(folder, summary):
    signal.raise_signal(signal.SIGTERM)
    write(folder, summary)

  with monkeypatch.context() as patch:
    patch.setattr(sweep_run, 'write_summary', stop)
    assert sweeps.sweep(_config(), _POINTS[:3], tmp_path) is None
  assert len(list(tmp_path.glob('points/*/summary.json'))) == 1
  no_step()
  _assert_same_results(sweep(_config(), _POINTS[:3], tmp_path), three)


@pytest.mark.slow
@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize(
  ('place', 'number', 'num_done'),
  [
    ('prepare', signal.SIGTERM, 0),
    ('compare_with_baselines', signal.SIGINT, 1),
  ],
)
def test_a_signal_outside_the_loop_of_a_lone_point_stops_the_sweep(
  tmp_path, monkeypatch, place, number, num_done
):
  function, signals = getattr(run, place), [number]

  def interrupted(*arguments):
    if signals:
      signal.raise_signal(signals.pop())
    return function(*arguments)

  points = [{'checkpoint.every': every} for every in (6, 12)]
  config = small_config(eval__num_batches=0)
  with monkeypatch.context() as patch:
    patch.setattr(run, place, interrupted)
    if number == signal.SIGINT:
      with pytest.raises(KeyboardInterrupt):
        sweeps.sweep(config, points, tmp_path)
    else:
      assert sweeps.sweep(config, points, tmp_path) is None
  assert len([*tmp_path.glob('points/*/summary.json')]) == num_done
  assert not (tmp_path / 'table.json').exists()
  assert len(sweep(config, points, tmp_path)) == 2


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.slow
def test_a_stopped_sweep_with_more_points_goes_on_to_the_same_bits(
  tmp_path, monkeypatch, caplog, three
):
  with monkeypatch.context() as patch:
    signal_at_step_4(patch)
    assert sweeps.sweep(_config(), _POINTS[:3], tmp_path) is None
  caplog.set_level('INFO', 'absl')
  changed = _config(checkpoint__every_minutes=30.0, eval__num_compared=1)
  rows = sweep(changed, _POINTS[:4], tmp_path)
  assert 'resuming at step 6 of 12' in caplog.text
  assert len(rows) == 4
  _assert_same_results(rows[:3], three)
  for row in rows[:3]:
    assert [line['step'] for line in lines_of(row['workdir'])] == [4, 6, 8, 12]
  assert not (tmp_path / 'programs').exists()


@pytest.mark.slow
def test_a_field_that_a_model_reads_when_it_is_called_is_that_of_each_point(
  tmp_path, register, monkeypatch
):
  """A scale that multiplies predictions, beside the one of the weights at step 0."""

  @register('scaled')
  class Scaled(nnx.Module):
    def __init__(self, num_features, init_scale=1.0, *, rngs):
      self.init_scale = init_scale
      self.w = nnx.Param(0.1 * jax.random.normal(rngs.params(), (num_features,)))

    def __call__(self, prompt):
      return self.init_scale * prompt.x_query @ self.w[...]

  config = small_config('transformer', train__num_steps=2)
  with config.unlocked():
    config.model = {'name': 'scaled', 'init_scale': 1.0}
  config.objective.positions = 'query'
  together = []
  make = sweep_run.make_many
  monkeypatch.setattr(
    sweep_run,
    'make_many',
    lambda experiments: together.append([*experiments]) or make(experiments),
  )
  monkeypatch.setattr(run, 'check_agreement', lambda *_: None)
  sweep(config, grid({'model.init_scale': [1.0, 50.0], 'seed': [0, 1]}), tmp_path)
  scales = [[e.config.model.arguments['init_scale'] for e in es] for es in together]
  assert scales == [[1.0, 1.0], [50.0, 50.0]]


@pytest.mark.slow
@pytest.mark.full
def test_a_sweep_on_eight_devices_is_that_on_one(all_points, tmp_path, monkeypatch):
  config, rows = all_points('sampled')
  compile_init(monkeypatch)
  config = copy.deepcopy(config)
  config.mesh.data, config.mesh.model = 4, 2
  eight = sweep(config, _POINTS, tmp_path)
  for alone, together in zip(rows, eight, strict=True):
    assert_close_arrays(
      saved_arrays(alone['workdir'], 12), saved_arrays(together['workdir'], 12)
    )


@pytest.mark.usefixtures('shared_programs')
def test_a_point_that_is_not_finite_is_named_and_the_others_are_done(tmp_path, no_step):
  # A program of one point, and one of three.
  rate = 'optimizer.learning_rate'
  points = [{rate: value} for value in (1e-3, 1e30, 2e-3)]
  points = [{'checkpoint.every': 6, rate: 1e30}, *points]
  config = small_config(eval__num_batches=0, checkpoint__every=12)
  with pytest.raises(sweeps.LostPointsError, match=r'2 of 4 points .*1e\+30') as info:
    sweep(config, points, tmp_path)
  assert [row[rate] for row in info.value.rows] == [1e-3, 2e-3]
  # The tables have all points, those that are lost without numbers.
  table = json.loads((tmp_path / 'table.json').read_text())
  assert [row['step'] for row in table] == [None, 12, None, 12]
  assert [row[rate] for row in table] == [1e30, 1e-3, 1e30, 2e-3]
  with (tmp_path / 'table.csv').open(newline='') as file:
    assert [row['exact_risk'] == '' for row in csv.DictReader(file)] == [1, 0, 1, 0]
  shown = sweeps.format_table(info.value.table, [rate])
  assert shown.count('diverged') == 2
  # Each has a record of the first step that is not finite.
  lost = [row['workdir'] for row in info.value.table if row['step'] is None]
  records = [json.loads((folder / 'diverged.json').read_text()) for folder in lost]
  assert [record['step'] for record in records] == [2, 2]
  for folder, record in zip(lost, records, strict=True):
    assert record['loss'] is None
    assert record['reason'].startswith(f'step {record["step"]} is not finite (loss ')
    assert f'{folder.name} ({record["reason"]})' in str(info.value)
  # They are not trained again, and all is said and written as it was.
  no_step()
  with pytest.raises(sweeps.LostPointsError) as again:
    sweep(config, points, tmp_path)
  assert str(again.value) == str(info.value)
  assert again.value.table == info.value.table
  assert json.loads((tmp_path / 'table.json').read_text()) == table
  assert sweeps.is_finished(config, points, tmp_path)
  done = sweep(config, points[1::2], tmp_path)
  assert all(np.isfinite(row['exact_risk']) for row in done)
  assert not (
    tmp_path / 'points' / 'optimizer.learning_rate=1e+30' / 'checkpoints'
  ).exists()


@pytest.mark.slow
@pytest.mark.usefixtures('shared_programs')
@pytest.mark.full
def test_points_whose_prompts_are_wrong_are_lost_for_this_reason(
  tmp_path, monkeypatch, no_step
):
  def wrong(*_):
    raise zoo.UserError('y of the prompts of Own is not finite')

  monkeypatch.setattr(run, 'check_sampled', wrong)
  # A program that loses all of its points, and a point alone.
  rate = 'optimizer.learning_rate'
  points = [{rate: value} for value in (1e30, 1e31, 1e32)]
  points += [{rate: 1e30, 'checkpoint.every': 6}]
  config = small_config(eval__num_batches=0, checkpoint__every=12)
  for _ in range(2):
    with pytest.raises(sweeps.LostPointsError, match='4 of 4 points') as info:
      sweep(config, points, tmp_path)
    reason = 'step 2 is not finite: y of the prompts of Own is not finite'
    assert str(info.value).count(reason) == 4
    no_step()
  # A point whose record is deleted is trained again.
  (tmp_path / 'points' / name_of(points[3]) / 'diverged.json').unlink()
  with pytest.raises(AssertionError, match='trained again'):
    sweep(config, points, tmp_path)


@pytest.mark.slow
def test_the_error_of_a_program_has_the_record_of_the_model_that_was_lost_last(
  tmp_path, monkeypatch
):
  raised, train_many = [], sweep_run.train_many

  def watched(*arguments):
    try:
      return train_many(*arguments)
    except run.NotFiniteError as error:
      raised.append(error)
      raise

  monkeypatch.setattr(sweep_run, 'train_many', watched)
  config = small_config(
    optimizer__name='sgd',
    optimizer__schedule='constant',
    train__num_steps=50,
    eval__num_batches=0,
    checkpoint__every=50,
  )
  points = [{'optimizer.learning_rate': rate} for rate in (1e30, 30.0)]
  with pytest.raises(sweeps.LostPointsError, match='2 of 2 points'):
    sweep(config, points, tmp_path)
  first, last = (
    json.loads((tmp_path / 'points' / name_of(point) / 'diverged.json').read_text())
    for point in points
  )
  assert first['step'] < last['step']
  assert [error.divergence for error in raised] == [last]
  assert last['reason'] in str(raised[0])


@pytest.mark.slow
@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize('has_record', mostly_full([True], [False]))
def test_a_program_that_has_lost_a_point_goes_on_without_it(
  tmp_path, monkeypatch, has_record
):
  # A point that is to be trained for more steps has no record for their number.
  rate = 'optimizer.learning_rate'
  points, config = [{rate: 1e30}, {rate: 1e-3}], _config(eval__num_batches=0)
  with monkeypatch.context() as patch:
    signal_at_step_4(patch)
    assert sweeps.sweep(config, points, tmp_path) is None
  path = tmp_path / 'points' / name_of(points[0]) / 'diverged.json'
  record = path.read_text()
  if not has_record:
    path.unlink()
  with pytest.raises(sweeps.LostPointsError) as info:
    sweep(config, points, tmp_path)
  assert [row['step'] for row in info.value.table] == [None, 12]
  if has_record:
    assert path.read_text() == record
  else:
    assert 'the weights at step 6 are not finite' in str(info.value)
  assert not (tmp_path / 'programs').exists()


@pytest.mark.slow
def test_a_point_whose_error_is_unknown_has_a_row_and_is_trained_once(
  tmp_path, trained
):
  # Held-out losses above 1e20, whose squares overflow.
  config = _config(optimizer__learning_rate=1e3, train__num_steps=1)
  points = [_POINTS[1], _POINTS[3]]
  rows = sweep(config, points, tmp_path)
  assert trained == [2]
  assert len(rows) == 2
  for row in rows:
    assert np.isfinite(row['eval_risk'])
    assert row['eval_risk_stderr'] is None
    # Python would write NaN and Infinity, which are no JSON.
    text = (row['workdir'] / 'summary.json').read_text()
    summary = json.loads(text, parse_constant=pytest.fail)
    assert summary['eval_risk_stderr'] is None
  assert len(json.loads((tmp_path / 'table.json').read_text())) == 2
  assert f'{rows[0]["eval_risk"]:.4f}' in sweeps.format_table(rows, ['seed'])
  assert sweep(config, points, tmp_path) == rows
  assert trained == [2]


@pytest.mark.slow
@pytest.mark.full
def test_points_of_other_shapes_and_other_models_are_trained_one_by_one(
  tmp_path, trained
):
  points = grid({'task.context_length': [3, 5], 'optimizer.name': ['adam', 'sgd']})
  assert len(points) == 4
  rows = sweep(_config(eval__num_batches=0), points[:3], tmp_path)
  assert trained == [1, 1, 1]
  optima = [row['optimal_risk'] for row in rows]
  assert optima[0] == optima[1] > optima[2]
  for point, row in zip(points, rows, strict=False):
    config = json.loads((row['workdir'] / 'config.json').read_text())
    assert config['optimizer']['name'] == point['optimizer.name']


@pytest.mark.parametrize(
  ('points', 'said'),
  [
    ([], ['no point']),
    ([{'seed': 'one'}], ['seed']),
    ([{'optimizer.clip_norm': 'all'}], ["clip_norm is 'all'; it must be a number"]),
    ([{'task.noise_std': 0.1}, {'task.noise_std': -0.1}], ['noise_std', '-0.1']),
    ([{'mesh.data': 16}], ['16', 'devices']),
  ],
  ids=str,
)
def test_bad_points_are_refused_before_anything_is_written(tmp_path, points, said):
  with refuses(*said):
    sweep(_config(), points, tmp_path / 'new')
  assert not (tmp_path / 'new').exists()


def test_what_is_no_config_is_refused(tmp_path, unchecked):
  nothing: Any = 3
  with refuses('the config is a int; it must be a ConfigDict'):
    sweep(nothing, _POINTS, tmp_path / 'new')


def test_a_sweep_of_another_config_keeps_its_folder(tmp_path, three):
  shutil.copytree(_folder(three), tmp_path, dirs_exist_ok=True)
  with refuses('another config', 'train.num_steps'):
    sweep(_config(train__num_steps=11), _POINTS[:1], tmp_path)


def test_runs_and_sweeps_do_not_share_a_folder(tmp_path, three):
  shutil.copytree(_folder(three), tmp_path / 'sweep')
  with refuses('workdir of a sweep, not of a run'):
    train(_config(), tmp_path / 'sweep')
  shutil.copytree(three[0]['workdir'], tmp_path / 'run')
  with refuses('workdir of a run, not of a sweep'):
    sweep(_config(), _POINTS[:1], tmp_path / 'run')


def test_a_sweep_of_connected_processes_is_refused_untouched(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with refuses('must not be connected', 'one of 2', 'part'):
    sweeps.sweep(_config(), [{'seed': 0}], tmp_path / 'sweep')
  assert not (tmp_path / 'sweep').exists()


@pytest.mark.slow
def test_points_of_another_task_have_the_losses_of_its_baselines(tmp_path):
  config = small_config('yq_lsa', eval__num_compared=16)
  with config.unlocked():
    config.task = common.task_section('quadratic_regression')
  config.task.num_features, config.task.context_length = 2, 3
  rows = sweep(config, [{'task.noise_std': 0.0}, {'task.noise_std': 1.0}], tmp_path)
  with (tmp_path / 'table.csv').open(newline='') as file:
    table = list(csv.DictReader(file))
  for row, line in zip(rows, table, strict=True):
    assert 'comparison' not in line
    bayes = row['comparison']['bayes']
    saved = zoo.load(row['workdir'])
    alone: Any = compare(saved.model, saved.task, 16, seed=config.eval.seed)
    assert bayes['mean'] == pytest.approx(alone['bayes']['mean'], rel=1e-5)
    assert float(line['bayes_loss']) == bayes['mean'][-1]
    assert float(line['bayes_difference']) == bayes['difference']
    assert float(line['bayes_difference_stderr']) == bayes['difference_stderr']
    assert float(line['model_loss']) == row['comparison']['model']['mean'][-1]
  without_noise, with_noise = (row['comparison']['bayes']['mean'][-1] for row in rows)
  # Three examples of three basis functions leave nothing unknown without noise.
  assert without_noise == pytest.approx(0, abs=1e-9)
  assert with_noise > 0.1


def test_fields_of_a_tuple_go_together():
  together = ('model.mixer', 'model.hidden_features')
  points = grid({together: [('softmax', 137), ('delta', 128)], 'seed': [0, 1]})
  assert [(*point.values(),) for point in points] == [
    ('softmax', 137, 0),
    ('softmax', 137, 1),
    ('delta', 128, 0),
    ('delta', 128, 1),
  ]
  assert [*points[0]] == [*together, 'seed']
  with refuses('model.mixer, model.hidden_features go together', "('softmax',)", '2'):
    grid({together: [('softmax',)]})
  with refuses('the field seed is given twice'):
    grid({('seed', 'train.num_steps'): [(1, 2)], 'seed': [0, 1]})


@pytest.mark.slow
def test_each_point_of_a_sweep_over_files_has_its_own(tmp_path):
  config = small_config('yq_lsa', eval__num_batches=0)
  paths = [str(tmp_path / name) for name in ('a.npz', 'b.npz')]
  for i, path in enumerate(paths):
    x = np.random.default_rng(i).normal(size=(40, 3))
    np.savez(path, x=x, y=x.sum(axis=1))
  with config.unlocked():
    config.task = common.task_section('arrays')
    config.task.context_length = 4
  points = grid({'task.path': paths, 'seed': [0]})
  rows = sweep(config, points, tmp_path / 'sweep')
  saved = [json.loads((row['workdir'] / 'config.json').read_text()) for row in rows]
  assert [config_of_point['task']['path'] for config_of_point in saved] == paths
  assert len({config_of_point['task']['sha256'] for config_of_point in saved}) == 2
  # So does one whose config names a file, as that of a run does; and it resumes.
  config.task.path = paths[1]
  assert sweep(config, points, tmp_path / 'sweep') == rows
  assert sweeps.at_point(sweeps.at_point(config, points[0]), points[1])
  np.savez(paths[0], x=np.ones((40, 3)), y=np.arange(40.0))
  with refuses('belongs to another config', 'task.sha256'):
    sweep(config, points, tmp_path / 'sweep')
  with refuses("none.npz', which cannot be read"):
    sweep(config, grid({'task.path': ['none.npz']}), tmp_path / 'other')


def test_times_are_said_in_words():
  words = [format_seconds(seconds) for seconds in (40.0, 720.0, 9e3)]
  assert words == ['40 s', '12 min', '2.5 h']
