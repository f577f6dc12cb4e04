"""The paper's setting in short names, as the calls of the claims table use them."""

from typing import Any

import numpy as np
from jaxtyping import Float

import zoo
from zoo import estimators as estimators
from zoo import theory as theory
from zoo.models import LTB, YqLSA
from zoo.theory import constructions as constructions

NUM_FEATURES = 10
CONTEXT_LENGTH = 10
PRIOR_MEAN = 2.0  # of each weight


def task(c: int = CONTEXT_LENGTH, mean: float = PRIOR_MEAN, **other: Any) -> Any:
  """Linear regression with d = 10 features and C examples (arXiv 2512.04268, Table 1).

  `mean` is that of each of the weights.
  """
  return zoo.create_task(
    'linear_regression',
    num_features=NUM_FEATURES,
    context_length=c,
    prior_mean=mean,
    **other,
  )


def transformer(step_size: float) -> YqLSA:
  """The GD transformer of eq. 7, corrected, that starts from the prior mean."""
  return constructions.gd_transformer(task().prior_mean, step_size)


def stretched(ratio: float) -> Float[np.ndarray, 'd d']:
  """A feature covariance of trace d, variances in geometric progression.

  `ratio` is the largest over the smallest.
  """
  variances = np.geomspace(1, ratio, NUM_FEATURES)
  return np.diag(variances * NUM_FEATURES / variances.sum())


def gd_risk(subject: Any) -> float:
  """The exact risk of one step of gradient descent with the best step on a task."""
  return float(theory.exact_risk(estimators.gradient_descent(subject), subject))


def best_risk(subject: Any, guess: float | None = 0.0, bias: float = 0.0) -> float:
  """The infimum of the risk of multi-head LSA with a fixed guess, heads enough.

  With the guess None, which leaves it free, that of yq-LSA and of LTB.
  """
  return float(theory.exact_risk(theory.optimal_rule(subject, guess, bias), subject))


def label_blind() -> LTB:
  """The LTB of the paper's proof of Lemma 3, which has `Xw` in place of the labels."""
  block = constructions.ltb_from_yq_lsa(transformer(10 / 21))
  guess_for_label = np.eye(NUM_FEATURES + 1, dtype=block.w_k.dtype)
  guess_for_label[-1] = np.append(task().prior_mean, 0)
  block.w_k[...] = block.w_k[...] @ guess_for_label
  block.w_v[...] = block.w_v[...] @ guess_for_label
  return block
