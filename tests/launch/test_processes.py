"""Runs of several real processes, over loopback: layouts, faults, signals, mistakes."""

import shutil
import signal

import numpy as np
import pytest

from tests.compare import assert_close
from tests.launch.processes import finish, start_together, wait_until
from tests.marks import mostly_full
from tests.training.runs import saved_arrays, small_config
from zoo.storage.workdir import make_workdir

pytestmark = pytest.mark.slow

# Small, so that to import and to compile is nearly all of the work.
SMALL = (
  '--config=configs/multi_head_lsa.py:smoke',
  '--config.model.num_heads=2',
  '--config.task.num_features=3',
  '--config.task.context_length=4',
  '--config.train.batch_size=48',
  '--config.eval.num_compared=0',
)
FIFTY = (
  *SMALL,
  '--config.train.num_steps=50',
  '--config.train.log_every=25',
  '--config.checkpoint.every=25',
  '--config.eval.every=50',
)


@pytest.fixture(scope='module')
def layouts(tmp_path_factory, cache, full):
  """Runs of 50 steps on 8 devices, by number of processes; and the prompts drawn."""
  folder = tmp_path_factory.mktemp('layouts')
  for number in (1, 2, 4, 8) if full else (1, 2):
    prompts = folder / f'prompts_{number}'
    prompts.mkdir()
    with pytest.MonkeyPatch.context() as patch:
      patch.setenv('PROMPTS', str(prompts))
      ended = finish(
        start_together(
          *FIFTY,
          f'--workdir={folder}/{number}',
          number=number,
          num_devices=8 // number,
          cache=cache,
          module='tests.launch.member',
        )
      )
    assert [code for code, _ in ended] == [0] * number, ended
  return folder


def pytest_generate_tests(metafunc):
  if 'many' in metafunc.fixturenames:
    full = metafunc.config.getoption('--full')
    metafunc.parametrize('many', [2, 4, 8] if full else [2])


def test_on_any_layout_the_parameters_are_those_of_one_process(layouts, many):
  alone, together = (saved_arrays(layouts / str(n), 50) for n in (1, many))
  assert alone.keys() == together.keys()
  for path, array in alone.items():
    if 'model' in path:
      # The devices compute the same; only how their gradients are added up differs.
      assert_close(together[path], array, 1e-6)


def test_on_any_layout_each_process_draws_its_part_of_the_same_prompts(layouts, many):
  def drawn(n):
    return [np.load(layouts / f'prompts_{n}' / f'{i}.npz') for i in range(n)]

  (whole,) = drawn(1)
  parts = drawn(many)
  assert len(whole.files) == 5 * 8  # a Prompt's arrays, on 8 devices
  assert sorted(whole.files) == sorted(name for part in parts for name in part.files)
  for part in parts:
    assert len(part.files) == 5 * 8 // many
    for name in part.files:
      assert part[name].tobytes() == whole[name].tobytes()


@pytest.mark.full
@pytest.mark.parametrize('number', [1, 4])
def test_saved_by_two_processes_of_four_a_run_goes_on_in_others(
  tmp_path, cache, layouts, number
):
  workdir = tmp_path / 'run'
  shutil.copytree(layouts / '2', workdir)
  newest = workdir / 'checkpoints' / '50'
  data = max(newest.rglob('d/*'), key=lambda path: path.stat().st_size)
  data.write_bytes(data.read_bytes()[:-1])
  arguments = *FIFTY, f'--workdir={workdir}'
  ended = finish(start_together(*arguments, number=number, cache=cache))
  assert [code for code, _ in ended] == [1] * number, ended
  (line,) = errors_in(ended)
  assert 'checkpoints/50 is damaged' in line
  assert 'step 25 is good' in line
  shutil.rmtree(newest)
  ended = finish(start_together(*arguments, number=number, cache=cache))
  assert [code for code, _ in ended] == [0] * number, ended
  said = ''.join(text for _, text in ended)
  assert said.count('resuming at step 25 of 50') == 1
  there, here = saved_arrays(layouts / '2', 50), saved_arrays(workdir, 50)
  for path, array in there.items():
    if 'model' in path:
      # 25 steps on other devices, which add up other parts of the batch: some float32
      # roundings a step, which Adam takes relative to the size of the gradient.
      assert_close(here[path], array, 1e-5)


def errors_in(ended):
  return [
    line for _, said in ended for line in said.splitlines() if line.startswith('error:')
  ]


# What each process is given beside the rest, and what one line must say to all.
MISTAKES = {
  'workdir of another run': (
    [['--workdir={folder}/used']] * 2,
    ['belongs to another config', 'train.batch_size (16 there, 48 here)'],
  ),
  'another config': (
    [[], ['--config.seed=3']],
    [
      'on process 1: the config differs from that of process 0',
      'seed (0 there, 3 here)',
    ],
  ),
  'another folder': (
    [[], ['--workdir={folder}/other']],
    ['on process 1: --workdir is', '/other, but', '/run on process 0'],
  ),
}


@pytest.mark.parametrize('mistake', mostly_full(['another config'], MISTAKES))
def test_a_mistake_that_one_process_finds_is_one_line_and_ends_all(
  tmp_path, cache, mistake
):
  make_workdir(tmp_path / 'used', small_config())
  (tmp_path / 'used' / 'checkpoints' / '4').mkdir(parents=True)
  flags, parts = MISTAKES[mistake]
  own = [[flag.format(folder=tmp_path) for flag in arguments] for arguments in flags]
  workdir = f'--workdir={tmp_path}/run'
  ended = finish(start_together(*FIFTY, workdir, number=2, cache=cache, own=own))
  assert [path.name for path in tmp_path.iterdir()] == ['used']  # nothing was written
  assert [code for code, _ in ended] == [2, 2], ended
  (line,) = errors_in(ended)
  for part in parts:
    assert part in line


@pytest.mark.full
def test_a_run_of_which_a_process_hangs_ends(tmp_path, cache):
  long = *LONG, '--config.train.num_steps=1000000', f'--workdir={tmp_path}/run'
  first, hung = processes = start_together(*long, number=2, cache=cache)
  try:
    wait_for_progress(processes, tmp_path / 'run')
    hung.send_signal(signal.SIGSTOP)
    first.wait(timeout=120)
  finally:
    hung.kill()
    (code, said), _ = finish(processes)
  assert code not in (0, 2), said
  assert 'heartbeat' in said


LONG = (
  *SMALL,
  '--config.train.log_every=10',
  '--config.checkpoint.every=100',
  '--config.checkpoint.keep=100',
  '--config.eval.every=1000',
)


def wait_for_progress(processes, workdir):
  """Waits until the run that was started has logged a step."""
  log = workdir / 'metrics.jsonl'
  before = log.stat().st_ino if log.is_file() else None
  lines = []

  def has_grown():
    # A launch writes the log anew, with the lines that stay, and then goes on with it.
    if log.is_file() and log.stat().st_ino != before:
      lines.append(log.read_text().count('\n'))
    return bool(lines) and lines[-1] > lines[0]

  wait_until(has_grown, processes)
