"""Fields of files: each with its type and range, and what is said of others."""

import pytest

from tests.compare import refuses
from zoo.core.fields import MAX_TEXT, Fields

VALUES = {
  'whole': 3,
  'real': 2.5,
  'text': 'é',
  'flag': True,
  'null': None,
  'list': [1, 2],
  'texts': ['a', 'b'],
  'object': {'inner': 1},
  'objects': [{'inner': 1}, {'inner': 2}],
}


@pytest.fixture
def fields():
  return Fields(VALUES, 'config.json')


def test_a_field_of_the_right_type_is_its_value(fields):
  assert fields.integer('whole', 0, 3) == 3
  assert fields.number('whole', 0.0, 3.0) == 3.0
  assert fields.number('real', 0.0, 3.0) == 2.5
  assert fields.text('text') == 'é'
  assert fields.choice('flag', [False, True]) is True
  assert fields.choice('text', ['e', 'é']) == 'é'
  assert fields.integers('list', 1, 2) == [1, 2]
  assert fields.integers('whole', 0, 3) == [3]
  assert fields.texts('texts') == ['a', 'b']
  assert fields.nested('object').integer('inner', 0) == 1
  assert [each.integer('inner', 0) for each in fields.objects('objects')] == [1, 2]
  assert fields.names() == [name for name in VALUES if name != 'null']


def test_a_field_that_is_absent_or_null_has_its_default(fields):
  for name in 'null', 'nothing':
    assert name not in fields
    assert fields.raw(name) is None
    assert fields.integer(name, 0, 5, 4) == 4
    assert fields.text(name, 'default') == 'default'
    assert fields.integers(name, 0, default=()) == []
    assert fields.nested(name).names() == []
    with refuses(f"config.json lacks '{name}'"):
      fields.number(name, 0.0, 1.0)


@pytest.mark.parametrize('value', [4, -1, 10**400, 2.0, True, '3', [3], {}])
def test_what_is_no_integer_in_range_is_refused(value):
  with refuses('size of config.json is', 'must be an integer from 0 to 3'):
    Fields({'size': value}, 'config.json').integer('size', 0, 3)


@pytest.mark.parametrize(
  'value', [4, -0.1, float('nan'), float('inf'), 10**400, True, '1', [1.0]]
)
def test_what_is_no_number_in_range_is_refused(value):
  with refuses('size of config.json is', 'must be a number from 0 to 3'):
    Fields({'size': value}, 'config.json').number('size', 0.0, 3.0)


@pytest.mark.parametrize('value', [7, ['a'], 'x' * (MAX_TEXT + 1), '\ud800'])
def test_what_is_no_text_is_refused(value):
  fields = Fields({'name': value, 'names': ['a', value]}, 'config.json')
  with refuses('name of config.json is', f'a text of at most {MAX_TEXT} characters'):
    fields.text('name')
  with refuses('names of config.json is', 'a list of texts'):
    fields.texts('names')


def test_what_is_no_choice_list_or_object_is_refused(fields):
  with refuses("text of config.json is 'é'", "one of 'a', 'b'"):
    fields.choice('text', ['a', 'b'])
  with refuses('whole of config.json is 3', 'one of True'):  # 3 is no truth value
    fields.choice('whole', [True])
  with refuses('list of config.json is [1, 2]', 'integers from 0 to 1'):
    fields.integers('list', 0, 1)
  with refuses('whole of config.json is 3', 'a list of objects'):
    fields.objects('whole')
  with refuses('an item of list of config.json is a int', 'must be an object'):
    fields.objects('list')
  with refuses('list of config.json is a list', 'must be an object'):
    fields.nested('list')


def test_a_long_value_is_shown_in_short():
  with refuses('size of config.json is', '...') as info:
    Fields({'size': ['x' * 10**6] * 10**3}, 'config.json').integer('size', 0)
  assert len(str(info.value)) < 600
