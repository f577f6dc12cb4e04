"""The atlas' command line, and that of what is kept."""

import re
import shutil

import pytest

from tests.launch.processes import ROOT
from tests.test_atlas import rows_of_all_kinds
from zoo.studies import atlas
from zoo.studies.atlas import results


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--scale=huge'], "unknown --scale: 'huge'"),
    (['--models=gpt5'], "unknown name in --models: 'gpt5'"),
    (['--tasks=poker'], "unknown name in --tasks: 'poker'"),
    (['--guesses='], '--guesses is empty'),
    (['--context_lengths=10,0'], "--context_lengths has '0'"),
    (['--context_lengths=ten'], "--context_lengths has 'ten'"),
    (['--context_lengths='], '--context_lengths is empty'),
    (['--part=5/4'], "the part is '5/4'"),
    (['--seeds=0'], '--seeds is 0'),
    (['--steps=100'], '--steps is 100; it must be an integer ≥ 200'),
    (['--search_steps=0'], '--search_steps is 0'),
    (['--minutes=-1'], '--minutes is -1'),
  ],
  ids=str,
)
def test_a_mistake_is_one_line(call, tmp_path, monkeypatch, arguments, said):
  monkeypatch.chdir(tmp_path)
  answer = call('atlas', *arguments)
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert said in line
  assert not [*tmp_path.iterdir()]


def test_each_task_is_trained_at_each_context_length(call, tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(atlas, 'run', lambda *given: calls.append(given) or [])
  arguments = ['--tasks=prior', '--models=gru,yq_lsa', '--guesses=zero,residual']
  arguments += ['--import=json', '--context_lengths=20,1', f'--out={tmp_path}']
  call('atlas', *arguments, '--minutes=3')
  ((grid, _, command, _),) = calls
  assert command.startswith('python -m launch.atlas ')
  assert '--import=json' in command
  assert '--guesses=zero,residual' in command
  assert '--out' not in command
  names = [cell.name for cell in grid.cells]
  assert names == [
    *('gru,prior,zero,1', 'gru,prior,residual,1', 'yq_lsa,prior,1'),
    *('gru,prior,zero,20', 'gru,prior,residual,20', 'yq_lsa,prior,20'),
  ]
  settings = grid.settings(grid.cells[0])
  assert settings == ('laptop', 5, 2000, 300, 3.0)


def test_pictures_and_tables_are_those_of_the_csv_files(call, tmp_path, monkeypatch):
  kept = tmp_path / 'results'
  shutil.copytree(ROOT / 'docs' / 'results', kept)
  pages = [tmp_path / name for name in ('results.md', 'gallery.md')]
  for page in pages:
    shutil.copy(ROOT / 'docs' / page.name, page)
  rows = rows_of_all_kinds()
  (kept / 'atlas.csv').write_text(results.to_csv(rows))
  docs, check = f'--docs={tmp_path}', '--check'
  answer = call('results', docs, check)
  assert answer.code == 1
  assert 'baselines.png' in answer.err
  assert not (tmp_path / 'images').exists()
  assert call('results', docs).code == 0
  assert (tmp_path / 'results' / 'atlas.txt').read_text().startswith('cell')
  drawn = {path.stem for path in (tmp_path / 'images').iterdir()} - {'baselines'}
  for page in pages:
    section = page.read_text().split('atlas -->')[1]
    assert set(re.findall(r'\(images/(\w+)\.png\)', section)) == drawn
  assert call('results', docs, check).code == 0
  (kept / 'atlas.csv').write_text(results.to_csv(rows[:-1]))
  answer = call('results', docs, check)
  assert answer.code == 1
  assert 'atlas.png' in answer.err
  assert 'baselines.png' not in answer.err
  (kept / 'atlas.csv').write_text('a,b\n1,2\n')
  answer = call('results', docs, check)
  assert (answer.code, answer.err.count('\n')) == (2, 1)
  answer = call('results', f'--docs={tmp_path / "nowhere"}')
  assert answer.code == 2
  assert 'has neither' in answer.err


@pytest.mark.slow
def test_the_documents_show_what_is_kept(call):
  assert call('results', f'--docs={ROOT / "docs"}', '--check').code == 0
