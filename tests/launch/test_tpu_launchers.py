"""The files for TPU slices, as far as they can be tried without one."""

import math
import os
import re
import shutil
import subprocess

import pytest
import yaml

from tests.launch.processes import ROOT
from zoo.aot import SLICES

CLUSTER = ROOT / 'launch' / 'cluster'
SCRIPT = CLUSTER / 'tpu_vm.sh'
JOB_SET = yaml.safe_load((CLUSTER / 'gke_jobset.yaml').read_text())


def test_the_script_is_valid():
  subprocess.run(['bash', '-n', SCRIPT], check=True)
  assert os.access(SCRIPT, os.X_OK)
  if shutil.which('shellcheck'):
    subprocess.run(['shellcheck', SCRIPT], check=True)


@pytest.fixture
def vm(tmp_path):
  """Runs the script, and returns what it would have asked gcloud for, by argument."""
  asked = tmp_path / 'asked'
  gcloud = tmp_path / 'gcloud'
  gcloud.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" > {asked}\n')
  gcloud.chmod(0o755)

  def run(*arguments):
    path = f'{tmp_path}:{os.environ["PATH"]}'
    answer = subprocess.run(
      [SCRIPT, *arguments],
      env={**os.environ, 'PATH': path},
      capture_output=True,
      text=True,
      check=False,
    )
    if answer.returncode:
      return answer
    return asked.read_text().split('\0')[:-1]

  return run


def test_all_hosts_run_the_same_command(vm):
  *arguments, command = vm('run', '--config=configs/scale.py', '--config.seed=1 2')
  assert arguments[:4] == ['compute', 'tpus', 'tpu-vm', 'ssh']
  assert '--worker=all' in arguments
  assert 'python -m launch.main --distributed --workdir=' in command
  # Quoted for the shell of the host.
  assert r'--config=configs/scale.py --config.seed=1\ 2' in command
  subprocess.run(['bash', '-n', '-c', command.removeprefix('--command=')], check=True)


def test_each_of_its_words_asks_for_the_slice(vm):
  text = SCRIPT.read_text()
  for word in re.findall(r'tpu_vm\.sh (\w+)', text):
    arguments = vm(word, *(['--config=c.py'] if word == 'run' else []))
    assert 'icl-zoo' in arguments
    assert '--project=my-project' in arguments
  assert '--spot' in vm('create')
  unknown = vm('launch')
  assert unknown.returncode == 2
  assert 'tpu_vm.sh create' in unknown.stdout


@pytest.fixture
def pod():
  """The job of the JobSet, and its one container."""
  (job,) = JOB_SET['spec']['replicatedJobs']
  spec = job['template']['spec']
  (container,) = spec['template']['spec']['containers']
  return spec, container


def test_the_job_set_has_a_pod_for_each_host_of_its_topology(pod):
  spec, container = pod
  selector = spec['template']['spec']['nodeSelector']
  topology = selector['cloud.google.com/gke-tpu-topology']
  assert topology in SLICES['v5e']
  chips = container['resources']['limits']['google.com/tpu']
  hosts = math.prod(map(int, topology.split('x'))) // chips
  assert spec['parallelism'] == spec['completions'] == hosts
  (workdir,) = (one['value'] for one in container['env'])
  assert workdir.startswith(container['volumeMounts'][0]['mountPath'] + '/')
  (config,) = re.findall(r'--config=(\S+)', container['args'][0])
  assert (ROOT / config).is_file()


def test_the_job_set_starts_the_command_again_unless_it_finishes(pod):
  spec, container = pod
  words = container['command'] + container['args']
  assert words[:4] == ['python', '-m', 'launch.main', '--distributed']
  assert words[-1] == '--workdir=$(WORKDIR)'  # which Kubernetes fills in
  assert (spec['backoffLimit'], spec['template']['spec']['restartPolicy']) == (
    0,
    'Never',
  )
  assert JOB_SET['spec']['failurePolicy']['maxRestarts'] > 0
