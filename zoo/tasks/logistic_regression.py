"""Linear classification with new weights in each prompt."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Bool, Float, Key

from zoo.core.errors import check_covariance, check_name, check_vector
from zoo.core.protocols import Predictor
from zoo.core.trees import Matrix, Vector
from zoo.estimators.baselines import Baseline, Examples, OfSigns, Zero
from zoo.estimators.posteriors import Posterior, log_density_of_features
from zoo.tasks.base import (
  FunctionClass,
  Points,
  Values,
  Weights,
  as_vector,
  dot,
  register_task,
  sample_signs,
  with_root,
)

_LINKS = {
  'logistic': jax.nn.sigmoid,
  'probit': jax.scipy.special.ndtr,
  'sign': lambda logit: jnp.where(logit > 0, 1, 0).astype(logit.dtype),
}
LogLink = Callable[[Float[Array, '*n']], Float[Array, '*n']]

# The grid reaches this many standard deviations. Between examples that contradict each
# other the posterior has tails like those of a Laplace distribution, of which 3e-6 lies
# beyond.
_REACH = 9.0
_MOST_NODES = 100_000
# This many samples are weighed at once.
_PART = 1024


@register_task('logistic_regression')
@struct.dataclass(eq=False, repr=False)
class LogisticRegression(FunctionClass):
  """Linear classification into labels ±1, with weights that are new in each prompt.

  For each prompt, weights `w ~ N(prior_mean, prior_covariance)` are drawn. The examples
  have features `x_i ~ N(0, I)`, and their label is +1 with the probability
  `link(w·x_i)` and −1 otherwise. The query is drawn like the features of an example.
  Targets are the probabilities of the label +1. The latents are w. There are three
  links:

  - `logistic`: the logistic function (Bai et al.).
  - `probit`: the distribution function of the standard normal distribution.
  - `sign`: 1 for positive numbers and 0 for others (code of Garg et al.), so that
    labels have no noise.

  The Bayes predictor has no closed form. For `logistic` and `probit` with up to 3
  features, if the prior is not too wide for a grid, it is integrated numerically
  (baseline `bayes`). In other cases it is estimated by sampling (baseline
  `bayes_estimate`). For `sign` there is neither.

  The prior mean and covariance are kept as float64 on the host.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    link: Function that gives P(+1) from w·x: 'logistic', 'probit' or 'sign'.
    prior_mean: Mean of the weights: a number for all features, or a vector `[d]`.
    prior_covariance: Covariance of the weights `[d, d]`; it may be singular. None is
      the identity.

  Raises:
    UserError: If the covariance is not symmetric and positive semi-definite.
      `zoo.create_task` raises it for any other field out of its range.

  Example:
    >>> task = zoo.create_task('logistic_regression', num_features=2, link='probit')
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prompt.x.shape, prompt.y.shape, bool((abs(prompt.y) == 1).all())
    ((3, 40, 2), (3, 40), True)

  References:
    Bai et al., arXiv 2306.04637; code of Garg et al., arXiv 2208.01066.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=40)
  link: str = struct.field(pytree_node=False, default='logistic')
  prior_mean: Vector = 0.0
  prior_covariance: Matrix = None
  _prior_root: Matrix = None
  label_kind = 'signs'

  def __post_init__(self):
    super().__post_init__()
    matrix, root = self.prior_covariance, self._prior_root
    matrix, root = with_root('prior_covariance', matrix, root)
    mean = as_vector(self.prior_mean, self.num_features)
    object.__setattr__(self, 'prior_mean', mean)
    object.__setattr__(self, 'prior_covariance', matrix)
    object.__setattr__(self, '_prior_root', root)

  def check(self) -> None:
    super().check()
    check_name('link', self.link, _LINKS)
    check_vector('prior_mean', self.prior_mean, self.num_features)
    if self.prior_covariance is not None:
      check_covariance('prior_covariance', self.prior_covariance, self.num_features)

  @property
  def prior_root(self) -> Matrix:
    """The symmetric root R of the prior covariance, `w = prior_mean + R z`.

    It is None if the covariance is the identity.
    """
    return self._prior_root

  def mean_weights(self) -> Float[np.ndarray, ' d']:
    return check_vector('prior_mean', self.prior_mean, self.num_features)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    normal = jax.random.normal(key, (self.num_features,))
    if self.prior_covariance is not None:
      normal = dot(jnp.asarray(self.prior_root, normal.dtype), normal[None])
    return jnp.asarray(self.prior_mean, normal.dtype) + normal

  def evaluate(self, function: Weights, x: Points) -> Values:
    return _LINKS[self.link](dot(x, function[None]))

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t']
  ) -> Float[Array, ' t']:
    return sample_signs(key, targets)

  def posterior(self) -> Posterior | None:
    """Returns the posterior: integrated if a small grid is enough, else estimated.

    A grid is used for at most 3 features, up to a size that depends on the prior
    standard deviations; docs/tasks.md has the limits. None is returned for the link
    'sign'.
    """
    # For 'sign' there is none. The posterior is then the prior, cut off by a hyperplane
    # for each example, and no method estimated it at an acceptable cost. For 20
    # features importance sampling kept 1 of 100 samples, and after 40 examples a
    # particle filter was off by 0.1 in the probability.
    if self.link == 'sign':
      return None
    d, nodes = self.num_features, num_nodes(self)
    small = d <= 3 and nodes**d <= _MOST_NODES
    return Quadrature(self, nodes) if small else ImportanceSampling(self)

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    The posterior is named `bayes`, or `bayes_estimate` if it is estimated by sampling.
    Another predictor may be better than an estimate, by its error. `map` predicts with
    the most probable weights, and `averaging` with the mean of `y_i x_i`.
    """
    bayes = self.posterior()
    name = 'bayes_estimate' if isinstance(bayes, ImportanceSampling) else 'bayes'
    return {
      'map': MaximumAPosteriori(self),
      **({} if bayes is None else {name: bayes}),
      'averaging': SignAveraging(self),
      'zero': Zero(),
    }


@struct.dataclass(eq=False, repr=False)
class MaximumAPosteriori(Baseline):
  """The link of `w·x_q` for the weights w of greatest posterior density.

  They are found by Newton's method from the prior mean. For the link 'sign' every w
  that separates the classes has the same likelihood. The weights of this baseline are
  then those of logistic regression. With the prior N(0, I) this is the usual penalised
  logistic regression with C = 1.

  Args:
    task: The task, whose link and prior it uses.
  """

  task: LogisticRegression

  def predict(self, examples: Examples) -> Float[Array, '']:
    log_link = _log_link(self.task)
    score = jnp.dot(examples.x_query, self.weights(examples))
    return log_link(score) - log_link(-score)

  def weights(self, examples: Examples) -> Float[Array, ' d']:
    """Returns the weights of greatest posterior density.

    In directions in which the prior does not vary, they are those of the prior mean.
    """
    log_link = _log_link(self.task)
    slope = jax.grad(log_link)
    slopes = jax.vmap(slope)
    bends = jax.vmap(lambda u: jnp.maximum(-jax.grad(slope)(u), 0))
    x, y, seen, _ = examples.zeroed()
    offset, rows = _margins(self.task, x, y)
    step_sizes = jnp.asarray([0.5**i for i in range(20)], x.dtype)

    def density(z: Array) -> Array:
      margins = offset[None] + z @ rows.T
      terms = jnp.where(seen[None], log_link(margins), 0)
      return jnp.sum(terms, axis=-1) - jnp.sum(z * z, axis=-1) / 2

    def newton(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
      i, z, _ = state
      margins = offset + rows @ z
      gradient = jnp.where(seen, slopes(margins), 0) @ rows - z
      root = _root_of_precision(rows, jnp.where(seen, bends(margins), 0))
      step = _solve(root, _solve(root, gradient, transposed=True))
      change = jnp.max(jnp.abs(rows @ step), initial=0)
      # Far from the optimum, take the best of the halved steps. Near it a whole step is
      # right, but the density is too flat to show this.
      best = jnp.argmax(density(z[None] + step_sizes[:, None] * step[None]))
      size = jnp.where(change < 0.1, 1.0, step_sizes[best]).astype(z.dtype)
      return i + 1, z + size * step, change

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
      # After a step the error is of the order of the square of the change.
      return (state[0] < 100) & (state[2] > 1e-4)

    start = jnp.zeros((), jnp.int32), jnp.zeros_like(x[0]), jnp.asarray(1, x.dtype)
    z = jax.lax.while_loop(unfinished, newton, start)[1]
    return (
      jnp.asarray(self.task.prior_mean, x.dtype)
      + jnp.asarray(_root(self.task), x.dtype) @ z
    )


@struct.dataclass(eq=False, repr=False)
class Quadrature(Posterior, OfSigns):
  """The posterior probability of the label +1, integrated on a grid of weights.

  The link must be 'logistic' or 'probit'. The grid has equal steps along the axes of
  the Gaussian that expectation propagation fits to the posterior, and reaches `_REACH`
  standard deviations on each side. Such a sum converges geometrically once its steps
  are smaller than the width of the link. With `num_nodes(task)` nodes the largest error
  of a probability was 4e-5 for one feature, and 5e-6 for two or three. It was measured
  against a finer and wider grid in float64, for both links, prior standard deviations
  from 1 to 1000 (as far as they are allowed) and 1, 5 and 40 examples.

  Args:
    task: The task, whose link and prior it uses.
    num_nodes: Number of nodes along each axis.

  References:
    Trefethen and Weideman, The exponentially convergent trapezoidal rule, 2014.
  """

  task: LogisticRegression
  num_nodes: int = struct.field(pytree_node=False)

  def weigh(self, examples: Examples) -> tuple[Float[Array, ''], Float[Array, '']]:
    x, y, seen, x_query = examples.zeroed()
    log_link, d = _log_link(self.task), x.shape[1]
    offset, rows = _margins(self.task, x, y)
    mean, root = _expectation_propagation(log_link, offset, rows, seen)
    axis = np.linspace(-_REACH, _REACH, self.num_nodes)
    grid = np.stack(np.meshgrid(*[axis] * d, indexing='ij'), axis=-1).reshape(-1, d)
    grid = grid[np.linalg.norm(grid, axis=1) <= _REACH]
    inverse = _solve(root, jnp.eye(d, dtype=x.dtype))
    z = mean[None] + jnp.asarray(grid, x.dtype) @ inverse.T

    # Examples are added one after the other, so that no array has both examples and
    # nodes as axes.
    def add(i: Array, log_p: Array) -> Array:
      return log_p + jnp.where(seen[i], log_link(offset[i] + z @ rows[i]), 0)

    log_p = jax.lax.fori_loop(0, len(x), add, -jnp.sum(z * z, axis=1) / 2)
    query_offset, query_row = _margins(self.task, x_query[None], jnp.ones(1, x.dtype))
    score = query_offset + z @ query_row[0]
    # `cell` is the logarithm of the volume of a cell times the constant factor of the
    # prior's density.
    cell = d * math.log(2 * _REACH / (self.num_nodes - 1) / math.sqrt(2 * math.pi))
    density = jax.nn.logsumexp(log_p) + cell - _log_det(root)
    density += log_density_of_features(examples)
    return density, _logit(log_link, log_p, score)


@struct.dataclass(eq=False, repr=False)
class ImportanceSampling(Posterior, OfSigns):
  """The posterior probability of the label +1, estimated by importance sampling.

  The link must be 'logistic' or 'probit'. The proposal is a multivariate Student
  distribution, a little wider than the Gaussian that expectation propagation fits to
  the posterior. All prompts share the draws of one fixed seed.

  The error was measured with the default of 4096 samples and the prior N(0, I), against
  16 times as many samples, on 256 prompts of 5 to 40 examples. Probabilities are off by
  0.005 (root mean square) for 5 features. For 20 features they are off by 0.007
  ('logistic') or 0.01 ('probit'). The log loss is larger by up to 7e-5 nats for 5
  features. For 20 features it is larger by 1e-4 ('logistic') or 3e-4 nats ('probit').

  Args:
    task: The task, whose link and prior it uses.
    num_samples: Number of samples.
  """

  is_slow = True

  task: LogisticRegression
  num_samples: int = struct.field(pytree_node=False, default=4096)

  def weigh(self, examples: Examples) -> tuple[Float[Array, ''], Float[Array, '']]:
    x, y, seen, x_query = examples.zeroed()
    log_link = _log_link(self.task)
    offset, rows = _margins(self.task, x, y)
    mean, root = _expectation_propagation(log_link, offset, rows, seen)
    freedom, width, d = 20, 1.1, x.shape[1]
    # The samples are drawn on the host, since compiling the draws would take seconds.
    draws = np.random.default_rng(0)
    normal = draws.normal(size=(self.num_samples, d))
    scale = draws.chisquare(freedom, (self.num_samples, 1))
    student = jnp.asarray(normal / np.sqrt(scale / freedom), x.dtype)
    # Solving for all samples at once takes 20 times as long on a CPU.
    inverse = _solve(root, jnp.eye(d, dtype=x.dtype))
    query_offset, query_row = _margins(self.task, x_query[None], jnp.ones(1, x.dtype))
    # `factor` is the logarithm of the constant factor in the ratio of the proposal to
    # the prior.
    factor = math.lgamma((freedom + d) / 2) - math.lgamma(freedom / 2)
    factor += d / 2 * math.log(2 / freedom) - d * math.log(width) + _log_det(root)

    def weigh(student: Array) -> tuple[Array, Array]:
      z = mean + width * inverse @ student
      proposal = factor - (freedom + d) / 2 * jnp.log1p(jnp.sum(student**2) / freedom)
      likelihood = jnp.sum(jnp.where(seen, log_link(offset + rows @ z), 0))
      score = query_offset[0] + query_row[0] @ z
      return likelihood - jnp.sum(z * z) / 2 - proposal, score

    # Samples are weighed in parts, since the likelihood has samples and examples as
    # axes in each prompt.
    log_weights, scores = jax.lax.map(weigh, student, batch_size=_PART)
    density = jax.nn.logsumexp(log_weights) - math.log(self.num_samples)
    density += log_density_of_features(examples)
    return density, _logit(log_link, log_weights, scores)


@struct.dataclass(eq=False, repr=False)
class SignAveraging(Baseline):
  """The sign of `a·x_q` with `a = (1/k) Σ_i y_i x_i` over k examples, as a probability.

  On average a is c w, where c depends on the link, and each entry has the variance 1/k.
  The logit is that of a Gaussian w with this measurement. It takes the weights to have
  the prior mean 0 and equal variances, and the link to be the probit function that is
  closest to it.

  Args:
    task: The task, whose link and prior it uses.

  References:
    Code of Garg et al., arXiv 2208.01066.
  """

  task: LogisticRegression

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, y, _, x_query = examples.zeroed()
    # If a label is regarded as the sign of w·x + ε, this is the variance of ε.
    noise = {'logistic': 8 / math.pi, 'probit': 1.0, 'sign': 0.0}[self.task.link]
    d = self.task.num_features
    mean = jnp.broadcast_to(jnp.asarray(self.task.prior_mean), (d,))
    root = jnp.asarray(_root(self.task))
    variance = (jnp.sum(mean * mean) + jnp.sum(root * root)) / d
    # By Stein's lemma E y x = c w with c = E φ'((w·x)/s)/s.
    c2 = 2 / math.pi / jnp.maximum(noise + d * variance, 1e-12)
    precision = 1 + c2 * variance * examples.num_seen
    score = jnp.sqrt(c2) * variance * jnp.dot(x_query, y @ x) / precision
    spread = noise + variance * jnp.dot(x_query, x_query) / precision
    score = score / jnp.sqrt(jnp.maximum(spread, 1e-12))
    return log_ndtr(score) - log_ndtr(-score)


def num_nodes(task: LogisticRegression) -> int:
  """Returns the number of nodes along each axis of a grid.

  With this many nodes the grid resolves the link for all weights of the task's prior.
  """
  largest = np.linalg.norm(_root(task), 2)
  width = 1.35 if task.link == 'probit' else 1.65
  return math.ceil(36 * max(1.0, largest / width))


def _logit(
  log_link: LogLink, log_weights: Float[Array, ' n'], scores: Float[Array, ' n']
) -> Float[Array, '']:
  """Returns the logit of the mean probability of the label +1 over weighted scores."""
  positive = jax.nn.logsumexp(log_weights + log_link(scores))
  return positive - jax.nn.logsumexp(log_weights + log_link(-scores))


def _log_det(root: Float[Array, 'd d']) -> Float[Array, '']:
  """Returns the log determinant of a triangular matrix with a positive diagonal."""
  return jnp.sum(jnp.log(jnp.diagonal(root)))


def _log_link(task: LogisticRegression) -> LogLink:
  """Returns the logarithm of the link; for 'sign', that of the logistic link."""
  return log_ndtr if task.link == 'probit' else jax.nn.log_sigmoid


def _root(task: LogisticRegression) -> Float[np.ndarray, 'd d']:
  return np.eye(task.num_features) if task.prior_root is None else task.prior_root


def _margins(
  task: LogisticRegression, x: Float[Array, 'c d'], y: Float[Array, ' c']
) -> tuple[Float[Array, ' c'], Float[Array, 'c d']]:
  """Returns offsets and rows with `y_i w·x_i = offset_i + rows_i·z`.

  Here `w = prior_mean + R z` and `z ~ N(0, I)`.
  """
  signed = y[:, None] * x
  mean = jnp.broadcast_to(jnp.asarray(task.prior_mean, x.dtype), x.shape[1:])
  offset = signed @ mean
  return offset, signed @ jnp.asarray(_root(task), x.dtype)


def _root_of_precision(
  rows: Float[Array, 'c d'], weights: Float[Array, ' c']
) -> Float[Array, 'd d']:
  """Returns an upper triangular U with `Uᵀ U = I + Σ_i weights_i rows_i rows_iᵀ`."""
  # A Cholesky decomposition of the product would square the condition number.
  scaled = jnp.sqrt(weights)[:, None] * rows
  identity = jnp.eye(rows.shape[1], dtype=rows.dtype)
  root = jnp.linalg.qr(jnp.concatenate([scaled, identity]), mode='r')
  # The signs of the rows depend on the number of examples, and affect the samples.
  return root * jnp.where(jnp.diagonal(root) < 0, -1, 1).astype(root.dtype)[:, None]


def _solve(
  root: Float[Array, 'd d'], right: Float[Array, ' d *n'], transposed: bool = False
) -> Float[Array, ' d *n']:
  return jax.scipy.linalg.solve_triangular(root, right, trans=int(transposed))


def _expectation_propagation(
  log_link: LogLink,
  offset: Float[Array, ' c'],
  rows: Float[Array, 'c d'],
  seen: Bool[Array, ' c'],
) -> tuple[Float[Array, ' d'], Float[Array, 'd d']]:
  """Returns the mean and the root U of the precision of a Gaussian near the posterior.

  It makes ten parallel updates, damped by half (Rasmussen and Williams, Gaussian
  Processes for Machine Learning, section 3.6), with moments by Gauss–Hermite
  quadrature.
  """
  nodes, weights = np.polynomial.hermite_e.hermegauss(32)
  nodes = jnp.asarray(nodes, rows.dtype)
  log_weights = jnp.asarray(np.log(weights), rows.dtype)

  def posterior(first: Array, second: Array) -> tuple[Array, Array]:
    root = _root_of_precision(rows, second)
    right = (first - second * offset) @ rows
    return _solve(root, _solve(root, right, transposed=True)), root

  def update(_: Array, sites: tuple[Array, Array]) -> tuple[Array, Array]:
    # A site is the factor exp(first u − second u²/2) of the margin u.
    first, second = sites
    mean, root = posterior(first, second)
    variance = jnp.sum(_solve(root, rows.T, transposed=True) ** 2, axis=0)
    precision = 1 / jnp.maximum(variance, 1e-12)
    linear = precision * (offset + rows @ mean) - first
    cavity = jnp.maximum(precision - second, 1e-3 * precision)
    at = linear / cavity
    margins = at[:, None] + nodes[None] / jnp.sqrt(cavity)[:, None]
    tilted = jax.nn.softmax(log_weights[None] + log_link(margins))
    at = jnp.sum(tilted * margins, axis=1)
    spread = jnp.sum(tilted * (margins - at[:, None]) ** 2, axis=1)
    # Quadrature is too coarse for a variance much below that of the cavity.
    inverse = jnp.clip(1 / jnp.maximum(spread, 1e-30), cavity, 1e3 * cavity)
    first = jnp.where(seen, (first + inverse * at - linear) / 2, 0)
    return first, jnp.where(seen, (second + inverse - cavity) / 2, 0)

  zeros = jnp.zeros_like(offset)
  return posterior(*jax.lax.fori_loop(0, 10, update, (zeros, zeros)))
