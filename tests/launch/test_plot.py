"""launch.plot draws what runs have logged, whatever their files hold."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

import zoo
from configs import common
from tests.compare import refuses
from tests.marks import mostly_full
from tests.training.runs import small_config
from tests.trees import ROOT
from zoo.config.read import to_json
from zoo.core.registry import create_task
from zoo.host.files import workdir_path
from zoo.measure.predictive import with_drawn_labels
from zoo.reports.style import (
  BASELINES,
  BLACK,
  MARKERS,
  PALETTE,
  colours_of,
  drawing_of,
)
from zoo.training.records import read_lines
from zoo.training.run_labels import excess_in_training
from zoo.training.run_plots import (
  _read_comparison,
  logged,
  plot_examples,
  plot_metric,
  plot_risk,
  plot_sweep,
  plot_sweep_examples,
)
from zoo.training.summary import Summary, read_summary

SUMMARY = dict.fromkeys(Summary.__required_keys__) | {
  **{'model': 'yq_lsa', 'num_params': 4, 'step': 12, 'wall_time': 1.2},
  **{'exact_risk': 1.5, 'gd_risk': 1.5, 'optimal_risk': 1.5, 'excess_risk': 1.5},
  **{'eval_risk': 1.5, 'eval_risk_stderr': 1.5, 'steps_per_second': 100.0},
  **{'jax_version': '0.10.2', 'device_kind': 'cpu', 'num_devices': 1},
  'num_processes': 1,
  'history': [],
}


def line(step, **fields):
  return {
    'step': step,
    'loss': 8.0 / step,
    'eval_risk': None,
    'exact_risk': 9.0 / step,
    'curve': None,
    'grad_norm': 1.0,
    'steps_per_second': 100.0,
    'wall_time': 0.1 * step,
    **fields,
  }


def write_lines(folder, lines):
  text = ''.join(json.dumps(entry) + '\n' for entry in lines)
  (folder / 'metrics.jsonl').write_text(text)


@pytest.fixture
def run(tmp_path):
  """The folder of a run that has ended, without its checkpoints."""
  folder = tmp_path / 'run'
  folder.mkdir()
  (folder / 'config.json').write_text(to_json(small_config()))
  write_lines(folder, [line(step) for step in (4, 8, 12)])
  (folder / 'summary.json').write_text(json.dumps(SUMMARY))
  return folder


def test_a_run_is_plotted_into_its_workdir(call, run):
  answer = call('plot', f'--workdir={run}')
  assert (answer.code, answer.out) == (0, f'{run}/risk.png\n')
  assert (run / 'risk.png').read_bytes().startswith(b'\x89PNG')
  axes = plot_risk([run, run])
  exact, _, gradient_descent = axes.lines
  np.testing.assert_array_equal(exact.get_xdata(), [4, 8, 12])
  np.testing.assert_array_equal(exact.get_ydata(), [9 / 4, 9 / 8, 9 / 12])
  assert exact.get_label() == 'yq_lsa: 0.750'
  assert gradient_descent.get_label() == 'gd: 1.500'
  np.testing.assert_array_equal(gradient_descent.get_ydata(), [1.5, 1.5])


@pytest.fixture
def runs(run):
  """Makes folders of runs whose configs differ from that of `run` as given."""

  def make(**changes):
    for name, change in changes.items():
      folder = run.parent / name
      shutil.copytree(run, folder)
      config = json.loads((folder / 'config.json').read_text())
      for field, value in change.items():
        section, _, key = field.rpartition('.')
        (config[section] if section else config)[key] = value
      (folder / 'config.json').write_text(json.dumps(config))
    return [run.parent / name for name in changes]

  return make


def labels_of(folders):
  axes = plot_risk(folders)
  return [line.get_label() for line in axes.lines[: len(folders)]]


_FIELDS = (
  'optimizer.beta1',
  'optimizer.clip_norm',
  'train.batch_size',
  'train.num_steps',
)


@pytest.mark.parametrize(
  ('changes', 'names'),
  [
    (
      {
        'a': {'model.mixer': 'rwkv7', 'seed': 0},
        'b': {'model.mixer': 'softmax', 'seed': 0},
        'c': {'model.mixer': 'softmax', 'seed': 1},
      },
      ['mixer=rwkv7, seed=0', 'mixer=softmax, seed=0', 'mixer=softmax, seed=1'],
    ),
    (
      {
        'a': {'model.name': 'lsa', 'optimizer.learning_rate': 0.5, 'seed': 3},
        'b': {'seed': 4, 'eval.num_batches': 7, 'checkpoint.keep': 9},
      },
      ['lsa, seed=3', 'yq_lsa, seed=4'],
    ),
    (
      {'a': {**dict.fromkeys(_FIELDS, 1), 'optimizer.beta1': 0.5}, 'b': {'seed': 5}},
      ['beta1=0.5, clip_norm=1, seed=0, batch_size=1, …', None],
    ),
    ({'a': {}, 'b': {}}, ['yq_lsa (a)', 'yq_lsa (b)']),
  ],
)
def test_runs_are_named_by_what_differs(runs, changes, names):
  for label, name in zip(labels_of(runs(**changes)), names, strict=True):
    assert name is None or label == f'{name}: 0.750'


def test_curves_and_folders_of_one_name_are_told_apart(runs):
  folders = runs(a={'seed': 0}, b={'seed': 1})
  for folder in folders:
    write_lines(folder, [line(4, curve=[3.0, 2.0])])
  (axes,) = plot_examples(folders)
  assert [curve.get_label() for curve in axes.lines] == ['seed=0', 'seed=1']
  (a,) = runs(c={})
  twin = a.parent / 'other' / 'c'
  shutil.copytree(a, twin)
  first, second = labels_of([a, twin])
  assert first != second
  assert second == 'yq_lsa (other/c): 0.750'


def test_a_sweep_and_runs_with_other_losses_are_refused_in_one_line(call, run, runs):
  a, b = runs(a={}, b={'task': common.task_section('logistic_regression').to_dict()})
  answer = call('plot', f'--workdir={a}', f'--workdir={b}')
  assert answer.code == 2
  said = f'error: the loss of {a} is the squared error, and that of {b} is the log loss'
  assert answer.err.startswith(said)
  (run / 'points' / 'seed=0').mkdir(parents=True)
  answer = call('plot', f'--workdir={run}')
  assert answer.code == 2
  assert answer.err == (
    f'error: {run} is a sweep; plot it alone once it has ended, or some of its points, '
    f'such as {run}/points/seed=0\n'
  )


@pytest.mark.parametrize('flag', ['--loss=training', '--against=operations'])
def test_what_a_sweep_does_not_have_is_one_line(call, run, flag):
  (run / 'table.json').write_text('[]')
  answer = call('plot', f'--workdir={run}', flag)
  assert (answer.code, answer.err.count('\n')) == (2, 1)
  assert '--workdir is a sweep' in answer.err
  answer = call('plot', '--csv=a.csv', flag)
  assert 'cannot stand beside --csv' in answer.err


def test_a_line_with_an_unknown_value_is_whole(run):
  lines = [line(4), line(8, eval_risk=None, curve=[None, 2.0]), line(12, loss=None)]
  write_lines(run, lines)
  assert logged(read_lines(run), 'exact_risk')[0] == [4, 8, 12]
  (run / 'summary.json').unlink()
  curve = _read_comparison(run)['model']
  assert (curve['num_examples'], curve['mean']) == ([0, 1], [None, 2.0])


def test_a_risk_that_was_measured_once_is_shown_with_the_training_loss(run):
  lines = [line(step, exact_risk=None) for step in (4, 8)]
  lines.append(line(12, exact_risk=None, eval_risk=2.0))
  write_lines(run, lines)
  axes = plot_risk([run])
  risk, loss, _ = axes.lines
  assert risk.get_marker() != 'None'
  assert loss.get_label() == 'yq_lsa, training loss'
  np.testing.assert_array_equal(loss.get_ydata(), [2.0, 1.0, 2 / 3])


def test_lines_without_an_exact_risk_show_the_sampled_one(run):
  lines = [line(step, exact_risk=None, eval_risk=2.0 + step) for step in (4, 8)]
  write_lines(run, lines)
  axes = plot_risk(run)
  np.testing.assert_array_equal(axes.lines[0].get_ydata(), [6.0, 10.0])
  assert 'in-context risk, held-out prompts' in axes.get_ylabel()
  # The sampled risk has a band, and its half width in the legend.
  write_lines(run, [{**each, 'eval_risk_stderr': 0.5} for each in lines])
  axes = plot_risk(run)
  assert axes.lines[0].get_label() == 'yq_lsa: 10.000 ± 0.98'
  assert len(axes.collections) == 1
  # An interval that reaches below 0 keeps its end; the axis says how far it is shown.
  write_lines(run, [{**each, 'eval_risk_stderr': 10.0} for each in lines])
  axes = plot_risk(run)
  band = np.asarray(axes.collections[0].get_paths()[0].vertices)
  assert band[:, 1].min() == pytest.approx(6.0 - 1.959964 * 10.0)
  assert axes.get_ylim()[0] > 0


def test_runs_without_a_common_risk_are_not_mixed(run, tmp_path):
  other = tmp_path / 'other'
  shutil.copytree(run, other)
  write_lines(run, [line(4, eval_risk=3.0), line(8, eval_risk=2.0)])
  write_lines(other, [line(step, exact_risk=None, eval_risk=1.0) for step in (4, 8)])
  axes = plot_risk([run, other])
  np.testing.assert_array_equal(axes.lines[0].get_ydata(), [3.0, 2.0])
  write_lines(run, [line(4), line(8)])
  with refuses('has no risk on held-out prompts', 'cannot be compared'):
    plot_risk([run, other])
  with refuses('workdirs is empty'):
    plot_risk([])


def test_a_baseline_that_beats_the_run_is_shown(run):
  shown = {'num_prompts': 4, 'num_examples': [], 'mean': [], 'stderr': []}
  shown |= {'median': [], 'difference': None, 'difference_stderr': None}
  shown['accuracy'] = None
  exact = {'model': 0.75, 'bayes': 0.0, 'ridge': 0.01, 'zero': 90.0}
  comparison = {name: {**shown, 'exact': value} for name, value in exact.items()}
  (run / 'summary.json').write_text(json.dumps({**SUMMARY, 'comparison': comparison}))
  axes = plot_risk(run)
  assert [each.get_label() for each in axes.lines[1:]] == ['ridge: 0.010', 'gd: 1.500']
  assert axes.get_title() == 'below the axis: bayes 0'


def test_a_damaged_summary_is_none(run):
  path = run / 'summary.json'
  assert read_summary(run) == SUMMARY
  for value in ('x', float('nan'), 10**400, [], True):
    path.write_text(json.dumps({**SUMMARY, 'gd_risk': value}))
    assert read_summary(run) is None
  path.write_text(json.dumps({k: v for k, v in SUMMARY.items() if k != 'step'}))
  assert read_summary(run) is None


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--workdir=run', '--out=no/where.png'], 'cannot be written'),
    (['--workdir=run', '--workdir=fresh'], 'fresh has logged no risk yet'),
    (['--workdir=nameless'], 'nameless/config.json is damaged'),
  ],
  ids=str,
)
def test_what_cannot_be_plotted_is_one_line(call, run, monkeypatch, arguments, said):
  monkeypatch.chdir(run.parent)
  for name, text in ('fresh', to_json(small_config())), ('nameless', '{"model": null}'):
    (run.parent / name).mkdir()
    (run.parent / name / 'config.json').write_text(text)
  answer = call('plot', *arguments)
  assert answer.code == 2, answer.err
  (message,) = answer.err.splitlines()
  assert said in message


@pytest.mark.slow
@pytest.mark.full
def test_a_run_in_a_bucket_is_plotted_into_it(call, bucket, promotion_that_optax_needs):
  flags = '--config=configs/yq_lsa.py:smoke', '--config.eval.num_compared=0'
  assert call('main', *flags, f'--workdir={bucket}').code == 0
  answer = call('plot', f'--workdir={bucket}')
  assert (answer.code, answer.out) == (0, f'{bucket}/risk.png\n')
  picture = workdir_path(bucket) / 'risk.png'
  assert picture.read_bytes().startswith(b'\x89PNG')
  answer = call('plot', f'--workdir={bucket}', '--against=examples')
  assert answer.code == 2
  assert f'{bucket} has no loss by number of examples yet' in answer.err


def bars_of(axes):
  """The lower and upper end of each bar, by series."""
  return [
    [(low, high) for (_, low), (_, high) in bars.get_segments()]
    for bars in axes.collections
  ]


def test_a_sweep_is_drawn_by_field_with_means_over_seeds(tmp_path):
  rows = [
    {'model.num_heads': h, 'optimizer.name': name, 'seed': seed, 'workdir': 'w'}
    | SUMMARY
    | {'exact_risk': None, 'eval_risk': 10.0 / h + seed, 'eval_risk_stderr': None}
    for h in (3, 1, 2)
    for name in ('adam', 'lion')
    for seed in (0, 1, 2)
  ]
  (tmp_path / 'table.json').write_text(json.dumps(rows))
  axes = plot_sweep(tmp_path)
  figure = drawing_of(axes)
  assert {'model.num_heads', 'sampled risk at the end'} <= {
    *(figure.get_supxlabel(), figure.get_supylabel()),
    *(axes.get_xlabel(), axes.get_ylabel()),
  }
  first, second = axes.lines
  np.testing.assert_allclose(np.asarray(first.get_ydata()), [11, 6, 10 / 3 + 1])
  assert [line.get_label() for line in (first, second)] == [
    'optimizer=adam',
    'optimizer=lion',
  ]
  # Student's t with two degrees of freedom, for the standard error 1/√3.
  for mean, (low, high) in zip([11, 6, 10 / 3 + 1], bars_of(axes)[0], strict=True):
    half = 4.303 / np.sqrt(3)
    assert (low, high) == pytest.approx((mean - half, mean + half), rel=1e-3)
    assert axes.get_ylim()[0] < low < high < axes.get_ylim()[1]  # no bar is cut
  assert axes.get_title() == 'mean of 3 seeds, bars: 95 % interval over seeds'
  for row in rows:
    del row['model.num_heads']
  (tmp_path / 'table.json').write_text(json.dumps(rows))
  axes = plot_sweep(tmp_path)
  assert [tick.get_text() for tick in axes.get_xticklabels()] == ['adam', 'lion']
  means = np.asarray(axes.lines[0].get_ydata(), np.float64)
  np.testing.assert_allclose(means, [10 * 11 / 18 + 1] * 2)
  table = [
    {'seed': seed, 'workdir': 'w', **SUMMARY, 'model': 'lsa', 'exact_risk': 5.0 + seed}
    for seed in (0, 1, 2)
  ]
  (tmp_path / 'table.json').write_text(json.dumps(table))
  axes = plot_sweep(tmp_path)
  assert [tick.get_text() for tick in axes.get_xticklabels()] == ['lsa']
  assert np.asarray(axes.lines[0].get_ydata()).tolist() == [6.0]
  (((low, high),),) = bars_of(axes)
  assert (low, high) == pytest.approx((6 - 4.303 / 3**0.5, 6 + 4.303 / 3**0.5), 1e-3)
  (tmp_path / 'table.json').write_text(json.dumps([{**rows[0], 'eval_risk': None}]))
  with refuses('has no risk'):
    plot_sweep(tmp_path)


def write_table(folder, risks, fields, seeds=(0,)):
  """A sweep of points with these values of fields, each with its risk."""
  rows = [
    {**dict(zip(fields, point, strict=True)), 'seed': seed, 'workdir': 'w', **SUMMARY}
    | {'exact_risk': None, 'eval_risk': risk + seed, 'eval_risk_stderr': 0.76}
    for point, risk in risks.items()
    for seed in seeds
  ]
  (folder / 'table.json').write_text(json.dumps(rows))
  return rows


def test_one_seed_has_the_bar_of_its_evaluation_and_the_caption_says_so(tmp_path):
  write_table(tmp_path, {(1,): 5.0, (2,): 4.0, (4,): 3.0}, ['model.num_heads'])
  axes = plot_sweep(tmp_path)
  bars = [bar for of in bars_of(axes) for bar in of]
  expected = [(risk - 1.96 * 0.76, risk + 1.96 * 0.76) for risk in (5.0, 4.0, 3.0)]
  np.testing.assert_allclose(bars, expected, rtol=1e-4)  # 1.96 is rounded
  assert axes.get_title() == 'one seed, bars: ± 95 %, held-out prompts'


def test_the_caption_says_what_several_seeds_leave_out_and_what_is_not_shown(tmp_path):
  rows = write_table(tmp_path, {('a',): 5.0, ('b',): 4.0}, ['model.mixer'], (0, 1))
  rows[-1] |= {'step': None, 'eval_risk': None, 'eval_risk_stderr': None}
  rows.append({**rows[0], 'seed': 2, 'eval_risk': None})
  (tmp_path / 'table.json').write_text(json.dumps(rows))
  axes = plot_sweep(tmp_path)
  assert axes.get_title().split('\n') == [
    'mean of 2 seeds, bars: 95 % interval over seeds',
    'without the error of held-out prompts, up to ± 1.5',
    'one seed, bars: ± 95 %, held-out prompts',
    '1 point has diverged and is not shown, 1 point has no risk and is not shown',
  ]
  ((_, bar),) = bars_of(axes)
  assert bar == pytest.approx((4 - 1.96 * 0.76, 4 + 1.96 * 0.76), rel=1e-4)


def test_no_bar_of_a_line_hides_that_of_another(tmp_path):
  risks = {(m, h): 5.0 for m in 'ab' for h in (1, 2, 3)}
  write_table(tmp_path, risks, ['model.mixer', 'model.num_heads'], (0, 1))
  axes = plot_sweep(tmp_path)
  first, second = (np.asarray(line.get_xdata(), float) for line in axes.lines)
  assert np.all(second > first)
  np.testing.assert_allclose((first + second) / 2, [1, 2, 3])


_AXES = ['model.mixer', 'model.hidden_features']
_CROSSED = {(mixer, width): 5.0 for mixer in ('delta', 'gla') for width in (64, 128)}


@pytest.mark.parametrize(
  ('risks', 'x', 'axis', 'ticks'),
  [
    # Two numbers are no curve, and the seed is never an axis.
    (_CROSSED, None, 'model.mixer', ['delta', 'gla']),
    (_CROSSED, 'model.hidden_features', 'model.hidden_features', ['64', '128']),
    # The widths follow from the mixers, although there are three of them.
    (
      {
        ('delta', 64): 5.0,
        ('gla', 128): 5.0,
        ('mamba2', 96): 5.0,
        ('softmax', 64): 4.0,
      },
      None,
      'model.mixer, model.hidden_features',
      [
        f'mixer={label}'
        for label in (
          'delta,\nhidden_features=64',
          'gla,\nhidden_features=128',
          'mamba2,\nhidden_features=96',
          'softmax,\nhidden_features=64',
        )
      ],
    ),
  ],
)
def test_the_axis_of_a_sweep_is_chosen_or_the_field_that_differs_most(
  tmp_path, risks, x, axis, ticks
):
  write_table(tmp_path, risks, _AXES, range(5))
  axes = plot_sweep(tmp_path, x)
  assert axes.get_xlabel() == axis
  assert [tick.get_text() for tick in axes.get_xticklabels()] == ticks


def test_an_axis_that_a_sweep_lacks_is_one_line(call, tmp_path):
  write_table(tmp_path, _CROSSED, _AXES, (0, 1))
  for x, more in ('seed', '; seeds are averaged'), ('task.noise_std', ''):
    answer = call('plot', f'--workdir={tmp_path}', f'--x={x}')
    fields = ', '.join(_AXES)
    said = f'error: --x is {x!r}; it must be a field of the sweep: {fields}{more}\n'
    assert (answer.code, answer.err) == (2, said)


def _curve_of(means):
  unknown = [0.1] * len(means)
  return {
    **{'num_prompts': 9, 'num_examples': [*range(len(means))], 'mean': means},
    **{'stderr': unknown, 'median': means, 'exact': None},
    **{'difference': None, 'difference_stderr': None, 'accuracy': None},
  }


@pytest.fixture
def swept(run, tmp_path):
  """A sweep of two mixers and three seeds, with curves by number of examples."""
  folder = tmp_path / 'swept'
  losses = {'ridge': 1.5, 'ols': 1.8, 'gd': 2.0, 'bayes': 1.0, 'zero': 9.0}
  baselines = {name: _curve_of([9.0, last]) for name, last in losses.items()}
  rows = []
  for mixer, loss in ('delta', 3.0), ('gla', 4.0):
    for seed in (0, 1, 2):
      name = f'points/model.mixer={mixer},seed={seed}'
      shutil.copytree(run, folder / name)
      comparison = {'model': _curve_of([9.0 + seed, loss + seed]), **baselines}
      rows.append(
        {'model.mixer': mixer, 'seed': seed, 'workdir': name}
        | {**SUMMARY, 'comparison': comparison}
      )
  (folder / 'table.json').write_text(json.dumps(rows))
  return folder


def test_a_sweep_is_drawn_by_examples_with_means_over_seeds(call, swept):
  answer = call('plot', f'--workdir={swept}', '--against=examples')
  assert (answer.code, answer.out) == (0, f'{swept}/examples.png\n')
  (axes,) = plot_sweep_examples(swept)
  delta, gla, *baselines = axes.lines
  assert [curve.get_label() for curve in (delta, gla)] == ['mixer=delta', 'mixer=gla']
  np.testing.assert_allclose(np.asarray(delta.get_ydata(), float), [10.0, 4.0])
  heights = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
  half = 4.303 / np.sqrt(3)
  assert heights.max() == pytest.approx(10 + half, rel=1e-3)
  assert heights.min() == pytest.approx(4 - half, rel=1e-3)
  names = [str(curve.get_label()).partition(',')[0] for curve in baselines]
  assert names == ['bayes', 'ridge', 'ols']
  assert axes.get_title().split('\n') == [
    'mean of 3 seeds; bands: 95 % interval over seeds',
    'bands of baselines: ± t·s.e., prompts',
  ]


def test_a_metric_of_a_sweep_is_drawn_with_means_over_seeds(call, swept):
  for point in (swept / 'points').iterdir():
    seed = int(point.name[-1])
    steps = (4, 8, 12) if seed else (8, 12)
    lines = [line(step, **{'norm/w': step + seed}) for step in steps]
    write_lines(point, lines)
  answer = call('plot', f'--workdir={swept}', '--metric=norm/w')
  assert (answer.code, answer.out) == (0, f'{swept}/metric.png\n')
  axes = plot_metric(swept, 'norm/w')
  delta, gla = axes.lines
  half = 4.303 / np.sqrt(3)  # Student's t with two degrees of freedom
  assert [curve.get_label() for curve in (delta, gla)] == [
    f'mixer={name}: 13.000 ± {half:.2g}' for name in ('delta', 'gla')
  ]
  np.testing.assert_allclose(np.asarray(delta.get_xdata(), float), [8, 12])
  np.testing.assert_allclose(np.asarray(delta.get_ydata(), float), [9, 13])
  heights = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
  assert (heights.min(), heights.max()) == pytest.approx(
    (9 - half, 13 + half), rel=1e-3
  )
  assert axes.get_title().startswith('mean of 3 seeds, band: 95 % interval over seeds')
  with refuses('has logged no number', 'norm/w'):
    plot_metric(swept, 'norm/v')


def test_baselines_are_chosen_by_name(call, swept):
  flags = f'--workdir={swept}', '--against=examples'
  assert call('plot', *flags, '--baselines=gd,zero').code == 0
  (axes,) = plot_sweep_examples(swept, ['gd', 'zero'])
  assert [str(curve.get_label()) for curve in axes.lines[2:]] == ['gd', 'zero']
  answer = call('plot', *flags, '--baselines=bayes,rigde')
  assert answer.code == 2
  known = 'bayes, gd, ols, ridge, zero'
  assert answer.err == (
    f"error: unknown baseline 'rigde'; known: {known}; did you mean 'ridge'?\n"
  )


def test_the_training_loss_is_drawn_by_operations_without_other_losses(run, runs):
  rates = {'flops_per_second': 600.0, 'steps_per_second': 100.0}
  (run / 'summary.json').write_text(json.dumps(SUMMARY | rates))
  a, b = runs(a={}, b={'objective.positions': 'every'})
  axes = plot_risk([a], training=True, operations=True)
  loss, _ = axes.lines  # and gradient descent
  np.testing.assert_array_equal(loss.get_xdata(), [24, 48, 72])
  np.testing.assert_array_equal(loss.get_ydata(), [2.0, 1.0, 2 / 3])
  assert len(plot_risk([b], training=True).lines) == 1
  with refuses('the squared error of every example', 'cannot share an axis'):
    plot_risk([a, b], training=True)
  (run / 'summary.json').write_text(json.dumps(SUMMARY))
  with refuses('has no count of operations'):
    plot_risk([run], operations=True)


def test_bayes_and_baselines_among_the_curves_are_dashes_of_their_own_colours(run):
  measured = {
    **{'num_prompts': 9, 'num_examples': [3], 'stderr': [0.1]},
    **{'median': [1.0], 'difference': 0.0, 'difference_stderr': 0.1},
    'accuracy': None,
  }
  means = {'model': 1.0, 'gd': 1.2, 'bayes': 0.01, 'ols': 1.2, 'zero': 50.0}
  comparison = {k: {**measured, 'mean': [v], 'exact': None} for k, v in means.items()}
  comparison['gd']['exact'] = 1.2
  summary = {**SUMMARY, 'gd_risk': None, 'comparison': comparison}
  (run / 'summary.json').write_text(json.dumps(summary))
  axes = plot_risk([run])
  _, gd, bayes = axes.lines
  assert (gd.get_label(), gd.get_color()) == ('gd, ols: 1.200', BASELINES['gd'])
  assert (bayes.get_label(), bayes.get_color()) == ('bayes: 0.010', BLACK)


def test_baselines_beside_a_training_loss_are_measured_on_its_labels(run, runs):
  measured = {
    **{'num_prompts': 9, 'num_examples': [3], 'stderr': [0.1]},
    **{'median': [1.0], 'difference': 0.0, 'difference_stderr': 0.1, 'exact': None},
    'accuracy': None,
  }
  comparison = {'bayes': {**measured, 'mean': [0.305]}}
  summary = {**SUMMARY, 'gd_risk': 0.5, 'comparison': comparison}
  (run / 'summary.json').write_text(json.dumps(summary))
  lines = [line(step, exact_risk=None, eval_risk=0.6) for step in (12,)]
  write_lines(run, [line(4, exact_risk=None), *lines])
  noise, observed = {'task.noise_std': 1.0}, {'objective.labels': 'observed'}
  classes = {'task': common.task_section('gaussian_clusters').to_dict()}
  a, b, c = runs(a=noise, b={**noise, **observed}, c={**classes, **observed})

  def labels(folder, **options):
    axes = plot_risk([folder], **options)
    return axes.get_ylabel(), [line.get_label() for line in axes.lines[1:]]

  y_axis, lines = labels(a, training=True)
  assert y_axis == 'training loss\nsquared error (log scale)'
  assert lines == ['bayes: 0.305', 'gd: 0.500']
  # Noise of variance 1 about the targets is in the loss of each prediction.
  y_axis, lines = labels(b, training=True)
  assert lines == ['bayes: 1.305', 'gd: 1.500']
  assert y_axis.endswith('\nsquared error on observed labels (log scale)')
  # The log loss is linear in the target, so that drawn classes keep its mean.
  y_axis, lines = labels(c, training=True)
  assert y_axis.endswith('\nlog loss (log scale)')
  assert lines[0] == 'bayes: 0.305'
  # Beside a risk, which is measured against the targets, baselines are so, too.
  _, lines = labels(b)
  of_training = 'yq_lsa, training loss on observed labels'
  assert lines == [of_training, 'bayes: 0.305', 'gd: 0.500']
  with refuses('the squared error on observed labels', 'cannot share an axis'):
    plot_risk([a, b], training=True)


@pytest.mark.parametrize(
  'name',
  mostly_full([], ['logistic_regression', 'urns'], slow=['linear_regression']),
)
def test_the_excess_of_observed_labels_is_that_of_their_losses(name, tmp_path):
  section = common.task_section(name).to_dict()
  section |= {'noise_std': 0.7} if 'noise_std' in section else {}
  config = {'task': section, 'objective': {'name': 'sampled', 'labels': 'observed'}}
  task = create_task(**section)
  prompt = task.sample(jax.random.key(0), 4096)
  drawn = with_drawn_labels(task, jax.random.key(1), prompt).y_query
  predictions = 0.5 * jax.random.normal(jax.random.key(2), drawn.shape)
  gaps = task.loss(predictions, drawn) - task.loss(predictions, prompt.y_query)
  error = gaps.std() / 64
  # The seeds are fixed; by chance 1 of 16,000 draws is off by more than 4 errors.
  excess = excess_in_training(tmp_path, config)
  assert excess is not None
  assert abs(gaps.mean() - excess) < 4 * error
  assert (excess > 4 * error) == (name == 'linear_regression')


@pytest.mark.parametrize('objective', ['nll', 'rows'])
def test_a_squared_error_is_no_baseline_of_a_likelihood(objective, run, runs, tmp_path):
  """These objectives draw labels although `objective.labels` is 'clean'."""
  config = {'task': common.task_section('linear_regression').to_dict()}
  config['objective'] = {'name': objective, 'labels': 'clean'}
  assert excess_in_training(tmp_path, config) is None
  config['task'] = common.task_section('logistic_regression').to_dict()
  assert excess_in_training(tmp_path, config) == 0.0  # The log loss is the likelihood.
  (run / 'summary.json').write_text(json.dumps({**SUMMARY, 'gd_risk': 0.5}))
  write_lines(run, [line(4), line(12)])
  (trained,) = runs(a={'task.noise_std': 1.0, 'objective.name': objective})
  axes = plot_risk([trained], training=True)
  loss = f'negative log likelihood, objective={objective} on observed labels'
  assert axes.get_ylabel().endswith(f'\n{loss} (log scale)')
  assert len(axes.lines) == 1  # The curve of the training loss is the only line.


def test_a_training_loss_in_other_units_is_not_drawn_beside_a_risk(run, runs):
  write_lines(run, [line(4, exact_risk=None), line(12)])
  a, b, c, d = runs(
    a={},
    b={'objective.positions': 'every'},
    c={'objective.name': 'nll'},
    d={'objective.name': 'distilled'},
  )

  def curves(folder):
    labels = [str(line.get_label()) for line in plot_risk([folder]).lines]
    return [label for label in labels if 'training' in label]

  assert curves(a) == ['yq_lsa, training loss']
  assert curves(b) == ['yq_lsa, training loss of every example']
  assert curves(c) == curves(d) == []
  words = plot_risk([d], training=True).get_ylabel()
  assert words.endswith("\nloss of the objective 'distilled' (log scale)")


def test_the_baselines_of_a_task_have_looks_of_their_own():
  assert len({*BASELINES.values()}) == len(BASELINES)
  assert not {*BASELINES.values()} & {*PALETTE}
  assert len({*MARKERS.values()}) == len(MARKERS)
  for name in {*zoo.list_tasks()} - {'arrays'}:
    colours = colours_of([*zoo.create_task(name).baselines(), 'of a user'])
    assert len({*colours.values()}) == len(colours)


@pytest.mark.slow
def test_the_page_composes_pictures_of_runs(run, monkeypatch, tmp_path):
  page = (ROOT / 'docs' / 'plot.md').read_text()
  (code,) = re.findall(r'```python\n(import matplotlib.pyplot.*?)```', page, re.DOTALL)
  monkeypatch.chdir(tmp_path)
  shutil.copytree(run, tmp_path / 'runs' / 'a')
  exec(compile(code, 'plot.md', 'exec'), {})
  for name in 'both.pdf', 'risk.pdf':
    assert (tmp_path / name).read_bytes().startswith(b'%PDF')
