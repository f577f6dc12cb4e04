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
  assert header.split() == ['mixer', 'tokens', 'forward', 'gradient']
  name, tokens, *ratios = row.split()
  assert (name, tokens) == ('linear', '3')
  assert all(float(ratio) > 0 for ratio in ratios)
