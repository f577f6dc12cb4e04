"""Risks of two predictors on the same prompts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.probing.models import assert_within
from tests.settings import isotropic
from tests.wrapped import Wrapped
from zoo import estimators, probing, theory
from zoo.core.learning_rule import LearningRule
from zoo.measure.predict import LOSS_BATCH_SIZE, sample_batches


def test_a_risk_is_sampled_on_the_very_prompts_and_exact_where_theory_covers_them():
  task = isotropic(3, 4, prior_mean=0.5, noise_std=0.3)
  subject = LearningRule.gradient_descent(jnp.zeros(3), 0.4)
  other = estimators.gradient_descent(task)
  risks = probing.risks(subject, other, task, num_prompts=3000)
  batches = [*sample_batches(task, 0, 3000, LOSS_BATCH_SIZE)]
  prompt = jax.tree.map(lambda *arrays: np.concatenate(arrays), *batches)
  x, y, x_query, target = (
    np.asarray(getattr(prompt, field), np.float64)
    for field in ('x', 'y', 'x_query', 'y_query')
  )
  step = 0.4 * np.einsum('bc,bci->bi', y, x) / 4
  errors = (np.sum(step * x_query, axis=1) - target) ** 2
  assert risks.risk.mean == pytest.approx(errors.mean(), rel=1e-5)  # float32 there
  stderr = errors.std() / np.sqrt(len(errors) - 1)
  assert risks.risk.stderr == pytest.approx(stderr, rel=1e-4)
  assert risks.risk_difference.mean == pytest.approx(
    risks.risk.mean - risks.other_risk.mean, abs=1e-6
  )
  assert risks.exact_risk == pytest.approx(theory.exact_risk(subject, task))
  assert risks.other_exact_risk == pytest.approx(theory.exact_risk(other, task))
  assert_within(risks.risk, risks.exact_risk)
  assert_within(risks.other_risk, risks.other_exact_risk)
  assert risks.optimal_risk == pytest.approx(risks.other_exact_risk)
  unknown = probing.risks(subject, other, Wrapped(task), num_prompts=3000)
  assert (unknown.risk, unknown.other_risk) == (risks.risk, risks.other_risk)
  exact = unknown.exact_risk, unknown.other_exact_risk, unknown.optimal_risk
  assert exact == (None, None, None)


@pytest.mark.slow
def test_a_loss_is_one_number_wherever_it_is_asked_for():
  task = isotropic(2, 3, noise_std=0.3)
  step = estimators.gradient_descent(task)
  report = probing.probe(step, task, num_prompts=600, only=['risks', 'comparison'])
  assert report.risks is not None
  assert report.comparison is not None
  loss = report.risks.risk.mean
  # One of the programs predicts all examples at once, in float32.
  assert report.comparison['model']['mean'][-1] == pytest.approx(loss, rel=1e-5)
  assert zoo.curve(step, task, 600).mean[-1] == pytest.approx(loss, rel=1e-5)


def test_prompts_with_other_features_are_refused():
  model = zoo.create_model('yq_lsa', num_features=3, rngs=nnx.Rngs(0))
  with refuses('is for 3 features; the prompt has 5'):
    probing.risks(model, model, isotropic(5, 4), num_prompts=10)


_zero: Any = lambda *_: 0.0  # noqa: E731
_OF_A_TASK: dict[str, Any] = {
  'algorithm': probing.sampled_algorithm,
  'alignment': lambda model, task: probing.alignment(model, model, task),
  'baselines': lambda model, task: probing.baselines_of(task),
  'circuit': probing.circuit,
  'null models': lambda model, task: probing.null_models(task),
  'report': probing.probe,
  'risks': lambda model, task: probing.risks(model, model, task),
  'guess': probing.learned_guess,
  'lens': probing.lens,
  'algorithms': probing.algorithms,
  'strategies': lambda model, task: probing.strategies(model, task, {'a': model}),
  'latents': probing.probe_latents,
  'task vectors': probing.task_vectors,
  'instrument': lambda model, task: zoo.check_instrument(_zero, task),
}


@pytest.mark.parametrize('name', _OF_A_TASK)
def test_a_model_in_the_place_of_a_task_is_one_line(name, unchecked):
  model = zoo.models.YqLSA(3, rngs=nnx.Rngs(0))
  with refuses('YqLSA is not a task'):
    _OF_A_TASK[name](isotropic(3, 4), model)
