from zoo.tables import format_table


def test_the_first_column_is_flush_left_and_numbers_flush_right():
  text = format_table([['lsa', '14.43'], ['yq_lsa', '5.2']], header=['', 'risk'])
  assert text == '         risk\nlsa     14.43\nyq_lsa    5.2'
  assert format_table([['a', 'b']], indent=2) == '  a  b'
