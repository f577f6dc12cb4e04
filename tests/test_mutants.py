"""The mistakes of `python -m tests.mutants`, which shows what the tests can see."""

from tests import mutants


def test_each_mistake_can_be_made_in_one_place():
  assert mutants.problems() == []


def test_there_are_sixty_different_ones():
  names = {one.name for one in mutants.MISTAKES}
  changes = {(one.path, one.old) for one in mutants.MISTAKES}
  assert len(mutants.MISTAKES) == len(names) == len(changes) == 60
  assert all(one.path.startswith(('zoo/', 'launch/')) for one in mutants.MISTAKES)
