"""The benchmark of mixers."""

import pytest


@pytest.mark.slow
@pytest.mark.full
def test_a_mixer_is_timed_against_softmax(call):
  answer = call(
    *('benchmarks.mixers', '--mixers=linear', '--tokens=3'),
    *('--repeats=1', '--seconds=0.001'),
  )
  assert answer.code == 0, answer.err
  header, row = answer.out.splitlines()
  columns = 'mixer', 'tokens', 'forward', 'gradient', 'gradient CPU', 'compile CPU-s'
  assert header.split('  ')[0] == columns[0]
  assert all(column in header for column in columns)
  name, tokens, *numbers = row.split()
  assert (name, tokens) == ('linear', '3')
  assert len(numbers) == 4
  assert all(float(number) > 0 for number in numbers)
