"""The ablation: its cells, what is asked once, its numbers, and its files."""

import csv
import json
import math
import re
import shutil
import zlib
from typing import Any

import numpy as np
import pytest

from configs.llm import ablation as ablation_config
from tests.compare import refuses
from tests.llm.pairs import (
  WEIGHTS,
  Parrot,
  asking,
  lines_of,
  set_fields,
  write_sick,
  write_stsb,
  write_trec_qa,
)
from tests.marks import mostly_full
from zoo import reports
from zoo.llm import ablation, ablation_report, experiment
from zoo.llm.ablation_results import LEVEL
from zoo.reports.plots import from_csv

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')

NUM = 5  # prompts in each cell: the questions of our own TREC QA


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
  """A folder with those of all sources."""
  folder = tmp_path_factory.mktemp('ablation') / 'data'
  write_stsb(folder / 'stsb')
  write_sick(folder / 'sick')
  write_trec_qa(folder / 'trec_qa')
  return folder


def small_config(**fields) -> Any:
  """The shipped config with few cells."""
  config: Any = ablation_config.get_config()
  with config.unlocked():
    config.model.weights = config.encoder.weights = str(WEIGHTS)
    config.model.batch_size = 2
    config.prompts.num_prompts = NUM
    config.ablation.benchmarks = ('stsb', 'trec_qa')
    config.ablation.guesses = ('constant', 'wrong', 'oracle')
    config.ablation.noise, config.ablation.class_noise = (0.0, 2.0), (0.0, 0.8)
    config.ablation.num_examples = (0, 2)
    set_fields(config, fields)
  return config


CELLS = 2 * 2 * 4  # benchmarks, numbers of examples, guesses


def run(*arguments) -> Any:
  return ablation.run(*arguments)


@pytest.fixture(scope='module')
def finished(tmp_path_factory, data):
  """The folder, the results and the model of a whole ablation, with its page."""
  out = tmp_path_factory.mktemp('finished') / 'out'
  with pytest.MonkeyPatch.context() as patch, asking(Mixer()) as mixer:
    # The page's pictures take time, and tests/reports draws some.
    patch.setattr(
      ablation_report.reports,
      'figure_of',
      lambda plot, title, caption: reports.Figure(title, caption, []),
    )
    found = run(small_config(), out, data)
  return out, found, mixer


@pytest.fixture
def mixer(monkeypatch):
  """The model of every run, after which no page is written."""
  monkeypatch.setattr(ablation_report, 'write', lambda found, out: None)
  with asking(Mixer()) as mixer:
    yield mixer


def lines_by_cell(out):
  return {
    path.parent.relative_to(out / 'cells').as_posix(): lines_of(path.parent)
    for path in out.rglob('prompts.jsonl')
  }


def rows_of(found, **fields):
  return [
    row
    for row in found['rows']
    if all(row[name] == value for name, value in fields.items())
  ]


def test_each_cell_is_a_run_of_the_experiment(tmp_path, finished, data, mixer):
  out, _, _ = finished
  told = lines_by_cell(out)
  assert len(told) == CELLS
  for cell, config in ablation.plan(small_config()):
    if (cell.benchmark, cell.num_examples, cell.guess) == ('stsb', 2, 'wrong'):
      experiment.run(config, tmp_path, data / 'stsb')
      assert told[cell.name] == lines_of(tmp_path)
      # A run of its own goes on in the folder of the cell, and finds nothing to ask.
      mixer.asked.clear()
      assert experiment.run(config, out / 'cells' / cell.name, data / 'stsb')
      assert not mixer.asked


def test_the_arm_without_guesses_is_asked_once(finished):
  _, _, mixer = finished
  # Each prompt twice: for free generation, and for the forced prefix.
  assert len(mixer.asked) == 2 * NUM * (CELLS + 2 * 2)
  without = [prompt for prompt in mixer.asked if 'Initial' not in prompt]
  assert len(without) == len(set(without)) == 2 * NUM * 2 * 2


@pytest.mark.parametrize('stop', mostly_full([5 * NUM + 3], [1, 2 * NUM, 30 * NUM]))
def test_stopped_and_called_again_it_asks_the_rest_alone(
  tmp_path, finished, data, mixer, stop
):
  whole, found, asked = finished
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
  assert {**again, 'seconds': 0} == {**found, 'seconds': 0}


def test_more_names_add_their_cells(tmp_path, finished, data, mixer):
  out = shutil.copytree(finished[0], tmp_path / 'out')
  names = ('minus_1', 'constant', 'wrong', 'oracle')
  found = run(small_config(ablation__guesses=names), out, data)
  # A shift is for numbers alone, and the arm without guesses is known.
  assert len(mixer.asked) == 2 * NUM * 2
  assert all('Initial guess' in prompt for prompt in mixer.asked)
  assert {row['benchmark'] for row in rows_of(found, guess='minus_1')} == {'stsb'}
  assert len(found['rows']) == 3 * (CELLS + 2)
  assert run(small_config(ablation__guesses=names), out, data) == found
  assert len(mixer.asked) == 2 * NUM * 2


def test_a_mixture_has_the_weights_and_the_errors_of_a_mixture(finished):
  out, found, _ = finished
  for row in rows_of(found, benchmark='stsb', readout='forced'):
    lines = lines_by_cell(out)[f'stsb/{row["num_examples"]}_examples/{row["guess"]}']
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
  _, found, _ = finished
  for readout, num in found['num_comparisons'].items():
    assert num == 2 * CELLS
    for row in rows_of(found, readout=readout):
      for one in row['with_minus_without'], row['with_minus_guess']:
        if one['low'] is None:
          assert (one['difference'], one['p']) == (0.0, 1.0)
        else:
          assert one['low'] <= one['difference'] <= one['high']
          # Bonferroni is stricter than Holm: an interval without 0 is significant.
          assert one['p'] <= LEVEL or one['low'] <= 0 <= one['high']


def test_copies_of_classes(finished):
  _, found, _ = finished
  for row in rows_of(found, benchmark='trec_qa', guess='wrong'):
    assert row['copied_share'] == 1.0
    assert (row['with_guess'], row['guess_alone']) == (1.0, 1.0)
    assert row['with_minus_guess']['difference'] == 0.0
    assert row['with_minus_guess']['p'] == 1.0
    # The own answer is always `no`, so that its weight is not determined.
    assert row['own_weight'] is None
    if row['readout'] == 'expected':
      # Of two classes the one is twice as probable; the wrong one is.
      assert row['log_loss_with'] == pytest.approx(math.log(3))
  assert found['metrics'] == {'stsb': 'mean squared error', 'trec_qa': 'error rate'}


def test_curves(finished):
  _, found, _ = finished
  assert len(found['curves']) == 2 * 2 * 3
  for curve in found['curves']:
    if curve['benchmark'] == 'trec_qa':  # copies
      assert curve['guess_losses'] == curve['answer_losses']
      assert (curve['at'], curve['side']) == (None, 'nowhere below')
      assert curve['share_crossing'] == 0.0
    elif curve['readout'] == 'forced':
      (x, more_x), (y, more_y) = curve['guess_losses'], curve['answer_losses']
      assert y > x
      if more_y < more_x:
        assert curve['side'] == 'crosses'
        share = (y - x) / (y - x - more_y + more_x)
        assert curve['at'] == pytest.approx(x + share * (more_x - x))


def test_the_files_hold_the_numbers(finished):
  out, found, _ = finished
  assert json.loads((out / 'ablation.json').read_text()) == found
  with (out / 'table.csv').open(newline='') as file:
    table = list(csv.DictReader(file))
  assert len(table) == len(found['rows']) == 3 * CELLS
  for read, row in zip(table, found['rows'], strict=True):
    assert (read['benchmark'], read['guess']) == (row['benchmark'], row['guess'])
    assert float(read['with_guess']) == row['with_guess']
    assert float(read['with_minus_guess_p']) == row['with_minus_guess']['p']
  page = (out / 'report.html').read_text()
  assert len(re.findall('<figure', page)) == 2 * 3
  assert f'{2 * CELLS} comparisons' in page
  told = ablation_report.table(found)
  assert 'stsb: mean squared error of the expected value, 5 prompts' in told
  for row in rows_of(found, readout='expected'):
    assert f'{row["with_guess"]:.3f}' in told
    assert f'{row["with_guess"]:.3f}</code></td>' in page
  plot = from_csv('stsb_forced', (out / 'figure_stsb_forced.csv').read_text())
  curve = plot.series('a', '2 examples')
  (of_forced,) = [
    curve
    for curve in found['curves']
    if (curve['benchmark'], curve['num_examples'], curve['readout'])
    == ('stsb', 2, 'forced')
  ]
  assert curve.x == tuple(sorted(of_forced['guess_losses']))
  (row,) = rows_of(
    found, benchmark='stsb', guess='wrong', readout='forced', num_examples=2
  )
  assert [panel.x_names for panel in plot.panels] == [(), ('0', '2'), ('0', '2')]
  assert plot.end('b', 'wrong') == row['with_guess']
  assert plot.end('b', 'without guess') == row['without_guess']
  assert plot.end('c', 'wrong') == row['guess_weight']


@pytest.mark.parametrize(
  ('fields', 'said'),
  [
    ({'ablation__benchmarks': ('stbs',)}, ["'stbs'", 'sick_entailment', 'stsb']),
    (
      {'ablation__benchmarks': ()},
      ['config.ablation.benchmarks is ()', 'at least one'],
    ),
    ({'ablation__guesses': ('oracel',)}, ["'oracel'", "did you mean 'oracle'"]),
    ({'ablation__guesses': ('wrong', 'wrong')}, ['guesses', 'repeats a value']),
    ({'ablation__guesses': ('plus_1',)}, ['plus_1', 'trec_qa', 'classes']),
    ({'ablation__noise': (0.0, -1.0)}, ['config.ablation.noise is -1.0', '≥ 0']),
    ({'ablation__class_noise': (0.0, 1.5)}, ['class_noise is 1.5', '≥ 0 and ≤ 1']),
    ({'ablation__num_examples': (0, 21)}, ['num_examples is 21', 'from 0 to 20']),
    ({'prompts__num_prompts': 6}, ['num_prompts is 6', '≤ 5', "'test'"]),
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
  with config.unlocked():
    del config.ablation.noises, config.benchmarks
  with refuses("has no section 'benchmarks'"):
    run(config, tmp_path / 'out', data)
  with refuses('which has no folder stsb', 'sick and trec_qa'):
    run(small_config(), tmp_path / 'out', data / 'stsb')
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
  cells = [cell for cell, _ in ablation.plan(config)]
  assert len(cells) == len(set(cells)) == 5 * (12 + 10 + 10)
  assert config.is_locked
  for cell, of_cell in ablation.plan(config):
    experiment.validate(of_cell)
    assert of_cell.prompts.num_examples == cell.num_examples
    assert of_cell.guess.noise == cell.noise
  assert len([*ablation.plan(ablation_config.get_config('smoke'))]) == 24
  with refuses("unknown variant 'stsb'", 'smoke'):
    ablation_config.get_config('stsb')
