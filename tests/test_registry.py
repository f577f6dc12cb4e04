import functools
import importlib
import pathlib
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from zoo.core import registry

_ROOT = pathlib.Path(__file__).parents[1]


class Plain:
  def __init__(self, size: int, depth: int = 2):
    self.size, self.depth = size, depth


@pytest.fixture
def plain(register):
  register('plain')(Plain)


def test_create_builds_the_registered_class(plain):
  assert registry.MODELS['plain'] is Plain
  model = registry.create('model', registry.MODELS, 'plain', {'size': 3})
  assert isinstance(model, Plain)
  assert (model.size, model.depth) == (3, 2)


def test_unknown_name_is_answered_with_the_nearest(plain):
  with refuses("unknown model 'plane'; known:", "did you mean 'plain'?"):
    zoo.create_model('plane', size=3)


@pytest.mark.parametrize(
  ('register', 'entry', 'wanted'),
  [
    (zoo.register_model, lambda prompt: 0, 'it must be a class'),
    (zoo.register_mixer, 3, "the mixer 'own' is 3; it must be a class"),
    (zoo.register_task, lambda key: 0, 'is not a subclass of zoo.tasks.BaseTask'),
    (zoo.register_task, 3, '3 is not a subclass of zoo.tasks.BaseTask'),
    (zoo.register_objective, lambda model, prompt: 0, 'takes (model, prompt); it must'),
    (zoo.register_metric, lambda model: {}, '(model, task, key)'),
    (zoo.register_optimizer, Plain, 'it must be a function'),
    (zoo.register_optimizer, functools.partial(print), 'it must be a function'),
  ],
)
def test_what_is_no_class_or_no_function_is_refused(register, entry, wanted):
  with refuses(wanted):
    register('own')(entry)


@pytest.mark.parametrize(
  ('register', 'name'),
  [
    (zoo.register_model, 'transformer'),
    (zoo.register_mixer, 'softmax'),
    (zoo.register_optimizer, 'adam'),
    (zoo.register_objective, 'nll'),
  ],
)
def test_a_name_of_the_library_is_refused(register, name):
  entry: Any = lambda learning_rate: None  # noqa: E731
  if register in (zoo.register_model, zoo.register_mixer):
    entry = Plain
  with refuses(repr(name), 'of the library; choose another one'):
    register(name)(entry)


def test_a_class_of_ones_own_may_be_replaced(plain):
  again = type('Plain', (), {})
  zoo.register_model('plain')(again)
  assert registry.MODELS['plain'] is again


def test_a_name_must_be_given_and_may_be_of_another_kind(unchecked):
  without: Any = Plain
  with refuses('the name of a model is <class', "as in @zoo.register_model('own')"):
    zoo.register_model(without)
  with refuses("unknown task 'yq_lsa'", "'yq_lsa' is a model"):
    zoo.create_task('yq_lsa')


def test_a_second_class_under_a_name_takes_its_place(register):
  def define() -> type:
    class Cell:
      pass

    return Cell

  register('cell')(define())
  again = define()
  assert register('cell')(again) is again
  assert registry.MODELS['cell'] is again


def test_missing_and_unknown_hyper_parameters_are_named(plain):
  with refuses("'plain'", "'size'", 'size, depth'):
    zoo.create_model('plain', depth=1)
  with refuses("'plain'", "'dept'", "did you mean 'depth'?"):
    zoo.create_model('plain', size=3, dept=1)


def test_a_registered_class_stays_as_it_is(register):
  class Own(nnx.Module):
    def __init__(self, num_features, *, rngs):
      self.w = nnx.Param(jnp.zeros(num_features))

  before = dict(vars(Own))
  assert register('own')(Own) is Own
  assert dict(vars(Own)) == before
  arguments = {'num_features': 3, 'rngs': nnx.Rngs(0)}
  assert 'Param' in repr(registry.create('model', registry.MODELS, 'own', arguments))


def test_models_of_the_same_sizes_have_equal_graphs():
  """So that what JAX has compiled for one model serves another of the same form."""

  def graph(scale):
    model = zoo.models.LSA(3, [1.0, 2.0, 3.0], init_scale=scale, rngs=nnx.Rngs(0))
    return nnx.split(model)[0]

  assert graph(0.1) == graph(0.1)
  assert hash(graph(0.1)) == hash(graph(0.1))
  assert graph(0.1) == graph(0.2)  # the scale shows in the weights alone


def test_models_and_tasks_are_modules_beside_lists_of_their_names():
  for module, names, entries, known in (
    (zoo.models, zoo.list_models(), registry.MODELS, 'lsa'),
    (zoo.tasks, zoo.list_tasks(), registry.TASKS, 'linear_regression'),
  ):
    assert importlib.import_module(module.__name__) is module
    assert vars(module)[entries[known].__name__] is entries[known]
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
def test_import_zoo_stays_light_and_its_parts_import_as_modules():
  heavy = 'tensorflow_datasets', 'matplotlib', 'tensorboardX', 'sklearn'
  heavy += 'gguf', 'jinja2', 'torch', 'transformers'  # the last two of the extra llm
  heavy += ('orbax.checkpoint',)
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
