"""Launchers that a cluster brings along, run for real on this machine."""

import functools
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import time

import pytest

import configs
from tests.launch.processes import (
  ROOT,
  bound,
  command,
  environment,
  free_port,
  run,
  wait_until,
)
from tests.launch.test_processes import SMALL, wait_for_progress
from tests.training.runs import of_each_launch
from zoo.host.parts import Part
from zoo.training import sweeps

pytestmark = pytest.mark.slow


def needs(*programs):
  """Skips a test where a program is not installed."""
  missing = [p for p in programs if shutil.which(p, path=PATH) is None]
  reason = f'{", ".join(missing)} not installed (Debian: {PACKAGES})'
  return pytest.mark.skipif(bool(missing), reason=reason)


PACKAGES = 'slurmctld slurmd slurm-client munge openmpi-bin parallel'
PATH = f'{os.environ.get("PATH", "")}:/usr/sbin'  # where daemons are
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason='slurmd must run as root')


def asked(words: list[str], env: dict[str, str]) -> str:
  """What a program of the cluster answers."""
  return subprocess.run(words, env=env, capture_output=True, text=True).stdout


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
  """The environment of a SLURM cluster of this machine alone, with two CPUs."""
  folder = tmp_path_factory.mktemp('slurm')
  key, run = folder / 'munge.key', folder / 'munge'
  key.write_bytes(secrets.token_bytes(256))
  key.chmod(0o400)
  run.mkdir(mode=0o755)
  conf = folder / 'slurm.conf'
  conf.write_text(
    f"""ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={run}/socket
CryptoType=crypto/munge
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
NodeName=localhost CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
  )
  env = {**os.environ, 'SLURM_CONF': str(conf), 'PATH': PATH}
  daemons = [
    [
      'munged',
      '--foreground',
      '--force',
      f'--socket={run}/socket',
      f'--key-file={key}',
      f'--log-file={run}/log',
      f'--pid-file={run}/pid',
      f'--seed-file={run}/seed',
    ],
    ['slurmctld', '-D'],
    ['slurmd', '-D', '-N', 'localhost'],
  ]
  log = (folder / 'log').open('w')
  running = []
  try:
    for daemon in daemons:
      running.append(subprocess.Popen(bound(daemon), env=env, stdout=log, stderr=log))
      time.sleep(0.5)
    deadline = time.monotonic() + 60
    while 'idle' not in asked(['sinfo', '-h', '-o', '%t'], env):
      if time.monotonic() > deadline:
        pytest.skip(f'SLURM does not come up here: {(folder / "log").read_text()}')
      time.sleep(0.5)
    yield env
  finally:
    for process in reversed(running):
      process.terminate()
      process.wait()
    log.close()


def arguments(workdir: pathlib.Path, num_steps: int) -> list[str]:
  return [
    *SMALL,
    f'--config.train.num_steps={num_steps}',
    '--config.train.log_every=10',
    '--config.checkpoint.every=1000',
    '--config.eval.every=1000',
    f'--workdir={workdir}',
  ]


@needs('slurmctld', 'slurmd', 'sinfo', 'sbatch', 'munged')
@ROOT_ONLY
def test_slurm_is_detected_and_its_sigterm_saves_on_all_at_one_step(
  tmp_path, cache, slurm
):
  workdir, log = tmp_path / 'run', tmp_path / 'log'
  env = {**environment(cache), **slurm}
  # As the script finds it: `python` is that of the tests.
  env['PATH'] = f'{pathlib.Path(sys.executable).parent}:{slurm["PATH"]}'
  submit = ['sbatch', '--parsable', '--ntasks=2', f'--output={log}', f'--chdir={ROOT}']
  script = str(ROOT / 'launch/cluster/slurm.sbatch')
  job = asked([*submit, script, *arguments(workdir, 10**6)], env).strip()

  class Job:
    def poll(self):
      state = asked(['squeue', '-h', '-j', job, '-o', '%T'], env)
      return None if state.strip() else 0

    def wait_until_queued_again(self):
      words = ['scontrol', 'show', 'job', job]
      wait_until(lambda: 'Restarts=1' in asked(words, env), seconds=60)

  try:
    wait_for_progress([Job()], workdir)
    subprocess.run(['scancel', '--signal=TERM', job], env=env, check=True)
    Job().wait_until_queued_again()
  finally:
    subprocess.run(['scancel', job], env=env, check=False)
  said = log.read_text()
  assert said.count('stopped before the end; rerun the same command') == 1, said
  (step,) = (p.name for p in (workdir / 'checkpoints').iterdir() if p.name.isdecimal())
  origin = json.loads(
    (workdir / 'checkpoints' / step / 'origin' / 'data.json').read_text()
  )
  assert origin['step'] == int(step)


@needs('mpirun')
def test_open_mpi_is_detected(tmp_path, cache):
  mpirun = ['mpirun', '--oversubscribe', '-np', '2']
  if os.geteuid() == 0:
    mpirun.append('--allow-run-as-root')
  words = command('--distributed', *arguments(tmp_path / 'run', 20))
  answer = run([*mpirun, *words], cache)
  assert answer.returncode == 0, answer.stderr
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  assert (summary['num_processes'], summary['num_devices']) == (2, 2)
  assert answer.stdout.count('after step 20') == 1


SWEEP = (
  '--config=configs/multi_head_lsa.py:smoke',
  '--config.train.num_steps=20',
  '--sweep=task.prior_mean=0,1,2,3',
)


CONFIG = configs.get_config('multi_head_lsa', 'smoke')
CONFIG.train.num_steps = 20
POINTS = sweeps.grid({'task.prior_mean': [0, 1, 2, 3]})


def table(workdir: pathlib.Path) -> list[dict[str, object]]:
  """The table that the sweep without a part writes, without what depends on time."""
  before = {path: path.stat().st_mtime_ns for path in workdir.glob('points/*/*.jsonl')}
  assert sweeps.sweep(CONFIG, POINTS, workdir) is not None
  assert {path: path.stat().st_mtime_ns for path in before} == before
  assert len(before) in (0, 4), 'a part has not trained its points'
  rows = json.loads((workdir / 'table.json').read_text())
  return [*map(of_each_launch, rows)]


def part(workdir: pathlib.Path, index: object) -> list[str]:
  flags = *SWEEP, f'--workdir={workdir}', f'--part={index}/2'
  return command(*flags, module='launch.sweep')


@pytest.fixture(scope='module')
def by_hand(tmp_path_factory, cache) -> list[dict[str, object]]:
  """The table of a sweep in two parts, one after the other."""
  workdir = tmp_path_factory.mktemp('by_hand') / 'sweep'
  for index in 1, 2:
    answer = run(part(workdir, index), cache)
    assert answer.returncode == 0, answer.stderr
    assert f'part {index} of 2 is done' in answer.stdout
  return table(workdir)


@needs('slurmctld', 'slurmd', 'sinfo', 'sbatch', 'munged')
@ROOT_ONLY
def test_a_slurm_array_trains_the_parts_of_a_sweep(tmp_path, cache, slurm, by_hand):
  words = ' '.join(part(tmp_path / 'sweep', '$SLURM_ARRAY_TASK_ID'))
  submit = ['sbatch', '--array=1-2', '--wait', f'--chdir={ROOT}']
  submit += [f'--output={tmp_path}/log', '--open-mode=append', '--wrap', words]
  done = subprocess.run(
    submit, env={**environment(cache), **slurm}, timeout=300, check=False
  )
  assert done.returncode == 0, (tmp_path / 'log').read_text()
  assert table(tmp_path / 'sweep') == by_hand


@pytest.mark.full
@needs('parallel')
def test_gnu_parallel_trains_the_parts_of_a_sweep(tmp_path, cache, by_hand):
  words = part(tmp_path / 'sweep', '{}')
  answer = run(['parallel', '--will-cite', *words, ':::', '1', '2'], cache)
  assert answer.returncode == 0, answer.stderr
  assert table(tmp_path / 'sweep') == by_hand


@pytest.mark.slow
@pytest.mark.full
def test_submitit_trains_the_parts_of_a_sweep(tmp_path, cache, by_hand, monkeypatch):
  submitit = pytest.importorskip('submitit')
  for name, value in environment(cache).items():
    monkeypatch.setenv(name, value)
  train = functools.partial(sweeps.sweep, CONFIG, POINTS, tmp_path / 'sweep')
  executor = submitit.LocalExecutor(tmp_path / 'log')
  executor.update_parameters(timeout_min=5)
  for job in executor.map_array(train, [Part(1, 2), Part(2, 2)]):
    assert len(job.result()) == 2
  assert table(tmp_path / 'sweep') == by_hand
