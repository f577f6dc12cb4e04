"""The algorithms nearest to any regression predictor, from sampled predictions.

For a prompt with `S = XᵀX/C` and `r = Xᵀy/C`, and a start w_0, these are

    a step            w = w_0 + η (r − S w_0)
    a matrix step     w = w_0 + Γ (r − S w_0)
    ridge regression  w = w_0 + (S + λ/C)⁻¹ (r − S w_0)

and the prediction is w·x_q. For a given η, λ or Γ the prediction is affine in w_0, so
that the best w_0 is a linear least-squares problem.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from zoo.core.draws import REDRAW_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.tables import format_table
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import BATCH_SIZE, Programs, at_query, gather, sample_batches
from zoo.measure.table import name_of_half, plus_minus
from zoo.probing.checks import check_finite
from zoo.probing.nearest.candidates import Candidates, check_numbers
from zoo.probing.nearest.context import (
  PER_NUMBER,
  ignores_context,
  ignores_labels,
  share_of_variation,
  variation_of_numbers,
  with_others,
)
from zoo.probing.nearest.guess import distance_to_mean
from zoo.theory.search import lowest_point

# If the slope of the predictions in w_0 is below this share of the length of the query,
# float32 predictions do not determine w_0 to two digits.
_LEAST_SLOPE = 1e-3
_LEAST_PROMPTS = 2048  # With fewer, mean ± half is far too narrow.
# The fitted steps have these names among the candidates.
GD = 'one step of gradient descent'
GD_BETA = 'one step with a matrix (GD-β)'


def is_a_step(name: str) -> bool:
  """Returns whether a candidate is a step of gradient descent, and no rival of one."""
  return name in (GD, GD_BETA) or not {'gd', 'gd_beta'}.isdisjoint(name.split(', '))


@dataclasses.dataclass(frozen=True)
class FittedAlgorithm:
  """An algorithm fitted to half of the prompts, and measured on all of them.

  `sampled_algorithm` returns it, as the fields of a `SampledAlgorithm`. On the half of
  the fit the algorithm is nearer than the best one of its family, and on the other half
  it is farther, to the first order by the same amount. So the mean over all prompts
  says how near the best one is.

  Attributes:
    parameter: The step size η, the matrix Γ, or the penalty λ. A λ is searched from
      10⁻⁸ to 10⁴ times the mean eigenvalue of XᵀX. A λ at an end of this range says
      that least squares, or the prediction w_0·x_q, is at least as near as any ridge
      regression.
    start: The start w_0, `[d]`. None if the predictions hardly determine it.
    start_distance: `|w_0 − w*|` from the prior mean w*. None without w_0, or for a task
      without a prior mean.
    difference: E (f − g)² for the predictions f of the predictor and g of the
      algorithm.
    unexplained: `difference` divided by the variation over contexts, E Var(f | x_q).
      None for a predictor that ignores its context, or the labels of its context.
    unexplained_of_labels: `E ((f − f') − (g − g'))² / E (f − f')²`, where f' and g' are
      predictions for the same inputs with the labels of another function. None for a
      predictor that ignores the labels of its context, and for a task that does not
      draw other labels for the same inputs.
    risk: The loss of the algorithm, E (g − y_q)².
  """

  parameter: float | Float[np.ndarray, 'd d']
  start: Float[np.ndarray, ' d'] | None
  start_distance: float | None
  difference: Estimate
  unexplained: Estimate | None
  unexplained_of_labels: Estimate | None
  risk: Estimate


@dataclasses.dataclass(frozen=True)
class SampledAlgorithm:
  """The algorithms nearest to a predictor, by mean squared difference.

  `sampled_algorithm` returns it. It prints as a table.

  Attributes:
    num_prompts: The number of prompts, half of which are for the fits.
    risk: The loss of the predictor.
    ignores_labels: Whether the predictions depend on the context, and yet are the same
      with labels of other prompts. No algorithm that learns from labels then explains
      the predictor.
    nearest_gd: One step of gradient descent of size η.
    nearest_gd_beta: One step with the matrix Γ in place of η. None if there are fewer
      than 32 (d² + d) prompts for d features.
    nearest_ridge: Ridge regression with the penalty λ.
  """

  num_prompts: int
  risk: Estimate
  ignores_labels: bool
  nearest_gd: FittedAlgorithm
  nearest_gd_beta: FittedAlgorithm | None
  nearest_ridge: FittedAlgorithm

  def __str__(self) -> str:
    rows = [
      [name, fitted, plus_minus(nearest.unexplained), plus_minus(nearest.risk)]
      for name, fitted, nearest in (
        ('gd', f'η = {self.nearest_gd.parameter:.4g}', self.nearest_gd),
        ('gd_beta', 'Γ', self.nearest_gd_beta),
        ('ridge', f'λ = {self.nearest_ridge.parameter:.4g}', self.nearest_ridge),
      )
      if nearest is not None
    ]
    rows.append(['this predictor', '', '', plus_minus(self.risk)])
    loss = f'loss {name_of_half(self.num_prompts)}'
    header = 'nearest', 'fitted', 'unexplained ± t·s.e.', loss
    return format_table(rows, header)


class _Samples(NamedTuple):
  """Sampled prompts with predictions, in the symbols of this module.

  Attributes:
    prediction: The predictions of the predictor.
    target: The targets y_q.
    query: The features x_q of the queries.
    features: S.
    labels: r.
  """

  prediction: Float[np.ndarray, ' p']
  target: Float[np.ndarray, ' p']
  query: Float[np.ndarray, 'p d']
  features: Float[np.ndarray, 'p d d']
  labels: Float[np.ndarray, 'p d']


class _Drawn(NamedTuple):
  """What is measured of a predictor on sampled prompts.

  Attributes:
    samples: The prompts, with predictions.
    relabelled: The same prompts with labels of other functions. None for a task that
      does not draw them.
    variation: A number for each prompt, whose mean is the variation over contexts.
    ignores_labels: Whether the predictions do not depend on labels.
    ignores_context: Whether they do not depend on the context, up to rounding.
  """

  samples: _Samples
  relabelled: _Samples | None
  variation: Float[np.ndarray, ' p']
  ignores_labels: bool
  ignores_context: bool


# A family takes a parameter, and returns the predictions for w_0 = 0, and the
# derivatives of the predictions in w_0.
_Family = Callable[[float], tuple[Float[np.ndarray, ' p'], Float[np.ndarray, 'p d']]]
# An algorithm takes samples, and returns the same for its parameter.
_ForSamples = Callable[
  [_Samples], tuple[Float[np.ndarray, ' p'], Float[np.ndarray, 'p d']]
]


def sampled_algorithm(
  subject: Predictor, task: Task, num_prompts: int = 16384, seed: int = 0
) -> SampledAlgorithm:
  """Finds the nearest steps of gradient descent and the nearest ridge regression.

  It needs only predictions, so that the predictor may be any function of prompts. For a
  model that has a learning rule, `implicit_algorithm` gives closed forms.

  - Quantity: `unexplained`, E (f − g)² / E Var(f | x_q) for predictions f and those g
    of the nearest algorithm of a family, over prompts half of which it was fitted to.
  - Null: None for a model that ignores its context, or the labels of its context. Any
    other model has a number, also a model that runs no such algorithm. With a share
    above 1, the algorithm is farther from the model than the best function of the query
    alone.
  - Counterfactual: another context of the same query, `task.redraw(keep='query')`.
  - Denominator: the variation over contexts, E Var(f | x_q).

  Args:
    subject: A model or any other function of prompts.
    task: A task whose labels are numbers, with the squared error.
    num_prompts: The number of prompts, at least 2048 and at least 32 (d + 1) for d
      features. Half of them are for the fits. A step with a matrix is fitted to 32 (d²
      + d) prompts or more. Squared differences have heavy tails, so that `unexplained`
      ± half is not called a 95 % interval. For two steps of gradient descent with
      d = 3 and 2, 5 and 6 examples it contains the truth in 0.80, 0.86 and 0.89 of
      draws of 2048 prompts, and in 0.92 to 0.94 of draws of 16,384.
    seed: The seed of the prompts.

  Returns:
    The nearest algorithm of each family.

  Raises:
    UserError: If the task is not covered, or if there are too few prompts.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> found = zoo.probing.sampled_algorithm(step, task, num_prompts=2048)
    >>> print(found)
    nearest           fitted  unexplained ± t·s.e.    loss ± 95 %
    gd               η = 0.5         0.000 ± 0.000  0.928 ± 0.113
    gd_beta                Γ         0.000 ± 0.000  0.928 ± 0.113
    ridge           λ = 2.79         0.175 ± 0.054  0.658 ± 0.079
    this predictor                                  0.928 ± 0.113
  """
  return fit_algorithms(subject, task, num_prompts, seed)[0]


def fit_algorithms(
  subject: Predictor, task: Task, num_prompts: int, seed: int
) -> tuple[SampledAlgorithm, Candidates]:
  """Returns what `sampled_algorithm` does, and the algorithms as candidates."""
  require_task(task)
  check_numbers(task)
  least = least_prompts(task.num_features)
  num_prompts = check_count('num_prompts', num_prompts, minimum=least)
  return _fit(_draw(subject, task, num_prompts, seed), task)


def _fit(drawn: _Drawn, task: Task) -> tuple[SampledAlgorithm, Candidates]:
  """Fits the algorithms to half of the prompts, and measures them on all."""
  samples, c = drawn.samples, task.context_length
  num_prompts = len(samples.prediction)
  fitted = jax.tree.map(lambda array: array[num_prompts // 2 :], samples)
  step, of_step = _nearest_step(fitted)
  penalty, of_ridge = _nearest_penalty(fitted, c)
  gd, gd_gap = _measure(
    drawn, task, step, of_step, lambda samples: _steps(samples)(step)
  )
  ridge, ridge_gap = _measure(
    drawn, task, penalty, of_ridge, lambda samples: _ridges(samples, c)(penalty)
  )
  gaps = {GD: gd_gap, f'ridge regression with λ = {penalty:.3g}': ridge_gap}
  gd_beta, d = None, len(of_step)
  if num_prompts >= PER_NUMBER * d * (d + 1):
    matrix, of_matrix = _nearest_matrix(fitted, step * np.eye(d), of_step)
    gd_beta, gaps[GD_BETA] = _measure(
      drawn, task, matrix, of_matrix, lambda samples: _matrix_step(samples, matrix)
    )
  found = SampledAlgorithm(
    num_prompts,
    risk=estimate(np.square(samples.prediction - samples.target)),
    ignores_labels=drawn.ignores_labels and not drawn.ignores_context,
    nearest_gd=gd,
    nearest_gd_beta=gd_beta,
    nearest_ridge=ridge,
  )
  has_none = drawn.ignores_labels or drawn.ignores_context
  return found, Candidates({} if has_none else gaps, drawn.variation)


def _draw(subject: Predictor, task: Task, num_prompts: int, seed: int) -> _Drawn:
  """Returns prompts with predictions, and with those for other contexts and labels."""
  programs = Programs()

  def predict(prompt: Prompt) -> Float[Array, ' b']:
    return programs.run(at_query, [subject], prompt)[0]

  prompts = [*sample_batches(task, seed, num_prompts, BATCH_SIZE)]
  samples, other = gather(
    lambda pair: (_sample(pair[0], predict(pair[0])), predict(*pair[1])),
    with_others(task, prompts, seed),
  )
  check_finite('the model', samples.prediction, other)
  variation = variation_of_numbers(samples.prediction, other.astype(np.float64))
  return _Drawn(
    samples,
    _relabelled(predict, task, prompts, seed),
    variation,
    ignores_labels=ignores_labels(predict, prompts[0]),
    ignores_context=ignores_context(variation, samples.prediction),
  )


def _measure(
  drawn: _Drawn,
  task: Task,
  parameter: Any,
  start: Float[np.ndarray, ' d'],
  predict_for: _ForSamples,
) -> tuple[FittedAlgorithm, Float[np.ndarray, ' p']]:
  """Returns a fitted algorithm, and its squared difference from each prediction."""
  samples, again = drawn.samples, drawn.relabelled
  prediction, slope = predict_for(samples)
  matters = np.linalg.norm(slope) > _LEAST_SLOPE * np.linalg.norm(samples.query)
  gap = np.square(samples.prediction - prediction - slope @ start)
  unexplained = of_labels = None
  if not drawn.ignores_labels:
    unexplained = share_of_variation(gap, drawn.variation, samples.prediction)
  if not drawn.ignores_labels and again is not None:
    moved = samples.prediction - again.prediction
    # The part of an algorithm's prediction that depends on w_0 is the same for both.
    follows = prediction - predict_for(again)[0]
    part = np.square(moved - follows)
    of_labels = share_of_variation(part, np.square(moved), samples.prediction)
  nearest = FittedAlgorithm(
    parameter,
    start if matters else None,
    distance_to_mean(start, task) if matters else None,
    estimate(gap),
    unexplained,
    of_labels,
    estimate(np.square(prediction + slope @ start - samples.target)),
  )
  return nearest, gap


def least_prompts(num_features: int) -> int:
  """Returns the least number of prompts for `sampled_algorithm`."""
  return max(_LEAST_PROMPTS, PER_NUMBER * (num_features + 1))


def _relabelled(
  predict: Callable[[Prompt], Float[Array, ' b']],
  task: Task,
  prompts: Sequence[Prompt],
  seed: int,
) -> _Samples | None:
  """Returns the same prompts with labels of other functions, and the predictions.

  None for a task that does not draw other labels for the same inputs.
  """
  task, key = task.held_out(), stream_of(seed, REDRAW_STREAM)

  def redrawn(i: int, prompt: Prompt) -> Prompt:
    # `with_others` takes the key that is folded in with 0.
    other_key = jax.random.fold_in(jax.random.fold_in(key, i), 1)
    return task.redraw(other_key, prompt, 'inputs')

  try:
    others = [redrawn(i, prompt) for i, prompt in enumerate(prompts)]
  except UserError:
    return None
  return gather(lambda other: _sample(other, predict(other)), others)


def _sample(prompt: Prompt, predictions: Float[Array, ' b']) -> _Samples:
  x, y, query, target, prediction = (
    np.asarray(array, np.float64)
    for array in (prompt.x, prompt.y, prompt.x_query, prompt.y_query, predictions)
  )
  c = x.shape[1]
  features, labels = np.einsum('pci,pcj->pij', x, x), np.einsum('pci,pc->pi', x, y)
  return _Samples(prediction, target, query, features / c, labels / c)


def _steps(samples: _Samples) -> _Family:
  """Returns the predictions of steps of gradient descent, by η."""
  along = np.sum(samples.labels * samples.query, axis=1)
  moved = _times(samples.features, samples.query)
  return lambda step: (step * along, samples.query - step * moved)


def _ridges(samples: _Samples, c: int) -> _Family:
  """Returns the predictions of ridge regression on c examples, by λ."""
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
  """Returns the predictions of a step with the matrix Γ, in the form of a `_Family`."""
  back = samples.query @ matrix
  slope = samples.query - _times(samples.features, back)
  return np.sum(samples.labels * back, axis=1), slope


def _nearest_step(samples: _Samples) -> tuple[float, Float[np.ndarray, ' d']]:
  """Returns (η, w_0), by a search over η in an interval that must contain the best one.

  If the part of the prediction that is linear in S x_q were free, the mean square would
  be a parabola in η. This parabola is a lower bound, and gives the interval.
  """
  family = _steps(samples)
  along, minus_moved = family(1.0)[0], family(1.0)[1] - samples.query
  free = np.concatenate([samples.query, minus_moved], axis=1)
  rest, left = (
    values - free @ _least_squares(free, values)
    for values in (along, samples.prediction)
  )
  curvature = np.mean(rest**2)
  if not curvature > 0:  # All labels are 0.
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
  """Returns (λ, w_0), with λ from 10⁻⁸ to 10⁴ times the mean eigenvalue of XᵀX."""
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
  """Returns the least mean squared difference for a parameter, and its w_0."""
  prediction, slope = family(parameter)
  left = samples.prediction - prediction
  scale = float(np.linalg.norm(samples.query))
  start = _least_squares(slope, left, _LEAST_SLOPE * scale)
  return float(np.mean((left - slope @ start) ** 2)), start


def _nearest_matrix(
  samples: _Samples, matrix: Float[np.ndarray, 'd d'], start: Float[np.ndarray, ' d']
) -> tuple[Float[np.ndarray, 'd d'], Float[np.ndarray, ' d']]:
  """Returns (Γ, w_0) by the method of Levenberg and Marquardt, from given values."""
  import scipy.optimize  # It is slow to import.

  d = len(start)

  def excess(values: Float[np.ndarray, ' n']) -> Float[np.ndarray, ' p']:
    prediction, slope = _matrix_step(samples, values[d:].reshape(d, d))
    return prediction + slope @ values[:d] - samples.prediction

  def slopes(values: Float[np.ndarray, ' n']) -> Float[np.ndarray, 'p n']:
    _, by_start = _matrix_step(samples, values[d:].reshape(d, d))
    residual = samples.labels - samples.features @ values[:d]
    by_matrix = samples.query[:, :, None] * residual[:, None]
    return np.concatenate([by_start, by_matrix.reshape(-1, d * d)], axis=1)

  # The types of SciPy do not allow a function as `jac`.
  solve: Any = scipy.optimize.least_squares
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
  """Returns the least-squares weights.

  They are 0 in directions with a norm of at most `least`.
  """
  values, vectors = np.linalg.eigh(inputs.T @ inputs)
  # The normal equations square the condition number.
  least = max(least**2, 1e-13 * float(values.max()))
  inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > least)
  return vectors @ (inverse * (vectors.T @ (inputs.T @ targets)))
