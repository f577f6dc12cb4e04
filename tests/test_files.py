"""What cannot be read is one line, and files of ours are written whole."""

import os
import pathlib
import socket

import pytest

from tests.compare import refuses
from zoo.host.files import (
  read_json,
  read_text,
  user_path,
  write_atomically,
)

# The name of a file while this process writes it.
TEMPORARY = f'.{{}}.{socket.gethostname()}-{os.getpid()}.tmp'


def test_what_is_written_is_read_and_no_temporary_file_stays(tmp_path):
  path = tmp_path / 'one.json'
  write_atomically(path, '{"σ": [1, 2.5, null]}')
  assert read_json(path, dict) == {'σ': [1, 2.5, None]}
  assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / 'one.txt'
  write_atomically(path, 'old')

  def fail(self, target):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(pathlib.Path, 'replace', fail)
  with pytest.raises(OSError, match='No space'):
    write_atomically(path, 'new')
  assert path.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_through_a_symbolic_link(tmp_path):
  target, path = tmp_path / 'target', tmp_path / 'config.json'
  target.write_text('do not touch')
  path.with_name(TEMPORARY.format('config.json')).symlink_to(target)
  write_atomically(path, '{}')
  assert path.read_text() == '{}'
  assert target.read_text() == 'do not touch'


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
  calls, sync, replace = [], os.fsync, pathlib.Path.replace

  def note(number):
    calls.append(os.readlink(f'/proc/self/fd/{number}'))
    sync(number)

  def renamed(path, target):
    calls.append('renamed')
    return replace(path, target)

  monkeypatch.setattr(os, 'fsync', note)
  monkeypatch.setattr(pathlib.Path, 'replace', renamed)
  write_atomically(tmp_path / 'one.json', '{}')
  temporary = tmp_path / TEMPORARY.format('one.json')
  assert calls == [f'{temporary}', 'renamed', f'{tmp_path}']


def test_a_missing_file_and_bytes_that_are_no_text_are_named(tmp_path):
  with refuses('absent', 'No such file'):
    read_text(tmp_path / 'absent')
  (tmp_path / 'latin').write_bytes(b'\xe9t\xe9')
  with refuses('latin', 'not UTF-8'):
    read_text(tmp_path / 'latin')


@pytest.mark.parametrize(
  'text', ['[' * 100_000, '{"a":' * 100_000, '9' * 100_000, '{"a"']
)
def test_what_is_no_json_is_refused(tmp_path, text):
  path = tmp_path / 'some.json'
  path.write_text(text)
  with refuses('some.json', 'cannot be read'):
    read_json(path, dict)


@pytest.mark.parametrize(
  'path',
  ['s3://bucket/run', 'gs://bucket', 'file:///runs/a', pathlib.Path('s3://bucket/run')],
)
def test_a_url_is_no_path(path):
  with refuses(str(path), 'give a local folder'):
    user_path(path)


@pytest.mark.parametrize('path', ['runs/a', '/runs/a:b', 'a:b', 'C:/runs', 'a//b'])
def test_what_only_resembles_a_url_is_a_path(path):
  assert user_path(path) == pathlib.Path(path).absolute()
