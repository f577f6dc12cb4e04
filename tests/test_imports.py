"""What the modules of `zoo` import: nothing that belongs to the checkout alone."""

import ast
import functools
import pathlib
import re
import tomllib
from collections.abc import Sequence

from tests.launch.processes import ROOT
from zoo import probing

# The package `zoo` alone is installed; these stand beside it in the repository.
_OF_THE_CHECKOUT = {
  *('benchmarks', 'configs', 'docs', 'examples', 'launch', 'studies', 'tests'),
}
_FILES = sorted((ROOT / 'zoo').rglob('*.py'))


@functools.cache
def _statements(path: pathlib.Path) -> list[ast.AST]:
  """What a module imports, and what it calls."""
  kinds = ast.Import, ast.ImportFrom, ast.Call
  tree = ast.parse(path.read_text())
  return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def _name(function: ast.expr) -> str:
  return getattr(function, 'attr', getattr(function, 'id', ''))


def _imported(path: pathlib.Path) -> set[str]:
  """The packages that a module imports, at its top or in its functions."""
  names: list[str] = []
  for node in _statements(path):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
      names += [node.module or '']
    elif isinstance(node, ast.Call) and _name(node.func) == 'import_module':
      parts = (part for arg in node.args for part in ast.walk(arg))  # of f-strings, too
      names += [str(part.value) for part in parts if isinstance(part, ast.Constant)]
  return {name.partition('.')[0] for name in names}


def test_no_module_of_zoo_imports_what_is_not_installed_with_it():
  assert len(_FILES) > 100
  for path in _FILES:
    assert not _imported(path) & _OF_THE_CHECKOUT, path


def test_only_zoo_is_installed_and_no_command_that_needs_the_checkout():
  settings = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  assert settings['tool']['setuptools']['packages']['find']['include'] == ['zoo*']
  assert 'scripts' not in settings['project']
  assert [*ROOT.glob('zoo*')] == [ROOT / 'zoo']


def test_no_module_of_probing_has_the_name_of_a_function():
  """`import zoo.probing.lens as lens` would else give the function, not the module."""
  modules = {path.stem for path in (ROOT / 'zoo' / 'probing').glob('*')}
  assert len(modules) > 10
  assert not modules & {*dir(probing)}


def _layers() -> list[list[str]]:
  """The folders of each layer, from the ground up, as CONTRIBUTING.md lists them."""
  page = (ROOT / 'CONTRIBUTING.md').read_text()
  (listed,) = re.findall(
    r'From the ground up\s+the folders of `zoo` are (.*?)\.', page, re.S
  )
  return [re.findall(r'`([\w/]+)`', layer) for layer in listed.split(';')]


def _folders_that_import() -> set[tuple[str, str]]:
  """Pairs of a folder of `zoo` and another one from which its modules import."""
  listed = {folder for layer in _layers() for folder in layer}

  def folder_of(parts: Sequence[str]) -> str:
    """A folder within another one counts for itself where the page lists it."""
    inner = '/'.join(parts[:2])
    return inner if inner in listed else parts[0]

  pairs = set()
  for path in _FILES:
    parts = path.relative_to(ROOT / 'zoo').parts
    if len(parts) == 1:
      continue
    folder = folder_of(parts)
    for node in _statements(path):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [f'{node.module}.{alias.name}' for alias in node.names]
      for name in names:
        package, *inner = name.split('.')
        if package == 'zoo' and folder_of(inner) != folder:
          pairs.add((folder, folder_of(inner)))
  return pairs


def test_a_folder_imports_only_folders_of_lower_layers():
  floor = {folder: i for i, layer in enumerate(_layers()) for folder in layer}
  pairs = _folders_that_import()
  assert len(pairs) > 50
  assert {(a, b) for a, b in pairs if floor.get(b, len(floor)) >= floor[a]} == set()
