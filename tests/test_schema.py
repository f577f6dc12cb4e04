"""Every field of a config is described, and the words of its range are what is checked.

So each range is tested here once; tests of other rooms ask what a value does.
"""

import re
from typing import Annotated

import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from zoo.config import schema
from zoo.core import registry, values
from zoo.mixers.mixer import GIVEN


def _fields():
  """All fields: of the sections, of models and tasks, and options of mixers."""
  for name, field in schema.fields().items():
    yield name, field
  for section, entries in schema.CLASSES.items():
    for chosen in entries.names():
      for name, field in schema.arguments(section, chosen).items():
        yield f'{chosen}.{name}', field
  for chosen in registry.mixers.names():
    own = schema.described(registry.mixers.get(chosen))
    for name in sorted(own.keys() - {*GIVEN}):
      yield f'{chosen}.{name}', own[name]


FIELDS = dict(_fields())

# What they may hold depends on a registry, on a disk or on the model.
_ELSEWHERE = 'transformer.mixer', 'mixture.parts', 'train.init_from', 'arrays.path'
_ELSEWHERE += 'arrays.sha256', 'optimizer.decay'


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
  default, kind = FIELDS[name]
  assert kind.about.endswith('.')
  if kind.holds is dict or kind.is_array or kind.holds is object:
    return
  if name in _ELSEWHERE:
    return
  assert kind.check is not None
  good, bad = _allowed_and_refused(kind)
  if not (default is None or default is schema.EMPTY):
    good.append(default)
  for value in good:
    assert kind.check(name, value) == value
  for value in bad:
    if not (name == 'mesh.data' and value == -1):
      with refuses(name):
        kind.check(name, value)


_GIVEN = {'num_features': 3, 'context_length': 4, 'num_heads': 2, 'num_outputs': 1}
_ARRAYS = 'two', [1.0, 2.0], [1.0, float('nan'), 2.0]


@pytest.mark.parametrize('name', [*zoo.list_models(), *zoo.list_tasks()])
def test_a_constructor_refuses_what_is_beyond_the_range_of_an_argument(name, unchecked):
  kind_of = 'model' if name in zoo.list_models() else 'task'
  entries = schema.CLASSES[kind_of]
  parameters = entries.parameters(name)
  given = {field: value for field, value in _GIVEN.items() if field in parameters}
  given |= {'rngs': nnx.Rngs(0)} if kind_of == 'model' else {}
  for field, (default, kind) in schema.described(entries.get(name)).items():
    bad = []
    if kind.is_array and kind_of == 'task':
      bad = [*_ARRAYS]
    elif kind.holds not in (dict, object) and kind.check and field != 'mixer':
      _, bad = _allowed_and_refused(kind)
    for value in bad:
      if not (value is None and default is None):
        with refuses(field):
          entries.create(name, **given | {field: value})


def test_a_constructor_checks_what_it_describes_and_takes_the_others(register):
  @zoo.register_model('described')
  class Described(nnx.Module):
    def __init__(
      self,
      num_features: int,
      width: Annotated[int | None, values.size(about='Entries.')] = None,
      shape=(2, 3),
      *,
      rngs: nnx.Rngs,
    ):
      self.width = width

  make = Described  # also without the registry
  assert make(3, rngs=nnx.Rngs(0)).width is None
  assert make(3, 4, rngs=nnx.Rngs(0)).width == 4
  with refuses('width is 0; it must be an integer ≥ 1'):
    make(3, width=0, rngs=nnx.Rngs(0))
  section = schema.section('model', 'described')
  assert section.to_dict() == {'name': 'described', 'width': None, 'shape': (2, 3)}
  section.width = 5
  with pytest.raises(TypeError):
    section.width = 'wide'
