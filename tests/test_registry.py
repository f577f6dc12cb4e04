import importlib
import pathlib
import subprocess
import sys
import types

import pytest

import zoo
from tests.compare import refuses
from zoo.registry import Registry

_ROOT = pathlib.Path(__file__).parents[1]


class Plain:
  def __init__(self, size: int, depth: int = 2):
    self.size, self.depth = size, depth


@pytest.fixture
def registry() -> Registry:
  registry = Registry('widget')
  registry.register('plain')(Plain)
  return registry


def test_create_builds_the_registered_class(registry):
  assert registry.get('plain') is Plain
  widget = registry.create('plain', size=3)
  assert isinstance(widget, Plain)
  assert (widget.size, widget.depth) == (3, 2)


def test_register_returns_the_class_itself(registry):
  other = type('Other', (), {})
  assert registry.register('other')(other) is other


def test_names_are_sorted(registry):
  for name in ('zebra', 'apple'):
    registry.register(name)(type(name, (), {}))
  assert registry.names() == ['apple', 'plain', 'zebra']


@pytest.mark.parametrize('given', ['plane', 'Plain', 'plai'])
def test_unknown_name_is_answered_with_the_nearest(registry, given):
  with refuses('widget', repr(given), 'known: plain', "did you mean 'plain'?"):
    registry.create(given, size=3)


def test_far_name_is_answered_with_the_known_ones_alone(registry):
  with refuses("'qqq'", 'known: plain') as answer:
    registry.get('qqq')
  assert 'did you mean' not in str(answer.value)


def test_another_class_under_a_taken_name_is_refused(registry):
  with refuses("'plain'", 'Plain', 'Impostor'):
    registry.register('plain')(type('Impostor', (), {}))
  assert registry.get('plain') is Plain


def test_the_same_class_redefined_takes_its_own_place(registry):
  def define() -> type:
    class Cell:
      pass

    return Cell

  registry.register('cell')(define())
  again = define()
  registry.register('cell')(again)
  assert registry.get('cell') is again


def test_missing_hyper_parameter_is_named(registry):
  with refuses("'plain'", "'size'", 'size, depth'):
    registry.create('plain', depth=1)


def test_unknown_hyper_parameter_is_answered_with_the_nearest(registry):
  with refuses("'plain'", "'dept'", "did you mean 'depth'?"):
    registry.create('plain', size=3, dept=1)


@pytest.mark.parametrize(
  ('create', 'kind', 'given', 'nearest'),
  [
    (zoo.create_model, 'model', 'yqlsa', 'yq_lsa'),
    (zoo.create_model, 'model', 'multihead_lsa', 'multi_head_lsa'),
    (zoo.create_task, 'task', 'linear_regresion', 'linear_regression'),
  ],
)
def test_the_zoo_answers_unknown_names(create, kind, given, nearest):
  with refuses(f'unknown {kind}', repr(given), f'did you mean {nearest!r}?'):
    create(given, num_features=3)


def test_the_zoo_refuses_a_second_class_under_the_name_of_its_own():
  before = zoo.registry.models.get('lsa')
  with refuses("'lsa'", 'LSA', 'Impostor'):
    zoo.register_model('lsa')(type('Impostor', (), {}))
  assert zoo.registry.models.get('lsa') is before


def test_models_and_tasks_are_modules_beside_lists_of_their_names():
  room = importlib.import_module('zoo.models')
  assert isinstance(room, types.ModuleType)
  assert room is zoo.models
  assert room.LSA is zoo.registry.models.get('lsa')
  room = importlib.import_module('zoo.tasks')
  assert room is zoo.tasks
  assert room.LinearRegression is zoo.registry.tasks.get('linear_regression')
  assert zoo.list_models() == sorted(zoo.list_models())
  assert {'lsa', 'ltb', 'multi_head_lsa', 'yq_lsa'} <= set(zoo.list_models())
  assert zoo.list_tasks() == sorted(zoo.list_tasks())
  assert 'linear_regression' in zoo.list_tasks()


def test_unknown_attribute_of_zoo_is_an_attribute_error():
  with pytest.raises(AttributeError, match='no_such_room'):
    _ = zoo.no_such_room  # pyright: ignore[reportAttributeAccessIssue]


def test_import_zoo_stays_light_and_its_rooms_import_as_modules():
  heavy = 'orbax', 'tensorflow_datasets', 'matplotlib', 'tensorboardX'
  heavy += 'gguf', 'jinja2', 'safetensors', 'tokenizers'  # of the extra llm
  program = f"""
import sys
import zoo
print([module for module in {heavy} if module in sys.modules])
import zoo.models as m
import zoo.tasks as t
assert m.LSA.__name__ == 'LSA'
assert t.LinearRegression.__name__ == 'LinearRegression'
"""
  done = subprocess.run(
    [sys.executable, '-W', 'error', '-c', program],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.strip() == '[]'
