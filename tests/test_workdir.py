"""A workdir belongs to one config and one program, or is refused untouched."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.compare import refuses
from tests.training.runs import small_config
from zoo.config.read import read
from zoo.core.errors import RunError
from zoo.storage.workdir import locked, make_workdir, open_workdir
from zoo.training.records import Records

ME = os.getpid()


def test_a_new_workdir_is_made_with_its_config(tmp_path):
  folder = tmp_path / 'a' / 'b'
  folder.mkdir(parents=True)
  (folder / '.config.json.other-host-17.tmp').write_text('{"se')  # it was killed
  make_workdir(folder, small_config())
  config = json.loads((folder / 'config.json').read_text())
  assert config['model']['name'] == 'yq_lsa'
  make_workdir(folder, small_config())  # and known again


@pytest.mark.parametrize(
  ('name', 'content', 'said'),
  [
    ('thesis.tex', b'do not touch', 'is not empty and holds no run'),
    ('config.json', b'{', 'config.json cannot be read'),
    ('config.json', b'[1]', 'config.json cannot be read'),
    ('config.json', b'{"model": "x", "task": 3}', ' more; give another folder'),
    ('checkpoints', b'', 'is not empty and holds no run (it has checkpoints)'),
  ],
)
def test_a_folder_with_something_else_in_it_is_refused_untouched(
  tmp_path, name, content, said, unchecked
):
  (tmp_path / name).write_bytes(content)
  if b'model' in content:
    (tmp_path / 'checkpoints' / '4').mkdir(parents=True)
  with refuses(str(tmp_path), said) as info:
    make_workdir(tmp_path, small_config())
  assert len(str(info.value)) < 1000
  assert (tmp_path / name).read_bytes() == content


def test_a_workdir_under_a_file_is_refused(tmp_path):
  (tmp_path / 'file').write_text('')
  with refuses('file/run', 'cannot be written'):
    make_workdir(tmp_path / 'file' / 'run', small_config())
  with refuses('file', 'cannot be written'):
    make_workdir(tmp_path / 'file', small_config())


@pytest.mark.parametrize(
  ('mark', 'own', 'other'),
  [
    ('points', 'sweep', 'run'),
    ('metrics.jsonl', 'run', 'sweep'),
    ('checkpoints', 'run', 'language-model experiment'),
  ],
)
def test_a_workdir_of_another_kind_is_refused(tmp_path, mark, own, other):
  make_workdir(tmp_path, small_config(), own)
  (tmp_path / mark).mkdir()
  with refuses(str(tmp_path), f'workdir of a {own}, not of a {other}'):
    make_workdir(tmp_path, small_config(), other)
  make_workdir(tmp_path, small_config(), own)


def test_a_folder_is_held_by_one_program(tmp_path):
  for _ in range(2):
    refused = refuses(str(tmp_path), f'another process is training in it (process {ME}')
    with locked(tmp_path), refused, locked(tmp_path):
      pass


HOLD = (
  'import pathlib, sys\n'
  'from zoo.storage.workdir import locked\n'
  'with locked(pathlib.Path(sys.argv[1])):\n'
  '  print("held", flush=True)\n'
  '  sys.stdin.read()\n'
)


@pytest.mark.slow
def test_a_folder_of_a_process_that_was_killed_is_free_at_once(tmp_path):
  words = [sys.executable, '-c', HOLD, str(tmp_path)]
  pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
  with subprocess.Popen(words, **pipes) as other:
    assert other.stdout is not None
    assert other.stdout.readline() == 'held\n'
    with refuses('is in use', f'process {other.pid} on '), locked(tmp_path):
      pass
    other.kill()
  with locked(tmp_path):
    assert f'process {ME}' in (tmp_path / '.lock').read_text()


def test_a_run_adds_no_line_to_a_folder_that_was_deleted(tmp_path):
  workdir = tmp_path / 'run'
  workdir.mkdir()
  with locked(workdir), Records(workdir, 0, read(small_config())) as records:
    records.write(line(4))
    shutil.rmtree(workdir)
    with pytest.raises(RunError, match=f'{workdir}/metrics.jsonl has gone'):
      records.write(line(8))
    assert not workdir.exists()
    # Another program may have begun in it since.
    workdir.mkdir()
    with locked(workdir), Records(workdir, 0, read(small_config())) as others:
      others.write(line(4))
      with pytest.raises(RunError, match='was replaced by another program'):
        records.write(line(8))
  assert len((workdir / 'metrics.jsonl').read_text().splitlines()) == 1


def test_a_lock_is_not_written_through_a_symbolic_link(tmp_path):
  target, folder = tmp_path / 'target', tmp_path / 'run'
  target.write_text('do not touch')
  make_workdir(folder, small_config())
  (folder / '.lock').symlink_to(target)
  error = pytest.raises(RunError, match='could not be written')
  with error, open_workdir(folder, small_config()):
    pass
  assert target.read_text() == 'do not touch'


@pytest.mark.parametrize(
  'own',
  [
    OSError('mine'),
    ConnectionRefusedError(errno.ECONNREFUSED, 'Connection refused'),
    FileNotFoundError(errno.ENOENT, 'No such file or directory', 'images.npz'),
  ],
  ids=['without a number', 'of a network', 'of a file elsewhere'],
)
def test_an_error_of_the_users_own_code_stays_what_it_is(tmp_path, own):
  with pytest.raises(type(own)) as info, open_workdir(tmp_path / 'run', small_config()):
    raise own
  assert info.value is own


@pytest.mark.parametrize(
  ('file', 'reason'), [(None, errno.ENOSPC), ('run/summary.json', errno.EACCES)]
)
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, file, reason):
  name = [] if file is None else [str(tmp_path / file)]
  error = pytest.raises(RunError, match=f'{tmp_path}/run could not be written')
  with error, open_workdir(tmp_path / 'run', small_config()):
    raise OSError(reason, os.strerror(reason), *name)


def test_a_run_that_ended_before_its_first_checkpoint_leaves_its_folder_free(tmp_path):
  small = read(small_config(train__batch_size=8))
  make_workdir(tmp_path, small_config())
  with locked(tmp_path), Records(tmp_path, 0, read(small_config())):
    (tmp_path / 'checkpoints' / '4.orbax-checkpoint-tmp').mkdir(parents=True)
    with refuses('is in use'), open_workdir(tmp_path, small):
      pass
  with open_workdir(tmp_path, small), Records(tmp_path, 0, small) as records:
    records.write(line(4))
  assert json.loads((tmp_path / 'config.json').read_text())['train']['batch_size'] == 8
  (tmp_path / 'checkpoints' / '4').mkdir()
  with refuses('belongs to another config', 'batch_size'):
    make_workdir(tmp_path, small_config())


def line(step, loss=1.0, wall_time=0.1):
  return {
    'step': step,
    'loss': loss,
    'wall_time': wall_time,
    'eval_risk': None,
    'exact_risk': None,
    'grad_norm': 1.0,
  }


def test_lines_behind_the_resumed_step_are_dropped_and_time_goes_on(tmp_path):
  with Records(tmp_path, 0, read(small_config())) as records:
    for step in (4, 8, 12):
      records.write(line(step))
  path = tmp_path / 'metrics.jsonl'
  lines = [json.loads(text) for text in path.read_text().splitlines()]
  lines[1]['wall_time'] = 1000.0
  path.write_text(''.join(json.dumps(entry) + '\n' for entry in lines) + '{"step": 1')
  with Records(tmp_path, 8, read(small_config())) as records:
    assert 1000.0 <= records.wall_time < 1100.0
    records.write(line(12, loss=2.0, wall_time=records.wall_time))
  lines = [json.loads(text) for text in path.read_text().splitlines()]
  assert [entry['step'] for entry in lines] == [4, 8, 12]
  assert lines[2]['loss'] == 2.0
  assert lines[2]['wall_time'] >= 1000.0
