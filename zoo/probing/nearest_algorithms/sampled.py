"""The algorithms nearest to any regression predictor, from sampled predictions.

For a prompt with `S = XᵀX/C` and `r = Xᵀy/C`, and a start w_0, these are

    a step            w = w_0 + η (r − S w_0)
    a matrix step     w = w_0 + Γ (r − S w_0)
    ridge regression  w = w_0 + (S + λ/C)⁻¹ (r − S w_0)

and the prediction is w·x_q. For a given η, λ or Γ it is affine in w_0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count, in_one_line
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.estimators.baselines import Baseline, distinct
from zoo.measure.comparison import affordable
from zoo.measure.predict import BATCH_SIZE, Programs, at_query, gather, sample_batches
from zoo.measure.statistics import Estimate, estimate
from zoo.probing.context import effect_of_numbers, share_of_effect, with_others
from zoo.probing.nearest_algorithms.guesses import distance_to_mean
from zoo.tasks.base import is_squared
from zoo.theory.search import lowest_point

# If the slope of predictions in w_0 is below this share of the query's length, float32
# predictions do not determine w_0 to two digits.
_LEAST_SLOPE = 1e-3
_NUM_SLOW_PROMPTS = 512  # for slow baselines


@dataclasses.dataclass(frozen=True)
class Nearest:
  """An algorithm fitted to half of the prompts, and measured on the other half."""

  parameter: float | Float[np.ndarray, 'd d']  # η, Γ or λ
  start: Float[np.ndarray, ' d'] | None  # w_0; None if hardly determined
  distance: float | None  # |w_0 − w*|; None without w_0 or a prior mean w*
  difference: Estimate  # E (f − g)² of the predictor f and the algorithm g
  # `difference` divided by E Var(f | x_q), the effect of the context; None for a
  # predictor that ignores its context, of which there is nothing to explain.
  unexplained: Estimate | None
  risk: Estimate  # of the algorithm: E (g − y_q)²


@dataclasses.dataclass(frozen=True)
class SampledAlgorithm:
  """The algorithms nearest to a predictor, by mean squared difference."""

  num_prompts: int  # one half for the fits, the other for the measurements
  risk: Estimate  # of the predictor, on the prompts for the measurements
  nearest_gd: Nearest  # one step of size η
  nearest_gd_beta: Nearest  # one step with the matrix Γ
  nearest_ridge: Nearest  # with the penalty λ


class _Samples(NamedTuple):
  prediction: Float[np.ndarray, ' p']
  target: Float[np.ndarray, ' p']
  query: Float[np.ndarray, 'p d']  # x_q
  features: Float[np.ndarray, 'p d d']  # S
  labels: Float[np.ndarray, 'p d']  # r


# From a parameter to the predictions for w_0 = 0, and their derivative in w_0.
_Family = Callable[[float], tuple[Float[np.ndarray, ' p'], Float[np.ndarray, 'p d']]]


def sampled_algorithm(
  subject: Predictor, task: Task, num_prompts: int = 16384, seed: int = 0
) -> SampledAlgorithm:
  """The steps of gradient descent and the ridge regression nearest to any predictor.

  - Quantity: `unexplained`, E (f − g)² / E Var(f | x_q) for predictions f and those g
    of the nearest algorithm of a family, over prompts that it was not fitted to.
  - Null: 1 or more for a model that does not use the labels of its context; None for
    one that ignores its context.
  - Counterfactual: another context of the same query, `task.redraw(keep='query')`.
  - Denominator: the effect of the context, E Var(f | x_q).

  The task must have labels that are numbers, and the squared error. Raises UserError
  for other tasks, for one that does not say how its prompts are drawn again, and for
  fewer than 4 (d² + d) prompts.
  """
  check_numbers(task)
  d = task.num_features
  num_prompts = check_count('num_prompts', num_prompts, minimum=least_prompts(d))
  programs = Programs()

  def predict(prompt: Prompt) -> Float[Array, ' b']:
    return programs.run(at_query, [subject], prompt)[0]

  prompts = sample_batches(task, seed, num_prompts, BATCH_SIZE)
  samples, other = gather(
    lambda pair: (_sample(pair[0], predict(pair[0])), predict(*pair[1])),
    with_others(task, prompts, seed),
  )
  other = other.astype(np.float64)
  half, c = num_prompts // 2, task.context_length
  fitted, measured = (
    jax.tree.map(lambda array, part=part: array[part], samples)
    for part in (slice(half), slice(half, None))
  )
  step, of_step = _nearest_step(fitted)
  penalty, of_ridge = _nearest_penalty(fitted, c)
  matrix, of_matrix = _nearest_matrix(fitted, step * np.eye(d), of_step)
  effect = effect_of_numbers(measured.prediction, other[half:])

  def measure(
    parameter: Any, start: np.ndarray, prediction: np.ndarray, slope: np.ndarray
  ) -> Nearest:
    matters = np.linalg.norm(slope) > _LEAST_SLOPE * np.linalg.norm(measured.query)
    difference = np.square(measured.prediction - prediction - slope @ start)
    return Nearest(
      parameter,
      start if matters else None,
      distance_to_mean(start, task) if matters else None,
      estimate(difference),
      share_of_effect(difference, effect, measured.prediction),
      estimate(np.square(prediction + slope @ start - measured.target)),
    )

  return SampledAlgorithm(
    num_prompts,
    risk=estimate(np.square(measured.prediction - measured.target)),
    nearest_gd=measure(step, of_step, *_steps(measured)(step)),
    nearest_gd_beta=measure(matrix, of_matrix, *_matrix_step(measured, matrix)),
    nearest_ridge=measure(penalty, of_ridge, *_ridges(measured, c)(penalty)),
  )


def baseline_shares(
  subject: Predictor, task: Task, num_prompts: int = 16384, seed: int = 0
) -> dict[str, Estimate | None]:
  """What the baselines of a task leave unexplained of the effect of the context.

  That is `unexplained` of `Nearest`, here of algorithms to which nothing is fitted, on
  the prompts on which `sampled_algorithm` measures. Equal baselines are one entry, such
  as `ols, bayes`; those of other libraries are left out, and so is one that fails, with
  a warning. Large tasks and slow baselines get fewer prompts. Raises UserError as
  `sampled_algorithm` does.
  """
  check_numbers(task)
  half = max(min(num_prompts, affordable(task)) // 2, 2)
  programs = Programs()
  arguments = task, seed, 2 * half, min(BATCH_SIZE, half), programs

  def predict(prompt: Prompt) -> Float[Array, ' b']:
    return programs.run(at_query, [subject], prompt)[0]

  own, other = gather(
    lambda pair: (predict(pair[0]), predict(*pair[1])),
    with_others(task, sample_batches(*arguments), seed),
  )
  own, other = own.astype(np.float64), other.astype(np.float64)
  effect = effect_of_numbers(own, other)
  shares: dict[str, Estimate | None] = {}
  for name, baseline in distinct(task.baselines()).items():
    prompts, at = sample_batches(*arguments), slice(half, None)
    if isinstance(baseline, Baseline) and baseline.is_slow:
      *_, last = prompts
      prompts = [jax.tree.map(lambda array: array[:_NUM_SLOW_PROMPTS], last)]
      start = len(own) - len(last.y_query)
      at = slice(start, start + _NUM_SLOW_PROMPTS)
    try:
      theirs = gather(
        lambda prompt, of=baseline: programs.run(at_query, [of], prompt)[0], prompts
      )
    except Exception as error:  # a user's baseline may raise anything
      reason = in_one_line(error, 200)
      is_own = not isinstance(error, UserError)  # then the traceback says where
      logging.warning(
        'the baseline %s is not compared: %s', name, reason, exc_info=is_own
      )
      continue
    gap = np.square(own[at] - theirs.astype(np.float64)[-len(own[at]) :])
    shares[name] = share_of_effect(gap, effect[at], own[at])
  return shares


def check_numbers(task: Task) -> None:
  """Raises UserError unless labels are numbers, with the squared error."""
  if task.num_outputs != 1 or not is_squared(task):
    raise UserError(
      f'the task is of type {type(task).__name__}; a nearest step needs labels that '
      'are numbers, and the squared error'
    )


def least_prompts(num_features: int) -> int:
  """The least number of prompts for `sampled_algorithm`, 4 (d² + d).

  Each half then has twice as many prompts as w_0 and Γ have entries.
  """
  return 4 * num_features * (num_features + 1)


def _sample(prompt: Prompt, predictions: Float[Array, ' b']) -> _Samples:
  x, y, query, target, prediction = (
    np.asarray(array, np.float64)
    for array in (prompt.x, prompt.y, prompt.x_query, prompt.y_query, predictions)
  )
  c = x.shape[1]
  features, labels = np.einsum('pci,pcj->pij', x, x), np.einsum('pci,pc->pi', x, y)
  return _Samples(prediction, target, query, features / c, labels / c)


def _steps(samples: _Samples) -> _Family:
  """The predictions of steps of gradient descent, by η."""
  along = np.sum(samples.labels * samples.query, axis=1)
  moved = _times(samples.features, samples.query)
  return lambda step: (step * along, samples.query - step * moved)


def _ridges(samples: _Samples, c: int) -> _Family:
  """The predictions of ridge regression on c examples, by λ."""
  values, vectors = np.linalg.eigh(samples.features)
  values = values.clip(0)
  turn = np.swapaxes(vectors, 1, 2)
  query, labels = _times(turn, samples.query), _times(turn, samples.labels)

  def predict(penalty: float) -> tuple[np.ndarray, np.ndarray]:
    shrunk = query / (values + penalty / c)
    slope = penalty / c * shrunk
    return np.sum(shrunk * labels, axis=1), _times(vectors, slope)

  return predict


def _matrix_step(
  samples: _Samples, matrix: Float[np.ndarray, 'd d']
) -> tuple[Float[np.ndarray, ' p'], Float[np.ndarray, 'p d']]:
  """The predictions of a step with the matrix Γ, in the form of a `_Family`."""
  back = samples.query @ matrix
  slope = samples.query - _times(samples.features, back)
  return np.sum(samples.labels * back, axis=1), slope


def _nearest_step(samples: _Samples) -> tuple[float, Float[np.ndarray, ' d']]:
  """(η, w_0), by a search over η in an interval that must contain the best one.

  If the part of the prediction that is linear in S x_q were free, the mean square would
  be a parabola in η, which is a lower bound.
  """
  family = _steps(samples)
  along, minus_moved = family(1.0)[0], family(1.0)[1] - samples.query
  free = np.concatenate([samples.query, minus_moved], axis=1)
  rest, left = (
    values - free @ _least_squares(free, values)
    for values in (along, samples.prediction)
  )
  curvature = np.mean(rest**2)
  if not curvature > 0:  # the labels are all 0
    return 0.0, _least_squares(samples.query, samples.prediction)
  middle = float(np.mean(rest * left) / curvature)
  lowest = np.mean((left - middle * rest) ** 2)
  above = max(_profile(samples, family, middle)[0] - lowest, 0.0)
  grid = middle + np.sqrt(above / curvature) * np.linspace(-1, 1, 41)
  step = lowest_point(lambda step: _profile(samples, family, step)[0], grid)
  return step, _profile(samples, family, step)[1]


def _nearest_penalty(
  samples: _Samples, c: int
) -> tuple[float, Float[np.ndarray, ' d']]:
  """(λ, w_0), with λ searched from 10⁻⁸ to 10⁴ times the mean eigenvalue of XᵀX."""
  family = _ridges(samples, c)
  mean = c * np.trace(samples.features, axis1=1, axis2=2).mean()
  scale = mean / samples.query.shape[1] or 1.0
  grid = np.log(scale) + np.log(10) * np.linspace(-8, 4, 49)
  log_penalty = lowest_point(
    lambda log: _profile(samples, family, np.exp(log))[0], grid
  )
  return float(np.exp(log_penalty)), _profile(samples, family, np.exp(log_penalty))[1]


def _profile(
  samples: _Samples, family: _Family, parameter: float
) -> tuple[float, Float[np.ndarray, ' d']]:
  """The least mean squared difference for a parameter, and the w_0 that attains it."""
  prediction, slope = family(parameter)
  left = samples.prediction - prediction
  scale = float(np.linalg.norm(samples.query))
  start = _least_squares(slope, left, _LEAST_SLOPE * scale)
  return float(np.mean((left - slope @ start) ** 2)), start


def _nearest_matrix(
  samples: _Samples, matrix: Float[np.ndarray, 'd d'], start: Float[np.ndarray, ' d']
) -> tuple[Float[np.ndarray, 'd d'], Float[np.ndarray, ' d']]:
  """(Γ, w_0) by the method of Levenberg and Marquardt, from given values."""
  import scipy.optimize  # slow to import, and rarely needed

  d = len(start)

  def excess(values: Float[np.ndarray, ' n']) -> Float[np.ndarray, ' p']:
    prediction, slope = _matrix_step(samples, values[d:].reshape(d, d))
    return prediction + slope @ values[:d] - samples.prediction

  def slopes(values: Float[np.ndarray, ' n']) -> Float[np.ndarray, 'p n']:
    _, by_start = _matrix_step(samples, values[d:].reshape(d, d))
    residual = samples.labels - samples.features @ values[:d]
    by_matrix = samples.query[:, :, None] * residual[:, None]
    return np.concatenate([by_start, by_matrix.reshape(-1, d * d)], axis=1)

  solve: Any = scipy.optimize.least_squares  # whose types know no function as `jac`
  least = dict.fromkeys(('xtol', 'ftol', 'gtol'), 1e-14)
  begin = np.append(start, matrix)
  solution = solve(excess, begin, slopes, method='lm', max_nfev=100, **least)
  return solution.x[d:].reshape(d, d), solution.x[:d]


def _times(
  matrices: Float[np.ndarray, 'p i j'], vectors: Float[np.ndarray, 'p j']
) -> Float[np.ndarray, 'p i']:
  return np.matmul(matrices, vectors[..., None])[..., 0]


def _least_squares(
  inputs: Float[np.ndarray, 'p m'], targets: Float[np.ndarray, ' p'], least: float = 0.0
) -> Float[np.ndarray, ' m']:
  """The least-squares weights; 0 in directions with a norm of at most `least`."""
  values, vectors = np.linalg.eigh(inputs.T @ inputs)
  # The normal equations square the condition number.
  least = max(least**2, 1e-13 * float(values.max()))
  inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > least)
  return vectors @ (inverse * (vectors.T @ (inputs.T @ targets)))
