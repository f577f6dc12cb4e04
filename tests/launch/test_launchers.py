"""The files for clusters and containers, as far as they can be tried without one."""

import os
import re
import tomllib

import pytest
import yaml

from launch.cli import DIVERGED, IN_USE
from tests.launch.processes import ROOT, run

CLUSTER = ROOT / 'launch' / 'cluster'
SKY = yaml.safe_load((CLUSTER / 'sky.yaml').read_text())


def commands(key: str, folder, cache, **settings: str) -> list[str]:
  """The commands that a part of sky.yaml calls, one per line; none is found here."""
  for name in 'pip', 'uv', '.venv/bin/python':
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text('#!/bin/bash\necho "${0##*/} $*"\n')
    (folder / name).chmod(0o755)
  path = f'{folder}:{os.environ["PATH"]}'
  answer = run(['bash', '-euc', SKY[key]], cache, folder, PATH=path, **settings)
  assert answer.returncode == 0, answer.stderr
  return answer.stdout.splitlines()


def test_sky_runs_the_command_on_what_it_installs(tmp_path, cache):
  settings = {**SKY['envs'], 'WORKDIR': 'gs://bucket/a', 'FLAGS': '--config=c.py --a=1'}
  *_, install = commands('setup', tmp_path, cache, **settings)
  assert install.endswith('install --constraint constraints.txt --editable .[gcs,tpu]')
  extras = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  assert {'gcs', 'tpu', 'cuda13'} <= extras['optional-dependencies'].keys()
  (run,) = commands('run', tmp_path, cache, **settings)
  assert run == (
    'python -m launch.main --distributed --workdir=gs://bucket/a --config=c.py --a=1'
  )


def test_sky_resumes_what_was_stopped_or_is_in_use():
  codes = SKY['resources']['job_recovery']['recover_on_exit_codes']
  assert codes == [IN_USE, 143]
  # Without these two it would start with a folder called null.
  assert [name for name, value in SKY['envs'].items() if value is None] == [
    'WORKDIR',
    'FLAGS',
  ]


def test_no_launcher_of_the_docs_repeats_a_run_that_is_not_finite():
  page = (ROOT / 'docs/scaling.md').read_text()
  (codes,) = re.findall(r'--restart-on-exit-codes=([\d,]+)', page)
  assert codes.split(',') == ['1', str(IN_USE), '143']
  failures = (ROOT / 'docs/when_something_fails.md').read_text()
  assert f'| {DIVERGED} | The run has diverged' in failures
  assert DIVERGED not in SKY['resources']['job_recovery']['recover_on_exit_codes']


@pytest.mark.parametrize('code', [0, 1, 2, DIVERGED, IN_USE, 143])
def test_slurm_queues_a_stopped_job_again_and_one_whose_workdir_is_in_use(
  tmp_path, cache, code
):
  for name, script in {'srun': f'exit {code}', 'scontrol': 'echo "$@"'}.items():
    (tmp_path / name).write_text(f'#!/bin/bash\n{script}\n')
    (tmp_path / name).chmod(0o755)
  path = f'{tmp_path}:{os.environ["PATH"]}'
  words = ['bash', str(CLUSTER / 'slurm.sbatch'), '--config=c.py']
  answer = run(words, cache, PATH=path, SLURM_JOB_ID='7')
  assert answer.returncode == code
  assert answer.stdout == ('requeue 7\n' if code in (IN_USE, 143) else '')


@pytest.mark.parametrize(
  ('extra', 'installed'),
  [('cpu', '.[gcs]'), ('tpu', '.[gcs,tpu]'), ('cuda13', '.[gcs,cuda13]'), ('x', None)],
)
def test_every_container_can_use_a_bucket(tmp_path, cache, extra, installed):
  text = (ROOT / 'Dockerfile').read_text()
  (script,) = re.findall(r'^RUN ((?:.*\\\n)*.*)', text, re.M)
  (tmp_path / 'pip').write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
  (tmp_path / 'pip').chmod(0o755)
  path = f'{tmp_path}:{os.environ["PATH"]}'
  answer = run(['sh', '-c', script], cache, PATH=path, EXTRA=extra)
  assert answer.stdout.split() == ([] if installed is None else [installed])
  assert answer.returncode == (2 if installed is None else 0)
