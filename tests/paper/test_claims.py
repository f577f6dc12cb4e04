"""Verdicts follow from numbers, which are those of other derivations."""

import math
import re
from typing import Any

import jax
import numpy as np
import pytest

from studies.paper import FIGURES, experiments, setting, theorems
from studies.paper.claim import (
  FAILS,
  HOLDS,
  NOT_DECIDED,
  NOT_SHARP,
  Evidence,
  judge,
  verdict,
)
from studies.paper.claims import CLAIMS
from studies.paper.reproduce import verdicts_of
from tests.compiled import predict
from tests.launch.processes import ROOT
from tests.marks import SLOW
from tests.paper.settings import figure_6
from tests.settings import isotropic
from zoo import theory
from zoo.reports.plots import Panel, Plot, series
from zoo.reports.style import BLUE
from zoo.theory import constructions

# What theory proves, for the claims that no training decides.
PROVED = {
  'theorem-1': NOT_SHARP,
  'value-space': HOLDS,
  'lemmas-1-2': HOLDS,
  'theorem-2': FAILS,
  'theorem-2-finite': HOLDS,
  'appendix-a3': HOLDS,
  'appendix-a4': FAILS,
  'theorem-4': NOT_SHARP,
  'appendix-b3': NOT_SHARP,
  'conjecture': HOLDS,
  'equation-7': FAILS,
  'lemma-3': NOT_SHARP,
  'lemma-3-proof': FAILS,
  'ltb-optimum': FAILS,
  'equations-18-20': FAILS,
}
BY_KEY = {claim.key: claim for claim in CLAIMS}
D = C = 10
NORM = 40.0  # |w*|²


@pytest.fixture(scope='module')
def judged():
  """The claims without any figure, by key, judged when first asked for."""
  claims = {}

  def of(key):
    if key not in claims:
      claims[key] = judge(BY_KEY[key], {})
    return claims[key]

  return of


@pytest.mark.slow
@pytest.mark.parametrize('key', BY_KEY)
def test_a_verdict_is_what_theory_proves_or_waits_for_what_is_measured(judged, key):
  claim = judged(key)
  assert claim['verdict'] == PROVED.get(key)
  name = claim['function']
  assert name == key.replace('-', '_')
  assert sum(hasattr(module, name) for module in (theorems, experiments)) == 1
  assert claim['measured'] == {}


def test_the_page_has_the_verdict_on_each_claim_that_no_training_decides():
  page = (ROOT / 'studies' / 'paper' / 'README.md').read_text()
  rows = re.findall(r'^\| `([\w-]+)` \| [^|]+ \| ([^|]+) \| .+ \|$', page, re.MULTILINE)
  named = dict(rows)
  assert {key: verdict for key, verdict in named.items() if key in BY_KEY} == PROVED
  words = 'five hold, four hold but are not sharp, and six fail'
  assert words in ' '.join(page.split())
  counts = [[*PROVED.values()].count(said) for said in (HOLDS, NOT_SHARP, FAILS)]
  assert counts == [5, 4, 6]


def test_keys_are_unique_and_figures_known():
  assert len(BY_KEY) == len(CLAIMS)
  known = {*FIGURES, '6'}
  assert all(set(claim.figures) <= known for claim in CLAIMS)


def test_the_three_verdicts_and_none():
  assert verdict(Evidence(holds=True)) == HOLDS
  assert verdict(Evidence(holds=True, sharp=False)) == NOT_SHARP
  assert verdict(Evidence(holds=False, sharp=False)) == FAILS
  assert verdict(Evidence(holds=None)) is None


# Numbers against derivations of their own.


@pytest.mark.slow
def test_exact_numbers_are_exact(judged):
  """Rationals, which weights in float32 would miss by 1e-8."""
  exact = judged('equation-7')['exact']
  # (1 − 2η + η²m)(d + 0), m = (C + d + 1)/C, at η = 1/21 and at the best, 10/21.
  assert exact['as_printed'] == pytest.approx(191 / 21, rel=1e-14)
  assert exact['without_1_over_c'] == pytest.approx(110 / 21, rel=1e-14)


@pytest.mark.slow
def test_flipping_two_matrices_leaves_a_model_and_half_way_it_is_a_constant(judged):
  exact = judged('lemmas-1-2')['exact']
  ends = 'multi_head', 'multi_head_flipped'
  assert {round(exact[end], 12) for end in ends} == {round(110 / 21 + 40 / 51, 12)}
  # W_P = 0 leaves the guess: 0, or w*·x_q.
  assert exact['multi_head_half_way'] == pytest.approx(D + NORM, rel=1e-12)
  assert exact['yq_lsa_half_way'] == pytest.approx(D, rel=1e-12)
  task = setting.task()
  model = constructions.multi_head_lsa(theory.optimal_rule(task, 0.0))
  prompt = task.sample(jax.random.key(0), 5)
  before = np.asarray(predict(model, prompt))
  model.w_p[...], model.w_q[...] = -model.w_p[...], -model.w_q[...]
  np.testing.assert_array_equal(predict(model, prompt), before)


def gradient_of_step(eta, c):
  """`|∂R/∂U|` of one step of size η from w*, by hand.

  The error is `ηr − ε` in each coordinate, r and ε having `E r_i ε_i = 1` and
  `E r_i r_i = m = (C + d + 1)/C`. So `E (ηr_i − ε_i) G` is (ηm − 1) times the matrix
  that has 1 at (i, label) and (label, i), and 2w*_i at the label's corner.
  """
  m = (c + D + 1) / c
  return 2 * abs(eta * m - 1) * math.sqrt(2 * D + 4 * NORM)


@pytest.mark.parametrize(
  ('key', 'gradients'),
  [
    (
      'appendix-b3',
      {
        'gradient_times_c_10': 295.1609730299723,
        'half_a_step_times_c_10': 10 * gradient_of_step(0.5, 10),
      },
    ),
    pytest.param(
      'theorem-4',
      {
        'gradient_1000': gradient_of_step(1.0, 1000),
        'gradient_1e5': gradient_of_step(1.0, 10**5),
      },
      marks=SLOW,
    ),
  ],
)
def test_gradients_are_those_by_hand(judged, key, gradients):
  for name, expected in gradients.items():
    assert judged(key)['exact'][name] == pytest.approx(expected, rel=1e-9), name


@pytest.mark.slow
def test_gradients_in_the_weights_are_differences_of_risks():
  task = isotropic(1, 3, prior_mean=2.0)
  with jax.enable_x64(True):
    model = constructions.gd_transformer(task.prior_mean, 0.3)
    slope = 0.0
    for name in ('w', 'w_k', 'w_q', 'w_v', 'w_p'):
      parameter = getattr(model, name)
      before = np.array(parameter[...])
      for index in np.ndindex(before.shape):
        risks = []
        for step in (1e-4, -1e-4):
          moved = before.copy()
          moved[index] += step
          parameter[...] = jax.numpy.asarray(moved)
          risks.append(theory.exact_risk(model, task))
        slope += ((risks[0] - risks[1]) / 2e-4) ** 2
      parameter[...] = jax.numpy.asarray(before)
    gradient = setting.weight_gradient(model, task)
  # Central differences of a polynomial of degree 8: 1e-8 of its third derivative.
  assert gradient == pytest.approx(math.sqrt(slope), rel=1e-6)


@pytest.mark.slow
def test_the_optimum_with_a_fixed_guess_is_stationary_at_every_context_length(judged):
  exact = judged('theorem-2')['exact']
  # Rounding of terms of size 100.
  assert max(exact[f'gradient_{c}'] for c in ('10', '1e5', '1e9')) < 1e-11
  assert exact['risk_1e5'] < 0.002 < 50 == exact['risk_of_zero_weights']
  for c, name in (10, 'gap_10'), (1000, 'gap_1000'), (10**5, 'gap_1e5'):
    assert exact[name] == pytest.approx(2 * NORM / (c * D + 2), rel=1e-9)


@pytest.mark.slow
def test_zero_weights_are_stationary_and_no_minimum(judged):
  """W = 0 predicts 0, whose risk is E y² = d + |w*|²; each gradient has a factor 0."""
  exact = judged('appendix-a3')['exact']
  assert exact['gradient_at_zero'] == 0
  assert exact['risk_at_zero'] == pytest.approx(D + NORM, rel=1e-12)
  assert exact['infimum_of_eleven_heads'] == pytest.approx(110 / 21 + 40 / 51)
  assert exact['update_gradient_at_optimum'] < 1e-11  # rounding of terms of size 100
  assert exact['update_curvature'] > 0


def test_verdicts_are_counted():
  claims: list[Any] = [{'verdict': verdict} for verdict in (HOLDS, FAILS, HOLDS, None)]
  assert verdicts_of(claims) == (
    'Verdicts on the 4 claims: holds: 2; fails: 1; not measured in this run: 1.'
  )


@pytest.mark.slow
def test_the_curvature_is_that_of_samples(judged):
  """Along `Xᵀy/C` it is `2 E |Xᵀy/C|²`, and that of the mean is `2|E Xᵀy/C|²`."""
  exact = judged('appendix-a4')['exact']
  prompt = setting.task().sample(jax.random.key(0), 20000)
  x, y = (np.asarray(part, np.float64) for part in (prompt.x, prompt.y))
  moment = np.einsum('bci,bc->bi', x, y) / C
  squares = 2 * np.sum(moment**2, axis=1)
  stderr = squares.std(ddof=1) / math.sqrt(len(squares))
  assert abs(exact['curvature'] - squares.mean()) < 4 * stderr
  mean = 2 * np.sum(moment.mean(axis=0) ** 2)
  # The square of a mean with the standard errors of its entries, to first order.
  error = 4 * np.linalg.norm(moment.std(axis=0) / math.sqrt(len(moment)))
  assert abs(exact['from_mean_of_g'] - mean) < 4 * error * math.sqrt(NORM)
  assert exact['curvature'] == pytest.approx(exact['from_mean_of_g_g'], rel=1e-12)


@pytest.mark.slow
def test_models_that_agree_are_at_no_distance_and_others_are(judged):
  proof = judged('lemma-3-proof')['exact']
  assert judged('lemma-3')['exact']['as_ltb'] < 1e-14
  assert judged('lemma-3')['exact']['ltb_as_yq_lsa'] < 1e-14
  # The block without labels predicts w·x_q whatever the labels are: half the rule.
  assert proof['distance'] > 0.5
  assert proof['risk_with_xw'] == pytest.approx(D, rel=1e-12)


# Rules on what is measured.


def dots(figure, key, name, x, y):
  """A figure that holds one series of dots."""
  shown = series(name, 'dots', BLUE, x, y)
  return {figure: Plot(figure, (Panel(key, 'x', 'y', (shown,)),))}


def test_a_gap_that_is_not_proportional_to_the_square_fails():
  x = [0, 40, 80, 120, 160]
  for slope, start, expected in (
    (1.02 / 51, 0.0, HOLDS),
    (1.04 / 51, 0.0, FAILS),
    (0.96 / 51, 0.0, FAILS),
    (1 / 51, 0.2, FAILS),  # linear, but not proportional
  ):
    y = [110 / 21 + start + slope * value for value in x]
    # The rule is the same for both panels.
    panels = ('figure-4-bias', 'd'), ('figure-4-guess', 'b')
    for key, panel in panels if expected == HOLDS else panels[:1]:
      claim = judge(BY_KEY[key], dots('4', panel, 'trained', x, y))
      assert claim['verdict'] == expected
      assert claim['measured']['trained_slope'] == pytest.approx(slope, rel=1e-9)


def test_figure_6_is_judged_by_its_interval():
  # The interval begins 2 below its upper end.
  ends = (-0.01, HOLDS), (0.01, NOT_DECIDED), (1.99, NOT_DECIDED), (2.5, FAILS)
  for high, expected in (*ends, (None, None)):
    for key, name in (
      ('figure-6', 'with − without guess'),
      ('appendix-c3', 'with guess − guess alone'),
    ):
      claim = judge(BY_KEY[key], {'6': figure_6(**{name: high})})
      assert claim['verdict'] == expected
      assert claim['measured']['upper_end'] == high
