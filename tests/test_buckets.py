"""Folders in a bucket, and locks in them, against an emulator on this machine."""

import hashlib
import json
import sys
import threading
import time

import pytest

import zoo
from tests.compare import refuses
from tests.marks import FULL
from zoo.core.errors import InUseError
from zoo.host.files import UnreadableFile
from zoo.storage import bucket_lock, buckets
from zoo.storage.bucket_lock import Lock, LostLock
from zoo.storage.buckets import Changed, Conflict, Stored, Unreachable, open_folder

pytestmark = [*FULL]


@pytest.fixture
def short_lease(monkeypatch):
  monkeypatch.setattr(bucket_lock, 'LEASE', 1.0)


def test_what_is_written_is_read_listed_and_deleted(bucket):
  folder = open_folder(f'{bucket}/')
  assert folder.read('a/b') is None
  assert folder.list() == {}
  written = folder.write('a/b', b'one')
  folder.write('c', b'')
  open_folder(f'{bucket}0').write('c', b'of a folder whose name only begins so')
  assert folder.read('a/b') == (b'one', written)
  md5 = [hashlib.md5(data).hexdigest() for data in (b'one', b'')]
  assert folder.list() == {'a/b': Stored(3, md5[0]), 'c': Stored(0, md5[1])}
  assert folder.list('a/') == {'a/b': Stored(3, md5[0])}
  folder.delete(['a/b', 'absent'])
  assert list(folder.list()) == ['c']


def test_an_object_is_downloaded_and_a_large_one_is_not_read(bucket, tmp_path):
  folder = open_folder(bucket)
  folder.write('a', b'0123456789')
  folder.download('a', tmp_path / 'a')
  assert (tmp_path / 'a').read_bytes() == b'0123456789'
  with refuses('/a has 10 bytes', 'at most 9'):
    folder.read('a', max_bytes=9)
  with pytest.raises(UnreadableFile, match='absent does not exist'):
    folder.download('absent', tmp_path / 'absent')


def test_an_object_without_a_checksum_is_copied_and_its_size_checked(bucket, tmp_path):
  """As gcloud makes them: it uploads large files in parts, which GCS composes."""
  folder = open_folder(bucket)
  folder.write('a', b'one')
  (tmp_path / 'a').write_bytes(b'two')  # the size alone does not tell them apart
  folder.fetch({'a': Stored(3, None)}, tmp_path)
  assert (tmp_path / 'a').read_bytes() == b'one'
  with pytest.raises(Changed, match='a does not have the size'):
    folder.fetch({'a': Stored(4, None)}, tmp_path)


def test_only_the_expected_generation_is_replaced(bucket):
  folder = open_folder(bucket)
  first = folder.write('a', b'one', generation=0)
  with pytest.raises(Conflict):
    folder.write('a', b'two', generation=0)
  second = folder.write('a', b'two', generation=first)
  with pytest.raises(Conflict):
    folder.write('a', b'three', generation=first)
  assert folder.read('a') == (b'two', second)


def test_a_write_whose_answer_was_lost_is_no_conflict(bucket, monkeypatch):
  from google.api_core.exceptions import ServiceUnavailable
  from google.cloud.storage import Blob

  upload, lost = Blob.upload_from_string, [1]

  def upload_and_fail(*arguments, **named):
    upload(*arguments, **named)
    if lost:
      raise ServiceUnavailable(f'lost {lost.pop()}')

  monkeypatch.setattr(Blob, 'upload_from_string', upload_and_fail)
  folder = open_folder(bucket)
  generation = folder.write('a', b'one', generation=0)
  assert not lost
  assert folder.read('a') == (b'one', generation)


@pytest.mark.parametrize(
  'url', ['gs://', 'gs://bucket', 'gs://bucket/', 'gs://bucket/a//b', 'gs://b/../c']
)
def test_a_url_without_a_folder_is_refused(url):
  with refuses(repr(url), 'gs://bucket/folder'):
    open_folder(url)


def test_a_bucket_that_does_not_exist_is_named(emulator):
  with refuses("there is no bucket 'absent'", 'gcloud storage buckets create'):
    open_folder('gs://absent/run')


@pytest.mark.parametrize('status', [401, 403])
def test_credentials_that_are_refused_are_named(bucket, faults, status):
  faults(1.0, status)
  with refuses(bucket, 'the credentials are refused', 'gcloud auth'):
    open_folder(bucket)


def test_credentials_that_are_missing_are_named(emulator, monkeypatch):
  monkeypatch.delenv('STORAGE_EMULATOR_HOST')
  monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', '/absent.json')
  with refuses('gs://bucket/run: no credentials', 'gcloud auth', '/absent.json'):
    open_folder('gs://bucket/run')


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gcsfs', None)
  with refuses("gcsfs is not installed; gs:// needs pip install 'icl-zoo[gcs]'"):
    open_folder('gs://bucket/run')


def test_what_fails_for_a_while_is_tried_again(bucket, faults, monkeypatch):
  monkeypatch.setattr(buckets, '_MAX_PAUSE', 0.1)
  folder = open_folder(bucket)
  faults(0.5)
  for name in 'abc':
    folder.write(name, name.encode(), generation=0)
  assert list(folder.list()) == ['a', 'b', 'c']
  contents = [folder.read(name) for name in 'abc']
  assert [found and found.data for found in contents] == [b'a', b'b', b'c']


@pytest.mark.parametrize(
  ('status', 'reason'),
  [(503, '503'), (429, '429'), (408, '408'), (401, 'credentials')],
)
def test_patience_has_an_end(bucket, faults, status, reason):
  folder = open_folder(bucket, patience=1.0)
  faults(1.0, status)
  start = time.monotonic()
  with pytest.raises(Unreachable, match=f'could not be reached for 1 s: .*{reason}'):
    folder.list()
  assert 1 <= time.monotonic() - start < 10


@pytest.mark.parametrize('status', [304, 404, 409, 410])
def test_what_will_not_succeed_later_is_one_line_at_once(bucket, faults, status):
  folder = open_folder(bucket)
  faults(1.0, status)
  for use in (
    lambda: folder.list(),
    lambda: folder.write('a', b''),
    lambda: Lock(folder).renew(),
  ):
    start = time.monotonic()
    with pytest.raises(zoo.RunError, match=f'^{bucket}: .*{status}') as error:
      use()
    assert '\n' not in str(error.value)
    assert not isinstance(error.value, LostLock)
    assert time.monotonic() - start < 10


def test_a_bucket_that_does_not_answer_is_one_line_when_it_is_opened(bucket, faults):
  faults(1.0, 409)
  with pytest.raises(zoo.RunError, match='409'):
    open_folder(bucket)


def test_an_object_that_was_damaged_on_its_way_is_read_again(bucket, monkeypatch):
  from google.cloud.storage import Blob
  from google.cloud.storage.exceptions import DataCorruption

  folder = open_folder(bucket)
  folder.write('a', b'one')
  download, damaged = Blob.download_as_bytes, [1]

  def damage(*arguments, **named):
    if damaged:
      raise DataCorruption(None, f'damaged {damaged.pop()}')
    return download(*arguments, **named)

  monkeypatch.setattr(Blob, 'download_as_bytes', damage)
  found = folder.read('a')
  assert not damaged
  assert found is not None
  assert found.data == b'one'


def test_a_lock_is_held_by_one_program(bucket, short_lease):
  folder = open_folder(bucket)
  first, second = Lock(folder), Lock(folder)
  first.acquire()
  stop = threading.Event()

  def keep():
    while not stop.wait(0.2):
      first.renew()

  thread = threading.Thread(target=keep)
  thread.start()
  try:
    with pytest.raises(InUseError, match=f'{bucket} is in use: another process'):
      second.acquire()
  finally:
    stop.set()
    thread.join()
  first.release()
  second.acquire()  # at once


def test_a_lock_that_is_not_renewed_is_taken_and_its_holder_told(bucket, short_lease):
  folder = open_folder(bucket)
  first, second = Lock(folder), Lock(folder)
  first.acquire()
  start = time.monotonic()
  second.acquire()
  assert time.monotonic() - start >= 1
  for use in first.renew, first.release:
    with pytest.raises(LostLock, match='another program has taken over'):
      use()
  second.renew()


def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lock(bucket, monkeypatch):
  from google.api_core.exceptions import ServiceUnavailable
  from google.cloud.storage import Blob

  lock, upload = Lock(open_folder(bucket)), Blob.upload_from_string
  lock.acquire()

  def upload_and_fail(*arguments, **named):
    upload(*arguments, **named)
    raise ServiceUnavailable('lost')

  for use in lock.renew, lock.release:
    with monkeypatch.context() as patch:
      patch.setattr(Blob, 'upload_from_string', upload_and_fail)
      with pytest.raises(Unreachable):
        lock.renew(patience=0.0)
    use()
  found = open_folder(bucket).read('lock')
  assert found is not None
  assert json.loads(found.data)['holder'] is None


def test_a_lock_that_another_has_taken_and_released_is_lost(bucket, short_lease):
  folder = open_folder(bucket)
  first, second = Lock(folder), Lock(folder)
  first.acquire()
  second.acquire()
  second.release()
  with pytest.raises(LostLock, match='another program has taken over'):
    first.renew()


@pytest.mark.parametrize(
  'left', [b'[' * 100_000, b'[]', b'{}', b'{"holder": 5}', b'\xff', b'1', b'']
)
def test_a_damaged_lock_is_waited_for_and_taken(bucket, short_lease, left):
  folder = open_folder(bucket)
  folder.write('lock', left)
  lock = Lock(folder)
  assert isinstance(lock.holder(), str)
  lock.acquire()
  lock.renew()


@pytest.mark.parametrize(
  'left', [None, b'{"holder": null}', b'{"holder": "a 1"}', b'?']
)
def test_of_many_programs_one_gets_the_lock(bucket, short_lease, left):
  folder = open_folder(bucket)
  if left is not None:
    folder.write('lock', left)
  got: list[int] = []
  refused: list[str] = []

  def acquire(number):
    lock = Lock(folder)
    try:
      lock.acquire()
    except zoo.UserError as error:
      refused.append(str(error))
      return
    got.append(number)
    while len(refused) < 5 and len(got) == 1:
      lock.renew()
      time.sleep(0.1)

  threads = [threading.Thread(target=acquire, args=[i]) for i in range(6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(got) == 1
  assert len(refused) == 5
  assert all('is in use' in said for said in refused)
