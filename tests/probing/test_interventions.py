"""Interventions in the report of a probe: what is kept, and what is said."""

import csv
import dataclasses
import json
import random
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx, struct

import zoo
from tests.compare import refuses
from tests.probing.models import table
from tests.settings import isotropic
from tests.weights import drawn
from zoo.measure.intervals import Estimate, Interval
from zoo.probing import Effect, Effects, Rows
from zoo.probing.latents import PROMPT, LatentScore
from zoo.reports.probe import intervention_report, interventions
from zoo.reports.probe.intervention_pictures import CAPTIONS, plot_effects
from zoo.reports.probe.intervention_report import Interventions
from zoo.reports.probe.interventions import PARTS, _corrupt, sentence
from zoo.reports.style import AMOUNTS, SIGNED


def _model():
  return drawn(lambda: zoo.models.YqLSA(2, rngs=nnx.Rngs(0)), dtype='float32')


@pytest.mark.slow
def test_a_report_goes_on_where_it_stopped(tmp_path, monkeypatch):
  model, task = _model(), isotropic(2, 3)
  parts = Interventions(tmp_path, model, 'config')
  parts.measure(model, task, 0.0)
  assert not parts.results
  parts.measure(model, task, None)
  assert tuple(parts.results) == PARTS
  assert parts.results['heads'] is None  # it has no site of that name
  again = Interventions(tmp_path, model, 'config')
  # What is measured is not measured again.
  monkeypatch.setattr(intervention_report, 'measure', pytest.fail)
  again.measure(model, task, None)
  assert again.sentences() == parts.sentences()
  again.draw(model, task)
  (section,) = again.section()
  assert [*section.figures] == ['what_matters', 'latents']
  assert [*again.pictures] == ['what_matters', 'latents']
  files = {'PNG': 'latents.png', 'CSV': 'latents.csv'}
  assert section.figures['latents'].files == files
  again.save_tables()
  rows = parts.results['what_matters'].rows
  with (tmp_path / 'what_matters.csv').open() as file:
    written = [*csv.DictReader(file)]
  assert [row['site'] for row in written] == [row.site for row in rows]
  assert 'above_untrained' in (tmp_path / 'latents.csv').read_text()
  # A process that is killed while it writes leaves a part of the file.
  file, draws = tmp_path / 'rows.jsonl', random.Random(0)
  whole = file.read_bytes()

  def known(model, task, part, **options):
    return parts.results[part]

  monkeypatch.setattr(intervention_report, 'measure', known)
  for _ in range(5):
    file.write_bytes(whole[: draws.randrange(len(whole))])
    cut = Interventions(tmp_path, model, 'config')
    cut.measure(model, task, None)
    assert file.read_bytes() == whole
    assert cut.sentences() == parts.sentences()


def test_parts_of_other_weights_and_of_a_damaged_file_are_not_taken(tmp_path):
  file, model = tmp_path / 'rows.jsonl', _model()
  parts = Interventions(tmp_path, model, 'config')
  parts._keep('heads', None)
  assert Interventions(tmp_path, model, 'config').results == {'heads': None}
  assert not Interventions(tmp_path, model, 'another config').results
  other = nnx.clone(model)
  other.w[...] = other.w[...] + 1
  assert not Interventions(tmp_path, other, 'config').results
  file.write_text('{"cell": "heads"}\n')
  with refuses('rows.jsonl, line 1 is damaged; delete the line'):
    Interventions(tmp_path, model, 'config')


def _effects(gap, *shares):
  unknown = Estimate(float('nan'), float('nan'))
  rows = [
    Effect(
      f'layers.{i}.mixer.out', None, 4, Estimate(*share), unknown, unknown, unknown
    )
    for i, share in enumerate(shares)
  ]
  return Effects(Estimate(1.0, 0.1), Estimate(2.0, 0.1), Estimate(*gap), Rows(rows))


def test_a_sentence_says_what_survives_the_intervals_of_all_rows():
  # ± is half of a 95 % interval; of three rows the least p value counts three times.
  one = sentence(_effects((1.0, 0.1), (0.9, 0.05), (0.5, 0.05), (0.0, 0.05)))
  assert 'layers.0.mixer.out, token 4 (0.90 ± 0.10) recovers the largest share' in one
  # Of two that survive, a gap of 0.13 is within 1.96 times 0.05 + 0.05, and the gap of
  # 0.4 above was not.
  two = sentence(_effects((1.0, 0.1), (0.9, 0.05), (0.77, 0.05), (0.0, 0.05)))
  assert 'layers.1.mixer.out' in two
  assert 'not told apart' in two
  none = sentence(_effects((1.0, 0.1), (0.1, 0.05), (0.0, 0.05), (0.0, 0.05)))
  assert 'patching none of them recovers a share that is told apart from 0' in none
  # Three that survive have three pairs. A gap of 0.23 has the p value 0.011, which is
  # below 0.025/2, as Holm would ask for two gaps, and not below 0.025/3.
  three = sentence(_effects((1.0, 0.1), (0.9, 0.05), (0.67, 0.05), (0.67, 0.05)))
  assert 'not told apart' in three
  assert 'layers.2.mixer.out' in three
  no_gap = sentence(_effects((0.1, 0.1), (0.9, 0.05)))
  assert 'Shares of the gap from 1 to 2 say nothing' in no_gap
  unsure = sentence(_effects((0.5, 0.1), (0.9, 0.05)))
  assert 'is less than 8 standard errors from 0' in unsure


def test_a_sentence_on_latents_corrects_the_p_value_beside_untrained_models():
  def score(site, p_value):
    nothing = Estimate(0.0, 0.01)
    above = Estimate(0.5, 0.1)  # It is 0 with the p value 3e-7 if it is normal.
    share, untrained = Estimate(0.9, 0.01), Interval(0.0, -0.01, 0.01, 0.95)
    return LatentScore(site, 'w', share, nothing, untrained, above, p_value)

  prompt = LatentScore(PROMPT, 'w', Estimate(0.0, 0.01), Estimate(0.0, 0.01))
  for p_value, start in ((0.02, 'From no site'), (0.001, 'A linear map')):
    scores = [prompt, *(score(f'layers.{i}', p_value) for i in range(4))]
    assert sentence(scores).startswith(start)


@pytest.mark.slow
def test_corrupt_prompts_keep_the_inputs_where_there_are_other_labels_for_them():
  for name, kept in (('sparse_parity', 'x'), ('urns', 'x_query')):
    task = zoo.create_task(name, context_length=5)
    clean = task.sample(jax.random.key(0), 3)
    corrupt: Any = _corrupt(task, clean, jax.random.key(1))
    assert np.array_equal(getattr(corrupt, kept), getattr(clean, kept))
    assert not np.array_equal(corrupt.y, clean.y)

  @struct.dataclass(eq=False, repr=False)
  class Own(zoo.tasks.BaseTask):
    num_features: int = struct.field(pytree_node=False, default=2)
    context_length: int = struct.field(pytree_node=False, default=3)

    def sample_one(self, key):
      return zoo.tasks.TaskPool(2, 3).sample_one(key)

  assert _corrupt(Own(), Own().sample(jax.random.key(0), 2), jax.random.key(1)) is None


def test_prompts_are_held_out(tmp_path, monkeypatch):
  task, seen = table(tmp_path), []

  def what_matters(model, task, clean, corrupt):
    del model, task
    seen.extend(np.ravel(prompt.features[..., 0]) for prompt in (clean, corrupt))

  monkeypatch.setattr(interventions, '_what_matters', what_matters)
  model = drawn(lambda: zoo.models.YqLSA(3, rngs=nnx.Rngs(0)), dtype='float32')
  interventions.measure(model, task, 'what_matters', num_prompts=8)
  assert len(seen) == 2
  assert set(np.concatenate(seen)) <= set(task.held_out().x[:, 0])


def test_a_caption_says_what_corrupt_prompts_are():
  said = CAPTIONS['what_matters']
  assert 'the labels of a newly drawn function' in said
  assert 'the query of the clean prompts, and newly drawn examples' in said


def test_colours_begin_at_0_unless_a_share_is_negative():
  for shares, limits, colours in (
    (((0.9, 0.05), (0.5, 0.05)), (0.0, 1.0), AMOUNTS),
    (((1.5, 0.05), (0.5, 0.05)), (0.0, 1.5), AMOUNTS),
    (((1.5, 0.05), (-0.5, 0.05)), (-1.5, 1.5), SIGNED),
  ):
    axes = plot_effects(_effects((1.0, 0.1), *shares), None, 4)
    (image,) = axes.images
    assert (image.norm.vmin, image.norm.vmax) == limits
    assert image.cmap.name == colours


def test_a_report_that_goes_on_has_the_same_columns():
  apart = Interval(0.5, 0.4, 0.6, 0.95), Estimate(0.4, 0.2, 3)
  scores = [
    LatentScore(PROMPT, 'w', Estimate(0.0, 0.01), Estimate(0.0, np.nan)),
    LatentScore('site', 'w', Estimate(0.9, 0.01), Estimate(0.0, 0.01), *apart, 0.02),
  ]
  kept = json.loads(json.dumps(interventions.to_json(scores)))
  again: Any = interventions.from_json('latents', kept)
  assert repr(Rows(again).records()) == repr(Rows(scores).records())  # NaN, too
  assert Rows(again).records()[1]['untrained_confidence'] == 0.95
  table = _effects((1.0, 0.1), (0.9, 0.05), (0.5, 0.05))
  kept = json.loads(json.dumps(interventions.to_json(table)))
  again = interventions.from_json('what_matters', kept)
  assert repr(again.rows.records()) == repr(table.rows.records())
  assert dataclasses.replace(again, rows=table.rows) == table
