"""Local folders whose changes are copied into a bucket."""

import os
import shutil
import signal
import threading
import time

import pytest

from tests.compare import refuses
from tests.marks import FULL
from zoo.core.errors import RunError
from zoo.host.interruption import Interruption
from zoo.storage import bucket_lock, buckets, mirror
from zoo.storage.bucket_lock import is_lock
from zoo.storage.buckets import Folder, Unreachable, open_folder
from zoo.storage.mirror import mirrored, mirrored_in_parts

pytestmark = [*FULL]


def content_of(bucket):
  folder = open_folder(bucket)
  found = {name: folder.read(name) for name in folder.list() if not is_lock(name)}
  return {name: one.data for name, one in found.items() if one is not None}


def write(local, files):
  for name, text in files.items():
    (local / name).parent.mkdir(parents=True, exist_ok=True)
    (local / name).write_text(text)


def objects_written(monkeypatch):
  """The names of the objects that are written from now on, but for locks."""
  written, write_object = [], Folder.write

  def note(folder, name, *arguments, **named):
    if not is_lock(name):
      written.append(name)
    return write_object(folder, name, *arguments, **named)

  monkeypatch.setattr(Folder, 'write', note)
  return written


def test_what_is_written_and_changed_is_so_in_the_bucket(bucket):
  with mirrored(bucket) as local:
    write(local, {'a': 'one', 'b/c': 'two', '.hidden': 'x', '.being/written': 'x'})
  assert content_of(bucket) == {'a': b'one', 'b/c': b'two'}
  with mirrored(f'{bucket}/') as local:
    assert (local / 'b' / 'c').read_text() == 'two'
    write(local, {'b/c': 'three', 'd': ''})
  assert content_of(bucket) == {'a': b'one', 'b/c': b'three', 'd': b''}


def test_only_what_has_changed_is_written_again(bucket, monkeypatch):
  with mirrored(bucket) as local:
    write(local, {'a': 'one', 'b': 'two'})
  written = objects_written(monkeypatch)
  with mirrored(bucket) as local:
    write(local, {'b': 'three'})
  assert written == ['b']


def test_a_checkpoint_comes_after_its_lines_and_before_its_summary(bucket, monkeypatch):
  """And its manifest after its other files; a kill may come between any two."""
  written = objects_written(monkeypatch)
  step = 'points/p/checkpoints/3'
  files = f'{step}/SHA256SUMS', f'{step}/model/a', 'points/p/metrics.jsonl'
  with mirrored(bucket) as local:
    write(local, dict.fromkeys(('points/p/summary.json', *files), 'x'))
  manifest, array, lines = files
  assert written == [*(lines, array, manifest, 'points/p/summary.json')]


def test_of_a_checkpoint_without_its_manifest_nothing_is_left(bucket):
  with mirrored(bucket) as local:
    write(local, {'a': '', 'run/checkpoints/3/SHA256SUMS': '', 'checkpoints/b': ''})
  open_folder(bucket).write('run/checkpoints/4/model/a', b'x')
  with mirrored(bucket) as local:
    assert not (local / 'run/checkpoints/4').exists()
    assert (local / 'run/checkpoints/3').exists()
  assert content_of(bucket).keys() == {
    *('a', 'checkpoints/b', 'run/checkpoints/3/SHA256SUMS')
  }


def test_a_deleted_checkpoint_is_deleted_in_the_bucket_and_nothing_else(bucket):
  """Something else may have emptied the folder of temporary files."""
  files = 'a', 'b/checkpoints/3/SHA256SUMS', 'b/checkpoints/3/x', 'b/metrics.jsonl'
  with mirrored(bucket) as local:
    write(local, dict.fromkeys(files, ''))
  with mirrored(bucket) as local:
    shutil.rmtree(local)
  assert content_of(bucket).keys() == {'a', 'b/metrics.jsonl'}


def test_after_the_end_nothing_is_copied(bucket, monkeypatch):
  """The stage is deleted then, which must not be copied."""
  monkeypatch.setattr(mirror, '_SECONDS', 0.01)
  step = 'checkpoints/3/SHA256SUMS'
  for i in range(5):
    with mirrored(bucket) as local:
      write(local, {step: str(i), **{str(i): '' for i in range(50)}})
    assert step in content_of(bucket)


def test_if_not_all_can_be_read_nothing_is_changed(bucket, monkeypatch):
  """The stage then lacks objects, which must not be taken for deleted ones."""
  with mirrored(bucket) as local:
    write(local, {str(i): str(i) for i in range(20)})
  before = content_of(bucket)
  download = Folder.download

  def fail(folder, name, path):
    if name == '7':
      path.write_text('half of')
      raise Unreachable('the bucket is away')
    download(folder, name, path)

  with monkeypatch.context() as patch:
    patch.setattr(Folder, 'download', fail)
    patch.setattr(bucket_lock, 'LEASE', 0.1)
    patch.setattr(mirror, '_SECONDS', 0.0)
    with pytest.raises(RunError, match='the bucket is away'), mirrored(bucket):
      pytest.fail('it was opened')
    time.sleep(0.3)
  assert content_of(bucket) == before


def test_what_was_made_before_an_error_is_kept_and_the_error_names_the_url(bucket):
  def fail(local):
    write(local, {'a': 'one'})
    raise RunError(f'{local}/a is odd')

  with pytest.raises(RunError) as info, mirrored(bucket) as local:
    fail(local)
  assert str(info.value) == f'{bucket}/a is odd'
  assert content_of(bucket) == {'a': b'one'}


def test_another_program_and_another_content_are_refused(bucket, monkeypatch):
  monkeypatch.setattr(bucket_lock, 'LEASE', 1.0)
  with mirrored(bucket), refuses(bucket, 'is in use'), mirrored(bucket):
    pytest.fail('it was opened twice')
  open_folder(f'{bucket}0').write('mine', b'')
  with refuses(f'{bucket}0 is not empty', 'it has mine'), mirrored(f'{bucket}0'):
    pytest.fail('it was opened')
  assert list(open_folder(f'{bucket}0').list()) == ['mine']


def test_who_loses_the_lock_is_stopped_and_changes_nothing(bucket, monkeypatch):
  monkeypatch.setattr(bucket_lock, 'LEASE', 0.3)

  def wait_for_a_signal(local):
    with Interruption() as interruption:
      open_folder(bucket).write(
        'lock', b'{"holder": "another", "by": "", "renewals": 1}'
      )
      write(local, {'a': 'mine'})
      end = time.monotonic() + 20
      while not interruption.due():
        assert time.monotonic() < end
        time.sleep(0.05)
      assert interruption.requested == signal.SIGTERM

  with (
    pytest.raises(RunError, match='another program has taken over'),
    mirrored(bucket) as local,
  ):
    wait_for_a_signal(local)
  assert content_of(bucket) == {}
  assert not os.path.exists(local)


@pytest.mark.parametrize('keep', ['make_sure', '_copy'])
def test_no_error_ends_what_renews_the_lock_and_copies(
  bucket, tmp_path, monkeypatch, keep
):
  monkeypatch.setattr(bucket_lock, 'LEASE', 0.3)
  monkeypatch.setattr(mirror, '_SECONDS', 0.1)
  one = mirror.Mirror(open_folder(bucket, patience=0.5), tmp_path)
  one.lock()
  calls = []

  def fail(*arguments, **named):
    calls.append(arguments)
    raise AttributeError('a mistake of a library')

  with monkeypatch.context() as patch:
    patch.setattr(one, keep, fail)
    one.start()
    end = time.monotonic() + 20
    while len(calls) < 3:
      assert time.monotonic() < end
      time.sleep(0.05)
    if keep == 'make_sure':  # nor does the run go on for long without its lock
      time.sleep(0.5)
      with pytest.raises(Unreachable, match=r'0\.5 s: a mistake of a library'):
        one.check()
  one.close()


def test_files_may_come_and_go_while_they_are_copied(bucket, tmp_path, monkeypatch):
  monkeypatch.setattr(bucket_lock, 'LEASE', 0.1)
  monkeypatch.setattr(mirror, '_SECONDS', 0.0)
  end = threading.Event()
  with mirrored(bucket) as local:

    def change():
      for i in range(10**6):
        below = f'{i % 7}/checkpoints/1'
        write(local, {f'{below}/a': str(i), f'{below}/b': str(i)})
        (local / below / 'a').unlink()
        if end.is_set():
          return

    changing = threading.Thread(target=change)
    changing.start()
    time.sleep(2.0)
    end.set()
    changing.join()
    expected = {
      path.relative_to(local).as_posix(): path.read_bytes()
      for path in local.rglob('*')
      if path.is_file()
    }
  assert content_of(bucket) == expected


def test_who_holds_a_part_has_what_others_have_made(bucket):
  """And leaves alone what they have not made yet."""
  with mirrored_in_parts(bucket) as first, mirrored_in_parts(bucket) as second:
    (here, hold_here), (there, hold_there) = first, second
    with hold_here(here / '.a', False) as mine:
      assert mine
      write(here, {'a/1': 'one', 'a/checkpoints/1/SHA256SUMS': ''})
      with hold_there(there / '.a', False) as other:
        assert not other
      with hold_there(there / '.b', False) as other:
        assert other
        write(there, {'b': 'two'})
    with hold_there(there / '.a', False) as mine:
      assert mine
      assert (there / 'a/1').read_text() == 'one'
      shutil.rmtree(there / 'a/checkpoints')
      write(there, {'a/1': 'three'})
    with hold_here(here / '.c', True) as mine:
      assert mine
      assert (here / 'a/1').read_text() == 'three'
      assert (here / 'b').read_text() == 'two'
      assert not (here / 'a/checkpoints/1/SHA256SUMS').exists()
  assert content_of(bucket) == {'a/1': b'three', 'b': b'two'}


def test_what_another_copies_at_the_moment_is_left_alone(bucket):
  folder, step = open_folder(bucket), 'checkpoints/1'
  with mirrored_in_parts(bucket) as (local, hold):
    with hold(local / '.a', False):
      write(local, {'a': ''})
    folder.write(f'{step}/x', b'half of a checkpoint')
    with hold(local / '.b', False):
      assert not (local / step).exists()
    assert folder.read(f'{step}/x') is not None
    # Who goes on with a part writes the same step anew, without what was left of it.
    with hold(local / '.c', False):
      write(local, {f'{step}/SHA256SUMS': '', f'{step}/y': ''})
  assert content_of(bucket).keys() == {'a', f'{step}/SHA256SUMS', f'{step}/y'}


def test_a_part_of_a_lost_program_is_taken_over(bucket, monkeypatch):
  monkeypatch.setattr(bucket_lock, 'LEASE', 1.0)
  folder = open_folder(bucket)
  bucket_lock.lock_of_part(folder, '.a').acquire()  # and never renewed
  with mirrored_in_parts(bucket) as (local, hold):
    start = time.monotonic()
    with hold(local / '.a', False) as mine:
      assert not mine
    with hold(local / '.a', True) as mine:
      assert mine
    assert time.monotonic() - start >= 1


def test_a_program_alone_and_one_that_shares_refuse_each_other(bucket, monkeypatch):
  monkeypatch.setattr(bucket_lock, 'LEASE', 1.0)
  with mirrored_in_parts(bucket) as (local, hold):
    with hold(local / '.a', False), refuses(bucket, 'in use'), mirrored(bucket):
      pytest.fail('it was opened')
    with hold(local / '.a', False):
      write(local, {'a': 'one'})
    with mirrored(bucket) as alone:
      assert (alone / 'a').read_text() == 'one'
      with refuses(bucket, 'in use'), hold(local / '.b', False):
        pytest.fail('it was held')
      write(alone, {'a': 'two'})
    with hold(local / '.b', False):  # which the refusal has released
      assert (local / 'a').read_text() == 'two'


@pytest.mark.parametrize('file', ['a', 'z'])  # read before and after the checkpoint
def test_what_others_change_while_it_is_read_is_read_again(bucket, monkeypatch, file):
  folder, download = open_folder(bucket), Folder.download
  with mirrored_in_parts(bucket) as (local, hold), hold(local / '.a', False):
    write(local, {file: 'one', 'checkpoints/1/SHA256SUMS': 'x'})

  def change_first(self, name, path):
    if name == file and folder.read('b') is None:
      folder.write('b', b'')
      folder.write(file, b'two')
      folder.delete(['checkpoints/1/SHA256SUMS'])
    download(self, name, path)

  monkeypatch.setattr(Folder, 'download', change_first)
  monkeypatch.setattr(buckets, 'THREADS', 1)
  with mirrored_in_parts(bucket) as (local, hold), hold(local / '.a', False):
    assert (local / file).read_text() == 'two'
    assert (local / 'b').exists()
  assert content_of(bucket).keys() == {file, 'b'}


def test_a_program_that_was_lost_is_waited_for_once(bucket, monkeypatch):
  monkeypatch.setattr(bucket_lock, 'LEASE', 1.0)
  folder = open_folder(bucket)
  for lock in bucket_lock.Lock(folder), bucket_lock.lock_of_part(folder, '.a'):
    lock.acquire()  # and never renewed
  with mirrored_in_parts(bucket) as (local, hold):
    times = []
    for name in '.b', '.c', '.d':
      times.append(time.monotonic())
      with hold(local / name, False) as mine:
        assert mine
    assert times[1] - times[0] >= 1
    assert times[2] - times[1] < 1
