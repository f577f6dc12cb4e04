"""The exact risk of layers of linear attention whose matrices are multiples of I.

The layers are given as a `zoo.core.exact_forms.DeepRule`; docs/theory_depth.md has the
notation.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from zoo.core.errors import UserError, check_count, check_same
from zoo.core.exact_forms import DeepRule
from zoo.core.learning_rule import AnyArray
from zoo.core.matrices import is_scalar
from zoo.core.protocols import Task
from zoo.estimators.linear_prior import feature_variance, second_moments
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered
from zoo.theory import wishart
from zoo.theory.deep.feature_moments import feature_moments

# Six layers would need 365 quadrature points, which take minutes to compute.
_MAX_LAYERS = 5
# Two layers need moments up to degree 8. Three would need degree 26, where the powers
# of S are nearly dependent even in float64; there is no quadrature to replace them.
_MAX_LAYERS_GENERAL = 2


class Spectrum(NamedTuple):
  """The numbers of a task that determine the risk of a DeepRule for `Σ = ςI`; a pytree.

  Attributes:
    points: Eigenvalues of S, at which a quadrature is taken.
    roots: The square roots of their masses, whose sum is 1.
    prior_mean: w*.
    trace: tr Λ.
    feature_variance: ς.
    noise: σ² d / C.
  """

  points: Float[np.ndarray, ' n']
  roots: Float[np.ndarray, ' n']
  prior_mean: Float[np.ndarray, ' d']
  trace: float
  feature_variance: float
  noise: float


class GeneralSpectrum(NamedTuple):
  """The numbers of a task that determine the risk for any other Σ; a pytree.

  All but `axes` are in the coordinates of the eigenvectors of Σ.

  Attributes:
    axes: The eigenvectors, as columns.
    roots: Matrices R_k with `R_kᵀR_k = E (Sⁱ Σ Sʲ)_kk`.
    prior_mean: w*.
    prior: The variances of ŵ.
    noise_roots: The matrix R with `RᵀR = (σ²/C) E tr Σ Sⁱ⁺ʲ⁺¹`.
  """

  axes: Float[np.ndarray, 'd d']
  roots: Float[np.ndarray, 'd n n']
  prior_mean: Float[np.ndarray, ' d']
  prior: Float[np.ndarray, ' d']
  noise_roots: Float[np.ndarray, 'n-1 n-1']


def degree(num_layers: int) -> int:
  """Returns `(3^L − 1)/2`, the degree in G of L layers of linear attention.

  Args:
    num_layers: L ≥ 1.

  Returns:
    The degree.

  Raises:
    UserError: If `num_layers` is out of its range.

  Example:
    >>> zoo.theory.deep.degree(2)
    4
  """
  return (3 ** check_count('num_layers', num_layers) - 1) // 2


def deep_spectrum(form: DeepRule, task: Task) -> Spectrum | GeneralSpectrum:
  """Returns what the risk of a form depends on; only the form's shapes are read.

  Raises:
    UserError: If the theory does not cover the task, or if there are more than 5
      layers, or more than 2 with a feature covariance that is not a multiple of the
      identity.
  """
  task = require_covered(task)
  size, d = np.shape(form.steps)[-1], np.shape(form.residual)[-1]
  check_same('features', d, task.num_features)
  check_depth(size)
  features = task.feature_covariance
  if features is None or (is_scalar(features) and features[0, 0] > 0):
    return spectrum_of(task, size)
  if size > _MAX_LAYERS_GENERAL:
    raise UserError(
      f'the model has {size} layers; for a feature_covariance that is not a positive '
      f'multiple of the identity the exact risk is for at most {_MAX_LAYERS_GENERAL}'
    )
  return _general_spectrum(task, size)


def check_depth(num_layers: int) -> None:
  """Checks that the quadrature can be computed for a number of layers.

  Raises:
    UserError: If there are more than 5 layers.

  Example:
    >>> zoo.theory.deep.check_depth(5)
  """
  if num_layers > _MAX_LAYERS:
    raise UserError(
      f'the model has {num_layers} layers; the exact risk of GD++ is for at most '
      f'{_MAX_LAYERS}'
    )


def spectrum_of(task: LinearRegression, num_layers: int) -> Spectrum:
  """Returns a quadrature that is exact for networks of `num_layers` layers.

  Raises UserError unless the feature covariance is a multiple of the identity.
  """
  d, c = task.num_features, task.context_length
  variance = feature_variance(task)
  points, masses = wishart.spectrum(d, c, degree(num_layers) + 1)
  return Spectrum(
    points=variance * points,
    roots=np.sqrt(masses),
    prior_mean=task.mean_weights().copy(),
    trace=float(np.trace(second_moments(task)[0])),
    feature_variance=variance,
    noise=task.noise_std**2 * d / c,
  )


def _general_spectrum(task: LinearRegression, num_layers: int) -> GeneralSpectrum:
  prior, features = second_moments(task)
  variances, axes = np.linalg.eigh(features)
  size, c = degree(num_layers) + 1, task.context_length
  moments, traces = feature_moments(variances.clip(0), c, size)
  order = np.arange(size - 1)
  noise = task.noise_std**2 / c * traces[order[:, None] + order + 1]
  return GeneralSpectrum(
    axes=axes,
    roots=np.stack([_root(moment) for moment in moments]),
    prior_mean=task.mean_weights() @ axes,
    prior=np.diag(axes.T @ prior @ axes).copy(),
    noise_roots=_root(noise),
  )


def _root(gram: Float[np.ndarray, 'n n']) -> Float[np.ndarray, 'n n']:
  """Returns R with `RᵀR` the given Gram matrix, which may be singular."""
  scale = np.sqrt(np.diag(gram))
  inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
  # The diagonal is scaled to 1, since high powers are much larger than low ones.
  squares, vectors = np.linalg.eigh(gram * inverse[:, None] * inverse)
  return np.sqrt(squares.clip(0))[:, None] * vectors.T * scale


def deep_rule_risk(
  form: DeepRule, known: Spectrum | GeneralSpectrum
) -> Float[Array, '']:
  """Returns the exact risk of a DeepRule, in its precision; for jit, grad and vmap.

  With `Φ, P` as in `gd_plus_plus_risk`, `Q = (1 − P)/s`, `m = w* − residual` and
  `v = readout start + Φ feature_readout`, where Φ, P and Q are evaluated at the matrix
  S, it is

      R = E |v − P m|²_Σ + tr Σ PΛP + (σ²/C) tr Σ Q S Q + (readout offset)².

  For `Σ = ςI` it is

      R = ς ∫ |v − P m|² + P² tr Λ + σ² (d/C) s Q² dμ + (readout offset)².
  """
  dtype = jnp.result_type(form.steps)
  known = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), known)
  offset = (form.readout * form.offset) ** 2
  if isinstance(known, Spectrum):
    return _risk(form, known) + offset
  return _general_risk(form, known) + offset


def _risk(form: DeepRule, known: Spectrum) -> Float[Array, '']:
  s = jnp.asarray(known.points)
  phi, chi = recursion(form.steps, form.preconditions, s, jnp.ones_like(s))
  missing = known.prior_mean - form.residual
  # P is huge where the masses are tiny, and its square would be too large for float32.
  learned = known.roots * form.readout * chi
  left = known.roots - s * learned
  constant = known.roots[:, None] * (form.readout * form.start)[None]
  constant += (known.roots * phi)[:, None] * form.feature_readout[None]
  wrong = jnp.sum((constant - left[:, None] * missing[None]) ** 2)
  unknown = known.trace * jnp.sum(left**2) + known.noise * jnp.sum(s * learned**2)
  return known.feature_variance * (wrong + unknown)


def _general_risk(form: DeepRule, known: GeneralSpectrum) -> Float[Array, '']:
  """Returns the risk for any Σ; a polynomial in S is an array of its n coefficients."""
  size = known.roots.shape[-1]
  unit, s = jnp.eye(2, size, dtype=known.roots.dtype)

  def product(first: Array, second: Array) -> Array:
    return jnp.convolve(first, second)[:size]  # No product has a higher degree.

  phi, chi = recursion(form.steps, form.preconditions, s, unit, product)
  learned = jnp.asarray(form.readout) * chi
  left = unit - product(s, learned)
  start, read, missing = (
    (vector @ known.axes)[:, None]
    for vector in (form.readout * form.start, form.feature_readout, form.residual)
  )
  missing = known.prior_mean[:, None] - missing
  wrong = start * unit[None] + read * phi[None] - missing * left[None]
  wrong = jnp.einsum('kij,kj->ki', known.roots, wrong)
  unknown = known.roots @ left
  noise = known.noise_roots @ learned[:-1]
  return (
    jnp.sum(wrong**2) + known.prior @ jnp.sum(unknown**2, axis=1) + jnp.sum(noise**2)
  )


def recursion(
  steps: Inexact[AnyArray, ' l *m'],
  preconditions: Inexact[AnyArray, ' k *m'],
  s: Float[AnyArray, '*n'],
  unit: Float[AnyArray, '*n'],
  product: Callable[[Any, Any], Any] = operator.mul,
) -> tuple[Any, Any]:
  """Returns `Φ_L`, and χ with `Ψ_L = 1 + s χ`, which avoids a division by s.

  s holds numbers, or other elements with a commutative `product` and a `unit`. Layers
  without a precondition do not change Φ. The results are in NumPy or JAX like the
  arguments.
  """
  phi, chi = unit, 0 * unit
  for layer in range(steps.shape[0]):
    square = product(phi, phi)
    chi = chi + steps[layer] * product(square, unit + product(s, chi))
    if layer < preconditions.shape[0]:
      phi = phi + preconditions[layer] * product(product(s, square), phi)
  return phi, chi
