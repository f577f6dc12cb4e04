"""The report: its verdicts, its JSON and its pictures."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from flax import nnx

import zoo
from tests.compare import refuses
from tests.probing.models import TASK, Softmax, biased, keep
from tests.settings import curve_key, general, isotropic
from tests.wrapped import Wrapped
from zoo import theory
from zoo.estimators.baselines import Zero
from zoo.measure.intervals import Estimate
from zoo.probing import (
  implicit_algorithm,
  mean_attention,
  probe,
  sampled_algorithm,
)
from zoo.probing.nearest.candidates import Candidates
from zoo.probing.nearest.sampled import GD, GD_BETA
from zoo.probing.verdicts import (
  UNEXPLAINED,
  judge,
  judge_by_samples,
  name_nearest,
)
from zoo.reports.probe import summary
from zoo.reports.probe.pictures import (
  page,
  pictures,
  plot_attention,
  plot_attention_on,
)
from zoo.reports.style import drawing_of
from zoo.theory import constructions

FEW: Any = {'num_prompts': 500}


@pytest.mark.slow
def test_a_gd_transformer_is_gradient_descent(monkeypatch):
  keep(monkeypatch, 'shifts', 'scale_y=2')
  keep(monkeypatch, 'baselines', 'gd', 'bayes')
  task = TASK
  model = constructions.gd_transformer(np.full(3, 0.5), 0.5)
  report = probe(model, task, **FEW)
  assert report.is_gradient_descent
  assert report.verdict.startswith('Yes: one step of size 0.5000')
  assert summary(report).startswith(
    'The nearest algorithm is one step of gradient descent, which leaves '
  )
  assert 'Is it doing gradient descent? Yes' in summary(report)
  contents = json.loads(report.to_json())
  # Exact where the weights are exact in float32.
  assert contents['algorithm']['nearest_gd']['step'] == pytest.approx(0.5, abs=1e-9)
  assert contents['alignment']['exact']['squared_prediction_difference'] < 1e-15
  assert contents['risks']['risk'].keys() == {'mean', 'stderr', 'num'}
  drawings = pictures(report, model, zoo.estimators.gradient_descent(task), task)
  names = 'alignment', 'examples', 'step_matrix', 'heads', 'out_of_distribution'
  assert set(drawings) == set(names)
  html = page(report, 'a <model>', drawings)
  assert '<h1>a &lt;model&gt;</h1>' in html
  assert report.verdict in html
  for name in names:
    assert f'id="{name}"' in html
    assert f'href="{name}.png"' in html


@pytest.mark.slow
def test_a_matrix_step_and_a_fixed_guess_are_told_apart():
  task = general()
  matrix = implicit_algorithm(zoo.estimators.gd_beta(task), task)
  is_descent, verdict = judge(matrix, task, None)
  assert not is_descent
  assert verdict.startswith('No: the nearest step')
  report = probe(zoo.estimators.gd_beta(task), task, only=['algorithm'], **FEW)
  assert report.nearest.startswith(
    'The nearest algorithm is one step with a matrix (GD-β), '
  )
  assert report.verdict == verdict
  task = isotropic(3, 4, prior_mean=2.0)
  fixed = constructions.multi_head_lsa(theory.optimal_rule(task, 0.0))
  is_descent, verdict = judge(implicit_algorithm(fixed, task), task, None)
  assert not is_descent
  assert verdict.startswith('No: the nearest step')
  blind = implicit_algorithm(zoo.estimators.prior_mean(task), task)
  assert judge(blind, task, None) == (False, 'No: it ignores its context.')
  report = probe(zoo.estimators.prior_mean(task), task, only=['algorithm'], **FEW)
  assert report.nearest == ''


@pytest.mark.slow
def test_a_step_without_labels_is_no_step_of_gradient_descent():
  """Of `w − η S w` with large w, which is near the step that also reads labels."""
  d, eta = 5, 0.5
  task, start = isotropic(d, 10), np.full(d, 20.0)
  update = np.zeros((d, d + 1, d + 1))
  for i in range(d):
    update[i, i, :d] -= eta * start / 2
    update[i, :d, i] -= eta * start / 2
  rule = zoo.LearningRule(start, update, np.zeros(()), np.zeros((d + 1, d + 1)))
  algorithm = implicit_algorithm(rule, task)
  assert algorithm.nearest_gd.unexplained is not None
  assert algorithm.nearest_gd.unexplained < UNEXPLAINED
  said = 'No: its step matrix is 0, so no step follows the labels.'
  assert judge(algorithm, task, None) == (False, said)


@pytest.mark.slow
def test_a_step_against_the_labels_is_no_step_of_gradient_descent():
  """Of `w + η (−r − S w)` with large w, which is near the step that follows labels."""
  task, start = isotropic(2, 4), np.array([100.0, -100.0])
  step = zoo.LearningRule.gradient_descent
  rule = step(start, 0.5) - 2.0 * step(np.zeros(2), 0.5)
  algorithm = implicit_algorithm(rule, task)
  assert algorithm.nearest_gd.unexplained is not None
  assert algorithm.nearest_gd.unexplained < UNEXPLAINED
  # The labels move the predictions by −1 times what the step says: (1 + 1)² = 4.
  assert algorithm.nearest_gd.unexplained_of_odd_part == pytest.approx(4, rel=0.01)
  is_descent, verdict = judge(algorithm, task, None)
  assert not is_descent
  assert verdict.endswith(', but 400 % of what the labels change.')
  sampled: Any = sampled_algorithm(rule, task, 2048)
  assert sampled.nearest_gd.unexplained.mean < UNEXPLAINED
  of_labels = sampled.nearest_gd.unexplained_of_labels
  assert abs(of_labels.mean - 4) < 0.1
  is_descent, verdict = judge_by_samples(sampled, None)
  assert verdict.startswith('No: ')
  assert not is_descent
  # A step that follows the labels explains them.
  honest: Any = sampled_algorithm(step(start, 0.5), task, 2048)
  assert honest.nearest_gd.unexplained_of_labels.mean < 1e-8


@pytest.mark.slow
def test_predictions_that_are_not_finite_are_refused():
  task = isotropic(2, 4)
  step = zoo.estimators.gradient_descent(task, 0.5, 1)

  def broken(prompt):
    return step(prompt).at[-1].set(np.nan)

  with refuses('predicts numbers that are not finite'):
    sampled_algorithm(broken, task, 2048)


@pytest.mark.slow
def test_what_has_no_learning_rule_is_judged_by_samples(monkeypatch):
  keep(monkeypatch, 'shifts', 'scale_y=2')
  keep(monkeypatch, 'baselines', 'gd', 'bayes')
  task, model = TASK, Softmax(3)
  report = probe(model, task, 'bayes', **FEW)
  assert report.verdict.startswith('No: the nearest step, one step of size')
  assert report.algorithm is None
  assert report.sampled is not None
  assert report.guess is not None
  said = summary(report)
  assert said.startswith(report.nearest)
  assert report.nearest.partition(',')[0] in (
    'The nearest algorithm is one step of gradient descent',
    'No algorithm explains half of the variation: the nearest',
  )
  assert report.baselines is not None
  assert set(report.baselines) == {'gd', 'bayes'}
  step = report.sampled.nearest_gd
  assert f'η = {step.parameter:.4g}' in said
  assert f'{step.risk.mean:.4f} ± {step.risk.half:.4f}' in said
  assert 'its prediction without examples' in said
  unchanged = '(bayes is that of the training task on all of them; it is not the least'
  assert said.count(unchanged) == 1
  figure = drawing_of(plot_attention({'layers.0': np.eye(3)[None]}, ['1', '2', '3']))
  assert 'id="attention"' in page(report, '', {'attention': figure})
  assert 'optimum of the linear family' in said
  json.loads(report.to_json())
  assert set(pictures(report, model, zoo.estimators.bayes(task), task)) == {
    'alignment',
    'examples',
    'out_of_distribution',
  }


@pytest.mark.slow
def test_a_transformer_has_a_map_of_its_attention():
  task = isotropic(3, 12)
  model = zoo.models.Transformer(3, 12, num_layers=1, width=8, rngs=nnx.Rngs(0))
  prompt = task.sample(curve_key(), 256)
  weights = np.asarray(mean_attention(model, prompt)['layers.0'])
  assert weights.shape == (2, 25, 25)
  axes = plot_attention_on(model, task)
  assert axes is not None
  assert [panel.get_title() for panel in axes] == [
    f'layers.0, head {head}: to {weights[head, -1].max():.2g}' for head in range(2)
  ]
  names = [label.get_text() for label in axes[0].get_yticklabels()]
  assert names[:2] == ['$x_{1}$', '$y_{2}$']
  assert names[-2:] == ['$y_{11}$', '$x_{q}$']
  expected = [row / max(row) for row in weights[1]]
  drawn = np.asarray(axes[1].images[0].get_array())
  np.testing.assert_allclose(drawn, expected, rtol=1e-6)


@pytest.mark.slow
def test_a_part_that_fails_is_null_and_named_and_the_rest_is_reported(
  monkeypatch, caplog
):
  keep(monkeypatch, 'shifts', 'context_length=8')

  def broken(prompt):
    raise RuntimeError('it is <broken>')

  task = Wrapped(isotropic(3, 4), (('broken', broken), ('zero', Zero())))
  report = probe(biased(), task, **FEW)
  assert report.against == 'broken'
  why = 'RuntimeError: it is <broken>'
  assert report.failures == {'risks': why, 'alignment': why}
  assert f'the baseline broken is not compared: {why.partition(": ")[2]}' in caplog.text
  for name in report.failures:
    assert f'{name} is left out of the report: {why}' in caplog.text
  assert f'File "{__file__}", line' in caplog.text
  assert 'in broken\n' in caplog.text
  assert report.verdict.startswith('Unknown: no theory covers its task. Its loss, ')
  assert report.is_gradient_descent is None
  (longer,) = report.task_shifts
  assert longer.risk is not None
  assert longer.other_risk is None
  contents = json.loads(report.to_json())
  assert [contents[name] for name in report.failures] == [None, None]
  assert contents['failures'] == report.failures
  said = summary(report)
  assert 'left out of this report' in said
  assert why in said
  assert 'optimum' not in said
  with refuses("unknown estimator 'gd'", 'known: ', 'zero'):
    probe(biased(), task, 'gd')
  with refuses('num_prompts is 1; it must be an integer ≥ 2'):
    probe(biased(), task, num_prompts=1)
  drawn = pictures(report, biased(), broken, task)
  assert set(drawn) == {'examples', 'out_of_distribution'}
  assert 'it is &lt;broken&gt;' in page(report, '', drawn)


@pytest.mark.slow
def test_on_a_task_without_baselines_a_model_is_compared_with_0(monkeypatch):
  keep(monkeypatch, 'shifts', 'context_length=8')
  task = Wrapped(isotropic(3, 4), ())
  model = Softmax(3)
  report = probe(model, task, **FEW)
  assert report.against == 'zero'
  assert report.risks is not None
  assert report.sampled is not None
  assert report.failures == {}
  assert 'is above that of no baseline' in report.verdict
  (longer,) = report.task_shifts
  assert longer.risk is not None
  assert longer.failure is None
  assert longer.other_risk is not None
  assert 'None' not in summary(report)


@pytest.fixture(scope='module')
def algorithm():
  return sampled_algorithm(zoo.estimators.ridge(TASK, 0.5), TASK, 2048)


def test_a_share_that_its_error_does_not_resolve_is_undecided(algorithm):

  def judged(mean, error, of_labels=(0.001, 0.0001)):
    nearest = dataclasses.replace(
      algorithm.nearest_gd,
      unexplained=Estimate(mean, error),
      unexplained_of_labels=Estimate(*of_labels),
    )
    return judge_by_samples(dataclasses.replace(algorithm, nearest_gd=nearest), None)

  for mean, error, start in (
    (0.008, 0.0009, 'Yes: '),
    (0.008, 0.0011, 'Undecided: '),
    (0.012, 0.0011, 'Undecided: '),
    (0.012, 0.0009, 'No'),
  ):
    is_descent, verdict = judged(mean, error)
    assert verdict.startswith(start)
    assert is_descent is {'Yes: ': True, 'No': False}.get(start)
  # What the labels change has to be explained, too.
  for of_labels, start in (
    ((0.008, 0.0011), 'Undecided: '),
    ((0.012, 0.0009), 'No: '),
    ((1.5, 0.1), 'No: '),
  ):
    _, verdict = judged(0.001, 0.0001, of_labels)
    assert verdict.startswith(start)
    assert 'of what the labels change' in verdict


_RIDGE = 'ridge regression with λ = 0.5'


def _candidates(step, matrix, ridge, **baselines):
  """Candidates with given shares and errors; the errors of any two are uncorrelated."""
  shares = {GD: step, GD_BETA: matrix, _RIDGE: ridge, **baselines}
  # The rows of a Hadamard matrix but the first have the mean 0 and are orthogonal.
  patterns = scipy.linalg.hadamard(64)[1:]
  gaps = {
    name: mean + stderr * 63**0.5 * pattern
    for (name, (mean, stderr)), pattern in zip(shares.items(), patterns, strict=False)
  }
  return Candidates(gaps, np.ones(64), [*baselines])


def test_the_nearest_algorithm_is_named_with_what_it_leaves():
  def said(*fitted, **baselines):
    return name_nearest(_candidates(*fitted, **baselines))

  start = 'The nearest algorithm is '
  assert said((0.236, 0.007), (0.236, 0.007), (0.012, 0.0009)) == (
    f'{start}ridge regression with λ = 0.5, which leaves 1.2 % ± 0.18 % of the '
    'variation over contexts unexplained.'
  )
  # A matrix step must be nearer than its special case by more than the errors, and
  # counts only where that is not gradient descent already.
  for step, matrix, name in (
    ((0.2, 0.01), (0.19, 0.01), GD),
    ((0.2, 0.01), (0.1, 0.01), GD_BETA),
    ((0.009, 0.0001), (0.001, 0.0001), GD),
  ):
    assert said(step, matrix, (0.3, 0.01)).startswith(f'{start}{name}, which leaves')
  step = (0.2, 0.01), (0.2, 0.01), (0.3, 0.01)
  nearer = said(*step, averaging=(0.1, 0.01), bayes=(0.11, 0.01), zero=(0.9, 0.1))
  assert nearer.startswith(f"{start}the task's averaging, which leaves 10 % ± 2 %")
  assert nearer.endswith("; not told apart from it: the task's bayes.")
  tied = said(*step, averaging=(0.19, 0.01), gd=(0.21, 0.01))
  assert tied.startswith(f'{start}one step of gradient descent')
  assert tied.endswith("not told apart from it: the task's averaging, gd.")
  both = said((0.2, 0.01), (0.2, 0.01), (0.21, 0.01))
  assert both.endswith('not told apart from it: ridge regression with λ = 0.5.')
  far = said((0.8, 0.01), (0.8, 0.01), (0.9, 0.01))
  assert far.startswith(
    'No algorithm explains half of the variation: the nearest, one step'
  )


def test_shares_on_the_same_prompts_are_compared_prompt_by_prompt():
  """Two shares with wide intervals may differ by the same amount on every prompt."""
  gaps = _candidates((0.2, 0.05), (0.2, 0.05), (0.3, 0.05)).gaps
  shared = Candidates({**gaps, 'bayes': gaps[GD] - 0.02}, np.ones(64), ['bayes'])
  nearest = name_nearest(shared)
  assert nearest.startswith(
    "The nearest algorithm is the task's bayes, which leaves 18"
  )
  assert GD not in nearest


def test_a_step_to_which_another_algorithm_is_nearer_is_no_step(algorithm):
  step = dataclasses.replace(
    algorithm.nearest_gd,
    unexplained=Estimate(0.005, 0.001),
    unexplained_of_labels=Estimate(0.005, 0.001),
  )
  algorithm = dataclasses.replace(algorithm, nearest_gd=step)
  for baselines, wanted in (
    ({'bayes': (0.001, 0.0005)}, False),
    ({'bayes': (0.004, 0.0005)}, True),
    # By Holm over ten, a gap of 2.5 standard errors is chance.
    ({f'of_{i}': (0.0025 + 0.1 * (i > 0), 1e-9) for i in range(9)}, True),
    # The task's step is a step itself, and a fitted matrix contains it.
    ({'gd': (0.0, 1e-9)}, True),
  ):
    candidates = _candidates((0.005, 0.001), (0.0, 1e-9), (0.1, 0.001), **baselines)
    is_descent, verdict = judge_by_samples(algorithm, candidates)
    assert is_descent is wanted
    assert ("; nearer is the task's bayes (0.1 %" in verdict) is not wanted


@pytest.mark.slow
def test_a_guess_that_is_asked_for_is_measured_beside_a_closed_form():
  report = probe(biased(), TASK, only=['guess'], **FEW)
  assert report.guess is not None
  assert report.guess.prediction.r2 == pytest.approx(1, abs=1e-6)
  assert report.failures == {}
