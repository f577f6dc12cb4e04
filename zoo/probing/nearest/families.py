"""Families of solvers, and their members that are nearest to predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.core.matrices import is_scalar, symmetric_root
from zoo.core.protocols import Task
from zoo.probing.nearest import solvers
from zoo.probing.nearest.solvers import Spectra, Spectrum

_TOLERANCE = 1e-12  # Searches for parameters stop at this tolerance.
_FAR = 1e30  # This stands for predictions that overflow, since the steps diverge.


class Halves(NamedTuple):
  """The normal equations of the prompts to judge, and of those to fit."""

  judged: Spectra
  fitted: Spectra


class Member(NamedTuple):
  """Algorithms of k steps, one for each layer, and their parameters.

  Attributes:
    predictions: The predictions for the prompts to judge, `[p, l]`.
    parameters: The fitted parameters of each layer, `[l, n]`.
  """

  predictions: Float[np.ndarray, 'p l']
  parameters: Float[np.ndarray, 'l n']


class Family(NamedTuple):
  """Algorithms of any number of steps, with parameters that are fitted for each number.

  Attributes:
    halves: The prompts.
    filtered: Takes eigenvalues, a number of steps and parameters, and returns the
      filter.
    starts: Parameters to try; the search starts from the best of them.
  """

  halves: Halves
  filtered: Callable[[Spectrum, int, Any], Spectrum]
  starts: Float[np.ndarray, 's n']

  def member(self, targets: Float[np.ndarray, 'p l'], num_steps: int) -> Member:
    """Returns the algorithms of k steps nearest to the predictions of each layer."""
    from scipy.optimize import least_squares  # slow to import, and rarely needed

    judged, fitted = self.halves

    def predict(spectra: Spectra, parameters: Any) -> Float[np.ndarray, ' p']:
      return spectra.predict(self.filtered(spectra.values, num_steps, parameters))

    predictions, parameters = [], []
    # Steps that are far too long overflow.
    with np.errstate(over='ignore', invalid='ignore'):
      tried = np.stack([predict(fitted, start) for start in self.starts])
    tried = _finite(tried)
    for target in targets.T:
      excess = np.square(tried - target).mean(axis=1)
      with np.errstate(over='ignore', invalid='ignore'):
        solution = least_squares(
          lambda values, target=target: _finite(predict(fitted, values)) - target,
          self.starts[np.argmin(excess)],
          method='lm',
          max_nfev=200,
          xtol=_TOLERANCE,
          ftol=_TOLERANCE,
          gtol=_TOLERANCE,
        )
        prediction = predict(judged, solution.x)
      parameters.append(solution.x)
      predictions.append(_finite(prediction))
    return Member(np.stack(predictions, axis=1), np.stack(parameters))


def _finite(predictions: Float[np.ndarray, '*n']) -> Float[np.ndarray, '*n']:
  return np.nan_to_num(predictions, nan=_FAR).clip(-_FAR, _FAR)


class Polynomials(NamedTuple):
  """Richardson's iteration with any steps: all filters φ of degree k − 1."""

  halves: Halves

  def member(self, targets: Float[np.ndarray, 'p l'], num_steps: int) -> Member:
    """Returns the algorithms of k steps nearest to the predictions of each layer.

    The parameters are coefficients of the Chebyshev polynomials from 0 to the largest
    s.
    """
    largest = self.halves.fitted.values.max() or 1.0

    def terms(spectra: Spectra) -> Float[np.ndarray, 'p k']:
      places = 2 * spectra.values / largest - 1
      basis = np.polynomial.chebyshev.chebvander(places, num_steps)[..., :num_steps]
      return np.einsum('pd,pd,pdk->pk', spectra.residual, spectra.query, basis)

    judged, fitted = map(terms, self.halves)
    left = targets - self.halves.fitted.start[:, None]
    coefficients = np.linalg.lstsq(fitted, left)[0]
    predictions = self.halves.judged.start[:, None] + judged @ coefficients
    return Member(predictions, coefficients.T)


class Fixed(NamedTuple):
  """Solvers without parameters: iterative Newton, and conjugate gradients."""

  halves: Halves
  solve: Callable[[Spectra, int], Float[np.ndarray, ' p']]

  def member(self, targets: Float[np.ndarray, 'p l'], num_steps: int) -> Member:
    """Returns the same algorithm for each layer."""
    prediction = self.solve(self.halves.judged, num_steps)
    num_layers = targets.shape[1]
    predictions = np.tile(prediction[:, None], num_layers)
    return Member(predictions, np.empty((num_layers, 0)))


AnyFamily = Family | Polynomials | Fixed


def families(
  x: Float[np.ndarray, 'p c d'],
  y: Float[np.ndarray, 'p c'],
  x_query: Float[np.ndarray, 'p d'],
  start: Float[np.ndarray, ' d'],
  task: Task,
) -> dict[str, AnyFamily]:
  """Returns the families for prompts, the first half of which is to be judged."""
  middle = len(x) // 2

  def halves(root: Float[np.ndarray, 'd d'] | None = None) -> Halves:
    first, second = slice(middle), slice(middle, None)
    return Halves(
      judged=solvers.spectra(x[first], y[first], x_query[first], start, root),
      fitted=solvers.spectra(x[second], y[second], x_query[second], start, root),
    )

  plain = halves()
  of_all: dict[str, AnyFamily] = {'gd': _descent(plain)}
  covariance = getattr(task, 'feature_covariance', None)
  if covariance is not None and not is_scalar(covariance):
    inverse = np.linalg.pinv(covariance, hermitian=True)
    of_all['preconditioned_gd'] = _descent(halves(symmetric_root(inverse)))
  return of_all | {
    'gd_plus_plus': _contraction(plain),
    'chebyshev': _schedule(plain),
    'richardson': Polynomials(plain),
    'newton': Fixed(plain, _newton),
    'conjugate_gradients': Fixed(plain, solvers.conjugate_gradients),
  }


def _newton(spectra: Spectra, num_steps: int) -> Float[np.ndarray, ' p']:
  return spectra.predict(solvers.newton(spectra.values, num_steps))


def _size(halves: Halves) -> float:
  """Returns the mean of the largest eigenvalue, the unit of the starts of searches."""
  return float(halves.fitted.values[:, -1].mean()) or 1.0


def _descent(halves: Halves) -> Family:
  return Family(
    halves,
    lambda values, num_steps, parameters: solvers.gradient_descent(
      values, num_steps, parameters[0]
    ),
    np.geomspace(0.01, 4, 24)[:, None] / _size(halves),
  )


def _contraction(halves: Halves) -> Family:
  steps, contractions = np.geomspace(0.01, 4, 12), (0, 0.1, 0.3, 0.6, 1)
  starts = [(step, contraction) for step in steps for contraction in contractions]
  return Family(
    halves,
    lambda values, num_steps, parameters: solvers.gd_plus_plus(
      values, num_steps, *parameters
    ),
    np.array(starts) / _size(halves),
  )


def _schedule(halves: Halves) -> Family:
  ends = _size(halves) * np.array([0.003, 0.03, 0.1, 0.3, 0.6, 1, 1.5])
  starts = [(low, high) for low in ends for high in ends if low < high]
  return Family(
    halves,
    lambda values, num_steps, logs: solvers.chebyshev(values, num_steps, *np.exp(logs)),
    np.log(starts),
  )
