"""Points of known classes with labels, learned in weights or read from the context."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, Key

from zoo.core import losses
from zoo.core.beliefs import Belief, values_of
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.core.trees import Number, Vector
from zoo.estimators.baselines import Examples, OfClasses, Zero
from zoo.estimators.classes import NearestShares
from zoo.estimators.cluster_posteriors import (
  ContextBayes,
  block_of_query,
  points_of,
  predict_labels,
  sums_over,
)
from zoo.estimators.partitions import IMPOSSIBLE, is_small, log_prior, partitions
from zoo.tasks.base import (
  BaseTask,
  exchanged,
  make_prompt,
  register_task,
  unshifted,
)
from zoo.tasks.images import read_images


@register_task('labelled_clusters')
@struct.dataclass(eq=False, repr=False)
class LabelledClusters(BaseTask):
  """Classification of points from K known clusters, each of which has one of L labels.

  A class of rank k = 1 … K has the probability `∝ k^−α`, the label k − 1 modulo L, and
  a mean `μ_k ~ N(0, I/D)` that depends only on `seed` and the sizes. Each prompt draws
  the classes of its N examples and of its query. The features of an example of class k
  are `x = (μ_k + ε η) / √(1 + ε²)` with `η ~ N(0, I/D)`. Labels are one-hot, and are
  also the targets. The latents are the classes. A model can learn the labels of the
  classes in its weights, or read them from the context:

  - With a burstiness B > 0, N/B classes are drawn independently. The context has B
    examples of each, in random order, and the query is of one of them. (Classes may be
    drawn twice, as in the author's code.)
  - With B = 0, the classes of all examples and of the query are drawn independently.
    The context then says nothing about the query.

  The loss of the paper is that of the query alone (`objective.positions='query'`). The
  Bayes predictor knows the means and the labels of all classes (baseline `bayes`). If
  B > 0, it sums over the partitions of the context into classes, and is left out if
  there are more than 30,000 of them.

  With `source='tfds'` the features are images of a TensorFlow data set instead, drawn
  independently from those of their class. The first K classes of the data set are used,
  and the Bayes predictor is not known.

  Args:
    num_features: Number of features D ≥ 1. For images it is `image_size²`.
    context_length: Number of examples N ≥ 1.
    num_classes: Number of classes K ≥ 2, a multiple of L.
    num_labels: Number of labels L ≥ 2.
    burstiness: Number B of examples of each drawn class in a context, a divisor of N;
      0 draws all classes independently.
    zipf: Exponent α ≥ 0 of the probabilities of the classes.
    within: Scale ε of the points of a class around its mean, from 1e-15 to 1e15; not
      used for images.
    seed: Seed of the means, from 0 to 2³² − 1; not used for images.
    source: Where points come from, 'gaussian' or 'tfds' (images).
    dataset: Name of a data set of TensorFlow Datasets (TFDS), such as 'omniglot'; only
      for images.
    data_dir: Folder of the data set, only for images. None is the folder of TFDS. It
      is kept as its full path.
    image_size: Number of pixels of a side of the images, ≥ 1.
    held_out_classes: Number of the last classes of the data set, which prompts of this
      task do not show. The test `in_context` uses them, and needs at least N/B of them.

  Raises:
    UserError: If the images cannot be read. `zoo.create_task` raises it for a field out
      of its range.

  Example:
    >>> task = zoo.create_task('labelled_clusters', num_features=3, num_labels=4)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 8, 3), (2, 8, 4), (2, 4))

  References:
    Reddy, arXiv 2312.03002. Images: Chan et al., arXiv 2205.05055.
  """

  num_features: int = struct.field(pytree_node=False, default=63)
  context_length: int = struct.field(pytree_node=False, default=8)
  num_classes: int = struct.field(pytree_node=False, default=128)
  num_labels: int = struct.field(pytree_node=False, default=32)
  burstiness: int = struct.field(pytree_node=False, default=1)
  zipf: Number = 0.0
  within: Number = 0.1
  seed: int = struct.field(pytree_node=False, default=0)
  source: str = struct.field(pytree_node=False, default='gaussian')
  dataset: str | None = struct.field(pytree_node=False, default=None)
  data_dir: str | None = struct.field(pytree_node=False, default=None)
  image_size: int = struct.field(pytree_node=False, default=28)
  held_out_classes: int = struct.field(pytree_node=False, default=100)
  # __post_init__ reads the images of a data set, as an `Images`.
  _images: Any = None
  label_kind = 'classes'
  exchangeable = True

  def __post_init__(self):
    super().__post_init__()
    if self.source != 'tfds':
      return
    set_field, images = object.__setattr__, self._images
    origin = self.dataset, self.data_dir, self.image_size
    # When JAX rebuilds a task, it has its images already.
    if images is None or images.origin != origin:
      images = read_images(self.dataset, self.data_dir, self.image_size)
      set_field(self, '_images', images)
      set_field(self, 'dataset', images.origin[0])
      set_field(self, 'data_dir', images.origin[1])
    set_field(self, 'num_features', self.image_size**2)

  @property
  def stationary(self) -> bool:
    """Whether the class of every example is drawn independently."""
    return self.burstiness == 0

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k; here the number of labels."""
    return self.num_labels

  @property
  def means(self) -> Float[np.ndarray, 'm d']:
    """The means of the classes, float64 and read-only."""
    return _means(self.seed, self.num_classes, self.num_features)

  @property
  def labels(self) -> Int[np.ndarray, ' m']:
    """The label of each class."""
    return np.arange(self.num_classes) % self.num_labels

  def log_probabilities(self) -> Float[Array, ' m']:
    """Returns the logarithm of the probability of each class."""
    ranks = jnp.arange(1, self.num_classes + 1)
    return jax.nn.log_softmax(-jnp.asarray(self.zipf, float) * jnp.log(ranks))

  def check(self) -> None:
    super().check()
    check_count('num_labels', self.num_labels, minimum=2)
    check_count('num_classes', self.num_classes, minimum=2)
    check_count('burstiness', self.burstiness, minimum=0)
    check_number('zipf', self.zipf, minimum=0.0)
    check_number('within', self.within, minimum=1e-15, maximum=1e15)
    check_count('seed', self.seed, minimum=0, maximum=2**32 - 1)
    if self.num_classes % self.num_labels:
      raise UserError(
        f'num_classes is {self.num_classes}; it must be a multiple of num_labels, '
        f'{self.num_labels}'
      )
    if self.burstiness and self.context_length % self.burstiness:
      raise UserError(
        f'burstiness is {self.burstiness}; it must divide context_length, '
        f'{self.context_length}, or be 0'
      )
    self._check_source()

  def _check_source(self) -> None:
    check_name('source', self.source, ('gaussian', 'tfds'))
    check_count('image_size', self.image_size)
    check_count('held_out_classes', self.held_out_classes)
    if self.source == 'gaussian':
      for name in ('dataset', 'data_dir'):
        if (value := getattr(self, name)) is not None:
          raise UserError(f"{name} is {value!r}; it needs source = 'tfds'")
      return
    slots = self.context_length // max(self.burstiness, 1)
    check_count('held_out_classes', self.held_out_classes, minimum=slots)
    if self.num_classes + self.held_out_classes > self._images.num_classes:
      raise UserError(
        f'num_classes is {self.num_classes}, and held_out_classes '
        f'{self.held_out_classes}; together they may be at most '
        f'{self._images.num_classes}, the classes of {self.dataset}'
      )

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    slots_key, classes_key, noise_key = jax.random.split(key, 3)
    slots = sample_slots(slots_key, self.context_length, self.burstiness)
    law = jnp.exp(self.log_probabilities())
    # There are at most as many classes as examples. Classes of slots without an example
    # are not used.
    drawn = jax.random.choice(classes_key, len(law), slots.shape, p=law)
    return self.prompt_of(noise_key, drawn[slots])

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says, with other classes in the context.

    The class of the query is drawn by its probability given the features of the query.

    Args:
      key: Random key.
      prompt: One prompt, without the axis b.
      keep: 'query'.

    Returns:
      One prompt, without the axis b.

    Raises:
      UserError: `keep` is 'inputs'. A class has the same label in all prompts.
    """  # noqa: DOC501
    if keep == 'inputs':
      raise one_label(self)
    slots_key, classes_key, noise_key, query_key = jax.random.split(key, 4)
    slots = sample_slots(slots_key, self.context_length, self.burstiness)
    law = jnp.exp(self.log_probabilities())
    drawn = jax.random.choice(classes_key, len(law), slots.shape, p=law)
    query = jax.random.categorical(query_key, self.log_classes(prompt.x_query))
    return self.prompt_of(noise_key, drawn.at[slots[-1]].set(query)[slots])

  def log_classes(self, x: Float[Array, ' d']) -> Float[Array, ' m']:
    """Returns the log density of each class together with these features."""
    if self.source == 'tfds':
      shares = self._images.shares(x)[: self.num_classes]
      return self.log_probabilities() + jnp.log(shares)
    variance = jnp.square(jnp.asarray(self.within, x.dtype))
    norm = jnp.log(2 * np.pi * variance / (1 + variance) / self.num_features)
    return (
      self.log_probabilities() + _fits(self, x[None])[0] - self.num_features / 2 * norm
    )

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    return logsumexp(self.log_classes(x[0])) if len(x) == 1 else super().log_density(x)

  def prompt_of(self, key: Key[Array, ''], classes: Int[Array, ' t']) -> Prompt:
    """Returns a prompt whose examples have given classes, which are its latents.

    Args:
      key: Random key.
      classes: Classes of the examples and the query `[t]`.

    Returns:
      One prompt, without the axis b.
    """
    if self.source == 'tfds':
      x = self._images.sample(key, classes)
    else:
      x = self.around(key, jnp.asarray(self.means, float)[classes])
    labels = jax.nn.one_hot(jnp.asarray(self.labels)[classes], self.num_labels)
    return make_prompt(x, labels.astype(x.dtype), None, classes)

  def around(
    self, key: Key[Array, ''], means: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    """Draws features of examples whose classes have given means.

    Args:
      key: Random key.
      means: Mean of the class of each example `[t, d]`.

    Returns:
      Features `[t, d]`.
    """
    within = jnp.asarray(self.within, means.dtype)
    scale = jnp.sqrt(1 + within**2)
    spread = within / scale / np.sqrt(self.num_features)
    return means / scale + spread * jax.random.normal(key, means.shape)

  def sample_new(
    self,
    classes_key: Key[Array, ''],
    key: Key[Array, ''],
    slots: Int[Array, ' t'],
    x_query: Float[Array, ' d'] | None = None,
  ) -> Float[Array, 't d']:
    """Draws features of examples whose N/B different classes are new.

    Args:
      classes_key: Random key of the classes.
      key: Random key of the points.
      slots: What `sample_slots` has returned.
      x_query: Features of the query. If they are given, the others are drawn given
        them.

    Returns:
      Features of the examples and the query `[t, d]`.
    """
    count = self.context_length // self.burstiness
    if self.source == 'tfds':
      first = self._images.num_classes - self.held_out_classes
      new = jax.random.permutation(classes_key, self.held_out_classes)
      # Any two new classes can be exchanged.
      if x_query is not None:
        of_query = jnp.argmax(self._images.shares(x_query)[first:])
        new = exchanged(new, new[slots[-1]], of_query)
      return self._images.sample(key, (first + new[:count])[slots])
    means = jax.random.normal(classes_key, (count, self.num_features))
    means = means / np.sqrt(self.num_features)
    if x_query is not None:
      # `of_query` is drawn as `μ ~ N(0, I/D)` is, given `(μ + ε η)/√(1 + ε²) = x_q`.
      within = jnp.asarray(self.within, x_query.dtype)
      of_query = (x_query + within * means[slots[-1]]) / jnp.sqrt(1 + within**2)
      means = means.at[slots[-1]].set(of_query)
    return self.around(key, means[slots])

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    `bayes` knows the means and the labels, and sees the context. `weights` knows them,
    too, but does not see the context. `context` takes the classes to be new in each
    prompt. For images there are only the label of the nearest example and `zero`.

    `bayes` and `context` sum over the partitions of the context into classes. They are
    left out if there are more than `zoo.estimators.partitions.MOST` partitions. But
    `bayes` is `weights` if `B = 0`, whatever their number.
    """
    if self.source == 'tfds':
      return {'nearest_neighbours': NearestShares(1, 0.0), 'zero': Zero()}
    # Bursts do not matter to this baseline. Without them, tasks that differ only in
    # them share it.
    plain: Any = dataclasses.replace(self, burstiness=0)  # pyright: ignore
    weights = WeightsBayes(plain)
    bayes: dict[str, Predictor] = {}
    # With B = 0 the classes of the context say nothing about that of the query.
    if not self.burstiness:
      bayes = {'bayes': weights}
    elif is_small(self.context_length, self.burstiness):
      bayes = {'bayes': BurstBayes(self)}
    context: dict[str, Predictor] = {}
    if is_small(self.context_length, self.burstiness):
      context = {'context': self.context_bayes()}
    return {**bayes, **context, 'weights': weights, 'zero': Zero()}

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the probabilities of the class of the query, given its features, too.

    Args:
      prompt: Prompts `[b]`, with at most N examples.

    Returns:
      The belief, with values `[b, c + 1, K]`.

    Raises:
      UserError: If the features are images, or if there are too many partitions of the
        context into classes.
    """
    if self.source == 'tfds':
      raise self.no_belief('the density of images is not known')
    bayes: WeightsBayes | BurstBayes = WeightsBayes(self)
    if self.burstiness:
      if not is_small(self.context_length, self.burstiness):
        raise self.no_belief(
          f'there are too many partitions of {self.context_length} examples into '
          f'classes of {self.burstiness}'
        )
      bayes = BurstBayes(self)
    names = tuple(f'class {i}' for i in range(self.num_classes))
    return Belief(values_of(bayes, prompt), names)

  def belief_prediction(
    self, values: Float[Array, 'b m'], prompt: Prompt
  ) -> Float[Array, 'b l']:
    labels = jax.nn.one_hot(self.labels, self.num_labels, dtype=values.dtype)
    return jnp.matmul(values, labels, precision='highest')

  def context_bayes(self) -> ContextBayes:
    """Returns the Bayes predictor for classes that are new in each prompt."""
    prior: Vector = 0.0
    if not self.burstiness:
      law = np.arange(1, self.num_classes + 1.0) ** -np.float64(self.zipf)
      prior = log_prior(self.context_length, law / law.sum())
    return ContextBayes(self.context_length, self.burstiness, self.within, prior)

  def shifts(self) -> dict[str, Task]:
    """Returns the tests of the paper (see `ClusterTest`), and longer contexts, by name.

    The tests have the burstiness max(B, 1).
    """
    tests: dict[str, Task] = {test: ClusterTest(self, test) for test in TESTS}
    return tests | super().shifts()


def one_label(task: BaseTask) -> UserError:
  """Returns the error of a redraw that keeps the inputs, if classes have one label."""
  return UserError(
    f'{type(task).__name__} has one function: each class has the same label in all '
    "prompts, and there are no others with the same inputs. keep='query' draws other "
    'examples'
  )


def sample_slots(
  key: Key[Array, ''], context_length: int, burstiness: int
) -> Int[Array, ' t']:
  """Draws which examples are of one class: a slot for each example and for the query.

  There are N/B slots, and B examples of the context have each. With `B = 0` there are
  `N + 1` slots.

  Args:
    key: Random key.
    context_length: Number of examples N.
    burstiness: Number B of examples of a class, or 0.

  Returns:
    The slots `[t]`; that of the query is the last one.
  """
  if not burstiness:
    return jnp.arange(context_length + 1)
  order_key, query_key = jax.random.split(key)
  slots = np.repeat(np.arange(context_length // burstiness), burstiness)
  query = jax.random.randint(query_key, (1,), 0, context_length // burstiness)
  return jnp.concatenate([jax.random.permutation(order_key, slots), query])


@struct.dataclass(eq=False, repr=False)
class WeightsBayes(OfClasses):
  """The probabilities of the labels given the features of the query and all means.

  The class k of the query has
  `p(k | x_q) ∝ p_k N(x_q; μ_k/√(1 + ε²), ε²/(1 + ε²) I/D)`.

  Args:
    task: The task, whose means and labels it knows.
  """

  # There may be thousands of classes.
  one_by_one = True

  task: LabelledClusters

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    labels = jax.nn.one_hot(self.task.labels, self.task.num_labels)
    return losses.log_probability(self._of_classes(examples) @ labels)

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the probabilities of the class of the query, after each example."""
    return self._everywhere(self._of_classes, prompt)

  def _of_classes(self, examples: Examples) -> Float[Array, ' m']:
    fits = _fits(self.task, examples.x_query[None])[0]
    return jax.nn.softmax(self.task.log_probabilities() + fits)


@struct.dataclass(eq=False, repr=False)
class BurstBayes(OfClasses):
  """The Bayes predictor for a burstiness B > 0, which knows all means and labels.

  The density of a prompt is a sum over the partitions of its N examples into N/B blocks
  of one class each. The query may belong to each of the blocks. The density of a block
  T is `Σ_k p_k Π_{i ∈ T} N(x_i; k) [y_i is the label of k]`. The query has no label in
  it, and an example that is not seen has the factor 1.

  Args:
    task: The task, whose means and labels it knows.
  """

  # A block has as many terms as there are classes.
  one_by_one = True

  task: LabelledClusters

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    table = partitions(self.task.context_length, self.task.burstiness)
    labels = jax.nn.one_hot(self.task.labels, self.task.num_labels)
    scores, is_last = self._of_blocks(examples)
    shares = jax.nn.softmax(scores) @ labels.astype(scores.dtype)
    return predict_labels(table, logsumexp(scores, axis=1), shares, is_last)

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the probabilities of the class of the query, after each example."""
    table = partitions(self.task.context_length, self.task.burstiness)

    def of_one(examples: Examples) -> Float[Array, ' m']:
      scores, is_last = self._of_blocks(examples)
      block = block_of_query(table, logsumexp(scores, axis=1), is_last)
      return jnp.matmul(block, jax.nn.softmax(scores), precision='highest')

    return self._everywhere(of_one, prompt)

  def _of_blocks(
    self, examples: Examples
  ) -> tuple[Float[Array, 's m'], Bool[Array, '']]:
    """Returns the log density of each block and class, and whether all are seen."""
    task = self.task
    table = partitions(task.context_length, task.burstiness)
    points = points_of(examples, task.context_length)
    labels = jax.nn.one_hot(task.labels, task.num_labels, dtype=points.x.dtype)
    wrong = points.y @ (1 - labels).T
    fits = (_fits(task, points.x) + IMPOSSIBLE * wrong) * points.present[:, None]
    scores = task.log_probabilities()[None] + sums_over(
      jnp.asarray(table.blocks, fits.dtype), fits
    )
    return scores, points.is_last


def _fits(task: LabelledClusters, x: Float[Array, 'n d']) -> Float[Array, 'n m']:
  """Returns the log density of points in each class, up to a constant."""
  variance = jnp.asarray(task.within, x.dtype) ** 2
  means = jnp.asarray(task.means, x.dtype) / jnp.sqrt(1 + variance)
  squares = jnp.sum(jnp.square(x[:, None] - means[None]), axis=-1)
  return -task.num_features * (1 + variance) / (2 * variance) * squares


TESTS = 'in_context', 'swapped', 'in_weights'


@struct.dataclass(eq=False, repr=False)
class ClusterTest(BaseTask):
  """A test of a model that was trained on labelled clusters.

  - `in_context`: Each class is new, with a mean `~ N(0, I/D)`, or is one of the
    held-out classes of the images. Each class gets any label, all with equal
    probability.
  - `swapped`: Classes are known, and the labels of a prompt are permuted by one
    permutation, which is drawn for the prompt.
  - `in_weights`: The query has a known class that is not in the context.

  Args:
    task: The task of training.
    test: Name of the test.
  """

  task: LabelledClusters
  test: str = struct.field(pytree_node=False)
  label_kind = 'classes'

  @property
  def num_features(self) -> int:
    """Number of features of an example, d."""
    return self.task.num_features

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k."""
    return self.task.num_outputs

  @property
  def context_length(self) -> int:
    """Number of labelled examples of a prompt, C."""
    return self.task.context_length

  @property
  def bursty(self) -> LabelledClusters:
    """The task with the burstiness max(B, 1): contexts show the class of the query."""
    bursts = max(self.task.burstiness, 1)
    return dataclasses.replace(self.task, burstiness=bursts)  # pyright: ignore

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    samplers = {
      'in_context': self._sample_new,
      'swapped': self._sample_swapped,
      'in_weights': self._sample_absent,
    }
    return samplers[self.test](key)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says.

    With 'inputs' the labels of all classes are permuted, so that examples with one
    label still have one label.

    Args:
      key: Random key.
      prompt: One prompt, without the axis b.
      keep: 'query' or 'inputs'.

    Returns:
      One prompt, without the axis b.

    Raises:
      UserError: `keep` is 'inputs' and the test is `in_weights`.
    """  # noqa: DOC501
    if keep == 'query':
      if self.test == 'swapped':
        return self._swap(key, self.bursty.redraw_one(key, prompt, keep))
      redraw = self._sample_new if self.test == 'in_context' else self._sample_absent
      return redraw(key, prompt.x_query)
    if self.test == 'in_weights':
      raise one_label(self)
    return self._swap(key, prompt)

  def _sample_new(
    self, key: Key[Array, ''], x_query: Float[Array, ' d'] | None = None
  ) -> Prompt:
    task = self.bursty
    slots_key, means_key, labels_key, noise_key = jax.random.split(key, 4)
    slots = sample_slots(slots_key, task.context_length, task.burstiness)
    count = task.context_length // task.burstiness
    labels = jax.random.randint(labels_key, (count,), 0, task.num_labels)
    x = task.sample_new(means_key, noise_key, slots, x_query)
    shown = jax.nn.one_hot(labels[slots], task.num_labels, dtype=x.dtype)
    return make_prompt(x, shown, None, slots)

  def _sample_swapped(self, key: Key[Array, '']) -> Prompt:
    return self._swap(key, self.bursty.sample_one(key))

  def _swap(self, key: Key[Array, ''], prompt: Prompt) -> Prompt:
    """Returns the prompt with its labels permuted."""
    swap_key = jax.random.fold_in(key, 0)
    order = jax.random.permutation(swap_key, self.task.num_labels)
    y, y_query = prompt.y[:, order], prompt.y_query[order]
    return dataclasses.replace(prompt, y=y, y_query=y_query)

  def _sample_absent(
    self, key: Key[Array, ''], x_query: Float[Array, ' d'] | None = None
  ) -> Prompt:
    task = self.bursty
    slots_key, query_key, classes_key, noise_key = jax.random.split(key, 4)
    slots = sample_slots(slots_key, task.context_length, task.burstiness)
    scores = task.log_probabilities()
    of_query = scores if x_query is None else task.log_classes(x_query)
    query = jax.random.categorical(query_key, of_query)
    others = scores.at[query].set(-jnp.inf)
    count = task.context_length // task.burstiness
    drawn = jax.random.categorical(classes_key, others, shape=(count,))
    classes = jnp.concatenate([drawn[slots[:-1]], query[None]])
    return task.prompt_of(noise_key, classes)

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of the task, with `bayes` renamed to `bayes_unshifted`.

    The test `in_context` has a `bayes` of its own: the baseline `context` for the
    burstiness max(B, 1).
    """
    own: dict[str, Predictor] = {}
    bursty = self.bursty
    is_exact = is_small(self.context_length, bursty.burstiness)
    if self.test == 'in_context' and self.task.source == 'gaussian' and is_exact:
      own = {'bayes': bursty.context_bayes()}
    return own | unshifted(self.task.baselines())

  def shifts(self) -> dict[str, Task]:
    return {}


@functools.lru_cache(maxsize=8)
def _means(seed: int, num_classes: int, num_features: int) -> Float[np.ndarray, 'm d']:
  # NumPy guarantees the numbers of a RandomState for all its versions, but not those of
  # a Generator.
  random = np.random.RandomState(seed)
  means = random.standard_normal((num_classes, num_features)) / np.sqrt(num_features)
  means.flags.writeable = False
  return means
