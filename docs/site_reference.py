"""The API reference: a page for each public module, from its names and docstrings.

A signature is that of the source, so that shapes read as they were written. Docstrings
are in Google style, which `sphinx.ext.napoleon` reads. Their indented formulas stand as
they were written, too.
"""

import ast
import functools
import importlib
import inspect
import pathlib
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

import studies
import zoo

PAGES = pathlib.Path(__file__).resolve().parent / 'generated' / 'api'
_OURS = 'zoo', 'studies'  # the packages whose names have pages
_SECTION = re.compile(r'(Args|Attributes|Example|Raises|References|Returns|Yields):\n')
# Of these modules all names are public that they define; of packages what their
# `__init__.py` imports.
MODULES = (
  *('zoo.core.losses', 'zoo.reports.plots'),
  *('zoo.core.trees', 'zoo.tasks.base', 'zoo.estimators.baselines'),
  *('zoo.theory.constructions', 'zoo.theory.sequential'),
  *('studies.paper.asymptotic', 'studies.paper.labels'),
)


def public_modules() -> list[str]:
  """The names of the modules that have a page, `zoo` first, the studies last."""
  packages = [
    module.name
    for package in (zoo, studies)
    for module in pkgutil.walk_packages(package.__path__, f'{package.__name__}.')
    if module.ispkg
  ]
  # Some rooms hand on nothing: their modules are imported by name.
  rooms = [name for name in packages if public_names(importlib.import_module(name))]
  pages = sorted(['studies', *rooms, *MODULES], key=lambda name: (name[0] == 's', name))
  return ['zoo', *pages]


def public_names(module: ModuleType) -> list[str]:
  """The public names of a module, in the order of the source."""
  names: list[str] = []
  for node in _statements(ast.parse(inspect.getsource(module))):
    if isinstance(node, ast.ImportFrom) and module.__name__ not in MODULES:
      names += [alias.name for alias in node.names if alias.name == alias.asname]
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      names.append(node.name)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
      names += _assigned(node)
  public = [name for name in dict.fromkeys(names) if not name.startswith('_')]
  return [name for name in public if not inspect.ismodule(getattr(module, name))]


def _assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
  """The names that a statement of a module assigns."""
  targets = node.targets if isinstance(node, ast.Assign) else [node.target]
  names = [part for target in targets for part in ast.walk(target)]
  return [part.id for part in names if isinstance(part, ast.Name)]


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
  """Those of the module, and those that only a type checker sees."""
  for node in tree.body:
    yield from node.body if isinstance(node, ast.If) else [node]


@functools.cache
def places() -> dict[int, str]:
  """The full name under which each public class or function is documented, by id."""
  documented = {}
  for name in public_modules():
    module = importlib.import_module(name)
    for public_name in public_names(module):
      if _has_docstring(value := getattr(module, public_name)):
        documented.setdefault(id(value), f'{name}.{public_name}')
  return documented


@functools.cache
def named_types() -> list[type]:
  """The classes that signatures and fields of public ones name, and theirs in turn."""
  named: dict[type, None] = {}
  todo = [
    getattr(sys.modules[module], name)
    for module in public_modules()
    for name in public_names(importlib.import_module(module))
  ]
  while todo:
    for named_type in _named_in(todo.pop()):
      if id(named_type) not in places() and named_type not in named:
        named[named_type] = None
        todo.append(named_type)
  return sorted(named, key=_full_name)


def _named_in(value: Any) -> Iterator[type]:
  """The classes of ours that the annotations of a class or a function name."""
  for part in _documented_parts(value):
    if not getattr(part, '__module__', '').startswith(_OURS):
      continue
    known = _names(sys.modules[part.__module__])
    for annotation in _annotations(part):
      for node in ast.walk(annotation):
        meaning = known.get(node.id) if isinstance(node, ast.Name) else None
        if inspect.isclass(meaning) and _is_ours(meaning):
          yield meaning


def _documented_parts(value: Any) -> list[Any]:
  if not inspect.isclass(value):
    return [value] if inspect.isfunction(value) else []
  parts = [value]
  for name, part in vars(value).items():
    part = part.fget if isinstance(part, property) else part
    part = getattr(part, '__func__', part)
    public = not name.startswith('_') or name in ('__init__', '__call__')
    if public and inspect.isfunction(part):
      parts.append(part)
  return parts


def _annotations(value: Any) -> Iterator[ast.expr]:
  node = _node(value)
  if isinstance(node, ast.FunctionDef):
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    yield from (argument.annotation for argument in every if argument.annotation)
    yield from [node.returns] if node.returns else []
  elif isinstance(node, ast.ClassDef):
    yield from (
      statement.annotation
      for statement in node.body
      if isinstance(statement, ast.AnnAssign)
    )


def _node(value: Any) -> ast.stmt | None:
  """The definition of a function or a class in the source, if it has one."""
  try:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]
  except (OSError, TypeError, SyntaxError):
    return None


@functools.cache
def _names(module: ModuleType) -> dict[str, Any]:
  """What names mean in a module, also those that only a type checker sees."""
  meanings = dict(vars(module))
  for node in ast.walk(ast.parse(inspect.getsource(module))):
    if isinstance(node, ast.ImportFrom) and (node.module or '').startswith(_OURS):
      source = importlib.import_module(node.module or '')
      for alias in node.names:
        meanings.setdefault(
          alias.asname or alias.name, getattr(source, alias.name, None)
        )
  return meanings


def _has_docstring(value: Any) -> bool:
  """Whether it is a class or a function, and not a constant or the name of a type."""
  function = inspect.isroutine(value) or hasattr(value, '__wrapped__')
  return inspect.isclass(value) or function


def _is_ours(value: type) -> bool:
  return value.__module__.startswith(_OURS) and not value.__name__.startswith('_')


def _full_name(value: type) -> str:
  return f'{value.__module__}.{value.__qualname__}'


def write_pages(app: Sphinx) -> None:
  """Writes a page for each public module, one of other types, and a list of them."""
  with mock(app.config.autodoc_mock_imports):
    _write_pages()


def _write_pages() -> None:
  PAGES.mkdir(parents=True, exist_ok=True)
  summaries = []
  for name in public_modules():
    module = importlib.import_module(name)
    entries = [
      _entry(name, public_name, getattr(module, public_name))
      for public_name in public_names(module)
    ]
    _write(name, '\n'.join([_heading(name), f'.. automodule:: {name}\n', *entries]))
    summary = (module.__doc__ or '').partition('\n')[0]
    summaries.append(f':doc:`{name}`\n   {summary}\n')
  types = [
    _entry(named_type.__module__, named_type.__qualname__, named_type)
    for named_type in named_types()
  ]
  intro = 'What functions take and return, where no package has it under its name.\n'
  _write('types', '\n'.join([_heading('Other types'), intro, *types]))
  summaries.append(f':doc:`types`\n   {intro}')
  listed = '\n   '.join([*public_modules(), 'types'])
  tree = f'.. toctree::\n   :hidden:\n\n   {listed}\n'
  _write('index', '\n'.join([_heading('API reference'), *summaries, tree]))
  kept = {f'{name}.rst' for name in (*public_modules(), 'types', 'index')}
  for path in PAGES.parent.rglob('*.*'):
    if path.name not in kept:  # an earlier build wrote it, for a module that is gone
      path.unlink()


def _entry(module: str, name: str, value: Any) -> str:
  """The directive of a name; a name without a docstring is an error of the build."""
  place = f'{module}.{name}'
  if not _has_docstring(value):
    return (
      f'.. py:data:: {name}\n\n{textwrap.indent(comment_on(module, name), "   ")}\n'
    )
  for missing in undocumented(value):
    logging.getLogger(__name__).warning('%s has no docstring', f'{module}.{missing}')
  if inspect.isclass(value):
    return f'.. autoclass:: {place}\n   :members:\n   :special-members: __call__\n'
  return f'.. autofunction:: {place}\n'


def undocumented(value: Any) -> list[str]:
  """The names of a function or a class, and its public methods, without a docstring."""
  missing = [] if inspect.getdoc(value) else [value.__name__]
  if inspect.isclass(value):
    for name, part in vars(value).items():
      code = isinstance(
        part, (property, classmethod, staticmethod, functools.cached_property)
      )
      if name.startswith('_') or not (code or inspect.isfunction(part)):
        continue
      if not inspect.getdoc(getattr(value, name)):
        missing.append(f'{value.__name__}.{name}')
  return missing


def comment_on(module: str, name: str) -> str:
  """The comment on a constant where it is defined, above it or behind it."""
  source = inspect.getsource(importlib.import_module(module))
  for node in _statements(ast.parse(source)):
    imported = node.names if isinstance(node, ast.ImportFrom) else []
    if any(alias.asname == name for alias in imported):
      return comment_on(getattr(node, 'module', ''), name)
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _assigned(node):
      lines = source.splitlines()
      behind = lines[node.lineno - 1].partition('  # ')[2]
      above = []
      while (line := lines[node.lineno - 2 - len(above)]).startswith('# '):
        above.insert(0, line[2:])
      if behind or above:
        return ' '.join(above) or behind
  logging.getLogger(__name__).warning('%s has no comment', f'{module}.{name}')
  return ''


def signature_of(value: Any) -> tuple[str, str | None]:
  """The arguments and the result as in the source, our types with their full names."""
  if inspect.isclass(value):
    value = vars(value).get('__init__') or getattr(value, '__init__', None)
  node = _node(getattr(value, '__func__', value))
  if not isinstance(node, ast.FunctionDef):
    return '()', None
  known = _names(sys.modules[inspect.unwrap(value).__module__])

  class FullNames(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
      meaning = known.get(node.id)
      if inspect.isclass(meaning) and _is_ours(meaning):
        node.id = places().get(id(meaning), _full_name(meaning))
      return node

  arguments = node.args
  every = arguments.posonlyargs or arguments.args
  if every and every[0].arg in ('self', 'cls'):
    every.pop(0)
  for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
    if argument.annotation:
      argument.annotation = FullNames().visit(argument.annotation)
  returns = FullNames().visit(node.returns) if node.returns else None
  return f'({ast.unparse(arguments)})', returns and ast.unparse(returns)


def _heading(text: str) -> str:
  return f'{text}\n{"=" * len(text)}\n'


def _write(name: str, text: str) -> None:
  path = PAGES / f'{name}.rst'
  if not path.exists() or path.read_text() != text:  # else Sphinx would read it again
    path.write_text(text)


def prepared(docstring: str) -> str:
  """A docstring as napoleon needs it.

  Indented formulas become literal blocks. Results begin with a colon, because napoleon
  takes what stands before the first colon for a type.
  """
  blocks: list[str] = []
  in_section = False
  for block in re.split(r'\n\s*\n', docstring.strip('\n')):
    if not block.startswith(' '):
      in_section = bool(_SECTION.match(block))
    elif not in_section:
      blocks.append('::')
      block = textwrap.indent(block, '  ')
    blocks.append(re.sub(r'^((?:Returns|Yields):\n +)', r'\1: ', block))
  return '\n\n'.join(blocks)


def fields_of(value: type) -> str:
  """The annotated fields of a class, with their comments, as the source has them."""
  node = _node(value)
  if not isinstance(node, ast.ClassDef):
    return ''
  source = textwrap.dedent(inspect.getsource(value)).splitlines()
  fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
  lines: list[str] = []
  for field in fields:
    if field.target.id.startswith('_'):
      continue
    first = field.lineno - 1
    while source[first - 1].strip().startswith('#'):
      first -= 1
    lines += source[first : field.end_lineno]
  return textwrap.dedent('\n'.join(lines))


def _prepare(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list):
  lines[:] = [*prepared('\n'.join(lines)).splitlines(), '']


def _add_fields(
  app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list
) -> None:
  if what == 'class' and (fields := fields_of(obj)):
    lines += ['', '.. code-block:: python', '']
    lines += [*textwrap.indent(fields, '   ').splitlines(), '']


def _skip(
  app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
  """Leaves out the fields of named tuples, which stand with the others above.

  It also leaves out the method `set` that matplotlib adds to a figure.
  """
  is_field = (inspect.getdoc(obj) or '').startswith('Alias for field')
  return is_field or getattr(obj, '__module__', '') == 'matplotlib.artist' or None


def _signature(
  app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, result: str
) -> tuple[str, str | None] | None:
  return signature_of(obj) if signature is not None else None


def setup(app: Sphinx) -> dict[str, Any]:
  app.connect('builder-inited', write_pages)
  # Napoleon has the priority 500.
  app.connect('autodoc-process-docstring', _prepare, priority=400)
  app.connect('autodoc-process-docstring', _add_fields, priority=600)
  app.connect('autodoc-process-signature', _signature)
  app.connect('autodoc-skip-member', _skip)
  return {'parallel_read_safe': True, 'parallel_write_safe': True}
