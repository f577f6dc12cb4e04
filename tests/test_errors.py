import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.compare import refuses
from zoo.core import errors

_NAN = math.nan


def test_unknown_name_lists_the_known_sorted_and_the_nearest():
  error = errors.unknown_name('fruit', 'aple', ['pear', 'apple'])
  assert isinstance(error, errors.UserError)
  said = "unknown fruit 'aple'; known: apple, pear; did you mean 'apple'?"
  assert str(error) == said


def test_of_many_fields_those_of_the_section_are_named():
  fields = [f'{section}.field_{i}' for section in ('a', 'b', 'c') for i in range(15)]
  said = str(errors.unknown_name('field', 'b.other', fields))
  listed = ', '.join(sorted(fields[15:30]))
  assert said.startswith(f"unknown field 'b.other'; known: {listed}")
  said = str(errors.unknown_name('field', 'nothing', fields))
  assert said.endswith(', b.field_9 and 15 more')


@pytest.mark.parametrize(
  ('name', 'known', 'near'),
  [
    ('smoother', ['looped', 'softmax', 'linear'], None),
    ('optimizer.weight_decay', ['optimizer.name', 'optimizer.clip_norm'], None),
    ('optimizer.clipnorm', ['optimizer.name', 'optimizer.clip_norm'], 1),
    ('logistic', ['linear_regression', 'logistic_regression'], 1),
    ('x' * 10**7, ['looped'], None),  # at once
  ],
)
def test_what_is_not_near_is_no_hint(name, known, near):
  assert errors.nearest(name, known) == (None if near is None else known[near])
  assert len(str(errors.unknown_name('name', name, known))) < 300


def test_a_count_is_from_the_least_to_the_most():
  assert errors.check_count('n', 7, maximum=7) == 7
  for value in (0, 8, 10**30, True, None):
    with refuses(f'n is {value}', 'an integer from 1 to 7'):
      errors.check_count('n', value, maximum=7)


def test_what_a_terminal_would_obey_is_escaped():
  assert errors.printable('naïve Σ\x1b[31m\n') == 'naïve Σ\\x1b[31m\\n'


def test_one_line_has_single_spaces_and_a_limit():
  assert errors.in_one_line(ValueError('two\n  lines'), 5) == 'two l'
  assert [len(errors.in_one_line('a' * 400, end)) for end in (300, None)] == [300, 400]
  for name in 3, None, 'two\nlines':
    message = str(errors.unknown_name('fruit', name, ['pear']))
    assert repr(name) in message
    assert '\n' not in message


_CHECKS = {
  'count': lambda value: errors.check_count('size', value),
  'number': lambda value: errors.check_number('size', value, minimum=0.0),
  'vector': lambda value: errors.check_vector('size', value, 3),
  'array': lambda value: errors.check_array('size', value, [(), (3,), (3, 3)]),
  'covariance': lambda value: errors.check_covariance('size', value, 3),
}


def _rotated(eigenvalues: list[float]) -> np.ndarray:
  vectors, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
  return (vectors * eigenvalues) @ vectors.T


_REFUSED = [
  *(('count', value, repr(value)) for value in (0, -3, True, False, 2.5, 2.0, _NAN)),
  *(('count', value, repr(value)) for value in ('2', None, [2], np.float64(2))),
  ('count', np.eye(3), ''),
  *(('number', value, repr(value)) for value in (-1e-9, _NAN, math.inf, -math.inf)),
  *(('number', value, repr(value)) for value in (True, '1', None, 1j, [1.0])),
  ('number', np.eye(3), ''),
  ('vector', [1.0, 2.0], '(2,)'),
  ('vector', [1.0], '(1,)'),  # one number in a list is not a scalar
  ('vector', np.eye(3), '(3, 3)'),
  ('vector', [1.0, _NAN, 2.0], 'nan'),
  ('vector', np.full((3, 3), _NAN), 'nan'),
  ('vector', math.inf, 'inf'),
  ('vector', None, 'None'),
  ('vector', 'abc', "'abc'"),
  ('vector', 1j, '1j'),
  ('vector', [[1.0], [2.0, 3.0]], '[[1.0], [2.0, 3.0]]'),
  ('array', [1.0], '(1,); the shapes allowed are (), (3,), (3, 3)'),
  ('array', [1.0, _NAN, 2.0], 'nan'),
  ('array', [[1.0], [2.0, 3.0]], '[[1.0], [2.0, 3.0]]'),
  ('covariance', np.eye(2), '(2, 2)'),
  ('covariance', np.ones(3), '(3,)'),
  ('covariance', 1.0, '()'),
  ('covariance', np.eye(3) + np.diag([0.5, 0], 1), 'differs from its transpose'),
  ('covariance', -np.eye(3), 'eigenvalue -1'),
  ('covariance', _rotated([1.0, 2.0, -0.25]), 'eigenvalue -0.25'),
  ('covariance', np.diag([1.0, _NAN, 1.0]), 'nan'),
  ('covariance', np.full((3, 3), _NAN), 'nan'),
  ('covariance', 'identity', "'identity'"),
  ('covariance', -1e-10 * np.eye(3), 'eigenvalue'),
]


@pytest.mark.parametrize(('check', 'value', 'said'), _REFUSED)
def test_all_else_is_refused_in_one_line(unchecked, check, value, said):
  allowed = {'count': 'integer ≥ 1', 'number': '≥ 0'}.get(check, '')
  with refuses('size', said, allowed):
    _CHECKS[check](value)


@pytest.mark.parametrize('value', [0, 0.0, 2, 1e-300, np.float32(0.5), np.int64(3)])
def test_number_accepts_finite_numbers_from_the_minimum_on(value):
  number = _CHECKS['number'](value)
  assert number == value
  assert type(number) is float


def test_vectors_and_arrays_are_of_float64():
  for value in (2, 2.0, np.float32(2), np.asarray(2.0)):
    vector = _CHECKS['vector'](value)
    np.testing.assert_array_equal(vector, [2.0, 2.0, 2.0])
    assert vector.dtype == np.float64
  for value in (2, [1, 2, 3], np.eye(3, dtype=np.float32)):
    array = _CHECKS['array'](value)
    np.testing.assert_array_equal(array, value)
    assert array.dtype == np.float64


@hypothesis.given(
  seed=st.integers(0, 2**32 - 1), size=st.integers(1, 6), scale=st.floats(1e-3, 1e3)
)
def test_covariance_accepts_every_a_times_its_transpose(seed, size, scale):
  root = scale * np.random.default_rng(seed).normal(size=(size, max(1, size - 2)))
  covariance = errors.check_covariance('covariance', root @ root.T, size)
  assert covariance is not None
  np.testing.assert_array_equal(covariance, covariance.T)
  np.testing.assert_allclose(covariance, root @ root.T, rtol=0, atol=1e-12 * scale**2)


def test_covariance_accepts_the_rounding_of_float32():
  # What JAX returns by default: its products are symmetric to about 1e-7 only.
  matrix = _rotated([1.0, 2.0, 5.0]).astype(np.float32)
  matrix[0, 1] = np.nextafter(matrix[0, 1], np.float32(9))
  assert errors.check_covariance('covariance', matrix, 3) is not None
