"""A model and the baselines of its task, on the same prompts."""

import functools
import json
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built, predict
from tests.settings import curve_key, isotropic
from tests.wrapped import Wrapped
from zoo.estimators.baselines import Averaging, HostBaseline, Zero
from zoo.estimators.linear import Ridge
from zoo.measure import comparison
from zoo.measure.comparison import (
  affordable,
  below_bayes,
  compare,
  table_of,
  without_errors,
)
from zoo.measure.curve import sample_losses
from zoo.reports.comparison_plots import few_baselines, plot_by_examples
from zoo.theory.exact import known_risk

_D, _C, _N = 3, 4, 60


@functools.cache
def _model() -> Any:
  sizes = {'num_features': _D, 'init_scale': 0.6}
  return built(lambda: zoo.create_model('yq_lsa', **sizes, rngs=nnx.Rngs(0)))


@pytest.fixture(scope='module')
def compared():
  task = isotropic(_D, _C, prior_mean=1.0, noise_std=0.5)
  by_name = compare(_model(), task, _N)
  assert by_name is not None
  return task, by_name


def test_the_model_is_first_and_then_the_baselines_in_their_order(compared):
  task, by_name = compared
  assert [*by_name] == ['model', *task.baselines()]
  assert all(measured['num_prompts'] == _N for measured in by_name.values())
  assert all(
    measured['num_examples'] == [*range(_C + 1)] for measured in by_name.values()
  )


def test_differences_are_paired(compared):
  task, by_name = compared
  prompt = task.sample(curve_key(), _N)
  target = np.asarray(prompt.y_query, np.float64)
  model = np.square(np.asarray(predict(_model(), prompt), np.float64) - target)
  baselines = task.baselines()
  predictions = jax.jit(lambda p: {name: baselines[name](p) for name in baselines})
  for name, predicted in predictions(prompt).items():
    other = np.square(np.asarray(predicted, np.float64) - target)
    gap = model - other
    measured: Any = by_name[name]
    # Float32, compiled with the sampling or not; least squares magnifies rounding.
    assert_close(measured['mean'][-1], other.mean(), 1e-3)
    assert_close(measured['difference'], gap.mean(), 1e-3)
    assert_close(measured['difference_stderr'], gap.std(ddof=1) / np.sqrt(_N), 1e-3)
    assert_close(measured['median'][-1], np.median(other), 1e-3)
  assert by_name['model']['difference'] == 0
  assert_close(by_name['model']['mean'][-1], model.mean(), 1e-4)


def test_exact_risks_stand_where_they_are_known(compared):
  task, by_name = compared
  for name, predictor in {'model': _model(), **task.baselines()}.items():
    risk = known_risk(predictor, task)
    # That of least squares after d + 1 examples is infinite, which JSON cannot hold.
    assert (risk == np.inf) == (name == 'ols')
    assert by_name[name]['exact'] == (None if name == 'ols' else risk), name
  json.dumps(by_name, allow_nan=False)
  assert known_risk(Averaging(), task) is None  # of any task
  assert by_name['model']['exact'] is not None
  known = [measured['exact'] is not None for measured in by_name.values()]
  assert sum(known) >= 3


class _Host(HostBaseline):
  def fit_and_predict(self, x, y, x_query):
    return 0.0


class _Missing(HostBaseline):
  def fit_and_predict(self, x, y, x_query):
    raise zoo.UserError('a library is missing')


def _own(**baselines) -> Wrapped:
  return Wrapped(zoo.tasks.QuadraticRegression(_D, _C), tuple(baselines.items()))


@pytest.mark.slow
def test_baselines_on_the_host_get_few_prompts_and_missing_ones_are_left_out(
  monkeypatch, caplog
):
  monkeypatch.setattr(comparison, '_NUM_HOST_PROMPTS', 5)
  monkeypatch.setattr(comparison, '_NUM_SLOW_PROMPTS', 6)
  monkeypatch.setattr(Ridge, 'is_slow', True)
  task = _own(host=_Host(), missing=_Missing(), slow=Ridge(), zero=Zero())
  by_name = compare(_model(), task, 20)
  assert by_name is not None
  assert [*by_name] == ['model', 'host', 'slow', 'zero']
  assert (by_name['slow']['num_prompts'], len(by_name['slow']['mean'])) == (6, _C + 1)
  host: Any = by_name['host']
  assert (host['num_prompts'], host['num_examples']) == (5, [_C])
  assert by_name['zero']['num_prompts'] == 20
  rows, (title, *_) = table_of(by_name)
  names = ['model', 'host (on 5 of them)', 'slow (on 6 of them)', 'zero']
  assert (title, [row[0] for row in rows]) == ('on the same 20 prompts', names)
  # It predicts 0, on the first of the same prompts.
  losses = sample_losses({'model': _model(), 'zero': Zero()}, task, 20, lengths=[_C])
  assert_close(host['mean'], losses['zero'][:5].mean(0), 1e-6)
  gap = (losses['model'] - losses['zero'])[:5]
  assert_close(host['difference'], gap.mean(), 1e-6)
  assert 'the baseline missing is left out: a library is missing' in caplog.text


def test_a_baseline_that_fails_is_left_out(caplog):
  def own(prompt):
    raise ValueError('no\nroot')

  by_name = compare(_model(), _own(own=own, zero=Zero()), 4)
  assert by_name is not None
  assert [*by_name] == ['model', 'zero']
  assert 'the baseline own is left out: ValueError: no root' in caplog.text
  assert f'File "{__file__}", line' in caplog.text  # in `own`
  assert 'in own\n' in caplog.text


def test_a_baseline_cannot_take_the_place_of_the_model(monkeypatch):
  with refuses('Wrapped has a baseline named model'):
    compare(_model(), _own(model=Zero()), 4)


def test_a_model_that_does_not_fit_is_refused():
  with refuses('is for 3 features; the prompt has 5'):
    compare(_model(), isotropic(5, 4), 4)


def test_large_tasks_get_fewer_prompts_lengths_or_none():
  small, large, huge = (isotropic(d, c) for d, c in ((4, 4), (200, 200), (4000, 4000)))
  assert affordable(small) > 10_000
  assert 2 <= affordable(large) < affordable(small)
  assert affordable(huge) < 2
  assert compare(Zero(), huge) is None


def test_the_table_has_a_row_for_each(compared):
  _, by_name = compared
  rows, header = table_of(by_name)
  assert header[0] == f'on the same {_N} prompts'
  assert rows[0][0] == 'model'
  assert any(row[0].startswith('bayes') for row in rows)
  assert all(len(row) == len(header) for row in rows)
  assert rows[0][3] == ''  # the model minus itself
  mean, stderr = by_name['model']['mean'][-1], by_name['model']['stderr'][-1]
  assert rows[0][1] == f'{mean:.4f} ± {stats.t.ppf(0.975, _N - 1) * stderr:.4f}'


@pytest.mark.parametrize(('fewest', 'half'), [(1024, '± 95 %'), (1023, '± t·s.e.')])
def test_one_mean_over_few_prompts_is_enough_to_call_it_no_95_percent(fewest, half):
  few: Any = _curve([1.0], [0.1], (0.0, 0.1)) | {'num_prompts': fewest}
  _, header = table_of({'model': _curve([1.0], [0.1]), 'slow': few})
  assert header[1] == f'loss {half}'


def _curve(mean, error, paired=None) -> Any:
  measured = without_errors([0.0] * len(mean))
  measured |= {'mean': mean, 'stderr': error, 'num_prompts': 4096}
  if paired is not None:
    measured |= {'difference': paired[0], 'difference_stderr': paired[1]}
  return measured


@pytest.mark.parametrize(
  ('model', 'bayes', 'said'),
  [
    # Without errors of the pairs, those of both curves add up.
    (
      ([1.0, 2.0], [0.1, 0.1]),
      ([2.0, 2.0], [0.1, 0.1]),
      'after 0 examples is 1 ± 0.28',
    ),
    (([1.5, 2.0], [0.1, 0.1]), ([2.0, 2.0], [0.1, 0.1]), None),
    # At the query, the error of the pairs.
    (
      ([2.0, 1.9], [0.1, 0.1]),
      ([2.0, 2.0], [0.1, 0.1], (-0.1, 0.02)),
      'after 1 examples is 0.1 ± 0.039 below that of bayes',
    ),
    (([2.0, 1.9], [0.1, 0.1]), ([2.0, 2.0], [0.1, 0.1], (-0.1, 0.03)), None),
    # Rounding errors of a perfect predictor.
    (([2.0, 0.0], [0.1, 0.0]), ([2.0, 1e-12], [0.1, 0.0], (-1e-12, 0.0)), None),
    (([None, 1.0], [None, 0.1]), ([2.0, None], [0.1, None]), None),
  ],
)
def test_a_loss_below_the_least_possible_is_said(model, bayes, said, caplog):
  comparison = {'model': _curve(*model), 'bayes': _curve(*bayes)}
  warning = below_bayes(comparison)
  assert (warning is None) == (said is None)
  assert said is None or said in warning
  assert below_bayes({'model': _curve(*model), 'zero': _curve(*bayes)}) is None
  comparison_of_few: Any = {'model': comparison['model'] | {'num_prompts': 8}}
  assert below_bayes(comparison | comparison_of_few) is None
  drawn = plot_by_examples({'leaks': [comparison]})
  titles = [axes.get_title() for axes in drawn]
  assert any(titles) == (said is not None)
  assert ('leaks: the loss' in caplog.text) == (said is not None)


def test_a_picture_by_examples_has_means_alone():
  """Where a mean is infinite or uncertain no median takes its place beside others."""
  by_name = {
    'model': _curve([4.0, 3.0, 2.0], [0.1, 0.1, 0.1]),
    'bayes': _curve([4.0, 2.0, 1.0], [0.1, 0.1, 0.1]),
    'ols': _curve([4.0, None, 7e6], [0.1, None, 6e6]) | {'median': [0.1, 0.1, 0.1]},
    # Uncertain, but within the scale: it is shown, with its band.
    'other': _curve([4.0, 2.0, 1.5], [0.1, 0.1, 0.9]),
  }
  (axes,) = plot_by_examples({'model': [by_name]})
  drawn = {str(line.get_label()): line for line in axes.lines}
  np.testing.assert_array_equal(drawn['ols'].get_ydata(), [4.0, np.nan, np.nan])
  # However large that mean is, it is no scale by which others are left out.
  np.testing.assert_array_equal(drawn['model'].get_ydata(), [4.0, 3.0, 2.0])
  np.testing.assert_array_equal(drawn['other'].get_ydata(), [4.0, 2.0, 1.5])
  arrows = drawn['mean above the scale, or not finite']
  assert (arrows.get_marker(), arrows.get_color()) == ('^', drawn['ols'].get_color())
  np.testing.assert_array_equal(arrows.get_xdata(), [1, 2])
  assert axes.get_ylim()[1] < 10
  values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
  assert not np.any(np.isclose(values, 0.1))


def test_few_baselines_are_bayes_and_the_two_best_that_look_different():
  means = {'zero': 9.0, 'ridge': 1.0, 'ols': 1.2, 'gd': 2.0, 'bayes': 1.0, 'slow': None}
  by_name = {'model': _curve([4.0, 1.5], [0.1, 0.1])}
  by_name |= {name: _curve([4.0, mean], [0.1, 0.1]) for name, mean in means.items()}
  assert few_baselines(by_name) == ['bayes', 'ols', 'gd']
  assert few_baselines({name: by_name[name] for name in ('model', 'zero')}) == ['zero']
  drawn = plot_by_examples({'a': [by_name]}, baselines=['gd'])[0].lines
  assert [line.get_label() for line in drawn] == ['a', 'gd']
  with refuses("unknown baseline 'rigde'", "did you mean 'ridge'?", 'known: bayes, gd'):
    plot_by_examples({'a': [by_name]}, baselines=['rigde'])


def test_a_loss_below_the_axis_is_an_arrow_and_that_of_a_model_is_on_it():
  error = [0.01, 0.01, 1e-9]
  comparison = {
    'model': _curve([50.0, 5.0, 1e-4], error),
    'ols': _curve([50.0, 0.5, 0.0], error),
    'ridge': _curve([50.0, 1e-6, 1e-12], [0.01, 1e-8, 1e-14]),
  }
  (axes,) = plot_by_examples({'a': [comparison]})
  drawn = {str(line.get_label()): line for line in axes.lines}
  np.testing.assert_array_equal(drawn['a'].get_ydata(), [50.0, 5.0, 1e-4])
  low, high = axes.get_ylim()
  assert low < 1e-4 < high
  arrows = [line for line in axes.lines if 'arrow' in str(line.get_marker())]
  assert {str(line.get_label()) for line in arrows} == {'below the axis'}
  at = {}
  for line in arrows:
    x, y = np.array(line.get_data(), np.float64)
    at[line.get_color()] = x[np.isfinite(y)].tolist()
  colours = [drawn[name].get_color() for name in ('ols', 'ridge')]
  assert at == dict(zip(colours, ([2.0], [1.0, 2.0]), strict=True))
