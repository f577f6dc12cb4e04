"""The ablation: its cells, what is asked once, its numbers, and its files."""

import csv
import json
import shutil
import zlib
from importlib import metadata
from typing import Any

import numpy as np
import pytest

from configs.llm import ablation as ablation_config
from studies.llm import ablation, ablation_table, experiment
from studies.llm.ablation_table import LEVEL, AblationCell
from tests.compare import refuses
from tests.llm import pairs
from tests.llm.pairs import (
  PAIRS,
  Parrot,
  asking,
  lines_of,
  set_fields,
  write_jsonl,
  write_stsb,
)
from tests.marks import mostly_full
from zoo.host.parts import Part
from zoo.storage.rows import read_rows

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')

NUM = 5  # prompts in each cell


class Mixer(Parrot):
  """Says the mean of the guess and of a number of its own for the query."""

  def _answer(self, prompt):
    if 'as one of' in prompt:
      return super()._answer(prompt)
    query = prompt.rpartition('Sentence 2: ')[2].partition('\n')[0]
    own = zlib.crc32(query.encode()) % 500 / 100
    if 'Initial guess: ' not in prompt:
      return f'{own:.2f}'
    return f'{(own + float(super()._answer(prompt))) / 2:.2f}'


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """The CSV files of STS-B."""
  return write_stsb(tmp_path_factory.mktemp('ablation') / 'stsb')


def small_config(**fields) -> Any:
  """The shipped config with few cells."""
  few = {
    'prompts__num_prompts': NUM,
    'ablation__guesses': ('constant', 'wrong', 'oracle'),
    'ablation__noise': (0.0, 2.0),
    'ablation__num_examples': (0, 2),
  }
  return pairs.small_config('ablation', '', **{**few, **fields})


CELLS = 2 * 4  # numbers of examples, guesses


run: Any = ablation.run


@pytest.fixture(scope='module')
def finished(tmp_path_factory, data):
  """The folder, the results and the model of a whole ablation."""
  out = tmp_path_factory.mktemp('finished') / 'out'
  with asking(Mixer()) as mixer:
    results = run(small_config(), out, data)
  return out, results, mixer


@pytest.fixture
def mixer():
  """The model of every run."""
  with asking(Mixer()) as mixer:
    yield mixer


def lines_by_cell(out):
  return {
    path.parent.relative_to(out / 'cells').as_posix(): lines_of(path.parent)
    for path in (out / 'cells').rglob('rows.jsonl')
  }


def rows_of(results, **fields):
  return [
    row
    for row in results['rows']
    if all(row[name] == value for name, value in fields.items())
  ]


@pytest.mark.slow
def test_each_cell_is_a_run_of_the_experiment(tmp_path, finished, data, mixer):
  out, _, _ = finished
  told = lines_by_cell(out)
  assert len(told) == CELLS
  config = ablation.plan(small_config())[AblationCell(2, 'wrong')]
  experiment.run(config, tmp_path, data)
  assert told['2_examples/wrong'] == lines_of(tmp_path)
  # A run of its own goes on in the folder of the cell, and finds nothing to ask.
  mixer.asked.clear()
  assert experiment.run(config, out / 'cells/2_examples/wrong', data)
  assert not mixer.asked


def test_the_arm_without_guesses_is_asked_once(finished):
  _, _, mixer = finished
  # Each prompt twice: for free generation, and for the forced prefix.
  assert len(mixer.asked) == 2 * NUM * (CELLS + 2)
  without = [prompt for prompt in mixer.asked if 'Initial' not in prompt]
  assert len(without) == len(set(without)) == 2 * NUM * 2


@pytest.mark.slow
@pytest.mark.parametrize('stop', mostly_full([5 * NUM + 3], [1, 2 * NUM, 15 * NUM]))
def test_stopped_and_called_again_it_asks_the_rest_alone(
  tmp_path, finished, data, mixer, stop
):
  whole, results, asked = finished
  mixer.stops_at = stop
  with pytest.raises(KeyboardInterrupt):
    run(small_config(), tmp_path, data)
  answered = sum(len(lines) for lines in lines_by_cell(tmp_path).values())
  assert answered < NUM * CELLS
  mixer.stops_at = None
  again = run(small_config(), tmp_path, data)
  # At most the call that was stopped is asked again: four prompts, read twice.
  assert len(asked.asked) <= len(mixer.asked) <= len(asked.asked) + 8
  assert lines_by_cell(tmp_path) == lines_by_cell(whole)
  assert {**again, 'seconds': 0} == {**results, 'seconds': 0}


@pytest.mark.slow
def test_more_names_add_their_cells(tmp_path, finished, data, mixer):
  out = shutil.copytree(finished[0], tmp_path / 'out')
  names = ('minus_1', 'constant', 'wrong', 'oracle')
  results = run(small_config(ablation__guesses=names), out, data)
  # The arm without guesses is known.
  assert len(mixer.asked) == 2 * NUM * 2
  assert all('Initial guess' in prompt for prompt in mixer.asked)
  assert len(results['rows']) == 3 * (CELLS + 2)
  assert run(small_config(ablation__guesses=names), out, data) == results
  assert len(mixer.asked) == 2 * NUM * 2


@pytest.mark.slow
def test_parts_and_named_cells_give_the_rows_of_the_whole(
  tmp_path, finished, data, mixer, monkeypatch
):
  whole, results, _ = finished
  assert len(read_rows(whole)) == CELLS
  first = run(small_config(), tmp_path, data, only=['2_examples/wrong'])
  assert {(row['num_examples'], row['guess']) for row in first['rows']} == {
    (2, 'wrong')
  }
  for index in 1, 2:
    assert run(small_config(), tmp_path, data, Part(index, 2)) == {}
  assert len((tmp_path / 'rows.jsonl').read_text().splitlines()) == CELLS
  mixer.asked.clear()
  again = run(small_config(), tmp_path, data)
  assert not mixer.asked
  assert {**again, 'seconds': 0} == {**results, 'seconds': 0}
  with refuses("unknown cell '2_examples/wrnog'", "did you mean '2_examples/wrong'"):
    run(small_config(), tmp_path, data, only=['2_examples/wrnog'])
  # Of another version they are made from the kept answers, on request.
  monkeypatch.setattr(metadata, 'version', lambda name: '9.9')
  with refuses('all rows', 'are stale', '--again'):
    run(small_config(), tmp_path, data)
  assert run(small_config(), tmp_path, data, again=True) == again
  assert not mixer.asked


def test_a_mixture_has_the_weights_and_the_errors_of_a_mixture(finished):
  out, results, _ = finished
  for row in rows_of(results, readout='forced'):
    lines = lines_by_cell(out)[f'{row["num_examples"]}_examples/{row["guess"]}']
    if row['guess'] == 'constant':
      assert row['guess_weight'] is None
    else:
      # Two decimals are kept: a rounding of at most 0.005 of answers some units apart.
      assert row['guess_weight'] == pytest.approx(0.5, abs=0.01)
      assert row['own_weight'] == pytest.approx(0.5, abs=0.01)
    label, guess = (
      np.array([line[key] for line in lines]) for key in ('label', 'guess')
    )
    own, answer = (
      np.array([line['arms'][arm]['forced']['value'] for line in lines])
      for arm in ('without_guess', 'with_guess')
    )
    np.testing.assert_allclose(answer, (own + guess) / 2, atol=0.00501)
    losses = [np.square(x - label) for x in (own, answer, guess)]
    assert (row['without_guess'], row['with_guess'], row['guess_alone']) == (
      pytest.approx(tuple(loss.mean() for loss in losses))
    )
    assert row['copied_share'] == np.mean(np.round(answer, 2) == np.round(guess, 2))
    assert row['num_parsed'] == NUM
    for key, base in (('with_minus_without', 0), ('with_minus_guess', 2)):
      difference = losses[1].mean() - losses[base].mean()
      assert row[key]['difference'] == pytest.approx(difference)


def test_all_comparisons_of_a_readout_are_corrected_together(finished):
  _, results, _ = finished
  for readout, num in results['num_comparisons'].items():
    assert num == 2 * CELLS
    for row in rows_of(results, readout=readout):
      for pair in row['with_minus_without'], row['with_minus_guess']:
        if pair['low'] is None:
          assert (pair['difference'], pair['p']) == (0.0, 1.0)
        else:
          assert pair['low'] <= pair['difference'] <= pair['high']
          # Bonferroni is stricter than Holm: an interval without 0 is significant.
          assert pair['p'] <= LEVEL or pair['low'] <= 0 <= pair['high']


def test_the_files_hold_the_numbers(finished):
  out, results, _ = finished
  assert json.loads((out / 'ablation.json').read_text()) == results
  with (out / 'table.csv').open(newline='') as file:
    table = list(csv.DictReader(file))
  assert len(table) == len(results['rows']) == 3 * CELLS
  for read, row in zip(table, results['rows'], strict=True):
    assert (read['readout'], read['guess']) == (row['readout'], row['guess'])
    assert float(read['with_guess']) == row['with_guess']
    assert float(read['with_minus_guess_p']) == row['with_minus_guess']['p']
  told = ablation_table.table(results)
  assert 'expected value: mean squared error, 5 prompts in each cell' in told
  assert told.count(f'{2 * CELLS} comparisons') == 3
  for row in results['rows']:
    assert f'{row["with_guess"]:.3f}' in told


@pytest.mark.slow
def test_classes(tmp_path, mixer):
  rows = [{'inputs': [text], 'label': 'ab'[score > 2]} for text, _, score in PAIRS]
  classes = {'name': 'jsonl', 'inputs': ('Text',), 'low': None, 'high': None}
  config = small_config(
    **{f'benchmark__{name}': value for name, value in classes.items()},
    prompts__context_split='train',
    ablation__noise=(0.0, 0.8),
    ablation__guesses=('wrong', 'oracle'),
  )
  results = run(config, tmp_path / 'out', write_jsonl(tmp_path / 'own', rows))
  assert {row['guess'] for row in results['rows']} == {
    'wrong',
    'oracle_0',
    'oracle_0.8',
  }
  assert results['metric'] == 'error rate'
  for row in rows_of(results, guess='wrong'):
    assert row['copied_share'] == 1.0
    assert (row['with_guess'], row['guess_alone']) == (1.0, 1.0)
    assert row['with_minus_guess']['difference'] == 0.0
    assert row['with_minus_guess']['p'] == 1.0
    assert row['guess_weight'] is None
  # A shift is for numbers alone.
  set_fields(config, {'ablation.guesses': ('plus_1',)})
  with refuses('config.guess.bias is 1', 'classes'):
    run(config, tmp_path / 'out', tmp_path / 'own')
  set_fields(config, {'ablation.guesses': ('oracle',), 'ablation.noise': (2.0,)})
  with refuses('config.guess.noise is 2', 'at most 1', 'classes'):
    run(config, tmp_path / 'out', tmp_path / 'own')


@pytest.mark.parametrize(
  ('fields', 'said'),
  [
    ({'ablation__guesses': ()}, ['config.ablation.guesses is ()', 'at least one']),
    ({'ablation__guesses': ('oracel',)}, ["'oracel'", "did you mean 'oracle'"]),
    ({'ablation__guesses': ('wrong', 'wrong')}, ['guesses', 'repeats a value']),
    ({'ablation__noise': (0.0, -1.0)}, ['config.ablation.noise is -1.0', '≥ 0']),
    ({'ablation__num_examples': (0, 21)}, ['num_examples is 21', 'from 0 to 20']),
    ({'prompts__num_prompts': 13}, ['num_prompts is 13', '≤ 12', "'test'"]),
    ({'model__weights': 'nowhere'}, ["config.model.weights is 'nowhere'"]),
  ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
  tmp_path, data, mixer, fields, said
):
  with refuses(*said):
    run(small_config(**fields), tmp_path / 'out', data)
  assert not (tmp_path / 'out').exists()
  assert not mixer.asked


@pytest.mark.usefixtures('mixer')
def test_a_mistake_in_the_fields_or_the_folders(tmp_path, finished, data):
  config = small_config()
  with config.unlocked():
    config.ablation.noises = (1.0,)
  with refuses("'noises'", "did you mean 'noise'"):
    run(config, tmp_path / 'out', data)
  (tmp_path / 'used').mkdir()
  (tmp_path / 'used' / 'thesis.tex').write_text('mine')
  with refuses("has 'thesis.tex'", 'no folder of an ablation'):
    run(small_config(), tmp_path / 'used', data)
  with refuses('is not a folder'):
    run(small_config(), tmp_path / 'used' / 'thesis.tex', data)
  with refuses('prompts.num_prompts (5 there, 4 here)'):
    run(small_config(prompts__num_prompts=4), finished[0], data)
  assert [path.name for path in (tmp_path / 'used').iterdir()] == ['thesis.tex']


def test_the_shipped_config_has_the_cells_that_it_says():
  config: Any = ablation_config.get_config()
  cells = ablation.plan(config)
  assert len(cells) == 5 * 12
  assert config.is_locked
  for cell, of_cell in cells.items():
    experiment.validate(of_cell)
    assert of_cell.prompts.num_examples == cell.num_examples
  assert cells[AblationCell(5, 'oracle_0.5')].guess.noise == 0.5
  assert len(ablation.plan(ablation_config.get_config('smoke'))) == 8
  names = {
    cell.guess
    for cell in ablation.plan(ablation_config.get_config('sick_entailment,smoke'))
  }
  assert names == {'cosine', 'wrong', 'oracle_0', 'oracle_0.8'}
  config = ablation_config.get_config('trec_qa')
  # Shifts are for numbers alone, and noise is a probability.
  assert len(ablation.plan(config)) == 5 * 10
  assert max(config.ablation.noise) < 1
