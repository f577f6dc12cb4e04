import copy
import functools
import importlib
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from zoo.core.registry import Arguments, Registry, arguments_of

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


def test_unknown_name_is_answered_with_the_nearest(registry):
  with refuses('widget', "'plane'", 'known: plain', "did you mean 'plain'?"):
    registry.create('plane', size=3)


def test_another_class_under_a_taken_name_is_refused(registry):
  with refuses("'plain'", 'Plain', 'Impostor'):
    registry.register('plain')(type('Impostor', (), {}))
  assert registry.get('plain') is Plain


@pytest.mark.parametrize(
  ('register', 'entry', 'wanted'),
  [
    (zoo.register_model, lambda prompt: 0, 'it must be a class'),
    (zoo.register_mixer, 3, "the mixer 'own' is 3; it must be a class"),
    (zoo.register_task, lambda key: 0, 'is not a subclass of zoo.tasks.BaseTask'),
    (zoo.register_task, 3, '3 is not a subclass of zoo.tasks.BaseTask'),
    (zoo.register_optimizer, Plain, 'it must be a function'),
    (zoo.register_optimizer, functools.partial(print), 'it must be a function'),
  ],
)
def test_what_is_no_class_or_no_function_is_refused(register, entry, wanted):
  with refuses(wanted):
    register('own')(entry)


def test_a_name_must_be_given_and_may_be_of_another_kind(unchecked):
  without: Any = Plain
  with refuses('the name of a model is <class', "as in @zoo.register_model('own')"):
    zoo.register_model(without)
  with refuses("unknown task 'yq_lsa'", "'yq_lsa' is a model"):
    zoo.create_task('yq_lsa')


def test_the_same_class_redefined_takes_its_own_place(registry):
  def define() -> type:
    class Cell:
      pass

    return Cell

  registry.register('cell')(define())
  again = define()
  registry.register('cell')(again)
  assert registry.get('cell') is again


def test_missing_and_unknown_hyper_parameters_are_named(registry):
  with refuses("'plain'", "'size'", 'size, depth'):
    registry.create('plain', depth=1)
  with refuses("'plain'", "'dept'", "did you mean 'depth'?"):
    registry.create('plain', size=3, dept=1)


class Made:
  def __init__(self, size, *, depth=2, function=len, **more):
    self.size = size
    if isinstance(size, list):
      size.clear()


def recorded(made: object) -> Arguments:
  arguments = arguments_of(made)
  assert arguments is not None
  return arguments


@pytest.mark.parametrize(
  ('given', 'values'),
  [
    (3, 3),
    (np.float32(0.5), 0.5),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (jnp.array([0.5, -2.0], jnp.bfloat16), [0.5, -2.0]),
    ((1, [None, 'a'], {'b': np.arange(2)}), [1, [None, 'a'], {'b': [0, 1]}]),
    ([1, 2, 3], [1, 2, 3]),  # although the constructor clears its list
  ],
)
def test_objects_record_what_they_were_constructed_with(registry, given, values):
  registry.register('made')(Made)
  expected = {'size': values, 'depth': 2, 'other': True}
  for made in (
    Made(copy.copy(given), other=True),
    Made(size=copy.copy(given), other=1),
  ):
    assert recorded(made).values == expected
    assert not recorded(made).unrecorded
  assert recorded(registry.create('made', size=1, depth=5)).values == {
    'size': 1,
    'depth': 5,
  }


def test_what_json_cannot_hold_is_recorded_as_such(registry):
  registry.register('made')(Made)
  made = Made(1j, function=print, key=jax.random.key(0), by_number={1: 2})
  assert recorded(made).values == {'depth': 2}
  assert recorded(made).unrecorded == {
    'size': 'complex',
    'function': 'builtin_function_or_method',
    'key': 'PRNGKeyArray',
    'by_number': 'dict',
  }
  traced = []
  jax.make_jaxpr(lambda x: traced.append(recorded(Made(x))) or x)(1.0)
  assert list(traced[0].unrecorded) == ['size']


def test_a_subclass_and_a_wrong_call_are_as_they_would_be_without_a_record(registry):
  registry.register('made')(Made)

  class Child(Made):
    def __init__(self):
      super().__init__(7)

  assert arguments_of(Child()) is None
  registry.register('child')(Child)
  assert recorded(Child()).values == {}
  assert arguments_of(object()) is None
  with pytest.raises(TypeError, match=r'missing 1 required positional argument: .size'):
    Made()  # pyright: ignore[reportCallIssue]


def test_equal_arguments_make_equal_graphs():
  """So that what JAX has compiled for one model serves another that is made alike."""

  def graph(scale):
    model = zoo.models.LSA(3, [1.0, 2.0, 3.0], init_scale=scale, rngs=nnx.Rngs(0))
    return nnx.split(model)[0]

  assert graph(0.1) == graph(0.1)
  assert hash(graph(0.1)) == hash(graph(0.1))
  assert graph(0.1) != graph(0.2)


def test_models_and_tasks_are_modules_beside_lists_of_their_names():
  for module, names, entries, known in (
    (zoo.models, zoo.list_models(), zoo.core.registry.models, 'lsa'),
    (zoo.tasks, zoo.list_tasks(), zoo.core.registry.tasks, 'linear_regression'),
  ):
    assert importlib.import_module(module.__name__) is module
    assert vars(module)[entries.get(known).__name__] is entries.get(known)
    assert known in names == sorted(names)
  with pytest.raises(AttributeError, match='no_such_module'):
    _ = zoo.no_such_module  # pyright: ignore[reportAttributeAccessIssue]


def _printed(*arguments: str) -> str:
  """What a new Python prints."""
  done = subprocess.run(
    [sys.executable, *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.strip()


@pytest.mark.slow
def test_config_files_are_read_without_what_builds_and_trains():
  """A mistyped flag is reported once they are read, and soon."""
  program = """
import sys
from typing import Any
import launch.config_flag
import configs.atlas, configs.llm.smollm2
configs.get_config('transformer', 'task=parity')
heavy = 'zoo.config.validation', 'zoo.llm.guesses', 'zoo.theory', 'zoo.training'
print([module for module in heavy if module in sys.modules])
"""
  assert _printed('-c', program) == '[]'


@pytest.mark.slow
def test_import_zoo_stays_light_and_its_parts_import_as_modules():
  heavy = 'orbax', 'tensorflow_datasets', 'matplotlib', 'tensorboardX'
  heavy += 'gguf', 'jinja2', 'torch', 'transformers'  # the last two of the extra llm
  program = f"""
import sys
from typing import Any
import zoo
print([module for module in {heavy} if module in sys.modules])
import zoo.models as m
import zoo.tasks as t
assert m.LSA.__name__ == 'LSA'
assert t.LinearRegression.__name__ == 'LinearRegression'
"""
  assert _printed('-W', 'error', '-c', program) == '[]'
