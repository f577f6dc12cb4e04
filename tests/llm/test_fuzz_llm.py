"""Corrupted files of a benchmark are answered in one line."""

import pytest

from tests import fuzz
from tests.llm.pairs import (
  PAIRS,
  small_config,
  write_jsonl,
  write_sick,
  write_stsb,
  write_trec_qa,
)
from tests.marks import FULL
from zoo.llm import benchmarks
from zoo.llm.benchmarks import PUBLISHED
from zoo.llm.experiment import wording_of

pytestmark = [*FULL, pytest.mark.timeout(2400)]


@pytest.mark.parametrize(
  ('name', 'write'),
  [('stsb', write_stsb), ('sick_entailment', write_sick), ('trec_qa', write_trec_qa)],
)
def test_the_files_of_published_benchmarks(tmp_path, name, write):
  path = write(tmp_path) / PUBLISHED[name].files[2]

  def read():
    PUBLISHED[name].read(tmp_path)

  assert fuzz.check_all(path, read, fuzz.mutate_bytes) > 0.5


@pytest.mark.parametrize('mutate', [fuzz.mutate_lines, fuzz.mutate_bytes])
def test_a_benchmark_of_ones_own(tmp_path, mutate):
  rows = [{'inputs': [*pair[:2]], 'label': pair[2]} for pair in PAIRS]
  folder = write_jsonl(tmp_path, rows)

  def read():
    wording_of(small_config(benchmark__name='jsonl'), benchmarks.read_jsonl(folder))

  assert fuzz.check_all(folder / 'test.jsonl', read, mutate) > 0.5
