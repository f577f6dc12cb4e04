"""The docstrings of public names have the sections that a reader needs."""

import ast
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import zoo


def public_names() -> Iterator[tuple[str, Any]]:
  """Each public name with what it is: of `zoo`, of its packages, and of studies."""
  packages = [
    f'zoo.{package.name}'
    for package in pkgutil.iter_modules(zoo.__path__)
    if package.ispkg
  ]
  studies = 'studies', 'studies.atlas', 'studies.llm', 'studies.paper'
  theory = 'zoo.theory.deep', 'zoo.theory.dynamics'
  for name in ['zoo', *packages, *theory, *studies]:
    module = importlib.import_module(name)
    names = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
      if isinstance(node, ast.ImportFrom):
        names += [alias.asname for alias in node.names if alias.asname == alias.name]
      elif isinstance(node, ast.FunctionDef):
        names.append(node.name)
    names = [public_name for public_name in names if not public_name.startswith('_')]
    for public_name in names:
      if not inspect.ismodule(value := getattr(module, public_name)):
        yield f'{name}.{public_name}', value


@functools.cache
def documented() -> dict[str, Any]:
  """The public classes and functions, without constants and names of types."""
  return {
    place: value
    for place, value in public_names()
    if inspect.isclass(value) or inspect.isroutine(value)
  }


# The packages of the studies are read by their commands.
LIBRARY = [place for place in documented() if re.match(r'zoo\.|studies\.\w+$', place)]


def parts_of(value: Any) -> dict[str, Any]:
  """The public methods and properties that a class defines itself, by name."""
  kinds = property, functools.cached_property, classmethod, staticmethod
  return {
    name: part
    for name, part in (vars(value) if inspect.isclass(value) else {}).items()
    if name[0] != '_' and (inspect.isfunction(part) or isinstance(part, kinds))
  }


def is_record(value: Any) -> bool:
  """Whether it is a NamedTuple, a dataclass or a TypedDict, which hold values."""
  is_named = hasattr(value, '_fields') or typing.is_typeddict(value)
  return is_named or dataclasses.is_dataclass(value)


def words_of(annotation: Any) -> set[str]:
  text = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
  return {*re.findall(r'\w+', text)}


@functools.cache
def results() -> set[str]:
  """The names of the types that public functions return, and of their fields."""
  named: set[str] = set()
  for value in documented().values():
    for part in [value, *parts_of(value).values()]:
      function = getattr(part, 'fget', getattr(part, '__func__', part))
      if inspect.isfunction(function):
        named |= words_of(inspect.signature(function).return_annotation)
  records = {value.__name__: value for value in documented().values()}
  todo = [*named]
  while todo:
    for cls in getattr(records.get(todo.pop()), '__mro__', ()):
      for annotation in vars(cls).get('__annotations__', {}).values():
        todo += words_of(annotation) - named
        named |= words_of(annotation)
  return named


def owed(value: Any) -> set[str]:
  """The sections that the docstring of a public name must have.

  - Args: of a function with two arguments or more, and of a class with two fields or
    two arguments of its own constructor. Attributes are as good.
  - Returns: of a function that returns anything.
  - Example: of all, except of records that a public function returns, for that function
    has the example.
  """
  sections = {'Example'}
  if not inspect.isclass(value):
    signature = inspect.signature(value)
    if len(signature.parameters) > 1:
      sections.add('Args')
    if signature.return_annotation not in (None, 'None'):
      sections.add('Returns')
    return sections
  fields = [name for name in vars(value).get('__annotations__', {}) if name[0] != '_']
  constructor = vars(value).get('__init__')
  arguments = [*inspect.signature(constructor).parameters][1:] if constructor else []
  if len(fields or arguments) > 1:
    sections.add('Args')
  if is_record(value) and value.__name__ in results():
    sections.remove('Example')
  return sections


def sections_of(value: Any) -> set[str]:
  """The sections of a docstring, and of that of the constructor of a class."""
  constructor = vars(value).get('__init__') if inspect.isclass(value) else None
  text = f'{inspect.getdoc(value)}\n{inspect.getdoc(constructor)}'
  found = {*re.findall(r'^(\w+):$', text, re.MULTILINE)}
  return found | ({'Args'} if 'Attributes' in found else set())


def test_every_public_class_function_and_method_has_a_docstring():
  assert len(documented()) > 150
  for place, value in documented().items():
    assert inspect.getdoc(value), place
    for name in parts_of(value):
      assert inspect.getdoc(getattr(value, name)), f'{place}.{name}'


def test_the_rule_knows_functions_classes_and_results():
  assert owed(zoo.create_task) == {'Args', 'Returns', 'Example'}
  assert owed(zoo.check_task) == {'Example'}
  assert owed(zoo.WandbWriter) == {'Args', 'Example'}
  assert owed(zoo.probing.Effect) == {'Args'}


@pytest.mark.parametrize('place', LIBRARY)
def test_a_docstring_has_the_sections_that_a_reader_needs(place):
  value = documented()[place]
  assert not owed(value) - sections_of(value)
