"""Interventions in the report of a probe: what is kept, and what is said."""

import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.settings import isotropic
from tests.weights import drawn
from zoo.measure.statistics import Estimate
from zoo.probing import Effect, Effects, intervention_report
from zoo.probing.intervention_report import Interventions
from zoo.probing.interventions import PARTS, sentence


def _model():
  return drawn(lambda: zoo.models.YqLSA(2, rngs=nnx.Rngs(0)), dtype='float32')


def test_a_report_goes_on_where_it_stopped(tmp_path, monkeypatch):
  model, task, file = _model(), isotropic(2, 3), tmp_path / 'interventions.json'
  parts = Interventions(file, model)
  parts.measure(model, task, 0.0)
  assert not parts.results
  parts.measure(model, task, None)
  assert tuple(parts.results) == PARTS
  assert parts.results['heads'] is None  # it has no site of that name
  again = Interventions(file, model)
  # What is measured is not measured again.
  monkeypatch.setattr(intervention_report, 'measure', pytest.fail)
  again.measure(model, task, None)
  assert again.sentences() == parts.sentences()
  again.save_pictures(model, task)
  (section,) = again.section()
  assert [*section.figures] == ['what_matters', 'latents']
  assert (tmp_path / 'what_matters.png').stat().st_size > 1000


def test_parts_of_other_weights_and_of_a_damaged_file_are_not_taken(tmp_path):
  file, model = tmp_path / 'interventions.json', _model()
  parts = Interventions(file, model)
  parts.results['heads'] = None
  parts._write()
  assert Interventions(file, model).results == {'heads': None}
  other = nnx.clone(model)
  other.w[...] = other.w[...] + 1
  assert not Interventions(file, other).results
  file.write_text('{"key": ')
  with refuses('interventions.json is damaged; delete it'):
    Interventions(file, model)


def _effects(gap, *shares):
  unknown = Estimate(float('nan'), float('nan'))
  rows = [
    Effect(f'layers.{i}.mixer.out', None, 4, Estimate(*share), *[unknown] * 3)
    for i, share in enumerate(shares)
  ]
  return Effects(Estimate(1.0, 0.1), Estimate(2.0, 0.1), Estimate(*gap), rows)


def test_a_sentence_says_what_survives_the_intervals_of_all_rows():
  # Three rows at once: 2.39 standard errors on each side.
  one = sentence(_effects((1.0, 0.1), (0.9, 0.05), (0.5, 0.05), (0.0, 0.05)))
  assert 'layers.0.mixer.out, token 5 (0.90 ± 0.12) recovers the largest share' in one
  two = sentence(_effects((1.0, 0.1), (0.9, 0.05), (0.7, 0.05), (0.0, 0.05)))
  assert 'layers.1.mixer.out' in two
  assert 'overlap' in two
  none = sentence(_effects((1.0, 0.1), (0.1, 0.05), (0.0, 0.05), (0.0, 0.05)))
  assert 'no one recovers a share above 0' in none
  no_gap = sentence(_effects((0.1, 0.1), (0.9, 0.05)))
  assert 'do not raise the loss beyond its 95 % interval, from 1 to 2' in no_gap
