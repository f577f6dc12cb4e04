"""Models and tasks of one's own by --import."""

import sys

import pytest

import launch
from zoo.studies import atlas


def test_the_atlas_has_cells_of_own_classes(call, folder, monkeypatch):
  calls = []
  monkeypatch.setattr(atlas, 'run', lambda *given: calls.append(given))
  tasks = '--tasks=two_outputs,sparse_regression'
  call(
    'atlas',
    '--import=own_classes_under_test',
    '--models=own_model,relu',
    tasks,
    '--out=atlas',
  )
  ((grid, _, command, _),) = calls
  assert command.startswith('python -m launch.atlas ')
  assert '--import=own_classes_under_test' in command
  assert [cell.name for cell in grid.cells] == [
    *('own_model,two_outputs', 'relu,two_outputs,zero'),
    *('own_model,sparse_regression', 'relu,sparse_regression,zero'),
  ]
  config = grid.get_config(*grid.cells[0])
  assert (config.model.name, config.task.name) == ('own_model', 'two_outputs')
  assert grid.get_config(*grid.cells[3]).task.num_nonzero == 3


@pytest.mark.parametrize(
  ('file', 'hides'),
  [('zoo.py', True), ('configs/__init__.py', True), ('configs/own.py', False)],
)
def test_a_file_that_hides_a_package_is_named(
  tmp_path, monkeypatch, capsys, file, hides
):
  (tmp_path / file).parent.mkdir(exist_ok=True)
  (tmp_path / file).write_text('')
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, file.partition('/')[0].removesuffix('.py'))
  if not hides:
    return launch.refuse_shadows()
  with pytest.raises(SystemExit, match='2'):
    launch.refuse_shadows()
  (line,) = capsys.readouterr().err.splitlines()
  assert f'{tmp_path / file} hides the package' in line
