"""What the modules of `zoo` import: nothing that belongs to the checkout alone."""

import ast
import tomllib

import pytest

from tests.launch.processes import ROOT

# The package `zoo` alone is installed; these stand beside it in the repository.
_OF_THE_CHECKOUT = {
  *('benchmarks', 'configs', 'docs', 'examples', 'launch', 'studies', 'tests'),
}
_FILES = sorted((ROOT / 'zoo').rglob('*.py'))


def _imported(code: str) -> set[str]:
  """The packages that a module imports, at its top or in its functions."""
  names: list[str] = []
  for node in ast.walk(ast.parse(code)):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
      names += [node.module or '']
    elif isinstance(node, ast.Call) and 'import_module' in ast.unparse(node.func):
      parts = (part for arg in node.args for part in ast.walk(arg))  # of f-strings, too
      names += [str(part.value) for part in parts if isinstance(part, ast.Constant)]
  return {name.partition('.')[0] for name in names}


@pytest.mark.parametrize(
  'code',
  [
    'import configs',
    "importlib.import_module(f'configs.{name}')",
    'import configs.common as common',
    'from configs import common',
    "def f():\n  importlib.import_module('configs.yq_lsa')",
  ],
)
def test_an_import_is_seen_in_each_of_its_forms(code):
  assert _imported(code) == {'configs'}


def test_each_folder_of_the_checkout_is_there():
  assert all((ROOT / name).is_dir() for name in _OF_THE_CHECKOUT)


def test_no_module_of_zoo_imports_what_is_not_installed_with_it():
  assert len(_FILES) > 100
  for path in _FILES:
    assert not _imported(path.read_text()) & _OF_THE_CHECKOUT, path


def test_only_zoo_is_installed_and_no_command_that_needs_the_checkout():
  settings = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  assert settings['tool']['setuptools']['packages']['find']['include'] == ['zoo*']
  assert 'scripts' not in settings['project']
  assert [*ROOT.glob('zoo*')] == [ROOT / 'zoo']
