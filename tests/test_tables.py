from zoo.core.tables import Table, format_estimate, format_table, to_csv


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
  assert format_estimate(1.5, None) == '1.5000'
  assert format_estimate(None, None) == '-'


def test_a_name_from_a_file_cannot_colour_the_terminal():
  assert format_table([['a\x1b[31m', '1']]) == 'a\\x1b[31m  1'


def test_a_table_is_text_markdown_and_csv_of_the_same_rows():
  table = Table([['a', '1']], ('name', 'n'))
  assert table.text() == 'name  n\na     1'
  assert table.markdown([1]) == '| name | n |\n| --- | --: |\n| a | 1 |'
  assert to_csv(['n', 'of'], [{'n': 1}]) == 'n,of\n1,\n'
