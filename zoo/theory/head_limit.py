"""How low the risk of multi-head LSA can be with a given number of heads."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, ArrayLike, Float

from zoo.errors import UserError, check_count, check_number, check_vector
from zoo.theory.moments import task_moments
from zoo.theory.optimum import constant_estimate


class HeadLimit(NamedTuple):
  """The least risk found, and how far the searches for it ended apart."""

  risk: float
  spread: float  # the highest minus the lowest risk that the searches ended at


class _Problem(NamedTuple):
  """Whitened features, labels less w*·x: see docs/theory.md, section 5."""

  optimum: np.ndarray  # [n, e, e]: what each coordinate's update would be, unlimited
  prior: np.ndarray  # [r, r]
  odd_root: np.ndarray  # [r, r]: a root of the inverse of E r rᵀ
  context_length: int
  slope_variance: float  # of q − ⟨Λ, S⟩
  noise_variance: float
  kappa: float


def head_limited_risk(
  task: Any,
  num_heads: int,
  initial_guess: float | ArrayLike = 0.0,
  initial_bias: float = 0.0,
  num_starts: int = 12,
) -> HeadLimit:
  """The infimum of the exact risk over multi-head LSA with H heads.

  `initial_guess` g, a number or `[d]`, and `initial_bias` β are those of the model.
  With d + 1 heads it is the closed form of `optimal_rule`. With fewer the value vectors
  b_h span a proper subspace; all else is a convex quadratic and is solved for. Local
  searches for the subspace run from `num_starts` random ones and from those along the
  principal directions of the prior. The lowest end is an upper bound; in the paper's
  setting all ends agree, but under general covariances there are local minima, and
  that all starts agree is no proof: give more. A step solves (d + 1 − H)(d + 2 − H)/2
  linear equations. Raises UserError naming the argument that is wrong.
  """
  num_heads = check_count('num_heads', num_heads)
  num_starts = check_count('num_starts', num_starts)
  mean = task_moments(task).prior_mean
  guess = check_vector('initial_guess', initial_guess, mean.size)
  bias = check_number('initial_bias', initial_bias)
  unlimited, problem = _pose(task, mean - guess, bias)
  e = len(problem.prior) + 1
  if num_heads >= e:
    return HeadLimit(unlimited, 0.0)
  with jax.enable_x64(True):
    problem = jax.tree.map(jnp.asarray, problem)
    random = np.random.default_rng(0)
    starts = list(random.normal(size=(num_starts, e, e - num_heads)))
    starts += _principal_starts(problem, num_heads)
    losses = []
    for start in starts:
      found = scipy.optimize.minimize(
        lambda hidden: [
          np.asarray(part).ravel()
          for part in _value_and_slope(hidden.reshape(e, -1), problem)
        ],
        start.ravel(),
        jac=True,
        method='L-BFGS-B',
        # A long memory: with C large the default of 10 takes three times the steps.
        options={'ftol': 1e-15, 'gtol': 1e-9, 'maxiter': 2000, 'maxcor': 40},
      )
      losses.append(float(found.fun))
  return HeadLimit(unlimited + min(losses), max(losses) - min(losses))


def _principal_starts(problem: _Problem, num_heads: int) -> list[np.ndarray]:
  """Subspaces that hold the label axis and principal directions of the prior.

  Each is given by a basis of its complement, a little off a saddle by symmetry.
  """
  _, vectors = np.linalg.eigh(problem.prior)
  e = len(vectors) + 1
  axes = np.eye(e)
  axes[:-1, :-1] = vectors
  random = np.random.default_rng(1)
  return [
    np.roll(axes, shift, axis=1)[:, num_heads:]
    + 0.1 * random.normal(size=(e, e - num_heads))
    for shift in range(e)
  ]


def _pose(
  task: Any, deviation: Float[np.ndarray, ' d'], bias: float
) -> tuple[float, _Problem]:
  """The infimum for enough heads, and the problem for fewer, in whitened features."""
  c, _, prior, features, noise = task_moments(task)
  if features is not None:
    eigenvalues, vectors = np.linalg.eigh(features)
    kept = eigenvalues > 1e-12 * eigenvalues[-1]
    root = vectors[:, kept] * np.sqrt(eigenvalues[kept])
    prior, deviation = root.T @ prior @ root, root.T @ deviation
  r = len(prior)
  tau = np.trace(prior) + noise
  if tau <= 0:
    raise UserError(
      'prior_covariance is 0 and noise_std is 0; with nothing to learn no number of '
      'heads is a limit'
    )
  kappa, scale, slope, variance = constant_estimate(task)
  odd_moment = (1 + 1 / c) * prior + tau / c * np.eye(r)
  step_matrix = np.linalg.solve(odd_moment, prior)
  constant = np.zeros((r + 1, r + 1))
  constant[:r, :r], constant[r, r] = scale * np.eye(r) - slope * prior, slope
  optimum = np.append(deviation, -bias)[:, None, None] * constant
  optimum[:r, :r, r] = optimum[:r, r, :r] = step_matrix / 2
  odd = np.trace(prior) - np.sum(step_matrix * prior)
  unlimited = float(odd + kappa * (deviation @ deviation + bias * bias))
  return unlimited, _Problem(
    optimum=optimum,
    prior=prior,
    odd_root=np.linalg.inv(np.linalg.cholesky(odd_moment)),
    context_length=c,
    slope_variance=variance,
    noise_variance=noise,
    kappa=kappa,
  )


def _loss(hidden: Float[Array, 'e m'], problem: _Problem) -> Float[Array, '']:
  """What the risk gains when values cannot see the span of `hidden`.

  Heads with value vectors in a subspace make all updates U with `nᵀ U n' = 0` for n, n'
  orthogonal to it. To meet these conditions costs `vᵀ K⁻¹ v`, v being their values at
  the optimum and K their Gram matrix under the inverse of the risk's quadratic form.
  """
  optimum, prior, odd_root, c, slope_variance, noise, kappa = problem
  r = len(prior)
  normal, _ = jnp.linalg.qr(hidden)
  one, two = jnp.triu_indices(normal.shape[1])
  values = jnp.einsum('ia,nij,jb->nab', normal, optimum, normal)[:, one, two]
  one, two = normal.T[one], normal.T[two]
  pairs = (one[:, :, None] * two[:, None] + two[:, :, None] * one[:, None]) / 2
  features, labels = pairs[:, :r, :r], pairs[:, r, r]
  slopes = labels - jnp.einsum('nij,ij->n', features, prior)
  coordinates = jnp.concatenate(
    [
      jnp.sqrt(c / 2) * features.reshape(len(pairs), -1),
      slopes[:, None] / jnp.sqrt(slope_variance),
      pairs[:, :r, r] @ odd_root.T,
    ],
    axis=1,
  )
  mean = c / 2 * jnp.trace(features, axis1=1, axis2=2) + noise * slopes / slope_variance
  gram = coordinates @ coordinates.T - kappa * jnp.outer(mean, mean)
  factor = jnp.linalg.cholesky(gram)
  return jnp.sum(
    jnp.square(jax.scipy.linalg.solve_triangular(factor, values.T, lower=True))
  )


# At the end, as it needs `_loss`; compiled once for tasks of one size.
_value_and_slope = jax.jit(jax.value_and_grad(_loss))
