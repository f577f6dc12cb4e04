"""The command line as a user meets it: every mistake is one line and exit code 2."""

import concurrent.futures
import json

import pytest

from tests.launch.processes import ROOT, launch

YQ = '--config=configs/yq_lsa.py'
SMOKE = '--config=configs/yq_lsa.py:smoke'

PLACE = '--coordinator=127.0.0.1:1', '--num_processes=2'  # where nobody listens

MISTAKES = {
  'no config': ([], ['--config is missing', 'configs/yq_lsa.py']),
  'no file': (['--config=nofile.py'], ['nofile.py does not exist']),
  'no file, with a field': (['--config=no.py', '--config.seed=1'], ['does not exist']),
  'not a config': (['--config=README.md'], ['README.md failed']),
  'unknown variant': ([YQ + ':papr'], ["variant 'papr'", 'paper, smoke']),
  'unknown flag': ([YQ, '--wrkdir=x'], ["'wrkdir'", 'workdir']),
  'stray argument': ([YQ, 'stray'], ["'stray'"]),
  'unknown field': (
    [YQ, '--config.train.nmu_steps=3'],
    ["'config.train.nmu_steps'", "did you mean 'config.train.num_steps'"],
  ),
  'unknown section': ([YQ, '--config.trian.x=1'], ["did you mean 'config.train'"]),
  'a field of a field': ([YQ, '--config.seed.x=1'], ["'config.seed.x'"]),
  'wrong type': (
    [YQ, '--config.train.num_steps=abc'],
    ["config.train.num_steps is 'abc'", 'int'],
  ),
  'fraction for a count': ([YQ, '--config.train.num_steps', '2.5'], ["'2.5'", 'int']),
  'unknown model': (
    [YQ, '--config.model.name=yqlsa'],
    ["unknown model 'yqlsa'", "did you mean 'yq_lsa'"],
  ),
  'unknown task': (
    [YQ, '--config.task.name=regression'],
    ["unknown task 'regression'", "did you mean 'linear_regression'"],
  ),
  'unknown optimizer': (
    [YQ, '--config.optimizer.name=adma'],
    ["'adma'", "did you mean 'adam'"],
  ),
  'prior mean of the wrong length': (
    [YQ, '--config.task.prior_mean=(1.0,2.0)'],
    ['prior_mean has shape (2,)', 'length 10'],
  ),
  'heads over the model axis': (
    [
      '--config=configs/multi_head_lsa.py',
      '--config.mesh.data=1',
      '--config.mesh.model=2',
    ],
    ['11 heads', 'config.mesh.model, which is 2'],
  ),
  'batch over the data axis': (
    [YQ, '--config.mesh.data=2', '--config.train.batch_size=3'],
    ['config.train.batch_size is 3', 'which is 2'],
  ),
  'mesh too large': ([YQ, '--config.mesh.data=64'], ['64 devices', 'there are 2']),
  'no steps': ([YQ, '--config.train.num_steps=0'], ['num_steps is 0', '≥ 1']),
  'negative steps': ([YQ, '--config.train.num_steps=-3'], ['num_steps is -3']),
  'workdir under a file': ([YQ, '--workdir=README.md/x'], ['cannot be written']),
  'workdir that is not ours': ([YQ, '--workdir=zoo'], ['is not empty']),
  'workdir without a name': ([YQ, '--workdir='], ['--workdir is empty']),
  'no .py': (['--config=configs/yq_lsa'], ['did you mean configs/yq_lsa.py?']),
  'not a ConfigDict': (
    ['--config=tests/data/config_of_a_number.py'],
    ['returned 3', 'ConfigDict'],
  ),
  'nothing to join': ([YQ, '--distributed'], ['no cluster was found', 'SLURM']),
  'half a place': (
    [YQ, '--coordinator=127.0.0.1:1'],
    ['--coordinator is given without --num_processes and --process_id'],
  ),
  'a place, and none': (
    [YQ, *PLACE, '--process_id=0', '--nodistributed'],
    ['--nodistributed contradicts'],
  ),
  'process out of range': (
    [YQ, *PLACE, '--process_id=2'],
    ['--process_id is 2', 'below --num_processes, which is 2'],
  ),
  'coordinator without a port': (
    [YQ, *PLACE, '--process_id=1', '--coordinator=here'],
    ["--coordinator is 'here'", 'HOST:PORT'],
  ),
  'a mistake that needs nobody': (
    [YQ, *PLACE, '--process_id=1', '--config.train.num_steps=0'],
    ['num_steps is 0'],
  ),
  'coordinator that does not answer': (
    [YQ, *PLACE, '--process_id=1', '--config.mesh.start_timeout=1'],
    ['got no answer from the coordinator at 127.0.0.1:1 in 1 s'],
  ),
  'sys.exit': (['--config=tests/data/config_that_exits.py'], ['sys.exit()']),
}


@pytest.fixture(scope='module')
def answers(cache):
  """The answers to all mistakes; two processes at a time."""
  before = {path for path in ROOT.rglob('*') if '__pycache__' not in path.parts}

  def ask(arguments):
    return launch(*arguments, cache=cache)

  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XLA_FLAGS', '--xla_force_host_platform_device_count=2')
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
      found = dict(
        zip(
          MISTAKES,
          pool.map(ask, (arguments for arguments, _ in MISTAKES.values())),
          strict=True,
        )
      )
  after = {path for path in ROOT.rglob('*') if '__pycache__' not in path.parts}
  return found, {path for path in after - before if '.pytest_cache' not in path.parts}


@pytest.mark.slow  # 30 processes
@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_is_answered_in_one_line_with_exit_code_2(answers, mistake):
  answer = answers[0][mistake]
  assert answer.returncode == 2, answer.stderr
  (line,) = answer.stderr.splitlines()
  assert line.startswith('error: ')
  assert answer.stdout == ''
  for part in MISTAKES[mistake][1]:
    assert part in line


@pytest.mark.slow
def test_no_mistake_leaves_anything_behind(answers):
  assert answers[1] == set()


def test_help_shows_an_example(cache):
  answer = launch('--help', cache=cache)
  assert answer.returncode == 0
  assert 'python -m launch.main --config=configs/yq_lsa.py' in answer.stdout
  assert '--workdir' in answer.stdout


@pytest.mark.parametrize(
  'name',
  [
    'yq_lsa',
    *(
      pytest.param(n, marks=pytest.mark.slow) for n in ('lsa', 'multi_head_lsa', 'ltb')
    ),
  ],
)
def test_the_smoke_variant_of_each_config_runs(tmp_path, cache, name):
  workdir = tmp_path / 'run'
  arguments = f'--config=configs/{name}.py:smoke', f'--workdir={workdir}'
  answer = launch(*arguments, cache=cache)
  assert answer.returncode == 0, answer.stderr
  assert f'\n{name} ' in answer.stdout
  assert 'one step of GD from the prior mean' in answer.stdout
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['step'] == 20
  assert f'{summary["exact_risk"]:.6f}' in answer.stdout
  # A second call has nothing to do, and shows the same table.
  again = launch(*arguments, cache=cache)
  assert again.returncode == 0
  assert again.stdout == answer.stdout
  # Another config in the same workdir is refused, and the fields are named.
  other = launch(*arguments, '--config.seed=5', cache=cache)
  assert other.returncode == 2
  assert 'seed (0 there, 5 here)' in other.stderr


def test_the_workdir_is_named_after_the_config_and_its_variant(tmp_path, cache):
  (tmp_path / 'tiny.py').write_text((ROOT / 'configs' / 'yq_lsa.py').read_text())
  answer = launch('--config=tiny.py:smoke', cache=cache, cwd=tmp_path)
  assert answer.returncode == 0, answer.stderr
  assert (tmp_path / 'checkpoints/runs/tiny-smoke/summary.json').is_file()


def test_a_loss_that_is_not_finite_is_one_line_and_exit_code_1(tmp_path, cache):
  answer = launch(
    SMOKE,
    f'--workdir={tmp_path}/run',
    '--config.optimizer.learning_rate=1e30',
    cache=cache,
  )
  assert answer.returncode == 1
  *_, line = answer.stderr.splitlines()
  assert line.startswith('error: step 2 is not finite')
  assert 'no checkpoint yet' in line
  assert 'Traceback' not in answer.stderr
