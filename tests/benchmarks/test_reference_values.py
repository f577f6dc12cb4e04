"""Known values of baselines: all that are documented, and how they are read."""

import math

import pytest

from benchmarks import reference_values
from benchmarks.reference_values import Reference, Row, measure, read_references
from tests.launch.processes import ROOT

_REFERENCES = read_references(ROOT / 'docs' / 'baselines')
_TASKS = list(
  dict.fromkeys((reference.task, reference.arguments) for reference in _REFERENCES)
)


def _agree(references, num_prompts):
  rows = list(measure(references, num_prompts))
  assert sorted(row.reference for row in rows) == sorted(references)
  for row in rows:
    # 4 standard errors of both measurements together.
    if not row.reference.source.startswith('differs'):  # the source says why
      assert abs(row.deviation) <= 4, row


@pytest.mark.slow
def test_a_cheap_baseline_has_its_known_value():
  """Of one task; those of all are compared with formulas in the tests of the tasks."""
  quick = [
    reference
    for reference in _REFERENCES
    if reference.task == 'linear_regression' and reference.baseline == 'ols'
    if '"num_features": 20, "context_length": 10}' in reference.arguments
  ]
  assert len(quick) == 1
  _agree(quick, 512)


# 16384 tasks in a pool, 1023 examples and boosted trees take minutes for 8192 prompts.
_LARGE = '"num_tasks": 16384', '"num_tasks": 32768', '"context_length": 1023', '"depth"'


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(('task', 'arguments'), _TASKS)
def test_all_baselines_have_their_known_values(task, arguments, full):
  """With --full on four times as many prompts."""
  members = [
    reference
    for reference in _REFERENCES
    if (reference.task, reference.arguments) == (task, arguments)
  ]
  num_prompts = 64 if any(part in arguments for part in _LARGE) else 1024
  _agree(members, 4 * num_prompts if full else num_prompts)


_HEADER = ','.join(Reference._fields)
_ROW = 'linear_regression,"{""num_features"": 3, ""context_length"": 5}"'


def _written(folder, *rows):
  (folder / 'values.csv').write_text('\n'.join([_HEADER, *rows]))
  return folder


def test_rows_are_read_as_they_are_written(tmp_path):
  references = read_references(
    _written(
      tmp_path,
      f'{_ROW},zero,4,loss,3,1,,formula',
      f'{_ROW},ols,0-2,squared distance from zero on scale_x=2,2,0.5,0.25,"a, b"',
    )
  )
  arguments = '{"num_features": 3, "context_length": 5}'
  assert references == [
    ('linear_regression', arguments, 'zero', '4', 'loss', 3, 1, 0, 'formula'),
    (
      *('linear_regression', arguments, 'ols', '0-2'),
      *('squared distance from zero on scale_x=2', 2, 0.5, 0.25, 'a, b'),
    ),
  ]
  assert [list(reference.lengths()) for reference in references] == [[4], [0, 1, 2]]


_REFERENCE = Reference(
  task='linear_regression',
  arguments='{"num_features": 2, "context_length": 12}',
  baseline='ols',
  num_examples='1',
  quantity='loss',
  divisor=2,
  value=0.5,
  stderr=0,
  source='formula',
)


def _measured(*changes):
  return [*measure([_REFERENCE._replace(**fields) for fields in changes], 512)]


@pytest.mark.slow
def test_a_loss_is_measured_at_a_length_and_over_a_range():
  first, second, both, averaging = _measured(
    {},
    {'num_examples': '2', 'value': 0},
    {'num_examples': '1-2', 'value': 0.25},
    {'num_examples': '8', 'baseline': 'averaging'},
  )
  assert abs(first.deviation) <= 4
  assert second.deviation == 0  # up to rounding, though the standard error is tiny
  # The mean of a prompt over both lengths is one value, not two.
  assert math.isclose(both.measured, (first.measured + second.measured) / 2)
  assert math.isclose(both.stderr, first.stderr / 2, rel_tol=1e-3)
  # Of a prefix; among all lengths it comes from one pass over them.
  among, _ = _measured(
    {'num_examples': '8', 'baseline': 'averaging'},
    {'num_examples': '0-12', 'baseline': 'averaging'},
  )
  assert math.isclose(averaging.measured, among.measured, rel_tol=1e-5)


@pytest.mark.slow
def test_quantities_other_than_the_loss():
  zero, median, shifted, distance = _measured(
    {'baseline': 'zero', 'num_examples': '3', 'value': 1},
    {'baseline': 'zero', 'num_examples': '3', 'quantity': 'median'},
    {'baseline': 'zero', 'num_examples': '3', 'quantity': 'loss on scale_y=2'},
    {'baseline': 'zero', 'num_examples': '3', 'quantity': 'squared distance from ols'},
  )
  assert abs(zero.deviation) <= 4
  # |x|²|w|²cos²/2 has a heavy tail.
  assert 0 < median.measured < 0.6 * zero.measured
  assert math.isnan(median.stderr)
  assert math.isnan(median.deviation)
  assert abs(shifted._replace(reference=_REFERENCE._replace(value=4)).deviation) <= 4
  # OLS knows the labels by then.
  assert math.isclose(distance.measured, zero.measured, rel_tol=1e-3)


@pytest.mark.slow
def test_baselines_with_other_fields_and_those_of_another_library(monkeypatch):
  monkeypatch.setattr(reference_values, '_NUM_HOST_PROMPTS', 20)
  arguments = '{"num_features": 2, "context_length": 60, "depth": 2}'
  tree = {'task': 'decision_tree', 'arguments': arguments, 'num_examples': '60'}
  deep, shallow = _measured(
    tree | {'baseline': 'greedy_tree(signs=True)'},
    tree | {'baseline': 'greedy_tree(signs=True, max_depth=1)'},
  )
  # Two signs have four values, and all of them are seen but once in 10⁷ prompts.
  assert deep.measured <= 1e-12
  assert shallow.measured > 0.01


def test_deviations_are_in_standard_errors_of_both():
  row = Row(_REFERENCE._replace(stderr=3.0), 10.5, 4.0)
  assert row.deviation == 2
  assert Row(_REFERENCE, 0.6, 0.0).deviation == math.inf
  assert Row(_REFERENCE, 0.5 + 1e-7, 0.0).deviation == 0
