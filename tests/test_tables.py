import math

import pytest

from zoo.core.tables import (
  Table,
  format_exact,
  format_mean,
  format_table,
  to_csv,
)
from zoo.measure.table import format_estimate


def test_the_first_column_is_flush_left_and_numbers_flush_right():
  text = format_table([['lsa', '14.43'], ['yq_lsa', '5.2']], header=['', 'risk'])
  assert text == '         risk\nlsa     14.43\nyq_lsa    5.2'
  assert format_table([['a', 'b']], indent=2) == '  a  b'


def test_columns_without_any_content_are_left_out():
  rows = [['lsa', '-', '1', ''], ['ltb', '-', '-', '']]
  header = ['', 'exact', 'risk', 'note']
  assert format_table(rows, header) == '     risk\nlsa     1\nltb     -'
  assert format_table([['-', '']], ['a', 'b']) == 'a\n-'  # the first column stays
  assert format_table([], ['a', 'b']) == 'a  b'


def test_a_mean_is_shown_without_an_error_that_is_unknown():
  assert format_estimate(1.5, 0.25) == '1.5000 ± 0.4900'
  assert format_estimate(1.5, 0.25, num=2) == '1.5000 ± 3.1766'
  assert format_estimate(1.5, None) == '1.5000'
  assert format_estimate(None, None) == '-'


@pytest.mark.parametrize(
  ('mean', 'half', 'shown'),
  [
    (0.25, 0.01, '0.250 ± 0.010'),
    (0.0, 0.0, '0.000 ± 0.000'),
    (0.002, 0.15, '0.002 ± 0.150'),
    (5.2387, 2e-5, '5.238700 ± 0.000020'),
    (4.2e-9, 2e-10, '4.20e-09 ± 2.00e-10'),
    (4.2e-13, 2e-14, '0.000 ± 0.000'),
    (5.0, 1e-12, '5.000 ± 0.000'),
    (0.6931, 1.7e-9, '0.693 ± 0.000'),  # the rounding of float32
    (3e-5, 2e-3, '0.000 ± 0.002'),
    (4.2e-4, 0.0, '4.20e-04 ± 0.00e+00'),
    (1.0, math.nan, '1.000 ± –'),
    (1.0, math.inf, '1.000 ± inf'),
    (math.nan, math.nan, 'nan ± –'),
    (-2e-4, None, '-2.00e-04'),
  ],
)
def test_a_small_error_is_not_shown_as_0_nor_is_a_small_number_without_one(
  mean, half, shown
):
  assert format_mean(mean, half, 3) == shown


def test_a_small_exact_number_has_an_exponent():
  assert format_exact(0.0) == '0.000000'
  assert format_exact(1.2e-5) == '0.000012'
  assert format_exact(3e-8) == '3.00e-08'


def test_a_name_from_a_file_cannot_colour_the_terminal():
  assert format_table([['a\x1b[31m', '1']]) == 'a\\x1b[31m  1'


def test_a_table_is_text_markdown_and_csv_of_the_same_rows():
  table = Table([['a', '1']], ('name', 'n'))
  assert table.text() == 'name  n\na     1'
  assert table.markdown([1]) == '| name | n |\n| --- | --: |\n| a | 1 |'
  assert to_csv(['n', 'of'], [{'n': 1}]) == 'n,of\n1,\n'
