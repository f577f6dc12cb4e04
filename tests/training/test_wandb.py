"""What Weights & Biases is handed, read back from the files of its offline mode."""

import importlib
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import pytest

import zoo
from tests.compare import refuses
from tests.launch.processes import ROOT, environment, launch
from tests.training.runs import lines_of, share_programs, small_config
from zoo.config.read import read
from zoo.core.errors import CONSTRAINTS
from zoo.host.files import names_in, workdir_path
from zoo.training import grid, sweep, wandb_writer
from zoo.training.records import scalars_of

# The environment of .ci/run that has the extra runs slow tests alone.
pytestmark = pytest.mark.slow

_BLOCK = 32_768  # bytes, of the log of LevelDB, in which W&B writes its records
_VARIABLES = {'WANDB_MODE': 'offline', 'WANDB_SILENT': 'true'}

# It is killed at step 6, or goes on to the end.
PROGRAM = """
import os, signal, sys
import zoo
from tests.training.runs import small_config

class Mortal(zoo.Hook):
  def on_chunk(self, event):
    if event.step == 6 and 'killed' in sys.argv:
      os.kill(os.getpid(), signal.SIGKILL)

zoo.train(small_config(), sys.argv[1], hooks=[zoo.WandbWriter('icl'), Mortal()])
"""


@pytest.fixture
def wandb(monkeypatch, tmp_path):
  """The package, in its offline mode; what it keeps at home is in a folder."""
  for name, value in _variables(tmp_path).items():
    monkeypatch.setenv(name, value)
  share_programs(monkeypatch)
  wandb = pytest.importorskip('wandb', reason='the extra wandb is not installed')
  _restart()
  yield wandb
  _restart()


def _restart():
  """Lets W&B write all that is open, and read its variables again."""
  for opened in wandb_writer._OPEN.values():
    opened.run.finish()
  wandb_writer._OPEN.clear()
  importlib.import_module('wandb').teardown()


def _variables(folder):
  homes = 'CONFIG', 'CACHE', 'DATA'
  return _VARIABLES | {f'WANDB_{name}_DIR': str(folder / 'home') for name in homes}


def _records(path):
  """The records of a .wandb file, in their order.

  A file has a head of 7 bytes and then chunks in blocks; a chunk has a checksum, its
  length, and whether it is all of a record (1), or its first (2), a middle (3) or its
  last (4) part.
  """
  proto = importlib.import_module('wandb.proto.wandb_internal_pb2')
  data, at, parts, records = path.read_bytes(), 7, b'', []
  assert data[:4] == b':W&B'
  while at + 7 <= len(data):
    if _BLOCK - at % _BLOCK < 7:  # too short for a chunk
      at += _BLOCK - at % _BLOCK
      continue
    length, kind = struct.unpack('<HB', data[at + 4 : at + 7])
    parts += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
      records.append(proto.Record.FromString(parts))
      parts = b''
  assert not parts
  return records


class _Logged:
  """What the .wandb file of one launch holds."""

  def __init__(self, path):
    self.lines, self.config, self.summary, self.exit_code = [], {}, {}, None
    for record in _records(path):
      if record.HasField('run'):
        self.id, self.project = record.run.run_id, record.run.project
        self.name = record.run.display_name
        self.config.update(_values(record.run.config.update))
      elif record.HasField('history'):
        self.lines.append(_values(record.history.item))
      elif record.HasField('summary'):
        self.summary.update(_values(record.summary.update))
      elif record.HasField('exit'):
        self.exit_code = record.exit.exit_code
    self.steps = [line['_step'] for line in self.lines]


def _values(items):
  return {
    '/'.join(item.nested_key) or item.key: json.loads(item.value_json) for item in items
  }


def _logged(workdir):
  """What was logged in a workdir, launch by launch."""
  _restart()
  return [*map(_Logged, _paths(workdir))]


def _paths(workdir):
  """The .wandb files in a workdir, one for each launch that began or resumed it."""
  return sorted(workdir.glob('wandb/offline-run-*/*.wandb'))


def _without_its_own(line):
  """A line of W&B without what it adds to it: `_step`, `_runtime`, `_timestamp`."""
  return {name: value for name, value in line.items() if not name.startswith('_')}


def test_every_number_of_a_run_is_logged_at_its_step(tmp_path, wandb):
  workdir = tmp_path / 'run'
  small = {'model__num_layers': 1, 'model__width': 8}
  config = small_config('transformer', eval__num_compared=8, **small)
  writer = zoo.WandbWriter('icl', tags=['first'])
  summary = zoo.train(config, workdir, hooks=[writer], compare=True)
  assert summary is not None
  assert summary['comparison'] is not None
  lines, (logged,) = lines_of(workdir), _logged(workdir)
  assert logged.steps == [line['step'] for line in lines] == [4, 6, 8, 12]
  assert [*map(_without_its_own, logged.lines)] == [*map(scalars_of, lines)]
  # The loss after each number of examples is there, where it is evaluated.
  names = [f'curve/{k:04}' for k in range(config.task.context_length + 1)]
  assert [names[-1] in line for line in logged.lines] == [False, True, False, True]
  assert [logged.lines[-1][name] for name in names] == lines[-1]['curve']
  assert (logged.project, logged.name, logged.exit_code) == ('icl', 'run', 0)
  saved = json.loads((workdir / 'config.json').read_text())
  assert {name: logged.config[name] for name in saved} == saved
  assert saved['model']['name'] == 'transformer'
  known = {name: value for name, value in summary.items() if value is not None}
  assert {name: logged.summary[name] for name in known} == known
  # A finished run is not logged again.
  zoo.train(config, workdir, hooks=[zoo.WandbWriter('icl')])
  assert len(_logged(workdir)) == 1


@pytest.mark.full
def test_a_killed_run_goes_on_as_the_same_run_and_loses_no_line(tmp_path, wandb, cache):
  workdir, codes = tmp_path / 'run', []
  for how in 'killed', 'to the end':
    done = subprocess.run(
      [sys.executable, '-c', PROGRAM, str(workdir), how],
      cwd=ROOT,
      env=environment(cache) | _variables(tmp_path),
      capture_output=True,
      text=True,
      timeout=240,
      check=False,
    )
    codes.append(done.returncode)
  assert codes == [-9, 0], done.stderr
  killed, after = _paths(workdir)
  logged = _Logged(after)
  assert logged.id == json.loads((workdir / 'wandb.json').read_text())['id']
  assert killed.stem == after.stem == f'run-{logged.id}'
  lines = lines_of(workdir)
  assert logged.steps == [line['step'] for line in lines] == [4, 6, 8, 12]
  assert [*map(_without_its_own, logged.lines)] == [*map(scalars_of, lines)]
  assert logged.summary['step'] == 12


def test_a_run_that_was_stopped_goes_on_in_the_same_process(tmp_path, wandb):
  """Also with more steps, and as another run once its folder was deleted."""
  for event in zoo.training_run(small_config(), tmp_path, [zoo.WandbWriter('icl')]):
    if event.step == 6:
      break
  zoo.train(small_config(), tmp_path, hooks=[zoo.WandbWriter('icl')])
  (logged,) = _logged(tmp_path)
  assert logged.steps == [4, 6, 8, 12]
  config = small_config(train__num_steps=16)
  zoo.train(config, tmp_path, hooks=[zoo.WandbWriter('icl')])
  first, second = _logged(tmp_path)
  assert first.id == second.id
  assert (first.steps, second.steps) == ([4, 6, 8, 12], [4, 6, 8, 12, 16])
  assert second.config['train']['num_steps'] == second.summary['step'] == 16


def test_a_run_in_a_folder_that_was_deleted_is_another_run(tmp_path, wandb):
  workdir, writer = tmp_path / 'run', zoo.WandbWriter('icl')
  ids = []
  for _ in range(2):
    for event in zoo.training_run(small_config(), workdir, [writer]):
      if event.step == 6:
        break
    ids.append(json.loads((workdir / 'wandb.json').read_text())['id'])
    workdir.rename(tmp_path / ids[-1])
  assert len({*ids}) == 2


def test_what_has_arrived_at_the_server_is_not_logged_twice(
  tmp_path, wandb, monkeypatch
):
  """W&B says so of a run that it resumes: its next step is 7."""
  logged = []

  class Run:
    resumed, step, disabled, summary = True, 7, False, {}

    def __init__(self, id, **arguments):
      self.id = id

    def log(self, line, step, commit):
      assert commit
      logged.append((step, line['loss']))

    def finish(self):
      logged.append('finished')

  monkeypatch.setattr(wandb, 'init', Run)
  for event in zoo.training_run(small_config(), tmp_path):
    if event.step == 8:
      break
  zoo.train(small_config(), tmp_path, hooks=[zoo.WandbWriter('icl')])
  lines = lines_of(tmp_path)
  expected = [(line['step'], line['loss']) for line in lines if line['step'] > 6]
  assert logged == [*expected, 'finished']
  assert Run.summary['step'] == 12


@pytest.mark.full
def test_a_run_in_a_bucket_goes_on_as_the_same_run(
  tmp_path, wandb, monkeypatch, bucket
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  for event in zoo.training_run(small_config(), bucket, [zoo.WandbWriter('icl')]):
    if event.step == 6:
      break
  _restart()  # as if this were another process
  zoo.train(small_config(), bucket, hooks=[zoo.WandbWriter('icl')])
  workdir = workdir_path(bucket)
  first, second = sorted(
    (logged for folder in tmp_path.glob('icl_zoo_*') for logged in _logged(folder)),
    key=lambda logged: len(logged.steps),
  )
  lines = lines_of(workdir)
  assert (first.steps, second.steps) == ([4, 6], [4, 6, 8, 12])
  assert [*map(_without_its_own, second.lines)] == [*map(scalars_of, lines)]
  assert json.loads((workdir / 'wandb.json').read_text())['id'] == first.id
  assert first.id == second.id
  assert 'wandb' not in names_in(workdir)


def test_each_point_of_a_sweep_is_a_run(tmp_path, wandb):
  writer = zoo.WandbWriter('icl', group='rates')
  points = grid({'optimizer.learning_rate': [0.01, 0.02]})
  rows = sweep(small_config(), points, tmp_path, hooks=[writer])
  assert rows is not None
  ids = set()
  for row in rows:
    workdir = pathlib.Path(row['workdir'])
    (logged,) = _logged(workdir)
    ids.add(logged.id)
    lines = lines_of(workdir)
    assert [*map(_without_its_own, logged.lines)] == [*map(scalars_of, lines)]
    assert logged.summary['step'] == 12
    rate = logged.config['optimizer']['learning_rate']
    assert workdir.name == f'optimizer.learning_rate={rate}'
  assert len(ids) == 2


def test_where_it_is_disabled_nothing_is_written(tmp_path, wandb, monkeypatch):
  monkeypatch.setenv('WANDB_MODE', 'disabled')
  _restart()
  assert zoo.train(small_config(), tmp_path, hooks=[zoo.WandbWriter('icl')])
  assert not [*tmp_path.glob('wandb*')]


def test_processes_but_the_first_log_nothing(tmp_path, wandb, monkeypatch):
  def fail(*arguments, **values):
    raise AssertionError('W&B is called')

  writer = zoo.WandbWriter('icl')
  monkeypatch.setattr(wandb, 'init', fail)
  monkeypatch.setattr(wandb_writer.jax, 'process_index', lambda: 1)
  event = zoo.training.Event(
    read(small_config()), tmp_path, 4, {'loss': 1.0}, None, fail
  )
  writer.on_chunk(event)
  writer.on_end(event)
  assert not [*tmp_path.iterdir()]


def test_mistakes_are_refused_before_a_run_begins(tmp_path, wandb):
  with refuses("the project is 'a/b'", "cannot contain characters '/"):
    zoo.WandbWriter('a/b')
  with refuses("the project is ''"):
    zoo.WandbWriter('')


def test_a_missing_key_is_said_before_anything_is_written(tmp_path, wandb, monkeypatch):
  monkeypatch.setenv('WANDB_MODE', 'online')
  monkeypatch.setenv('NETRC', str(tmp_path / 'no'))
  monkeypatch.delenv('WANDB_API_KEY', raising=False)
  _restart()
  with pytest.raises(zoo.UserError, match=r'API key.*WANDB_MODE=offline'):
    zoo.WandbWriter('icl')
  monkeypatch.setenv('WANDB_MODE', 'offline')
  _restart()
  zoo.train(small_config(), tmp_path / 'run', hooks=[zoo.WandbWriter('icl')])
  assert _logged(tmp_path / 'run')[0].steps == [4, 6, 8, 12]


@pytest.mark.full
def test_the_command_logs_to_a_project(tmp_path, wandb, cache):
  workdir = tmp_path / 'run'
  done = launch(
    *('--config=configs/yq_lsa.py:smoke', f'--workdir={workdir}', '--wandb=icl'),
    '--config.eval.num_compared=0',
    cache=cache,
  )
  assert done.returncode == 0, done.stderr
  (logged,) = _logged(workdir)
  assert logged.steps == [line['step'] for line in lines_of(workdir)]
  assert logged.project == 'icl'


@pytest.mark.full
def test_the_code_of_the_page_of_training_logs_a_run(tmp_path, wandb, monkeypatch):
  text = (ROOT / 'docs' / 'train.md').read_text()
  (code,) = re.findall(r'```python\n([^`]*WandbWriter[^`]*)```', text)
  monkeypatch.chdir(tmp_path)
  code = code.replace("'transformer'", "'yq_lsa'")
  exec(compile(code, 'train.md', 'exec'), {})
  (logged,) = _logged(tmp_path / 'runs/wandb')
  assert logged.steps == [5, 10, 15, 20]
  assert 'eval_risk' in logged.lines[-1]
  newest = tmp_path / 'runs/wandb/wandb/latest-run'
  assert [path.stem for path in newest.glob('*.wandb')] == [f'run-{logged.id}']


@pytest.mark.full
def test_without_the_extra_one_line_says_how_to_get_it():
  """And importing zoo imports nothing of it."""
  program = (
    "import sys, zoo; assert 'wandb' not in sys.modules; sys.modules['wandb'] = None\n"
    "try:\n  zoo.WandbWriter('icl')\nexcept zoo.UserError as error:\n  print(error)"
  )
  done = subprocess.run(
    [sys.executable, '-W', 'error', '-c', program],
    cwd=ROOT,
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.strip() == (
    f'wandb is not installed; zoo.WandbWriter needs pip install -c {CONSTRAINTS} '
    "-e '.[wandb]'"
  )
