"""How long the initial guess takes to be learned."""

import math

import numpy as np
from flax import nnx

from zoo.core.errors import UserError, check_number
from zoo.core.protocols import Predictor, Task
from zoo.estimators.linear_prior import feature_variance
from zoo.models import LTB, YqLSA
from zoo.tasks.linear_regression import require_covered
from zoo.theory.precision import double_precision, in_float64


def guess_time(model: Predictor | nnx.Module, task: Task, share: float = 0.5) -> float:
  """Returns the time at which a flow's guess has learned a share of the prior mean.

  It is a law for small weights, which the flow approaches as their scale s → 0. With
  `Σ = ςI`, and while the attention has not been learned, the guess g of yq-LSA follows
  `dg/dt = 2ς(w* − g)`, whatever the scale of the other weights. The guess of LTB
  is a product of two layers, `g = Bᵀa`, where a and B are columns of W_2 and W_1. From
  small values it grows as `p(t) w*/|w*|` with

      dp/dt = 4ς p (|w*| − p),    p(0) = |a + B w*/|w*||²/4,

  so that the time grows as log 1/s, and falls as `1/|w*|`. The share is that of the
  guess along w*.

  Args:
    model: A `YqLSA` or an `LTB`, at the start of the flow.
    task: A `linear_regression` with w* ≠ 0, whose feature covariance is a multiple of
      the identity.
    share: The share of the prior mean, between 0 and 1 (both excluded).

  Returns:
    The time, in the units of `gradient_flow`.

  Raises:
    UserError: If the theory does not cover the task, the model is of another class, w*
      is 0, `share` is out of its range, the guess of the model does not begin below the
      share, or the guess of an LTB begins at 0.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, prior_mean=1.0
    ... )
    >>> model = zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))
    >>> round(zoo.theory.dynamics.guess_time(model, task), 4)
    0.3466

  References:
    docs/dynamics.md, section 3.
  """
  task = require_covered(task)
  share = check_number('share', share)
  length = float(np.linalg.norm(task.mean_weights()))
  if not 0 < share < 1:
    raise UserError(f'share is {share:g}; it must be between 0 and 1')
  rate = feature_variance(task, 'the time of the guess')
  if length == 0:
    raise UserError('prior_mean is 0; there is no guess to learn')
  odds = share / (1 - share)
  if isinstance(model, YqLSA):
    with double_precision():
      start = np.asarray(in_float64(model).w[...]) @ task.mean_weights() / length
    if start >= share * length:
      raise UserError(
        f'the guess of the model begins at {start / length:.3g} of the prior mean; it '
        f'must begin below the share {share:g}'
      )
    return math.log((length - start) / (length * (1 - share))) / (2 * rate)
  if not isinstance(model, LTB):
    raise UserError(
      f'the model is a {type(model).__name__}; only YqLSA and LTB train their guess'
    )
  with double_precision():
    weights = in_float64(model)
    first, second = np.asarray(weights.w_1[...]), np.asarray(weights.w_2[...])
  sum_of_layers = second[:, -1] + first[:, :-1] @ (task.mean_weights() / length)
  p = sum_of_layers @ sum_of_layers / 4
  if not 0 < p < share * length:
    raise UserError(
      f'the guess of the model begins at {p / length:.3g} of the prior mean; it must '
      f'begin above 0 and below the share {share:g}'
    )
  return math.log(odds * (length - p) / p) / (4 * rate * length)
