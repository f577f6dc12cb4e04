"""From the units of a table to those of a model's task and back."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from zoo.core import trees
from zoo.core.distributions import Distribution, Gaussian
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Task
from zoo.tasks.arrays import Arrays, mean_and_std

# Moments of a task are those of so many examples, in at least as many prompts as are
# compared with a context; how many times larger or smaller than all of these is worth a
# warning; and the most examples of each.
_NUM_EXAMPLES, _NUM_PROMPTS, _FAR, _LONGEST = 2**14, 256, 2, 256
_SIZES = 'root mean square of the features', 'root mean square of the labels'


@dataclasses.dataclass(frozen=True)
class Columns:
  """How columns of a table become features: `(x − center) / size · scale + shift`.

  Attributes:
    center: What is subtracted from each column, `[d]`.
    size: By what the difference is divided, `[d]`; > 0.
    scale: By what the quotient is multiplied, `[d]`; 0 for a column that is ignored.
    shift: What is added, `[d]`.
    places: The feature that each column becomes, `[d]`. All others are 0.
    num_features: How many features there are.
  """

  center: Float[np.ndarray, ' d']
  size: Float[np.ndarray, ' d']
  scale: Float[np.ndarray, ' d']
  shift: Float[np.ndarray, ' d']
  places: Int[np.ndarray, ' d']
  num_features: int

  def __call__(self, x: Float[np.ndarray, 'b d']) -> Float[np.ndarray, 'b n']:
    """Returns the features of rows."""
    features = np.zeros((len(x), self.num_features))
    # A number that is too large is refused where it is used.
    with np.errstate(over='ignore'):
      standardised = (x - self.center) / self.size
      features[:, self.places] = standardised * self.scale + self.shift
    return features

  def weights(
    self, weights: Float[np.ndarray, ' n']
  ) -> tuple[Float[np.ndarray, ' d'], float]:
    """Returns weights of the columns, and an offset, from weights of the features."""
    own = weights[self.places]
    of_columns = own * self.scale / self.size
    return of_columns, float(own @ self.shift - of_columns @ self.center)


@dataclasses.dataclass(frozen=True)
class Numbers:
  """How numbers become labels: `(y − center) / size · scale + shift`; and back.

  Attributes:
    center: What is subtracted.
    size: By what the difference is divided, > 0.
    scale: By what the quotient is multiplied; 0 if all numbers are equal.
    shift: What is added.
  """

  center: float
  size: float
  scale: float
  shift: float

  @property
  def unit(self) -> float:
    """A label that is larger by 1 stands for a number that is larger by this."""
    return self.size / self.scale if self.scale else 0.0

  def __call__(self, y: Any) -> Any:
    """Returns the labels of a model, or a label, from numbers."""
    with np.errstate(over='ignore'):
      return (y - self.center) / self.size * self.scale + self.shift

  def back(self, label: Any) -> Any:
    """Returns numbers, or a number, from labels."""
    return (label - self.shift) * self.unit + self.center


@dataclasses.dataclass(frozen=True)
class TableDistribution:
  """The distributions of numbers, in the units of a table.

  `Regressor.predict_distribution` returns it. It keeps the distribution of the labels
  as the model gave it. Numbers become labels, and answers become numbers, in float64 on
  the host, so that neither the size of the numbers nor a large mean costs digits.

  Attributes:
    of_labels: The distributions in the units of the model, `[b]`, with arrays of NumPy.
    units: How numbers become labels.
  """

  of_labels: Distribution
  units: Numbers

  def __getitem__(self, index: Any) -> TableDistribution:
    """Returns the distributions at an index of the rows."""
    return dataclasses.replace(self, of_labels=self.of_labels[index])

  @property
  def mean(self) -> Float[np.ndarray, '*b']:
    """The means."""
    return self.units.back(self._ask(lambda label: label.mean))

  @property
  def std(self) -> Float[np.ndarray, '*b']:
    """The standard deviations."""
    return self._ask(lambda label: label.std) * self.units.unit

  def log_prob(self, y: Any) -> Float[np.ndarray, '*b']:
    """Returns the log density at y, in nats.

    Args:
      y: A number for each row, `[b]`, or one for all of them.

    Raises:
      UserError: If y has another shape.
    """
    labels = self.units(np.asarray(y, np.float64))
    return self._ask(lambda label: label.log_prob(labels)) - np.log(self.units.unit)

  def cdf(self, y: Any) -> Float[np.ndarray, '*b']:
    """Returns the probability of at most y.

    Args:
      y: A number for each row, `[b]`, or one for all of them.

    Raises:
      UserError: If y has another shape.
    """
    labels = self.units(np.asarray(y, np.float64))
    return self._ask(lambda label: label.cdf(labels))

  def quantile(self, p: Any) -> Float[np.ndarray, '*b']:
    """Returns the number below which a share p of the probability lies.

    Args:
      p: The share, in [0, 1]: one number for all rows, or one for each.

    Raises:
      UserError: If p has another shape, or is not in [0, 1].
    """
    shares = np.asarray(p, np.float64)
    return self.units.back(self._ask(lambda label: label.quantile(shares)))

  def sample(self, key: Key[Array, '']) -> Float[np.ndarray, '*b']:
    """Draws a number for each row."""
    return self.units.back(self._ask(lambda label: label.sample(key)))

  def _ask(self, question: Callable[[Distribution], Any]) -> Float[np.ndarray, '*b']:
    """Returns the answer of the distribution of labels, in float64."""
    with jax.enable_x64(True):
      return np.asarray(question(jax.tree.map(jnp.asarray, self.of_labels)))


def in_units(label: Distribution, units: Numbers) -> TableDistribution:
  """Returns the distributions of numbers from those of their labels, `[b]`."""
  if units.unit == 0:  # The numbers are known.
    zeros = np.zeros(len(jax.tree.leaves(label)[0]))
    label, units = Gaussian(zeros, zeros), Numbers(units.center, 1.0, 1.0, 0.0)
  return TableDistribution(label, units)


@dataclasses.dataclass(frozen=True)
class Units:
  """The units of a table, and those that a model is given.

  A column is standardised to the mean 0 and the size 1, and then given the mean and the
  size of the feature whose place it takes. Labels are handled alike.

  Attributes:
    center: The mean of each column, `[d]`.
    size: The root mean square of what is left, `[d]`; 0 for a constant.
    means: The mean of each feature of the model, `[n]`.
    sizes: The root mean square of what is left of it, `[n]`.
    labels: The same of the labels.
  """

  center: Float[np.ndarray, ' d']
  size: Float[np.ndarray, ' d']
  means: Float[np.ndarray, ' n']
  sizes: Float[np.ndarray, ' n']
  labels: Numbers

  def columns(self, places: Int[np.ndarray, ' d']) -> Columns:
    """Returns how columns become features, for the place that each of them takes."""
    varies = self.size > 0
    return Columns(
      center=self.center,
      size=np.where(varies, self.size, 1),
      scale=np.where(varies, self.sizes[places], 0),
      shift=self.means[places],
      places=places,
      num_features=len(self.means),
    )


def units_of(
  x: Float[np.ndarray, 'c d'],
  y: Float[np.ndarray, ' c'] | None,
  task: Task | None,
  num_features: int | None,
  longest: int | None,
  standardizes: bool = False,
) -> Units:
  """Returns the units of a table and those of a model.

  Args:
    x: The columns; NaN is a missing number.
    y: The numbers to predict; None for classes.
    task: The task that the model was trained on. Without one nothing is scaled. One of
      arrays scales as it did in training. Of any other the moments are taken.
    num_features: How many features the model is for; None if it takes any number, for
      which the mean 0 and the size 1 are taken.
    longest: The most examples that the model takes; None if it has no limit.
    standardizes: Whether the model standardises what it is given, so that units do not
      matter and the mean 0 and the size 1 are taken.
  """
  d = x.shape[1]
  n = d if num_features is None else num_features
  zeros, ones, as_it_is = np.zeros(n), np.ones(n), Numbers(0.0, 1.0, 1.0, 0.0)
  if task is None:
    return Units(np.zeros(d), np.ones(d), zeros, ones, as_it_is)
  if isinstance(task, Arrays):
    table, labels = task.table, as_it_is
    if y is not None:
      labels = Numbers(float(table.y_mean), float(table.y_std), 1.0, 0.0)
    return Units(table.x_mean, table.x_std, zeros, ones, labels)
  label_mean, label_size = 0.0, 1.0
  if num_features is not None and not standardizes:
    drawn = prompts_of(task, min(len(x), longest or len(x)))
    zeros, ones = _mean_and_size(np.asarray(drawn.x))
    if y is not None:
      (mean,), (size,) = _mean_and_size(np.asarray(drawn.y)[..., None])
      label_mean, label_size = float(mean), float(size)
  center, size = mean_and_std(x)
  labels = as_it_is
  if y is not None:
    y_center, y_size = map(float, mean_and_std(y))
    varies = y_size > 0
    labels = Numbers(
      y_center, y_size if varies else 1.0, label_size if varies else 0.0, label_mean
    )
  return Units(center, size, zeros, ones, labels)


def prompts_of(task: Task, length: int) -> Prompt:
  """Prompts of a task with so many examples, at most 256, or as many as it can have."""
  length = min(length, _LONGEST)
  # Lengths are rounded up to powers of two, so that few programs are compiled.
  longest = 1 << (length - 1).bit_length()
  if longest > task.context_length and 'context_length' in trees.arguments(task):
    with contextlib.suppress(UserError):
      longer = dataclasses.replace(task, context_length=longest)  # pyright: ignore
      longer.check()
      task = longer
  number = max(_NUM_PROMPTS, _NUM_EXAMPLES // longest)
  prompt = jax.device_get(task.sample(jax.random.key(0), number))
  return dataclasses.replace(prompt, x=prompt.x[:, :length], y=prompt.y[:, :length])


def _mean_and_size(
  numbers: Float[np.ndarray, 'b c d'],
) -> tuple[Float[np.ndarray, ' d'], Float[np.ndarray, ' d']]:
  """Returns the mean of prompts, and the root mean square of their deviations from it.

  A mean of which no more is known than that it is near 0, by three standard errors over
  prompts, is taken as 0: it is so in most tasks.
  """
  numbers = np.asarray(numbers, np.float64)
  means = numbers.mean(axis=1)
  error = means.std(axis=0) / np.sqrt(len(means))
  mean = means.mean(axis=0)
  mean = np.where(np.abs(mean) > 3 * error, mean, 0)
  return mean, np.sqrt(np.square(numbers - mean).mean(axis=(0, 1)))


def warn_if_far(
  task: Task,
  x: Float[np.ndarray, 'c d'],
  y: Float[np.ndarray, ' c'] | None,
  longest: int | None,
) -> None:
  """Warns if moments of a context are far from those of all contexts of a task.

  Args:
    task: The task that the model was trained on.
    x: The features of the context as the model sees them.
    y: Its labels; None if they are classes, whose moments are not compared.
    longest: The most examples that the model takes; None if it has no limit.
  """
  prompt = prompts_of(task, min(len(x), longest or len(x)))
  found = _moments(x[None], None if y is None else y[None])
  prompts = slice(_NUM_PROMPTS)
  labels = None if y is None else np.asarray(prompt.y[prompts])
  drawn = _moments(np.asarray(prompt.x[prompts]), labels)
  far = []
  for what, (value,) in found.items():
    least, most = float(drawn[what].min()), float(drawn[what].max())
    if what in _SIZES:
      # With few features some functions are near 0, so that sizes differ by orders.
      spread = (most / least) ** 0.5 if least else 1.0
      low, high = least / max(_FAR, spread), most * _FAR
    else:
      width = most - least
      low = min(least / _FAR, least * _FAR, least - width)
      high = max(most / _FAR, most * _FAR, most + width)
    if not low <= value <= high:
      far.append(f'{what} is {value:.3g}, and from {least:.3g} to {most:.3g}')
  if far:
    warnings.warn(
      f'the {", the ".join(far)} in prompts of {type(task).__name__}, on which the '
      'model was trained; make the data like these, or expect wrong predictions',
      stacklevel=4,
    )


def _moments(
  x: Float[np.ndarray, 'b c d'], y: Float[np.ndarray, 'b c'] | None
) -> dict[str, Float[np.ndarray, ' b']]:
  """First and second moments of each context; but for the sizes they have no unit."""
  x = x.astype(np.float64)
  size_x = np.sqrt(np.square(x).mean(axis=(1, 2)))
  # Features or labels that are all 0 stay 0.
  x = x / np.where(size_x, size_x, 1)[:, None, None]
  c, d = x.shape[1:]
  # X Xᵀ and Xᵀ X have the same largest eigenvalue; the smaller matrix is taken.
  left, right = (x, x.swapaxes(1, 2)) if c < d else (x.swapaxes(1, 2), x)
  largest = np.linalg.eigvalsh(left @ right)[:, -1] / (c * d)
  moments = {
    _SIZES[0]: size_x,
    'root mean square of mean features, as a share of the size of features,': np.sqrt(
      np.square(x.mean(axis=1)).mean(axis=1)
    ),
    'share of the features along one direction': largest,
  }
  if y is None:
    return moments
  y = y.astype(np.float64)
  size_y = np.sqrt(np.square(y).mean(axis=1))
  y = y / np.where(size_y, size_y, 1)[:, None]
  products = np.einsum('bcd,bc->bd', x, y) / c
  return moments | {
    _SIZES[1]: size_y,
    'mean of the labels, as a share of their size,': y.mean(axis=1),
    'root mean square of the mean products of features and labels': np.sqrt(
      np.square(products).mean(axis=1)
    ),
    'mean of the mean products of features and labels': products.mean(axis=1),
  }
