"""The mistakes of `python -m tests.mutants`, which shows what the tests can see."""

from tests import mutants


def test_each_mistake_can_be_made_in_one_place():
  assert mutants.problems() == []


def test_there_are_eighty_different_ones():
  names = {mistake.name for mistake in mutants.MISTAKES}
  changes = {(mistake.path, mistake.old) for mistake in mutants.MISTAKES}
  assert len(mutants.MISTAKES) == len(names) == len(changes) == 80
  assert all(
    mistake.path.startswith(('zoo/', 'studies/', 'launch/'))
    for mistake in mutants.MISTAKES
  )
