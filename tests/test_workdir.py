"""A workdir belongs to one config and one program, or is refused untouched."""

import contextlib
import json
import threading

import pytest

from tests.compare import refuses
from tests.training.runs import small_config
from zoo.storage import workdir
from zoo.storage.workdir import locked, open_workdir
from zoo.training.records import Records, read_lines

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs', 'impatient')


def test_a_new_workdir_is_made_with_its_config(tmp_path):
  folder = tmp_path / 'a' / 'b'
  folder.mkdir(parents=True)
  (folder / '.config.json.other-host-17.tmp').write_text('{"se')  # it was killed
  open_workdir(folder, small_config())
  config = json.loads((folder / 'config.json').read_text())
  assert config['model']['name'] == 'yq_lsa'
  open_workdir(folder, small_config())  # and known again


@pytest.mark.parametrize(
  ('name', 'content', 'said'),
  [
    ('thesis.tex', b'do not touch', 'is not empty and holds no run'),
    ('config.json', b'{', 'config.json is damaged'),
    ('config.json', b'[1]', 'config.json is damaged'),
    ('config.json', b'{"model": "x", "task": 3}', ' more; give another folder'),
    ('checkpoints', b'', 'holds checkpoints, but no config.json'),
  ],
)
def test_a_folder_with_something_else_in_it_is_refused_untouched(
  tmp_path, name, content, said, unchecked
):
  (tmp_path / name).write_bytes(content)
  if b'model' in content:
    (tmp_path / 'checkpoints' / '4').mkdir(parents=True)
  with refuses(str(tmp_path), said) as info:
    open_workdir(tmp_path, small_config())
  assert len(str(info.value)) < 1000
  assert (tmp_path / name).read_bytes() == content


def test_a_workdir_under_a_file_is_refused(tmp_path):
  (tmp_path / 'file').write_text('')
  with refuses('file/run', 'cannot be written'):
    open_workdir(tmp_path / 'file' / 'run', small_config())
  with refuses('file', 'is not a folder'):
    open_workdir(tmp_path / 'file', small_config())


@pytest.mark.parametrize(
  ('mark', 'own', 'other'),
  [
    ('points', 'sweep', 'run'),
    ('metrics.jsonl', 'run', 'sweep'),
    ('checkpoints', 'run', 'language-model experiment'),
    ('prompts.jsonl', 'language-model experiment', 'run'),
  ],
)
def test_a_workdir_of_another_kind_is_refused(tmp_path, mark, own, other):
  open_workdir(tmp_path, small_config(), own)
  (tmp_path / mark).mkdir()
  with refuses(str(tmp_path), f'workdir of a {own}, not of a {other}'):
    open_workdir(tmp_path, small_config(), other)
  open_workdir(tmp_path, small_config(), own)


def test_a_point_cannot_be_trained_while_its_sweep_is_and_the_other_way_round(tmp_path):
  one, other = tmp_path / 'points' / 'seed=0', tmp_path / 'points' / 'seed=1'
  one.mkdir(parents=True)
  other.mkdir()
  with locked(tmp_path):
    with refuses(str(tmp_path), 'another process is training'), locked(tmp_path):
      pass
    with refuses(str(tmp_path), 'is in use'), locked(one):
      pass
  with locked(one):
    with refuses(str(tmp_path), 'is in use'), locked(tmp_path):
      pass
    with locked(other):  # two points at once are fine
      pass
  with locked(tmp_path):
    pass


def test_where_there_are_no_locks_it_is_said(tmp_path, monkeypatch, caplog):
  def unsupported(file, mode):
    raise OSError(95, 'Operation not supported')

  monkeypatch.setattr(workdir.fcntl, 'flock', unsupported)
  with locked(tmp_path):
    pass
  monkeypatch.setattr(workdir, 'fcntl', None)  # as on Windows
  with locked(tmp_path):
    pass
  messages = [record.getMessage() for record in caplog.records]
  assert len(messages) == 2
  assert all(f'{tmp_path} cannot be locked' in text for text in messages)
  assert 'not supported' in messages[0]


def test_a_folder_whose_process_ends_soon_is_waited_for(tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(workdir, '_PATIENCE', 60.0)
  monkeypatch.setattr(workdir, '_PAUSE', 0.05)
  caplog.set_level('INFO', 'absl')
  with contextlib.ExitStack() as other:
    other.enter_context(locked(tmp_path))
    threading.Timer(0.3, other.pop_all().close).start()
    with locked(tmp_path):
      pass
  (record,) = caplog.records  # said once
  assert f'{tmp_path} is in use by another process; waiting' in record.getMessage()


def test_a_lock_is_not_written_through_a_symbolic_link(tmp_path):
  target, folder = tmp_path / 'target', tmp_path / 'run'
  target.write_text('do not touch')
  folder.mkdir()
  (folder / '.lock').symlink_to(target)
  with pytest.raises(OSError, match='symbolic link'), locked(folder):
    pass
  assert target.read_text() == 'do not touch'


def test_a_run_that_ended_before_its_first_checkpoint_leaves_its_folder_free(tmp_path):
  small = small_config(train__batch_size=8)
  open_workdir(tmp_path, small_config())
  with locked(tmp_path), Records(tmp_path, 0):
    (tmp_path / 'checkpoints').mkdir()
    with refuses('belongs to another config', 'batch_size'):  # it is in use
      open_workdir(tmp_path, small)
  open_workdir(tmp_path, small)
  assert json.loads((tmp_path / 'config.json').read_text())['train']['batch_size'] == 8
  with Records(tmp_path, 0) as records:
    records.write(line(4))
  open_workdir(tmp_path, small_config())
  (tmp_path / 'checkpoints' / '4').mkdir()
  with refuses('belongs to another config', 'batch_size'):
    open_workdir(tmp_path, small)


def test_damaged_lines_are_left_out_with_a_warning(tmp_path, caplog):
  good = b'{"step": 4, "wall_time": 1.0}\n'
  bad = b'[1, 2]\n{"step": 5}\n\xff\n'
  (tmp_path / 'metrics.jsonl').write_bytes(good + bad + good + b'{"st')
  lines = read_lines(tmp_path / 'metrics.jsonl')
  assert [line['step'] for line in lines] == [4, 4]
  assert [record.args[0] for record in caplog.records] == [2, 3, 4]


def line(step, loss=1.0):
  return {
    'step': step,
    'loss': loss,
    'eval_risk': None,
    'exact_risk': None,
    'grad_norm': 1.0,
  }


def test_lines_behind_the_resumed_step_are_dropped_and_time_goes_on(tmp_path):
  with Records(tmp_path, 0) as records:
    for step in (4, 8, 12):
      records.write(line(step))
  path = tmp_path / 'metrics.jsonl'
  lines = [json.loads(text) for text in path.read_text().splitlines()]
  lines[1]['wall_time'] = 1000.0
  path.write_text(''.join(json.dumps(one) + '\n' for one in lines) + '{"step": 1')
  with Records(tmp_path, 8) as records:
    assert 1000.0 <= records.wall_time < 1100.0
    records.write(line(12, loss=2.0))
  lines = [json.loads(text) for text in path.read_text().splitlines()]
  assert [one['step'] for one in lines] == [4, 8, 12]
  assert lines[2]['loss'] == 2.0
  assert lines[2]['wall_time'] >= 1000.0
