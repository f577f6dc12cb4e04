"""The experiment as a whole: what it leaves, how it goes on, what it refuses."""

import json
import random
import shutil
from typing import Any

import numpy as np
import pytest

from studies.llm import experiment
from studies.llm.config import validate
from studies.llm.report import table
from tests.compare import refuses
from tests.llm.pairs import (
  PAIRS,
  Parrot,
  asking,
  lines_of,
  small_config,
  write_jsonl,
  write_sick,
  write_stsb,
  write_trec_qa,
)

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.fixture(scope='module')
def csv(tmp_path_factory):
  """The CSV files of STS-B."""
  return write_stsb(tmp_path_factory.mktemp('stsb') / 'csv')


@pytest.fixture
def parrot():
  with asking(Parrot()) as parrot:
    yield parrot


@pytest.fixture(scope='module')
def finished(tmp_path_factory, csv):
  """The folder and the summary of a finished run, for tests to copy."""
  out = tmp_path_factory.mktemp('finished') / 'out'
  with asking(Parrot()):
    return out, run(parrot_config(), out, csv)


run: Any = experiment.run


def parrot_config(**fields):
  """Of twelve prompts."""
  return small_config(
    **{'prompts__num_prompts': 12, 'guess__model': 'constant', **fields}
  )


def test_a_parrot_has_the_loss_of_the_guess_and_refines_nothing(tmp_path, csv, parrot):
  out = tmp_path / 'out'
  summary = run(parrot_config(guess__model='cosine'), out, csv)
  assert summary == json.loads((out / 'summary.json').read_text())
  for readout in ('free', 'forced'):
    numbers = summary['arms']['with_guess'][readout]
    assert (numbers['parse_rate'], numbers['copied_share']) == (1.0, 1.0)
    assert numbers['loss'] == pytest.approx(summary['baselines']['guess']['loss'])
    assert summary['against_guess'][readout]['difference'] == pytest.approx(0)
  # Half its mass is on the grid, of which the nearest of 501 has two parts in 502.
  expected = summary['arms']['with_guess']['expected']
  assert expected['mass'] == pytest.approx(0.5)
  labels = [score for *_, score in PAIRS]
  free = summary['arms']['without_guess']['free']
  assert free['loss'] == pytest.approx(np.mean((np.array(labels) - 2.5) ** 2))
  constant = summary['baselines']['constant']['loss']
  assert constant == pytest.approx(np.var(labels))
  # Each pair is asked about once, and each line is whole.
  lines = lines_of(out)
  assert sorted(line['query'] for line in lines) == list(range(len(PAIRS)))
  for line in lines:
    first, second, score = PAIRS[line['query']]
    assert line['label'] == score
    assert line['context_mean'] == pytest.approx(
      np.mean([PAIRS[i][2] for i in line['context']])
    )
    for arm in line['arms'].values():
      assert arm['prompt'] in parrot.asked
      assert f'Sentence 1: {first}\nSentence 2: {second}\n' in arm['prompt']
    assert f'{line["guess"]:.2f}\n\nRefine' in line['arms']['with_guess']['prompt']


def test_a_damaged_file_is_told_and_kept(finished, tmp_path, csv, parrot):
  def refused(file, content, said):
    out = shutil.copytree(finished[0], tmp_path / str(len([*tmp_path.iterdir()])))
    (out / file).write_text(content)
    with refuses(said):
      run(parrot_config(), out, csv)
    assert (out / file).read_text() == content
    return out

  refused('summary.json', '{', 'summary.json cannot be read')
  lines = lines_of(finished[0])
  text = (finished[0] / 'rows.jsonl').read_text().splitlines(keepends=True)
  damaged = ''.join([*text[:3], 'damaged\n', *text[4:]])
  out = refused('rows.jsonl', damaged, 'rows.jsonl, line 4 is damaged; delete')
  # Without the line its prompt is asked again.
  (out / 'rows.jsonl').write_text(damaged.replace('damaged\n', ''))
  assert run(parrot_config(), out, csv) is not None
  assert {prompt for prompt in parrot.asked if 'model>S' not in prompt} == {
    arm['prompt'] for arm in lines[3]['arms'].values()
  }


def test_a_run_that_is_cut_anywhere_asks_what_is_missing(
  finished, tmp_path, csv, parrot
):
  whole, draws = (finished[0] / 'rows.jsonl').read_bytes(), random.Random(0)
  out = shutil.copytree(finished[0], tmp_path / 'out')
  for _ in range(5):
    kept = whole[: draws.randrange(len(whole))]
    (out / 'rows.jsonl').write_bytes(kept)
    (out / 'summary.json').unlink()
    parrot.asked.clear()
    summary = run(parrot_config(), out, csv)
    assert {**summary, 'seconds': 0} == {**finished[1], 'seconds': 0}
    assert lines_of(out) == lines_of(finished[0])
    missing = len(lines_of(out)) - kept.count(b'\n')
    assert len(parrot.asked) == 4 * missing  # two arms, each read in two ways


def test_a_finished_run_asks_nothing_and_another_is_refused(
  tmp_path, csv, finished, parrot
):
  out, summary = finished
  assert run(parrot_config(), out, csv) == summary
  assert not parrot.asked
  before = {path.name: path.read_bytes() for path in out.iterdir()}
  with refuses('guess.bias (0.0 there, 1.0 here)'):
    run(parrot_config(guess__bias=1.0), out, csv)
  with refuses('benchmark.sha256'):
    run(parrot_config(), out, write_stsb(tmp_path / 'other', PAIRS[::-1]))
  (tmp_path / 'used').mkdir()
  (tmp_path / 'used' / 'notes.txt').write_text('mine')
  with refuses('is not empty and holds no run'):
    run(parrot_config(), tmp_path / 'used', csv)
  assert before == {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize(
  ('fields', 'said'),
  [
    ({'model__weights': 'nowhere'}, ["config.model.weights is 'nowhere'"]),
    ({'prompts__num_examples': 13}, ['num_examples is 13', '≤ 12', "'train'"]),
    ({'prompts__num_prompts': 13}, ['num_prompts is 13', '≤ 12', "'test'"]),
    ({'prompts__context_split': 'test'}, ["'test'", 'dev, train']),
    ({'guess__model': 'network', 'encoder__weights': 'nowhere'}, ["'nowhere'"]),
    ({'guess__model': 'oracel'}, ["'oracel'", 'constant, cosine, network, oracle']),
    ({'guess__noise': 1.0}, ['config.guess.noise is 1', 'oracle', 'constant']),
    ({'benchmark__inputs': ('Text',)}, ['config.benchmark.inputs', '2 names']),
    ({'benchmark__high': 4.0}, ['the label 4.2', 'from 0 to 4']),
    ({'benchmark__high': None}, ['config.benchmark.high is None']),
    ({'model__weights': 'package:../x/y'}, ["'package:../x/y'", 'package:NAME/PATH']),
    ({'benchmark__inputs': ('A', 'A')}, ["('A', 'A')", 'repeats a value']),
  ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
  tmp_path, csv, parrot, fields, said
):
  with refuses(*said):
    run(parrot_config(**fields), tmp_path / 'out', csv)
  assert not (tmp_path / 'out').exists()
  assert not parrot.asked


def test_a_mistake_in_the_fields_themselves():
  config = parrot_config()
  with config.unlocked():
    config.prompts.number = 3
  with refuses("'prompts.number'", 'num'):
    validate(config)
  with config.unlocked():
    del config.prompts.number, config.prompts.num_prompts
  with refuses("no field 'prompts.num_prompts'"):
    validate(config)


def test_what_is_found_late_is_told_before_anything_is_written(tmp_path, csv, parrot):
  parrot.max_length = 90
  with refuses('prompt 0 has', 'parrot takes 90', 'num_examples smaller'):
    run(parrot_config(), tmp_path / 'out', csv)
  assert not (tmp_path / 'out').exists()
  assert not parrot.asked


def test_answers_that_say_nothing_are_counted(tmp_path, csv, parrot):
  parrot.says = 'I would rather talk about the weather.'
  summary = run(parrot_config(), tmp_path / 'out', csv)
  assert summary['arms']['with_guess']['free']['num_parsed'] == 0
  assert ' -      0%' in table(summary)
  assert [
    line['arms']['with_guess']['free'] for line in lines_of(tmp_path / 'out')
  ] == [{'value': None, 'answer': parrot.says}] * 12


@pytest.mark.slow
def test_a_benchmark_of_ones_own_with_classes(tmp_path, parrot):
  moods = ('glad', 'sad')
  rows = [
    {'inputs': [pair[0]], 'label': moods[place % 3 == 0]}
    for place, pair in enumerate(PAIRS)
  ]
  config = small_config('own_benchmark')
  summary = run(config, tmp_path / 'classes', write_jsonl(tmp_path / 'moods', rows))
  lines = lines_of(tmp_path / 'classes')
  assert summary['metric'] == 'error rate'
  assert summary['arms']['without_guess']['expected']['parse_rate'] == 1
  for line in lines:
    expected = line['arms']['with_guess']['expected']
    assert set(expected['probabilities']) == set(moods)
    assert sum(expected['probabilities'].values()) == pytest.approx(1)
    assert line['guess'] in moods


@pytest.mark.parametrize('name', ['smollm2', 'own_benchmark'])
def test_the_shipped_configs_are_valid_and_locked(name):
  for variant in ('', 'smoke'):
    config = small_config(name, variant)
    validate(config)
    assert config.is_locked
  config = small_config(name, '')
  assert (config.prompts.num_prompts, config.prompts.num_examples) == (100, 10)
  assert config.readouts.max_new_tokens == 150
  with refuses("unknown variant 'smok'", 'smoke'):
    small_config(name, 'smok')


@pytest.mark.parametrize(
  ('name', 'write'),
  [
    ('sick_relatedness', write_sick),
    ('sick_entailment', write_sick),
    ('trec_qa', write_trec_qa),
  ],
)
def test_the_variants_of_published_benchmarks(tmp_path, parrot, name, write):
  config = small_config(variant=f'{name},smoke', guess__model='constant')
  summary = run(config, tmp_path / 'out', write(tmp_path / 'files'))
  assert summary['benchmark'] == name
  assert summary['num_prompts'] == 4
  assert summary['arms']['with_guess']['forced']['copied_share'] == 1.0
  validate(small_config(variant=name))
  with refuses("'trec_qa,stsb' has several benchmarks"):
    small_config(variant='trec_qa,stsb')
