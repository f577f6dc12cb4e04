"""The benchmark's command line."""

import json
import pathlib

import pytest

from tests.launch.processes import ROOT, launch


@pytest.mark.full
@pytest.mark.slow
def test_the_benchmark_prints_tables_and_writes_json(tmp_path, cache):
  cases = 'lsa,yq_lsa,ltb,multi_head_lsa,heads,context,sweep'
  sizes = '--smoke', '--repeats=1', '--seconds=0.05', f'--cases={cases}'
  arguments = *sizes, f'--json={tmp_path}/b.json'
  answer = launch(*arguments, cache=cache, module='launch.benchmark')
  assert answer.returncode == 0, answer.stderr
  results = json.loads((tmp_path / 'b.json').read_text())
  assert len(results['rows']) == 24
  assert sum(name.startswith('step time of') for name in results['ratios']) == 2
  ratio = results['ratios']['yq_lsa, H = 1, C = 10: speed over literal']
  (line,) = (
    text
    for text in answer.stdout.splitlines()
    if 'yq_lsa, H = 1, C' in text and 'over literal' in text
  )
  assert line.endswith(f' {ratio:.2f}')
  assert answer.stdout.splitlines()[-1].endswith(
    f' {results["sweep"]["sweep_over_alone"]:.2f}'
  )


@pytest.mark.slow
@pytest.mark.full
def test_scaling_fits_exponents_and_draws_them(tmp_path, cache):
  arguments = '--smoke', '--repeats=1', '--seconds=0.05', f'--scaling={tmp_path}/s.png'
  answer = launch(*arguments, cache=cache, module='launch.benchmark')
  assert answer.returncode == 0, answer.stderr
  assert answer.stdout.count('step time ∝ size^') == 4
  assert (tmp_path / 's.png').read_bytes().startswith(b'\x89PNG')


def test_a_mistyped_case_is_one_line(call):
  answer = call('benchmark', '--cases=lsa,swep')
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert "'swep'" in line
  assert 'sweep' in line


def test_without_the_repository_it_is_one_line(call, monkeypatch):
  monkeypatch.setattr(pathlib.Path, 'is_file', lambda path: False)
  answer = call('benchmark')
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert f'{ROOT} has no folder benchmarks' in line
