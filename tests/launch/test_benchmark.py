"""The benchmark's and the plot's command lines."""

import json

import pytest

from tests.launch.processes import launch
from tests.training.runs import small_config
from zoo.workdir import open_workdir


@pytest.mark.slow
def test_the_benchmark_prints_a_table_and_writes_json(tmp_path, cache):
  arguments = '--smoke', '--repeats=1', '--seconds=0.05', f'--json={tmp_path}/b.json'
  answer = launch(*arguments, cache=cache, module='launch.benchmark')
  assert answer.returncode == 0, answer.stderr
  assert 'yq_lsa, H = 1, C = 10: speed over literal' in answer.stdout
  found = json.loads((tmp_path / 'b.json').read_text())
  assert len(found['rows']) == 24
  assert sum(name.startswith('step time of') for name in found['ratios']) == 2
  assert found['sweep']['sweep_over_alone'] > 0


@pytest.mark.slow
def test_scaling_fits_exponents_and_draws_them(tmp_path, cache):
  arguments = '--smoke', '--repeats=1', '--seconds=0.05', f'--scaling={tmp_path}/s.png'
  answer = launch(*arguments, cache=cache, module='launch.benchmark')
  assert answer.returncode == 0, answer.stderr
  assert answer.stdout.count('step time grows as its power') == 4
  assert (tmp_path / 's.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('module', 'arguments', 'said'),
  [
    ('launch.benchmark', ['--repeats=0'], '--repeats is 0'),
    ('launch.benchmark', ['--seconds=-1'], '--seconds is -1'),
    ('launch.benchmark', ['--json=no/where.json'], 'its folder does not exist'),
    ('launch.plot', [], '--workdir is missing'),
    ('launch.plot', ['--workdir=docs'], 'docs holds no run'),
    (
      'launch.plot',
      ['--workdir=docs', '--out=a.txt'],
      'must end in .png, .svg or .pdf',
    ),
  ],
)
def test_a_mistake_is_one_line(cache, module, arguments, said):
  answer = launch(*arguments, cache=cache, module=module)
  assert answer.returncode == 2, answer.stderr
  (line,) = answer.stderr.splitlines()
  assert said in line


def test_a_run_without_lines_has_nothing_to_plot(tmp_path, cache):
  open_workdir(tmp_path / 'run', small_config())
  answer = launch(f'--workdir={tmp_path}/run', cache=cache, module='launch.plot')
  assert answer.returncode == 2
  assert 'has logged no risk yet' in answer.stderr


@pytest.mark.slow
def test_a_run_is_plotted_into_its_workdir(tmp_path, cache):
  workdir = f'--workdir={tmp_path}/run'
  made = launch('--config=configs/lsa.py:smoke', workdir, cache=cache)
  assert made.returncode == 0, made.stderr
  answer = launch(workdir, cache=cache, module='launch.plot')
  assert answer.returncode == 0, answer.stderr
  assert (tmp_path / 'run' / 'risk.png').read_bytes().startswith(b'\x89PNG')
