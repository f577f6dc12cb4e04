"""Instruments over training."""

import jax
import numpy as np
import pytest
from scipy import stats

import zoo
from tests.compare import refuses
from tests.training.runs import small_config
from zoo.probing import over_training
from zoo.reports.probe.over_training import plot_over_training


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """Three seeds of a run of four steps, each of which is kept."""
  folder = tmp_path_factory.mktemp('runs')
  for seed in range(3):
    config = small_config(
      'yq_lsa', seed=seed, train__num_steps=4, checkpoint__steps='log'
    )
    with jax.numpy_dtype_promotion('standard'):  # Optax needs it.
      zoo.train(config, folder / str(seed))
  return [folder / str(seed) for seed in range(3)]


def _norm(model, task, seed):
  del task, seed
  return {'norm': float(np.linalg.norm(model.w_p[...]))}


def test_means_are_over_runs_with_student_s_interval(runs):
  found = over_training(runs, _norm)
  assert [row.step for row in found.rows] == [1, 2, 3, 4]
  for row in found.rows:
    norms = [_norm(zoo.load(run, row.step).model, None, 0)['norm'] for run in runs]
    low, high = stats.t.interval(0.95, 2, np.mean(norms), stats.sem(norms))
    assert row.value is not None
    assert row.value.low == pytest.approx(low)
    assert row.value.high == pytest.approx(high)
    assert row.num_runs == 3
  axes = plot_over_training(found, 'norm of the guess')
  assert axes.get_xscale() == 'log'
  np.testing.assert_allclose(
    np.asarray(axes.lines[0].get_ydata()),
    [row.value.mean for row in found.rows if row.value],
  )


def test_an_interrupted_call_goes_on_from_its_file(runs, tmp_path):
  calls = []

  def stops_once(model, task, seed):
    calls.append(seed)
    if len(calls) == 5:
      raise KeyboardInterrupt
    return _norm(model, task, seed)

  file = tmp_path / 'readings.json'
  with pytest.raises(KeyboardInterrupt):
    over_training(runs, stops_once, file=file)
  found = over_training(runs, stops_once, file=file)
  assert len(calls) == 5 + 8  # Four of twelve readings were kept.
  assert found.records() == over_training(runs, _norm).records()
  with refuses('has readings of', 'stops_once, not of _norm; give another file'):
    over_training(runs, _norm, file=file)


def test_a_reading_that_some_run_lacks_has_no_mean(runs):
  calls = []

  def of_some(model, task, seed):
    calls.append(seed)
    if len(calls) == 2:
      raise zoo.UserError('it is the second run')
    return {'one': 1.0}

  found = over_training(runs, of_some, [4])
  assert [row.reason for row in found.readings] == ['', 'it is the second run', '']
  assert [(row.name, row.value, row.num_runs) for row in found.rows] == [
    ('one', None, 2)
  ]


def test_a_step_at_which_every_run_is_refused_has_a_row(runs):
  calls = []

  def late(model, task, seed):
    calls.append(seed)
    if len(calls) <= len(runs):
      raise zoo.UserError('it is at no minimum')
    return {'one': 1.0}

  found = over_training(runs, late, [1, 4])
  assert [(row.step, row.name, row.num_runs) for row in found.rows] == [
    (1, 'one', 0),
    (4, 'one', 3),
  ]


def test_mistakes_have_one_message(runs, tmp_path):
  with refuses('has not kept step 5', '[1, 2, 3, 4]'):
    over_training(runs, _norm, [5])
  with refuses('must be a list of one or more folders'):
    over_training(str(runs[0]), _norm)
  file = tmp_path / 'other.json'
  file.write_text('[1]')
  with pytest.raises(zoo.RunError, match='does not have readings'):
    over_training(runs, _norm, file=file)
