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

  def run(*arguments, **settings):
    path = f'{tmp_path}:{os.environ["PATH"]}'
    answer = subprocess.run(
      [SCRIPT, *arguments],
      env={**os.environ, 'PATH': path, **settings},
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
  for word in set(re.findall(r'tpu_vm\.sh (\w+)', text)) - {'keep'}:
    arguments = vm(word, *(['--config=c.py'] if word == 'run' else []))
    assert 'icl-zoo' in arguments
    assert '--project=my-project' in arguments
  assert '--spot' in vm('create')
  unknown = vm('launch')
  assert unknown.returncode == 2
  assert 'tpu_vm.sh create' in unknown.stdout


def test_all_hosts_install_one_commit(vm):
  *_, command = vm('install', COMMIT='1b30a6b')
  assert 'git checkout --quiet --detach 1b30a6b' in command
  assert "-e '.[tpu]'" in command
  assert 'mount -t nfs' in command
  bucket = 'gs://bucket/runs/a'
  *_, command = vm('install', WORKDIR=bucket)
  assert "-e '.[tpu,gcs]'" in command
  assert 'nfs' not in command
  assert f'--workdir={bucket} ' in vm('run', '--config=c.py', WORKDIR=bucket)[-1]


# A made-up Google Cloud: one line of `states` and one of `runs` is said at each look.
CLOUD = """#!/bin/bash
next() { head -n 1 $1 | tr , '\\n'; sed -i 1d $1; }
cd {folder}
case "$*" in
  *describe*)
    state=$(next states)
    if [[ $state == NOT_FOUND ]]; then echo "ERROR: NOT_FOUND" >&2; exit 1; fi
    echo "$state" ;;
  *run.code*launch.main*|*launch.main*run.code*) echo run >> did ;;
  *run.code*) next runs ;;
  *"pip install"*) echo install >> did ;;
  *tail*) echo "error: no such flag" ;;
  *queued-resources*) echo "$4" >> did ;;
esac
"""


@pytest.fixture
def kept(tmp_path):
  """Runs `keep` where a slice and its run are in these states, one after the other."""

  def keep(states, runs, **settings):
    gcloud = tmp_path / 'gcloud'
    gcloud.write_text(CLOUD.replace('{folder}', str(tmp_path)))
    gcloud.chmod(0o755)
    (tmp_path / 'states').write_text('\n'.join(states) + '\n')
    (tmp_path / 'runs').write_text('\n'.join(runs) + '\n')
    (tmp_path / 'did').write_text('')
    path = f'{tmp_path}:{os.environ["PATH"]}'
    answer = subprocess.run(
      [SCRIPT, 'keep', '--config=configs/scale.py'],
      env={**os.environ, 'PATH': path, 'PAUSE': '0', **settings},
      capture_output=True,
      text=True,
      check=False,
      timeout=60,
    )
    return answer, (tmp_path / 'did').read_text().split()

  return keep


START = 'install', 'run'


def test_a_run_is_kept_until_it_is_finished(kept):
  states = ['NOT_FOUND', 'WAITING_FOR_RESOURCES', *['ACTIVE'] * 3]
  runs = ['run: none', 'run: on', 'run: 0,run: 0']
  answer, did = kept(states, runs)
  assert answer.returncode == 0, answer
  assert did == ['create', *START]
  assert 'the run is finished' in answer.stdout


def test_a_slice_that_was_taken_back_is_created_again(kept):
  states = ['ACTIVE', 'SUSPENDING', 'SUSPENDED', 'PROVISIONING', *['ACTIVE'] * 2]
  answer, did = kept(states, ['run: on', 'run: none,run: none', 'run: 0'])
  assert answer.returncode == 0, answer
  assert did == ['delete', 'create', *START]


def test_a_run_that_ended_early_is_started_again(kept):
  runs = ['run: 143,run: 143', 'run: 1,run: on', 'run: 1,run: 137', 'run: 0']
  answer, did = kept(['ACTIVE'] * 4, runs)
  assert answer.returncode == 0, answer
  assert did == [*START, *START]


def test_a_run_that_cannot_go_on_is_given_up(kept):
  answer, did = kept(['ACTIVE'], ['run: 2,run: 2'])
  assert (answer.returncode, did) == (2, [])
  assert 'error: no such flag' in answer.stdout
  answer, did = kept(['ACTIVE'] * 9, ['run: 1'] * 9, RESTARTS='2')
  assert (answer.returncode, did) == (1, 3 * [*START])
  assert 'error: the run has ended early after 2 restarts' in answer.stderr


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
  assert (ROOT / 'configs' / f'{config}.py').is_file()


def test_the_job_set_starts_the_command_again_unless_it_finishes(pod):
  spec, container = pod
  words = container['command'] + container['args']
  assert words[:3] == ['icl-zoo', 'main', '--distributed']
  assert words[-1] == '--workdir=$(WORKDIR)'  # which Kubernetes fills in
  assert (spec['backoffLimit'], spec['template']['spec']['restartPolicy']) == (
    0,
    'Never',
  )
  assert JOB_SET['spec']['failurePolicy']['maxRestarts'] > 0
