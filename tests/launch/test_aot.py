"""launch.aot; tests/test_aot.py has what it reports."""

import pytest


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    ((), '--topology is missing'),
    (('--topology=v5e:2x2', '--json=no/where.json'), "--json is 'no/where.json'"),
  ],
)
def test_a_mistake_in_the_flags_is_one_line(flags, said, call):
  answer = call('aot', '--config=configs/lsa.py', *flags)
  assert answer.code == 2
  (line,) = answer.err.splitlines()
  assert said in line
