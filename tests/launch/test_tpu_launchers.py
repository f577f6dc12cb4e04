"""The files for clusters and containers, as far as they can be tried without one."""

import math
import os
import re
import shutil
import subprocess

import pytest
import yaml

from launch.cli import IN_USE
from tests.launch.processes import ROOT
from zoo.plan.aot import SLICES

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
  # A new machine has old lists of packages, and may be updating itself.
  assert command.index('apt-get -o DPkg::Lock::Timeout=300 update') < command.index(
    'install --yes'
  )
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
  # 255 is the code of ssh, and begins as that of a mistake does.
  runs = ['run: 1,run: 255', 'run: 255,run: on', f'run: {IN_USE}', 'run: 22', 'run: 0']
  answer, did = kept(['ACTIVE'] * 5, runs)
  assert answer.returncode == 0, answer
  assert did == 3 * [*START]


def test_a_workdir_in_use_is_no_mistake_whatever_the_other_hosts_say(kept):
  runs = [f'run: 2,run: {IN_USE}', f'run: {IN_USE},run: on', 'run: 0']
  answer, did = kept(['ACTIVE'] * 3, runs)
  assert answer.returncode == 0, answer
  assert did == [*START]


def test_a_run_that_cannot_go_on_is_given_up(kept):
  for runs in 'run: 2,run: 2', 'run: 2,run: on', 'run: 1,run: 2':
    answer, did = kept(['ACTIVE'], [runs])
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


def action(pod_rules, code, disrupted=False):
  """What JobSet does once a pod has ended so, by its rules and those of the job.

  The messages are Kubernetes' own (pkg/controller/job/pod_failure_policy.go).
  """
  reason, message = 'BackoffLimitExceeded', 'Job has reached its backoff limit'
  for index, rule in enumerate(pod_rules):
    if codes := rule.get('onExitCodes'):
      assert (codes['operator'], codes['containerName']) == ('In', 'train')
      met = code in codes['values']
      message = f'Container train for pod default/a-0 failed with exit code {code}'
    else:
      assert rule['onPodConditions'] == [{'type': 'DisruptionTarget', 'status': 'True'}]
      met, message = disrupted, 'Pod default/a-0 has condition DisruptionTarget'
    if met:
      assert rule['action'] == 'FailJob'
      reason = 'PodFailurePolicy'
      message = f'{message} matching FailJob rule at index {index}'
      break
  for rule in JOB_SET['spec']['failurePolicy']['rules']:
    patterns = rule.get('onJobFailureMessagePatterns', [''])
    if reason in rule['onJobFailureReasons'] and any(
      re.search(pattern, message) for pattern in patterns
    ):
      return rule['action']
  return 'RestartJobSet'


def test_the_job_set_gives_up_only_a_mistake_and_counts_no_pre_emption(pod):
  spec, container = pod
  assert container['name'] == 'train'
  rules = spec['podFailurePolicy']['rules']
  assert action(rules, 2) == 'FailJobSet'
  for code in 143, 137, 1, 2000:
    assert action(rules, code, True) == 'RestartJobSetAndIgnoreMaxRestarts'
  assert action(rules, 143) == 'RestartJobSetAndIgnoreMaxRestarts'
  for code in 1, IN_USE, 134, 137, 20, 22, 255:
    assert action(rules, code) == 'RestartJobSet'


def test_the_pods_of_a_job_set_share_no_node_pool_with_another():
  assert JOB_SET['metadata']['annotations'] == {
    'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'
  }


@pytest.mark.parametrize('code', [0, 1, 2, IN_USE, 143])
def test_slurm_queues_a_stopped_job_again_and_one_whose_workdir_is_in_use(
  tmp_path, code
):
  for name, script in {'srun': f'exit {code}', 'scontrol': 'echo "$@"'}.items():
    (tmp_path / name).write_text(f'#!/bin/bash\n{script}\n')
    (tmp_path / name).chmod(0o755)
  path = f'{tmp_path}:{os.environ["PATH"]}'
  answer = subprocess.run(
    ['bash', CLUSTER / 'slurm.sbatch', '--config=c.py'],
    env={**os.environ, 'PATH': path, 'SLURM_JOB_ID': '7'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert answer.returncode == code
  assert answer.stdout == ('requeue 7\n' if code in (IN_USE, 143) else '')


@pytest.mark.parametrize(
  ('extra', 'installed'),
  [('cpu', '.[gcs]'), ('tpu', '.[gcs,tpu]'), ('cuda13', '.[gcs,cuda13]'), ('x', None)],
)
def test_every_container_can_use_a_bucket(tmp_path, extra, installed):
  text = (ROOT / 'Dockerfile').read_text()
  (script,) = re.findall(r'^RUN ((?:.*\\\n)*.*)', text, re.M)
  (tmp_path / 'pip').write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
  (tmp_path / 'pip').chmod(0o755)
  answer = subprocess.run(
    ['sh', '-c', script],
    env={'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'EXTRA': extra},
    capture_output=True,
    text=True,
    check=False,
  )
  assert answer.stdout.split() == ([] if installed is None else [installed])
  assert answer.returncode == (2 if installed is None else 0)
