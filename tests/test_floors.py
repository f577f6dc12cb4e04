"""The library is built in floors, and none imports what is above it."""

import ast
import re

from tests.launch.processes import ROOT


def floors():
  """The floor of each package and module of zoo, as CONTRIBUTING.md lists them."""
  text = (ROOT / 'CONTRIBUTING.md').read_text()
  listed = text[text.index('- **Small.**') : text.index('- **Readable.**')]
  groups = [
    re.findall(r'\w+', names)
    for names in re.findall(r'`([a-z_,\s]+)`', listed)
    if names != 'zoo'
  ]
  return {name: floor for floor, names in enumerate(groups) for name in names}


def test_no_floor_imports_a_higher_one():
  floor = floors()
  parts = {
    path.stem
    for path in (ROOT / 'zoo').iterdir()
    if path.stem[0] not in '_.' and (path.is_dir() or path.suffix == '.py')
  }
  assert parts == floor.keys()
  upward = []
  for path in (ROOT / 'zoo').rglob('*.py'):
    place = path.relative_to(ROOT / 'zoo').parts[0].removesuffix('.py')
    if place == '__init__':
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      modules = []
      if isinstance(node, ast.ImportFrom) and node.module:
        modules = [node.module]
        if node.module == 'zoo':
          modules = [f'zoo.{alias.name}' for alias in node.names]
      elif isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
      for module in modules:
        root, _, rest = module.partition('.')
        imported = rest.partition('.')[0]
        if root == 'zoo' and floor.get(imported, 0) > floor[place]:
          upward.append(f'{path.relative_to(ROOT)} imports {module}')
  assert not upward


def test_no_files_import_one_another_in_a_circle():
  """Within functions they may: what is imported there is imported later."""
  files = {
    '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix(
      '.__init__'
    ): path
    for path in (ROOT / 'zoo').rglob('*.py')
  }
  imports = {
    name: {
      part if (part := f'{node.module}.{alias.name}') in files else node.module
      for node in ast.parse(path.read_text()).body
      if isinstance(node, ast.ImportFrom) and node.module is not None
      for alias in node.names
    }
    for name, path in files.items()
  }
  # Files that import nothing that is left are taken away, until only circles are left.
  while done := {
    name for name, others in imports.items() if not others & imports.keys()
  }:
    for name in done:
      del imports[name]
  assert not imports
