"""Baselines that predict one prompt at a time, after each number of its examples."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float

from zoo.core import trees
from zoo.core.distributions import Classes, Distribution
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.protocols import Predictor


class Examples(NamedTuple):
  """What a baseline sees of one prompt: examples, and the features of the query.

  Attributes:
    x: Features of the examples.
    y: Labels of the examples.
    seen: Whether the baseline sees each example. Those that it sees come first.
    x_query: Features of the query.
  """

  x: Float[Array, 'c d']
  y: Float[Array, ' c *k']
  seen: Bool[Array, ' c']
  x_query: Float[Array, ' d']

  @property
  def num_seen(self) -> Float[Array, '']:
    """The number of examples that are seen, as a float."""
    return jnp.sum(self.seen).astype(self.x.dtype)

  def zeroed(self) -> Examples:
    """Returns the same with zeros in place of the examples that are not seen."""
    along = self.seen.reshape(-1, *(1,) * (self.y.ndim - 1))
    x, y = jnp.where(self.seen[:, None], self.x, 0), jnp.where(along, self.y, 0)
    return self._replace(x=x, y=y)


class Baseline(trees.Tree, abc.ABC):
  """Base of untrained predictors, which are defined by `predict` for one prompt.

  A subclass is decorated with `flax.struct.dataclass`. Its numbers are then arguments
  of compiled programs, which baselines of the same class and sizes share. Sizes and
  names are fields with `pytree_node=False`.

  Attributes:
    one_by_one: Whether prompts are predicted one after another, because each needs much
      memory.
    is_slow: Whether a comparison gives it fewer prompts, because each takes a
      millisecond.

  Example:
    >>> import flax
    >>> @flax.struct.dataclass
    ... class FirstLabel(zoo.estimators.baselines.Baseline):
    ...   def predict(self, examples):
    ...     return jnp.where(examples.seen[0], examples.y[0], 0)
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> FirstLabel()(prompt).shape, FirstLabel().predictions(prompt).shape
    ((3,), (3, 6))
  """

  one_by_one: ClassVar[bool] = False
  is_slow: ClassVar[bool] = False

  @abc.abstractmethod
  def predict(self, examples: Examples) -> Float[Array, '*k']:
    """Returns the prediction at a query from the examples that are seen."""

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    """Returns the prediction for each prompt's query."""
    return self._at_query(self.predict, prompt)

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t *k']:
    """Predicts each example from those before it, and the query last."""
    return self._everywhere(self.predict, prompt)

  def predicting(self) -> Baseline:
    """Returns this baseline without fields that only its distribution needs.

    Two baselines that predict the same are equal in this form.
    """
    return self

  def _at_query(self, function: Callable[[Examples], Any], prompt: Prompt) -> Any:
    """Returns what a function gives for the query of each prompt, stacked."""
    prompt = checked_prompt(prompt)
    c, x, y = prompt.x.shape[1], prompt.x, prompt.y
    # For c = 0 there is one example that is not seen, so `predict` needs no own case.
    if c == 0:
      x, y = (jnp.zeros((len(a), 1, *a.shape[2:]), a.dtype) for a in (x, y))
    seen = jnp.arange(x.shape[1]) < c
    return self._for_each(function, x, y, seen, prompt.x_query)

  def _everywhere(self, function: Callable[[Examples], Any], prompt: Prompt) -> Any:
    """Returns what a function gives for each example from those before; query last."""
    prompt = checked_prompt(prompt)
    c, queries = prompt.x.shape[1], prompt.features

    def at(k: Array) -> Any:
      seen = jnp.arange(c) < k
      return self._for_each(function, prompt.x, prompt.y, seen, queries[:, k])

    parts = jax.lax.map(at, jnp.arange(c + 1))
    return jax.tree.map(lambda array: jnp.moveaxis(array, 0, 1), parts)

  def _for_each(
    self,
    function: Callable[[Examples], Any],
    x: Float[Array, 'b c d'],
    y: Float[Array, 'b c *k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, 'b d'],
  ) -> Any:
    def of_one(arrays: tuple[Array, Array, Array]) -> Any:
      return function(Examples(*arrays[:2], seen, arrays[2]))

    if not self.one_by_one:
      return jax.vmap(of_one)((x, y, x_query))
    # For gradients a prompt is computed again, so that its intermediate values are not
    # kept.
    return jax.lax.map(jax.checkpoint(of_one, prevent_cse=False), (x, y, x_query))


class Describing(Baseline):
  """Base of baselines that know the distribution of the observed label, a number.

  A subclass defines `describe` for one prompt; the mean of the distribution is
  `predict`. If labels have no noise and the examples determine the label, the standard
  deviation is 0 up to rounding.

  Example:
    >>> import flax
    >>> @flax.struct.dataclass
    ... class StandardNormal(zoo.estimators.baselines.Describing):
    ...   def predict(self, examples):
    ...     return jnp.zeros(())
    ...   def describe(self, examples):
    ...     return zoo.core.distributions.Gaussian(jnp.zeros(()), jnp.ones(()))
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> StandardNormal().distribution(prompt).std.tolist()
    [1.0, 1.0, 1.0]
  """

  @abc.abstractmethod
  def describe(self, examples: Examples) -> Distribution:
    """Returns the distribution of the query's label, given the seen examples."""

  def distribution(self, prompt: Prompt) -> Distribution | Classes:
    """Returns the distribution of the label of each prompt's query."""
    return self._at_query(self.describe, prompt)

  def distributions(self, prompt: Prompt) -> Distribution | Classes:
    """Returns the distribution of each label given those before it, `[b, t]`."""
    return self._everywhere(self.describe, prompt)


class OfClasses(Baseline):
  """Base of baselines for one-hot labels, whose logits are their distribution.

  Example:
    >>> import flax
    >>> @flax.struct.dataclass
    ... class Counts(zoo.estimators.baselines.OfClasses):
    ...   def predict(self, examples):
    ...     return jnp.log(examples.zeroed().y.sum(axis=0) + 1)
    >>> prompt = zoo.tasks.GaussianClusters(2, 5, 4).sample(jax.random.key(0), 3)
    >>> print(Counts().distribution(prompt).logits[0].round(2))
    [0.69 0.   1.39 0.69]
  """

  def distribution(self, prompt: Prompt) -> Classes:
    """Returns the probabilities of the classes of each prompt's query."""
    return Classes(self(prompt))

  def distributions(self, prompt: Prompt) -> Classes:
    """Returns the probabilities of classes of each example, `[b, t]`, query last."""
    return Classes(self.predictions(prompt))


class OfSigns(Baseline):
  """Base of baselines for labels ±1, whose prediction is the logit of +1.

  Example:
    >>> import flax
    >>> @flax.struct.dataclass
    ... class MeanSign(zoo.estimators.baselines.OfSigns):
    ...   def predict(self, examples):
    ...     return examples.zeroed().y.sum() / jnp.maximum(examples.num_seen, 1)
    >>> prompt = zoo.tasks.Parity(2, 5).sample(jax.random.key(0), 3)
    >>> print(np.round(MeanSign().distribution(prompt).logits[0], 2))
    [0.  0.2]
  """

  def distribution(self, prompt: Prompt) -> Classes:
    """Returns the probabilities of −1 and +1, in this order, of each query."""
    return Classes.of_signs(self(prompt))

  def distributions(self, prompt: Prompt) -> Classes:
    """Returns the probabilities of −1 and +1 for each example, `[b, t]`, query last."""
    return Classes.of_signs(self.predictions(prompt))


class HostBaseline(trees.Tree, abc.ABC):
  """Base of predictors that fit a model of another library to each prompt, on the host.

  They cannot be compiled, and are so slow that a comparison gives them fewer prompts. A
  subclass defines `fit_and_predict`.

  Example:
    >>> import flax
    >>> @flax.struct.dataclass
    ... class MedianLabel(zoo.estimators.baselines.HostBaseline):
    ...   def fit_and_predict(self, x, y, x_query):
    ...     return float(np.median(y)) if len(y) else 0.0
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> print(MedianLabel()(prompt).round(2))
    [-0.08  0.05  1.04]
  """

  @abc.abstractmethod
  def fit_and_predict(
    self,
    x: Float[np.ndarray, 'k d'],
    y: Float[np.ndarray, ' k'],
    x_query: Float[np.ndarray, ' d'],
  ) -> float:
    """Returns the prediction at a query from k ≥ 0 examples.

    Args:
      x: Features of the examples `[k, d]`.
      y: Labels of the examples `[k]`.
      x_query: Features of the query `[d]`.
    """

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """Returns the prediction for each prompt's query."""
    prompt = checked_prompt(prompt)
    arrays = (np.asarray(array) for array in (prompt.x, prompt.y, prompt.x_query))
    predictions = [self.fit_and_predict(*row) for row in zip(*arrays, strict=True)]
    return jnp.asarray(predictions, prompt.x.dtype)


def distinct(predictors: Mapping[str, Predictor]) -> dict[str, Predictor]:
  """Returns the predictors without repetitions, by their names.

  Equal predictors become one entry, such as `ols, bayes`, in the place of the first.
  Fields that only their distributions need do not count. Predictors of other libraries,
  which cannot be compiled, are left out.

  Example:
    >>> task = zoo.tasks.TaskPool(num_features=2, num_tasks=3)
    >>> list(zoo.estimators.baselines.distinct(task.baselines()))
    ['bayes, dmmse', 'ridge', 'ols', 'zero']
  """
  groups: list[tuple[list[str], Predictor]] = []
  for name, predictor in predictors.items():
    if isinstance(predictor, Baseline):
      predictor = predictor.predicting()
    alike = next((names for names, other in groups if other == predictor), None)
    if alike is not None:
      alike.append(name)
    elif not isinstance(predictor, HostBaseline):
      groups.append(([name], predictor))
  return {', '.join(names): predictor for names, predictor in groups}


@struct.dataclass(eq=False, repr=False)
class Zero(Baseline):
  """The prediction 0: the mean of a centred task, or equal probabilities of classes.

  Example:
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> print(zoo.estimators.baselines.Zero()(prompt))
    [0. 0. 0.]
  """

  def predict(self, examples: Examples) -> Float[Array, '*k']:
    return jnp.zeros(examples.y.shape[1:], examples.y.dtype)


def check_numbers(baseline: Baseline, examples: Examples, of_classes: str) -> None:
  """Raises UserError if labels are one-hot, for a baseline that predicts numbers.

  Args:
    baseline: The baseline that predicts numbers.
    examples: The examples that it was given.
    of_classes: Name of the baseline for classes, which the error recommends.

  Raises:
    UserError: If the labels are one-hot.
  """
  if examples.y.ndim > 1:
    raise UserError(
      f'{type(baseline).__name__} predicts numbers, and the labels are one-hot vectors '
      f'of {examples.y.shape[1]} classes; use zoo.estimators.classes.{of_classes}'
    )


def check_classes(baseline: Baseline, examples: Examples) -> None:
  """Raises UserError if labels are numbers, for a baseline that predicts classes."""
  if examples.y.ndim == 1:
    raise UserError(
      f'{type(baseline).__name__} predicts classes, and the labels are numbers; it '
      'needs labels that are one-hot vectors'
    )


@struct.dataclass(eq=False, repr=False)
class NearestNeighbours(Baseline):
  """The mean label of the examples nearest to the query; 0 without examples.

  Args:
    num_neighbours: Number of nearest examples, ≥ 1.

  Example:
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> print(zoo.estimators.baselines.NearestNeighbours()(prompt).round(2))
    [-0.35  1.66  0.45]
  """

  num_neighbours: int = struct.field(pytree_node=False, default=3)

  def __post_init__(self):
    super().__post_init__()
    check_count('num_neighbours', self.num_neighbours)

  def predict(self, examples: Examples) -> Float[Array, '']:
    check_numbers(self, examples, 'NearestShares')
    x, y, seen, x_query = examples
    distances = jnp.sum(jnp.square(x - x_query[None]), axis=-1)
    distances = jnp.where(seen, distances, jnp.inf)
    nearest = jnp.argsort(distances)[: self.num_neighbours]
    weights = seen[nearest].astype(y.dtype)
    return jnp.sum(weights * y[nearest]) / jnp.maximum(jnp.sum(weights), 1)


@struct.dataclass(eq=False, repr=False)
class Averaging(Baseline):
  """The prediction `w·x_q` with `w = (1/k) Σ_i y_i x_i` over k examples.

  Example:
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> print(zoo.estimators.baselines.Averaging()(prompt).round(2))
    [-0.56  3.59 -0.03]

  References:
    Garg et al., arXiv 2208.01066.
  """

  def predict(self, examples: Examples) -> Float[Array, '']:
    check_numbers(self, examples, 'NearestMean')
    x, y, _, x_query = examples.zeroed()
    return jnp.dot(x_query, y @ x) / jnp.maximum(examples.num_seen, 1)
