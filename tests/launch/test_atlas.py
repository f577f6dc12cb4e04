"""The atlas' command line, and that of what is kept."""

import os
import pathlib
import re
import shutil
import sys

import pytest

from studies import atlas
from studies.atlas import pictures, results
from tests.atlas.rows import rows_of_all_kinds
from tests.launch.processes import ROOT, run
from zoo.reports.style import drawing_of


@pytest.fixture
def grid_of(call, monkeypatch):
  """The grid that a command trains, and the command that it records."""

  def ask(*arguments):
    calls = []
    monkeypatch.setattr(
      atlas, 'run', lambda *call_arguments: calls.append(call_arguments) or []
    )
    call('atlas', *arguments)
    ((grid, _, command, _),) = calls
    assert command.startswith('python -m launch.atlas ')
    return grid, command

  return ask


def test_each_task_is_trained_at_each_context_length(grid_of, tmp_path):
  arguments = ['--tasks=prior', '--models=gru,yq_lsa', '--guesses=zero,residual']
  arguments += ['--import=json', '--context_lengths=20,1', f'--out={tmp_path}']
  grid, command = grid_of(*arguments, '--budgets=1e9,2e10')
  assert '--import=json' in command
  assert '--guesses=zero,residual' in command
  assert '--out' not in command
  assert [cell.name for cell in grid.cells] == [
    *('gru,prior,zero,1', 'gru,prior,residual,1', 'yq_lsa,prior,1'),
    *('gru,prior,zero,20', 'gru,prior,residual,20', 'yq_lsa,prior,20'),
  ]
  settings = grid.settings(grid.cells[0])
  assert settings == ('laptop', (0, 1, 2, 3, 4), (1e9, 2e10), 1)
  for text, seeds in ('5..7', (5, 6, 7)), ('4,2', (4, 2)):
    grid, _ = grid_of(*arguments, f'--seeds={text}')
    settings = grid.settings(grid.cells[0])
    assert settings == ('laptop', seeds, (1e11, 3e11, 1e12), 1)


_SCRIPT = ROOT / 'studies' / 'atlas' / 'accelerator.sh'


def test_the_script_for_an_accelerator_has_fifty_cells_of_regression(grid_of):
  shown = _SCRIPT.read_text().partition('python -m launch.atlas')[2]
  grid, _ = grid_of(*re.findall(r'--[a-z_]+=[\w,.]+', shown.partition('"$@"')[0]))
  assert len({cell.name for cell in grid.cells}) == 5 * 10
  of_one_model = [grid.get_config(*cell) for cell in grid.cells if cell.model == 'lstm']
  tasks = {config.task.name for config in of_one_model}
  assert tasks == {'linear_regression', 'sparse_regression', 'decision_tree'}
  for cell in grid.cells:
    assert cell.guess == 'zero'
    settings = grid.settings(cell)
    assert (settings.budgets, settings.search_seeds) == ((1e11, 3e12), 3)


@pytest.mark.slow
@pytest.mark.full
def test_the_script_for_an_accelerator_goes_on_where_it_stopped(tmp_path, cache):
  small = ['--models=linear', '--tasks=noisy', '--seeds=0', f'--out={tmp_path}']
  small.append('--budgets=1e8,3e8')
  path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
  stopped = run([str(_SCRIPT), *small], cache, PATH=path, SECONDS_AT_MOST='10')
  assert stopped.returncode == 0, stopped.stderr
  assert 'run the same command again' in stopped.stdout
  done = run([str(_SCRIPT), *small], cache, PATH=path, SECONDS_AT_MOST='250')
  assert done.returncode == 0, done.stderr
  rows = results.from_csv((tmp_path / 'atlas.csv').read_text(), 'atlas.csv')
  assert [row.budget for row in rows if row.model == 'linear'] == [1e8, 3e8]


@pytest.mark.slow
def test_the_atlas_has_cells_of_own_classes(grid_of, folder):
  own = '--import=own_classes_under_test', '--models=own_model,relu'
  grid, _ = grid_of(*own, '--tasks=two_outputs,sparse_regression', '--out=atlas')
  assert [cell.name for cell in grid.cells] == [
    *('own_model,two_outputs', 'relu,two_outputs,zero'),
    *('own_model,sparse_regression', 'relu,sparse_regression,zero'),
  ]
  config = grid.get_config(*grid.cells[0])
  assert (config.model.name, config.task.name) == ('own_model', 'two_outputs')
  assert grid.get_config(*grid.cells[3]).task.num_nonzero == 3


def test_pictures_and_tables_are_those_of_the_csv_files(call, tmp_path, monkeypatch):
  kept, images = tmp_path / 'docs' / 'results', tmp_path / 'docs' / 'images'
  kept.mkdir(parents=True)
  shutil.copy(ROOT / 'docs' / 'results' / 'baselines.csv', kept)
  # Drawing all takes long; tests/atlas/test_results.py does.
  monkeypatch.setattr(
    atlas, 'draw', lambda rows: {'atlas': drawing_of(pictures.heat_map(rows))}
  )
  page = tmp_path / 'studies' / 'atlas' / 'README.md'
  page.parent.mkdir(parents=True)
  shutil.copy(ROOT / 'studies' / 'atlas' / 'README.md', page)
  rows = rows_of_all_kinds()
  (kept / 'atlas.csv').write_text(results.to_csv(rows))
  docs, check = f'--docs={tmp_path / "docs"}', '--check'
  assert call('results', docs).code == 0
  assert (kept / 'atlas.txt').read_text().startswith('cell')
  assert {image.name for image in images.iterdir()} == {'atlas.png', 'baselines.png'}
  section = page.read_text().split('atlas -->')[1]
  assert re.findall(r'\(../../docs/images/(\w+)\.png\)', section) == ['atlas']
  (kept / 'atlas.csv').write_text(results.to_csv(rows[:-1]))
  before = (images / 'atlas.png').read_bytes()
  answer = call('results', docs, check)
  assert answer.code == 1
  assert 'atlas.png' in answer.err
  assert 'baselines.png' not in answer.err
  assert (images / 'atlas.png').read_bytes() == before
  (kept / 'atlas.csv').write_text('a,b\n1,2\n')
  answer = call('results', docs, check)
  assert (answer.code, answer.err.count('\n')) == (2, 1)
  answer = call('results', f'--docs={tmp_path / "nowhere"}')
  assert answer.code == 2
  assert 'has neither' in answer.err
