"""Corrupted data and corrupted files of a run are answered in one line."""

import json
from typing import Any

import pytest

from tests import fuzz
from tests.llm.pairs import (
  PAIRS,
  Parrot,
  small_config,
  write_jsonl,
  write_sick,
  write_stsb,
  write_trec_qa,
)
from tests.marks import FULL
from zoo.host.interruption import Interruption
from zoo.llm import benchmarks, report
from zoo.llm.config import wording_of
from zoo.llm.guesses import Guesses
from zoo.llm.prompts import Prompts
from zoo.llm.published import PUBLISHED
from zoo.llm.records import (
  ask,
  read_guesses,
  read_lines,
  read_model_facts,
  write_guesses,
)
from zoo.llm.summary import summarise

FACTS: Any = {
  'model': 'parrot',
  'num_params': 7,
  'engine': 'a cage',
  'num_examples': 2,
  'context_split': 'train',
  'guess': {'model': 'constant', 'bias': 0.0, 'noise': 0.0, 'shuffled': False},
}
pytestmark = [*FULL, pytest.mark.timeout(2400)]


@pytest.mark.parametrize(
  ('name', 'write'),
  [('stsb', write_stsb), ('sick_entailment', write_sick), ('trec_qa', write_trec_qa)],
)
def test_the_files_of_published_benchmarks(tmp_path, name, write):
  path = write(tmp_path) / PUBLISHED[name].source.files[2]

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


@pytest.fixture
def run(tmp_path):
  """The folder of a run, its benchmark and prompts: a parrot has answered them all."""
  config = small_config(benchmark__name='jsonl', prompts__num_prompts=12)
  rows = [{'inputs': [*pair[:2]], 'label': pair[2]} for pair in PAIRS]
  benchmark = benchmarks.read_jsonl(write_jsonl(tmp_path, rows))
  wording = wording_of(config, benchmark)
  guesses = Guesses({split: [pair[2] for pair in PAIRS] for split in benchmark.splits})
  write_guesses(guesses, tmp_path / 'guesses.json')
  prompts = Prompts(
    benchmark,
    wording,
    guesses,
    seed=0,
    num_prompts=12,
    num_examples=2,
    context_split='train',
  )
  path = tmp_path / 'prompts.jsonl'
  assert ask(prompts, Parrot(), config.readouts, 4, path, Interruption()) is not None
  return tmp_path, benchmark, prompts


@pytest.mark.parametrize('mutate', [fuzz.mutate_lines, fuzz.mutate_bytes])
def test_the_lines_of_a_run(run, mutate):
  folder, _, prompts = run
  path = folder / 'prompts.jsonl'

  def read():
    lines = [*read_lines(path, prompts).values()]
    if len(lines) == len(prompts):
      results = summarise(lines, prompts.wording.scale)
      report.plot(results | FACTS, lines)
      report.table(results | FACTS)

  assert fuzz.check_all(path, read, mutate) > 0.5


def test_the_guesses_of_a_run(run):
  folder, benchmark, prompts = run
  path = folder / 'guesses.json'

  def read():
    read_guesses(path, benchmark, prompts.wording.scale)

  assert fuzz.check_all(path, read, fuzz.mutate_json) > 0.5


def test_what_a_summary_says_of_the_model(tmp_path):
  path = tmp_path / 'summary.json'
  path.write_text(json.dumps(FACTS))
  assert fuzz.check_all(path, lambda: read_model_facts(path), fuzz.mutate_json) > 0.5
