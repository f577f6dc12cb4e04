"""Corrupted files of a benchmark are answered in one line."""

import pytest

from tests import fuzz
from tests.llm.pairs import PAIRS, small_config, write_jsonl, write_stsb
from tests.marks import FULL
from zoo.llm import benchmarks
from zoo.llm.experiment import wording_of

pytestmark = [*FULL, pytest.mark.timeout(2400)]


def test_the_files_of_sts_b(tmp_path):
  path = write_stsb(tmp_path) / 'stsb-en-test.csv'

  def read():
    benchmarks.read_stsb(tmp_path)

  assert fuzz.check_all(path, read, fuzz.mutate_bytes) > 0.5


@pytest.mark.parametrize('mutate', [fuzz.mutate_lines, fuzz.mutate_bytes])
def test_a_benchmark_of_ones_own(tmp_path, mutate):
  rows = [{'inputs': [*pair[:2]], 'label': pair[2]} for pair in PAIRS]
  folder = write_jsonl(tmp_path, rows)

  def read():
    wording_of(small_config(benchmark__name='jsonl'), benchmarks.read_jsonl(folder))

  assert fuzz.check_all(folder / 'test.jsonl', read, mutate) > 0.5
