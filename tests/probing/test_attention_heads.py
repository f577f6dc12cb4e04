"""Heads: against models that are made without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests import weights
from tests.compare import refuses
from tests.compiled import predict
from tests.probing.models import Softmax, biased
from tests.settings import general, isotropic
from zoo import theory
from zoo.probing import heads, prune

_TASK = general(noise_std=0.7)


def test_pruning_leaves_the_model_that_has_the_other_heads():
  model = biased()
  measured, risk = heads(model, _TASK), theory.exact_risk(model, _TASK)
  for head in range(2):
    smaller = biased(num_heads=1)
    for name in ('w_p', 'w_v', 'w_k', 'w_q'):
      others = np.delete(np.asarray(getattr(model, name)[...]), head, axis=0)
      getattr(smaller, name)[...] = jnp.asarray(others)
    cost = theory.exact_risk(smaller, _TASK) - risk
    assert measured[head].pruning_cost == pytest.approx(cost, rel=1e-9)
    gap = theory.squared_difference(prune(model, [head]), smaller, _TASK)
    assert gap.prediction == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_value_and_form_are_the_products_of_the_matrices():
  model = biased()
  pairs = zip(heads(model, _TASK), weights.heads(model), strict=True)
  for head, (w_p, w_v, w_k, w_q) in pairs:
    np.testing.assert_allclose(head.value, (w_p @ w_v)[-1], rtol=1e-12)
    np.testing.assert_allclose(head.form, w_k.T @ w_q, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_shares_sum_to_1_and_are_those_of_samples():
  task = isotropic(3, 4, prior_mean=0.5)
  model = biased(num_heads=3)
  shares = np.array([head.share for head in heads(model, task)], float)
  assert sum(shares) == pytest.approx(1, rel=1e-12)
  num_prompts = 100_000
  prompt = task.sample(jax.random.key(0), num_prompts)
  guess = np.asarray(predict(prune(model, [0, 1, 2]), prompt))
  alone = [
    np.asarray(predict(prune(model, [h for h in range(3) if h != head]), prompt))
    - guess
    for head in range(3)
  ]
  together = np.asarray(predict(model, prompt)) - guess
  for head in range(3):
    # The error of a ratio of means, to first order.
    ratio = np.mean(alone[head] * together) / np.mean(together**2)
    spread = np.std(alone[head] * together - ratio * together**2)
    stderr = spread / np.mean(together**2) / num_prompts**0.5
    assert abs(shares[head] - ratio) < 4 * stderr


@pytest.mark.slow
def test_heads_that_do_nothing_have_no_share():
  measured = heads(prune(biased(), [0, 1]), _TASK)
  assert [head.share for head in measured] == [None, None]
  assert [head.pruning_cost for head in measured] == [0, 0]


@pytest.mark.slow
def test_heads_that_cancel_one_another_have_no_share():
  model = biased()
  for name in ('w_p', 'w_v', 'w_k', 'w_q'):
    matrices = getattr(model, name)
    sign = -1 - 1e-7 if name == 'w_p' else 1
    matrices[...] = jnp.stack([matrices[0], sign * matrices[0]])
  assert [head.share for head in heads(model, _TASK)] == [None, None]


def test_mistakes_are_named():
  with refuses('head 2 cannot be pruned', 'from 0 to 1'):
    prune(biased(), [2])
  for other in Softmax(3), zoo.estimators.bayes(isotropic(3, 4)):
    with refuses('no separable heads'):
      heads(other, isotropic(3, 4))
