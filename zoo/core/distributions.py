"""Predictive distributions: what a predictor says about the label of a query.

Each distribution is a pytree whose arrays have leading axes `*b`, with one entry for
each prompt. A predictor that has distributions has the method `distribution(prompt)`.
It returns the distribution of the observed label, which includes the label noise if the
task has any.
"""

# The mean of some distributions is a field, and that of others follows from fields.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import abc
import math
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jax.scipy.special import logsumexp, ndtr, ndtri
from jaxtyping import Array, ArrayLike, Bool, Float, Key

from zoo.core import losses, trees
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor

# A field that is an array of numbers. JAX puts tracers, shapes and other objects in
# its place, so that an annotated shape would be wrong where annotations are enforced.
Numbers: TypeAlias = Any

_LOG_2_PI = math.log(2 * math.pi)
# The median of |z| for a standard normal z: half of a half-normal tail lies within the
# width of the outer bar that it replaces.
_HALF_NORMAL_MEDIAN = 0.6744897501960817
_BISECTIONS = 64  # Each halves an interval, the last far below the rounding of float32.


class Distribution(trees.Tree, abc.ABC):
  """The base of distributions of a number for each prompt.

  Subclasses are `Gaussian`, `GaussianMixture`, `Bars` and `Mixture`, all of them in
  this module. (The task `zoo.tasks.Mixture` is another class.)

  Attributes:
    mean: The means, in the units of the labels, `[*b]`.
    std: The standard deviations, in the units of the labels, `[*b]`.
  """

  mean: Numbers
  std: Numbers

  def __getitem__(self, index: Any) -> Distribution:
    """Returns the distributions at an index of the leading axes `*b`."""
    return jax.tree.map(lambda array: array[index], self)

  @abc.abstractmethod
  def log_prob(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    """Returns the log density at y, in nats.

    Args:
      y: A number for each prompt, `[*b]`, or one for all of them.

    Raises:
      UserError: If y has another shape.
    """

  @abc.abstractmethod
  def cdf(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    """Returns the probability of at most y.

    Args:
      y: A number for each prompt, `[*b]`, or one for all of them.

    Raises:
      UserError: If y has another shape.
    """

  def quantile(self, p: Float[ArrayLike, '*p'] | float) -> Float[Array, '*b']:
    """Returns the number below which a share p of the probability lies.

    The shares 0 and 1 give the ends of the support, such as −∞ and ∞ of a normal
    distribution.

    Args:
      p: The share, in [0, 1]: one number for all prompts, or one for each. It has the
        precision of the distribution; in float32 the last share below 1 is 1 − 6e-8.

    Raises:
      UserError: If p has another shape, or is not in [0, 1].
    """
    share = self._shares(p).astype(jnp.result_type(self.mean))
    # Sums of probabilities from the far end are exact to their last digit near 0 and
    # not near 1, so the upper half is the lower half of −y.
    lower = self.lower_quantile(jnp.minimum(share, 0.5))
    upper = -self.mirrored().lower_quantile(jnp.minimum(1 - share, 0.5))
    return jnp.where(share <= 0.5, lower, upper)

  @abc.abstractmethod
  def lower_quantile(self, share: Float[Array, '*b']) -> Float[Array, '*b']:
    """Returns the quantile of a share in [0, ½] for each prompt."""

  @abc.abstractmethod
  def mirrored(self) -> Distribution:
    """Returns the distribution of −y."""

  def _of_prompts(self, name: str, numbers: Any) -> Float[Array, '*b']:
    """Returns an array with a number for each prompt.

    Args:
      name: The name of the argument, for the error message.
      numbers: A number for each prompt, in an array, a list or a column of pandas; or
        one number for all prompts.

    Raises:
      UserError: If the shape is another.
    """
    mean = jax.eval_shape(lambda of: of.mean, self)
    if not isinstance(numbers, jax.Array):
      numbers = jnp.asarray(np.asarray(numbers), mean.dtype)
    if numbers.ndim and numbers.shape != mean.shape:
      raise UserError(
        f'{name} has the shape {numbers.shape}; it must be {mean.shape}, a number for '
        'each prompt, or one number'
      )
    return jnp.broadcast_to(numbers, mean.shape)

  def _shares(self, p: Any) -> Float[Array, '*b']:
    """Returns shares for `quantile`, one for each prompt; raises UserError."""
    shares = self._of_prompts('p', p)
    is_known = not isinstance(shares, Tracer)
    if is_known and not bool(jnp.all((shares >= 0) & (shares <= 1))):
      raise UserError('p has numbers outside [0, 1]; it must be a share, such as 0.9')
    return shares

  def sample(self, key: Key[Array, '']) -> Float[Array, '*b']:
    """Draws a number for each prompt."""
    mean = self.mean
    shares = jax.random.uniform(key, mean.shape, mean.dtype)
    # A share of 0 stands for those up to the next one, of which half lie below this.
    return self.quantile(jnp.maximum(shares, float(jnp.finfo(mean.dtype).epsneg)))


@struct.dataclass(eq=False, repr=False)
class Gaussian(Distribution):
  """A normal distribution.

  A standard deviation of 0 is allowed: the label is known. Its log density is then ∞ at
  the mean and −∞ elsewhere.

  Args:
    mean: The means, `[*b]`.
    std: The standard deviations, ≥ 0, `[*b]`.

  Example:
    >>> import jax.numpy as jnp
    >>> from zoo.core.distributions import Gaussian
    >>> label = Gaussian(jnp.array([0.0, 1.0]), jnp.array([1.0, 2.0]))
    >>> [f'{number:.2f}' for number in label.quantile(0.975)]
    ['1.96', '4.92']
  """

  mean: Numbers
  std: Numbers

  def log_prob(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    return _log_normal(y, self.mean, self.std)

  def cdf(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    return _normal_cdf(y, self.mean, self.std)

  def lower_quantile(self, share: Float[Array, '*b']) -> Float[Array, '*b']:
    return _normal_quantile(share, self.mean, self.std)

  def mirrored(self) -> Gaussian:
    return Gaussian(-self.mean, self.std)


@struct.dataclass(eq=False, repr=False)
class GaussianMixture(Distribution):
  """A mixture of m normal distributions.

  A component may have the standard deviation 0, as in `Gaussian`.

  Args:
    log_weights: Logarithms of the weights up to a constant, `[*b m]`; −∞ leaves a
      component out.
    means: The means of the components, `[*b m]`.
    stds: Their standard deviations, ≥ 0, `[*b m]`.

  Example:
    >>> from zoo.core.distributions import GaussianMixture
    >>> label = GaussianMixture(
    ...   log_weights=jnp.zeros((1, 2)),
    ...   means=jnp.array([[-1.0, 1.0]]),
    ...   stds=jnp.zeros((1, 2)),
    ... )
    >>> label.mean.tolist(), label.std.tolist()
    ([0.0], [1.0])
  """

  log_weights: Numbers
  means: Numbers
  stds: Numbers

  @property
  def weights(self) -> Float[Array, '*b m']:
    """The weights of the components, which sum to 1."""
    return jax.nn.softmax(self.log_weights)

  @property
  def mean(self) -> Float[Array, '*b']:
    return jnp.sum(self.weights * self.means, axis=-1)

  @property
  def std(self) -> Float[Array, '*b']:
    # Squares are taken around the mean, so that large means do not hide a small spread.
    from_mean = self.means - self.mean[..., None]
    squares = jnp.square(self.stds) + jnp.square(from_mean)
    return jnp.sqrt(jnp.sum(self.weights * squares, axis=-1))

  def log_prob(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    densities = _log_normal(self._for_each(y), self.means, self.stds)
    log_weights = jax.nn.log_softmax(self.log_weights)
    # A component that is left out may have an infinite density.
    densities = jnp.where(log_weights == -jnp.inf, 0, densities)
    return logsumexp(log_weights + densities, axis=-1)

  def cdf(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    below = _normal_cdf(self._for_each(y), self.means, self.stds)
    # The weights may sum to 1 + 1e-7.
    return jnp.minimum(jnp.sum(self.weights * below, axis=-1), 1)

  def lower_quantile(self, share: Float[Array, '*b']) -> Float[Array, '*b']:
    # It lies between the least and the largest quantile of the components.
    of_components = _normal_quantile(self._for_each(share), self.means, self.stds)
    counts = self.log_weights > -jnp.inf
    low = jnp.min(jnp.where(counts, of_components, jnp.inf), axis=-1)
    high = jnp.max(jnp.where(counts, of_components, -jnp.inf), axis=-1)
    return _bisected(self, share, low, high)

  def mirrored(self) -> GaussianMixture:
    return GaussianMixture(self.log_weights, -self.means, self.stds)

  def _for_each(self, y: Float[Array, '*b']) -> Float[Array, '*b m']:
    return jnp.broadcast_to(y[..., None], self.means.shape)


@struct.dataclass(eq=False, repr=False)
class Bars(Distribution):
  """A histogram of n ≥ 2 bars, whose two outer bars are half-normal tails.

  The density is constant within each inner bar. The first bar begins at its right edge
  and falls to the left as half of a normal density does; the last bar falls to the
  right. Half of the probability of a tail lies within the width of its bar.

  Args:
    logits: Logarithms of the probabilities of the bars up to a constant, `[*b n]`.
    edges: The edges of the bars, increasing: `[n + 1]` for all prompts, or `[*b n+1]`.

  Example:
    >>> from zoo.core.distributions import Bars
    >>> label = Bars(jnp.zeros((1, 4)), jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0]))
    >>> label.probabilities.tolist(), label.cdf(jnp.array([0.5])).tolist()
    ([[0.25, 0.25, 0.25, 0.25]], [0.625])

  References:
    Müller et al., arXiv 2112.10510.
  """

  logits: Numbers
  edges: Numbers

  def __getitem__(self, index: Any) -> Bars:
    # Edges of all prompts have no leading axes.
    edges = self.edges if self.edges.ndim == 1 else self.edges[index]
    return Bars(self.logits[index], edges)

  @property
  def probabilities(self) -> Float[Array, '*b n']:
    """The probability of each bar."""
    return jax.nn.softmax(self.logits)

  @property
  def mean(self) -> Float[Array, '*b']:
    """The mean, with that of a half-normal tail beyond each end."""
    return jnp.sum(self.probabilities * self._moments()[0], axis=-1)

  @property
  def std(self) -> Float[Array, '*b']:
    """The standard deviation, with the spread within bars and tails."""
    means, variances = self._moments()
    p = self.probabilities
    mean = jnp.sum(p * means, axis=-1, keepdims=True)
    return jnp.sqrt(jnp.sum(p * (variances + jnp.square(means - mean)), axis=-1))

  def log_prob(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    edges, widths, tails = self._shape()
    bar = self._bar_of(y)
    log_p = _take(losses.log_softmax(self.logits), bar)
    last, tail = edges.shape[-1] - 2, _take(tails, bar)
    start = jnp.where(bar == 0, edges[..., 1], edges[..., last])
    is_tail = (bar == 0) | (bar == last)
    # Inner bars take the place of the tail's start, so that no gradient is NaN.
    at = jnp.where(is_tail, y, start)
    of_tail = _log_normal(at, start, tail) + math.log(2)
    return log_p + jnp.where(is_tail, of_tail, -jnp.log(_take(widths, bar)))

  def cdf(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    edges, widths, tails = self._shape()
    bar, p = self._bar_of(y), self.probabilities
    last = p.shape[-1] - 1
    left, width, tail = _take(edges, bar), _take(widths, bar), _take(tails, bar)
    before = _take(jnp.cumsum(p, axis=-1) - p, bar)
    inner = before + _take(p, bar) * (y - left) / width
    lower = p[..., 0] * 2 * ndtr((y - edges[..., 1]) / tail)
    upper = 1 - p[..., last] * 2 * ndtr((edges[..., last] - y) / tail)
    below = jnp.where(bar == 0, lower, jnp.where(bar == last, upper, inner))
    return jnp.clip(below, 0, 1)  # Sums of probabilities are rounded.

  def lower_quantile(self, share: Float[Array, '*b']) -> Float[Array, '*b']:
    edges, widths, tails = self._shape()
    of_bars = self.probabilities
    ends, last = jnp.cumsum(of_bars, axis=-1), of_bars.shape[-1] - 1
    bar = jnp.argmax((of_bars > 0) & (ends >= share[..., None]), axis=-1)
    of_bar, tail = _take(of_bars, bar), _take(tails, bar)
    # A tail is entered from its far end, where its density falls to 0.
    rest = jnp.where(bar == 0, share, 1 - share)
    from_end = tail * ndtri(jnp.clip(rest / of_bar, 0, 1) / 2)
    into = jnp.clip((share - _take(ends - of_bars, bar)) / of_bar, 0, 1)
    inner = _take(edges, bar) + into * _take(widths, bar)
    lower, upper = edges[..., 1] + from_end, edges[..., last] - from_end
    return jnp.where(bar == 0, lower, jnp.where(bar == last, upper, inner))

  def mirrored(self) -> Bars:
    return Bars(jnp.flip(self.logits, -1), -jnp.flip(self.edges, -1))

  def _shape(
    self,
  ) -> tuple[Float[Array, '*b m'], Float[Array, '*b n'], Float[Array, '*b n']]:
    """Returns the edges, the widths, and the scale of each bar if it were a tail."""
    *shape, n = self.logits.shape
    edges = jnp.asarray(self.edges, self.logits.dtype)
    edges = jnp.broadcast_to(edges, (*shape, n + 1))
    widths = edges[..., 1:] - edges[..., :-1]
    return edges, widths, widths / _HALF_NORMAL_MEDIAN

  def _bar_of(self, y: Float[Array, '*b']) -> Array:
    """Returns the number of the bar in which y lies, from 0."""
    edges, _, _ = self._shape()
    return jnp.sum(y[..., None] >= edges[..., 1:-1], axis=-1)

  def _moments(self) -> tuple[Float[Array, '*b n'], Float[Array, '*b n']]:
    """Returns the mean and the variance of each bar."""
    edges, widths, tails = self._shape()
    means = (edges[..., 1:] + edges[..., :-1]) / 2
    # The mean of a tail is this far from its start.
    away = tails * math.sqrt(2 / math.pi)
    means = means.at[..., 0].set(edges[..., 1] - away[..., 0])
    means = means.at[..., -1].set(edges[..., -2] + away[..., -1])
    variances, of_tails = jnp.square(widths) / 12, jnp.square(tails) * (1 - 2 / math.pi)
    variances = variances.at[..., 0].set(of_tails[..., 0])
    return means, variances.at[..., -1].set(of_tails[..., -1])


@struct.dataclass(eq=False, repr=False)
class Mixture(Distribution):
  """A mixture of distributions of any kind, with equal weights.

  Args:
    parts: The distributions, one or more, each `[*b]`.

  Example:
    >>> import jax.numpy as jnp
    >>> from zoo.core.distributions import Gaussian, Mixture
    >>> parts = [Gaussian(jnp.array([mean]), jnp.array([1.0])) for mean in (-1.0, 1.0)]
    >>> Mixture(tuple(parts)).std.round(3).tolist()
    [1.4140000343322754]
  """

  parts: tuple[Distribution, ...]

  def __getitem__(self, index: Any) -> Mixture:
    return Mixture(tuple(part[index] for part in self.parts))

  @property
  def mean(self) -> Float[Array, '*b']:
    return self._average([part.mean for part in self.parts])

  @property
  def std(self) -> Float[Array, '*b']:
    mean = self.mean
    squares = [
      jnp.square(part.std) + jnp.square(part.mean - mean) for part in self.parts
    ]
    return jnp.sqrt(self._average(squares))

  def log_prob(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    densities = jnp.stack([part.log_prob(y) for part in self.parts])
    return logsumexp(densities, axis=0) - math.log(len(self.parts))

  def cdf(self, y: Float[ArrayLike, '*b']) -> Float[Array, '*b']:
    y = self._of_prompts('y', y)
    return self._average([part.cdf(y) for part in self.parts])

  def lower_quantile(self, share: Float[Array, '*b']) -> Float[Array, '*b']:
    # It lies between the least and the largest quantile of the parts.
    of_parts = jnp.stack([part.lower_quantile(share) for part in self.parts])
    return _bisected(self, share, of_parts.min(axis=0), of_parts.max(axis=0))

  def mirrored(self) -> Mixture:
    return Mixture(tuple(part.mirrored() for part in self.parts))

  def _average(self, of_parts: list[Float[Array, '*b']]) -> Float[Array, '*b']:
    return jnp.mean(jnp.stack(of_parts), axis=0)


@struct.dataclass(eq=False, repr=False)
class Classes(trees.Tree):
  """Probabilities of k ≥ 2 classes.

  Args:
    logits: Logarithms of the probabilities up to a constant, `[*b k]`.

  Example:
    >>> from zoo.core.distributions import Classes
    >>> Classes.of_signs(jnp.zeros(1)).probabilities.tolist()
    [[0.5, 0.5]]
  """

  logits: Numbers

  @classmethod
  def of_signs(cls, logit: Float[Array, '*b']) -> Classes:
    """Returns the two classes −1 and +1, in this order, from the logit of +1."""
    return cls(jnp.stack([jnp.zeros_like(logit), logit], axis=-1))

  def __getitem__(self, index: Any) -> Classes:
    """Returns the classes at an index of the leading axes `*b`."""
    return Classes(self.logits[index])

  @property
  def probabilities(self) -> Float[Array, '*b k']:
    """The probability of each class."""
    return jax.nn.softmax(self.logits)

  def log_prob(self, labels: Float[Array, '*b k']) -> Float[Array, '*b']:
    """Returns the log probability of labels, in nats.

    Args:
      labels: One-hot vectors; or probabilities, for the expected log probability.
    """
    return -losses.cross_entropy(self.logits, labels)

  def sample(self, key: Key[Array, '']) -> Float[Array, '*b k']:
    """Draws a class for each prompt, as a one-hot vector."""
    drawn = jax.random.categorical(key, self.logits)
    return jax.nn.one_hot(drawn, self.logits.shape[-1], dtype=self.logits.dtype)


@struct.dataclass(eq=False, repr=False)
class NumberOrClass(trees.Tree):
  """The distribution of labels that are a number or a class.

  Args:
    numbers: The distribution of the label if it is a number, in the units of the
      labels, `[*b]`.
    classes: The distribution of the label if it is a class, `[*b]`.

  Example:
    >>> from zoo.core.distributions import Bars, Classes, NumberOrClass
    >>> label = NumberOrClass(
    ...   Bars(jnp.zeros((1, 4)), jnp.arange(5.0)), Classes(jnp.zeros((1, 2)))
    ... )
    >>> label.log_prob(jnp.array([[0.0, 1.0, 0.0]])).round(3).tolist()
    [-0.6930000185966492]
  """

  numbers: Bars
  classes: Classes

  def __getitem__(self, index: Any) -> NumberOrClass:
    """Returns the distributions at an index of the leading axes `*b`."""
    return NumberOrClass(self.numbers[index], self.classes[index])

  def log_prob(self, labels: Float[Array, '*b k']) -> Float[Array, '*b']:
    """Returns the log density of a number, or the log probability of a class, in nats.

    Args:
      labels: The number, followed by the class as a one-hot vector, `[*b, 1 + k]`. A
        number has a vector of zeros; the number of a class is not read.
    """
    of_classes = self.classes.log_prob(labels[..., 1:])
    return jnp.where(
      has_classes(labels), of_classes, self.numbers.log_prob(labels[..., 0])
    )


def has_classes(labels: Float[Array, '*b k']) -> Bool[Array, '*b']:
  """Says of labels that are a number or a class whether they are classes.

  A label holds the number, followed by the class as a one-hot vector.

  Returns:
    True for classes, False for numbers.
  """
  return jnp.sum(labels[..., 1:], axis=-1) > 0


@runtime_checkable
class HasDistribution(Predictor, Protocol):
  """A predictor that says how sure it is of its prediction."""

  def distribution(self, prompt: Prompt) -> Distribution | Classes | NumberOrClass:
    """Returns the distribution of the observed label of each prompt's query."""
    ...


@runtime_checkable
class HasDistributions(HasDistribution, Protocol):
  """A predictor that gives the distributions of all examples in one pass."""

  def distributions(self, prompt: Prompt) -> Distribution | Classes | NumberOrClass:
    """Returns distributions for each example, from those before it, and for the query.

    The leading axes are `[b, t]`, and the query is last.
    """
    ...


@runtime_checkable
class MayHaveDistribution(HasDistribution, Protocol):
  """A predictor that says whether it can give the `distribution` that its class has.

  Attributes:
    has_distribution: Whether this object can.
  """

  has_distribution: bool


def has_distribution(subject: object) -> TypeGuard[HasDistribution]:
  """Says whether a predictor can give `distribution`."""
  if isinstance(subject, MayHaveDistribution):
    return subject.has_distribution
  return isinstance(subject, HasDistribution)


def _bisected(
  distribution: Distribution,
  share: Float[Array, '*b'],
  low: Float[Array, '*b'],
  high: Float[Array, '*b'],
) -> Float[Array, '*b']:
  """Returns the quantiles of shares, which lie between two numbers."""

  def halve(_: Any, ends: Any) -> Any:
    low, high = ends
    middle = low + (high - low) / 2
    is_above = distribution.cdf(middle) >= share
    return jnp.where(is_above, low, middle), jnp.where(is_above, middle, high)

  found = jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high))[1]
  # The share 0 has the lower end of the support, which may be −∞.
  return jnp.where((share == 0) | jnp.isinf(low), low, found)


def _log_normal(
  y: Float[Array, '*n'], mean: Float[Array, '*n'], std: Float[Array, '*n']
) -> Float[Array, '*n']:
  """Returns the log density of a normal distribution; std 0 is a known number."""
  scale = jnp.where(std == 0, 1, std)
  density = -(jnp.square((y - mean) / scale) + _LOG_2_PI) / 2 - jnp.log(scale)
  known = jnp.where(y == mean, jnp.inf, -jnp.inf)
  return jnp.where(std == 0, known.astype(density.dtype), density)


def _normal_cdf(
  y: Float[Array, '*n'], mean: Float[Array, '*n'], std: Float[Array, '*n']
) -> Float[Array, '*n']:
  scale = jnp.where(std == 0, 1, std)
  known = (y >= mean).astype(y.dtype)
  return jnp.where(std == 0, known, ndtr((y - mean) / scale))


def _normal_quantile(
  share: Float[Array, '*n'], mean: Float[Array, '*n'], std: Float[Array, '*n']
) -> Float[Array, '*n']:
  # Without the condition a known number would have 0 · ∞ at its ends.
  return mean + jnp.where(std == 0, 0, std * ndtri(share))


def _take(numbers: Float[Array, '*b n'], bar: Array) -> Float[Array, '*b']:
  """Returns the entry of each row at the number of its bar."""
  return jnp.take_along_axis(numbers, bar[..., None], axis=-1)[..., 0]
