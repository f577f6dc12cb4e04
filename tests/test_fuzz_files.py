"""Corrupted JSON is answered in one line, and the fuzzer finds what is not."""

import json
import pathlib

import pytest

from tests import fuzz
from zoo.host.files import read_json


@pytest.mark.slow
def test_json_files(tmp_path):
  path = tmp_path / 'good.json'
  path.write_text(json.dumps({'a': [1, 2, {'b': None}], 'c': {'d': 'text'}}))
  assert fuzz.check_all(path, lambda: read_json(path), fuzz.mutate_bytes) > 0.1


def test_the_fuzzer_finds_a_reader_that_trusts_its_file(tmp_path):
  path = pathlib.Path(tmp_path, 'good.json')
  path.write_text(json.dumps({'length': 3, 'values': [1, 2, 3]}))

  def trusting():
    found = json.loads(path.read_text())
    return found['values'][: found['length']]

  with pytest.raises(AssertionError, match=r'case \d+'):
    fuzz.check_all(path, trusting, fuzz.mutate_json, num_cases=50)
  assert json.loads(path.read_text())['length'] == 3
