"""The fields of tasks are described, and the words of a range are what is checked."""

import re

import pytest

import zoo
from tests.compare import refuses
from zoo.core import registry, values

_GIVEN = {'num_features': 3, 'context_length': 4}
_ARRAYS = 'two', [1.0, 2.0], [1.0, float('nan'), 2.0]
# What they may hold depends on a registry or on a disk.
_ELSEWHERE = 'mixture.parts', 'arrays.path', 'arrays.sha256'


def _fields(name):
  """The default and the kind of each field of a task."""
  kinds = values.kinds(registry.TASKS[name])
  for field, parameter in registry.parameters(registry.TASKS[name]).items():
    yield field, parameter.default, kinds[field]


FIELDS = {
  f'{name}.{field}': (default, kind)
  for name in zoo.list_tasks()
  for field, default, kind in _fields(name)
}


def _allowed_and_refused(kind: values.Kind) -> tuple[list[object], list[object]]:
  """Values at the ends of a range, and beyond them, as its words have it."""
  if kind.holds is bool:
    return [True, False], [0, 'False', None]
  if kind.holds is str:
    return [*kind.allowed.split(', ')], ['no such word', 3, None]
  integer = kind.holds is int
  good, bad = [], ['word', float('nan'), float('inf'), True, *[1.5] * integer]
  words = re.sub(r'from (\S+) to', r'≥ \1 and ≤', kind.allowed)
  for sign, text in re.findall(r'([≥>≤]) (\S+)', words.replace(',', '')):
    end = int(text) if integer else float(text)
    nearby = 1 if integer else abs(end) * 1e-3 + 1e-3
    if sign == '>':
      good, bad = [*good, end + nearby], [*bad, end]
    else:
      beyond = end - nearby if sign == '≥' else end + nearby
      good, bad = [*good, end], [*bad, beyond]
  return good, bad


@pytest.mark.parametrize('name', FIELDS)
def test_a_field_is_described_and_its_range_is_what_is_checked(name):
  _, kind = FIELDS[name]
  assert kind.about.endswith('.')
  if kind.is_array or kind.holds is object or name in _ELSEWHERE:
    return
  assert kind.check is not None
  good, bad = _allowed_and_refused(kind)
  for value in good:
    assert kind.check(name, value) == value
  for value in bad:
    with refuses(name):
      kind.check(name, value)


@pytest.mark.parametrize('name', zoo.list_tasks())
def test_a_task_refuses_what_is_beyond_the_range_of_a_field(name, unchecked):
  parameters = registry.parameters(registry.TASKS[name])
  given = {field: value for field, value in _GIVEN.items() if field in parameters}
  for field, default, kind in _fields(name):
    bad = []
    if kind.is_array:
      bad = [*_ARRAYS]
    elif kind.holds not in (dict, object) and kind.check:
      _, bad = _allowed_and_refused(kind)
    for value in bad:
      if not (value is None and default is None):
        with refuses(field):
          zoo.create_task(name, **given | {field: value})
