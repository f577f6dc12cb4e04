"""Iterative solvers of least squares, on the spectrum of each prompt's features.

Let `S = XᵀX/C = V diag(s) Vᵀ`, `r = Xᵀy/C` and w_0 a start, so that the residual of the
normal equations is `g = r − S w_0`. All solvers here except conjugate gradients are a
filter φ_k(s) that is the same for all prompts: w_k = w_0 + V φ_k(s) Vᵀ g. Hence a
prediction is `w_0·x_q + Σ_i φ_k(s_i) (Vᵀ x_q)_i (Vᵀ g)_i`, and least squares has the
filter φ(s) = 1/s.

Filters take eigenvalues of any shape, and are computed step by step. The formula
`(1 − ρ_k)/s`, with the residual polynomial ρ_k, would divide by eigenvalues that are 0.

A family is a solver with parameters, which are fitted to predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.core.matrices import RANK_TOLERANCE, is_scalar, symmetric_root
from zoo.core.protocols import Task

Spectrum = Float[np.ndarray, 'p d']
_TOLERANCE = 1e-12  # Searches for parameters stop at this tolerance.
_FAR = 1e30  # This stands for predictions that overflow, since the steps diverge.


class Spectra(NamedTuple):
  """The normal equations of prompts, in the eigenvectors of their features.

  Attributes:
    values: The eigenvalues s of S.
    residual: Vᵀ g.
    query: Vᵀ x_q.
    start: w_0·x_q.
  """

  values: Spectrum
  residual: Spectrum
  query: Spectrum
  start: Float[np.ndarray, ' p']

  def predict(self, filtered: Spectrum) -> Float[np.ndarray, ' p']:
    """Returns the predictions of a filter φ(s)."""
    return self.start + np.sum(filtered * self.residual * self.query, axis=1)


def spectra(
  x: Float[np.ndarray, 'p c d'],
  y: Float[np.ndarray, 'p c'],
  x_query: Float[np.ndarray, 'p d'],
  start: Float[np.ndarray, ' d'],
  root: Float[np.ndarray, 'd d'] | None = None,
) -> Spectra:
  """Returns the normal equations of prompts with examples, from a start w_0.

  With a symmetric root R they are those of the features R x, where a step of descent is
  a step that is preconditioned by R R.
  """
  labels, answer = y - x @ start, x_query @ start
  if root is not None:
    x, x_query = x @ root, x_query @ root
  features = np.matmul(np.swapaxes(x, 1, 2), x) / x.shape[1]
  values, vectors = np.linalg.eigh(features)
  residual = np.einsum('pci,pc->pi', x, labels) / x.shape[1]
  residual = np.einsum('pij,pi->pj', vectors, residual)
  # Where S is singular, g is 0 as well; conjugate gradients would follow its rounding
  # errors.
  seen = values > RANK_TOLERANCE * values[:, -1:]
  return Spectra(
    np.where(seen, values, 0),
    np.where(seen, residual, 0),
    np.einsum('pij,pi->pj', vectors, x_query),
    answer,
  )


def gradient_descent(values: Spectrum, num_steps: int, step: float) -> Spectrum:
  """Returns the filter of k steps of one size: ρ_k = (1 − ηs)^k."""
  return richardson(values, [step] * num_steps)


def richardson(values: Spectrum, steps: list[float]) -> Spectrum:
  """Returns the filter of steps of different sizes: ρ_k = Π_j (1 − η_j s)."""
  filtered, left = np.zeros_like(values), np.ones_like(values)
  for step in steps:
    filtered = filtered + step * left
    left = left * (1 - step * values)
  return filtered


def chebyshev_steps(num_steps: int, low: float, high: float) -> list[float]:
  """Returns the k step sizes with the least worst case of |ρ_k| on an interval of s.

  They are one over the zeros of the k-th Chebyshev polynomial of that interval (Young,
  J. Math. Phys. 32, 1953; Saad, Iterative Methods for Sparse Linear Systems, 12.3.2).
  """
  angles = np.pi * (np.arange(num_steps) + 0.5) / max(num_steps, 1)
  zeros = (high + low) / 2 + (high - low) / 2 * np.cos(angles)
  return (1 / zeros).tolist()


def chebyshev(values: Spectrum, num_steps: int, low: float, high: float) -> Spectrum:
  """Returns the filter of Richardson's iteration with `chebyshev_steps`."""
  return richardson(values, chebyshev_steps(num_steps, low, high))


def gd_plus_plus(
  values: Spectrum, num_steps: int, step: float, contraction: float
) -> Spectrum:
  """Returns the filter of GD++ (von Oswald et al., arXiv 2212.07677).

  It is gradient descent on features that contract. Each step of size η is followed by
  `x ← (I − γ S_j) x` for all features, where S_j is their second moment, with
  eigenvalues s a_j². Hence ρ_{j+1} = (1 − η s a_j²) ρ_j and a_{j+1} = (1 − γ s a_j²)
  a_j.
  """
  filtered, left = np.zeros_like(values), np.ones_like(values)
  square = np.ones_like(values)  # This is a_j².
  for _ in range(num_steps):
    filtered = filtered + step * square * left
    left = left * (1 - step * square * values)
    square = square * (1 - contraction * square * values) ** 2
  return filtered


def newton(values: Spectrum, num_steps: int) -> Spectrum:
  """Returns the filter of iterative Newton (Fu et al., arXiv 2310.17086).

  The iteration M_{j+1} = 2 M_j − M_j S M_j starts at M_0 = α S, which counts as 0
  steps. With α = 1/|S|², in the spectral norm, the error `1 − s m_j` starts within [0,
  1], and is squared in each step. With half of that α the iteration would be one step
  behind, for small eigenvalues.
  """
  largest = values.max(axis=-1, keepdims=True)
  inverse = values / np.where(largest > 0, largest, 1) ** 2
  for _ in range(num_steps):
    inverse = (2 - values * inverse) * inverse
  return inverse


def conjugate_gradients(spectra: Spectra, num_steps: int) -> Float[np.ndarray, ' p']:
  """Returns the predictions after k steps (Hestenes & Stiefel, J. Res. NBS 49, 1952).

  A prompt whose residual is 0, up to rounding, stops.
  """
  values, left = spectra.values, spectra.residual
  moved, direction = np.zeros_like(left), left
  square = np.sum(left**2, axis=1)
  least = np.finfo(np.float64).eps ** 2 * square
  for _ in range(num_steps):
    curvature = np.sum(values * direction**2, axis=1)
    goes_on = (square > least) & (curvature > 0)
    step = np.divide(square, curvature, out=np.zeros_like(square), where=goes_on)
    moved = moved + step[:, None] * direction
    left = left - step[:, None] * values * direction
    before, square = square, np.sum(left**2, axis=1)
    turn = np.divide(square, before, out=np.zeros_like(square), where=goes_on)
    direction = np.where(goes_on[:, None], left + turn[:, None] * direction, 0)
  return spectra.start + np.sum(moved * spectra.query, axis=1)


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
    from scipy.optimize import least_squares  # It is slow to import.

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
      judged=spectra(x[first], y[first], x_query[first], start, root),
      fitted=spectra(x[second], y[second], x_query[second], start, root),
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
    'conjugate_gradients': Fixed(plain, conjugate_gradients),
  }


def _newton(spectra: Spectra, num_steps: int) -> Float[np.ndarray, ' p']:
  return spectra.predict(newton(spectra.values, num_steps))


def _size(halves: Halves) -> float:
  """Returns the mean of the largest eigenvalue, the unit of the starts of searches."""
  return float(halves.fitted.values[:, -1].mean()) or 1.0


def _descent(halves: Halves) -> Family:
  return Family(
    halves,
    lambda values, num_steps, parameters: gradient_descent(
      values, num_steps, parameters[0]
    ),
    np.geomspace(0.01, 4, 24)[:, None] / _size(halves),
  )


def _contraction(halves: Halves) -> Family:
  steps, contractions = np.geomspace(0.01, 4, 12), (0, 0.1, 0.3, 0.6, 1)
  starts = [(step, contraction) for step in steps for contraction in contractions]
  return Family(
    halves,
    lambda values, num_steps, parameters: gd_plus_plus(values, num_steps, *parameters),
    np.array(starts) / _size(halves),
  )


def _schedule(halves: Halves) -> Family:
  ends = _size(halves) * np.array([0.003, 0.03, 0.1, 0.3, 0.6, 1, 1.5])
  starts = [(low, high) for low in ends for high in ends if low < high]
  return Family(
    halves,
    lambda values, num_steps, logs: chebyshev(values, num_steps, *np.exp(logs)),
    np.log(starts),
  )
