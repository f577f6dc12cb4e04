"""Points of known classes with labels: learned in weights, or read from the context."""

# A size that follows from fields is a property.
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
from jaxtyping import Array, Float, Int, Key

from zoo.core import losses
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.core.trees import Number, Vector
from zoo.estimators.baselines import Examples, OfClasses, Zero
from zoo.estimators.classes import NearestShares
from zoo.estimators.cluster_posteriors import (
  ContextBayes,
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
  """Points `x = (μ_k + ε η) / √(1 + ε²)` of K classes, each with one of L labels.

  (Reddy, arXiv 2312.03002.) `μ, η ~ N(0, I/D)`, and the class of rank k = 1 … K has the
  probability `∝ k^−α`, the label k modulo L, and a mean that depends only on `seed`.
  With B = `burstiness` > 0 a context has N/B classes, drawn independently as in the
  author's code, B times each in random order, and the query is of one of them; with
  B = 0 the class of every example and of the query is drawn independently. Labels are
  one-hot, and are the targets: `objective.positions='query'` is the paper's loss.

  With `source='tfds'` the points are images of a TensorFlow data set instead, whose
  first K labels are the classes; each is drawn independently from those of its class.
  """

  num_features: int = struct.field(pytree_node=False, default=63)  # D
  context_length: int = struct.field(pytree_node=False, default=8)  # N
  num_classes: int = struct.field(pytree_node=False, default=128)  # K, a multiple of L
  num_labels: int = struct.field(pytree_node=False, default=32)  # L ≥ 2
  burstiness: int = struct.field(pytree_node=False, default=1)  # B; 0, or divides N
  zipf: Number = 0.0  # α ≥ 0
  within: Number = 0.1  # ε > 0
  seed: int = struct.field(pytree_node=False, default=0)  # of the means, 0 to 2³² − 1
  source: str = struct.field(pytree_node=False, default='gaussian')  # or 'tfds': images
  # Of images alone, which do not use within and seed, and have D = image_size².
  dataset: str | None = struct.field(pytree_node=False, default=None)  # as 'omniglot'
  # Its folder; None: that of TFDS. Kept as the full path.
  data_dir: str | None = struct.field(pytree_node=False, default=None)
  image_size: int = struct.field(pytree_node=False, default=28)  # pixels of a side, ≥ 1
  # The last classes, of which `in_context` is; ≥ N/B.
  held_out_classes: int = struct.field(pytree_node=False, default=100)
  _images: Any = None  # an Images, which __post_init__ reads
  label_kind = 'classes'

  def __post_init__(self):
    super().__post_init__()
    if self.source != 'tfds':
      return
    set_field, images = object.__setattr__, self._images
    origin = self.dataset, self.data_dir, self.image_size
    if images is None or images.origin != origin:  # JAX rebuilds it with those it has
      images = read_images(self.dataset, self.data_dir, self.image_size)
      set_field(self, '_images', images)
      set_field(self, 'dataset', images.origin[0])
      set_field(self, 'data_dir', images.origin[1])
    set_field(self, 'num_features', self.image_size**2)

  @property
  def stationary(self) -> bool:
    """Whether the class of every example is drawn by itself."""
    return self.burstiness == 0

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
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
    """The logarithm of the probability of each class."""
    ranks = jnp.arange(1, self.num_classes + 1)
    return jax.nn.log_softmax(-jnp.asarray(self.zipf, float) * jnp.log(ranks))

  def check(self) -> None:
    super().check()
    check_count('num_labels', self.num_labels, minimum=2)
    check_count('num_classes', self.num_classes, minimum=2)
    check_count('burstiness', self.burstiness, minimum=0)
    check_number('zipf', self.zipf, minimum=0.0)
    check_number('within', self.within, above=0.0)
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
    # No more classes than examples; those of slots that no example has are not used.
    drawn = jax.random.choice(classes_key, len(law), slots.shape, p=law)
    return self.prompt_of(noise_key, drawn[slots])

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws other classes for the context, and the query's by how probable it is."""
    if keep == 'inputs':
      raise one_label(self)
    slots_key, classes_key, noise_key, query_key = jax.random.split(key, 4)
    slots = sample_slots(slots_key, self.context_length, self.burstiness)
    law = jnp.exp(self.log_probabilities())
    drawn = jax.random.choice(classes_key, len(law), slots.shape, p=law)
    query = jax.random.categorical(query_key, self.log_classes(prompt.x_query))
    return self.prompt_of(noise_key, drawn.at[slots[-1]].set(query)[slots])

  def log_classes(self, x: Float[Array, ' d']) -> Float[Array, ' m']:
    """The log density of each class with these features."""
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
    """A prompt whose examples have these classes, which are its latents."""
    if self.source == 'tfds':
      x = self._images.sample(key, classes)
    else:
      x = self.around(key, jnp.asarray(self.means, float)[classes])
    labels = jax.nn.one_hot(jnp.asarray(self.labels)[classes], self.num_labels)
    return make_prompt(x, labels.astype(x.dtype), None, classes)

  def around(
    self, key: Key[Array, ''], means: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    """Features of classes with these means."""
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
    """Features of examples whose classes, N/B different ones, are new.

    With `x_query` they are drawn given these features of the query.
    """
    count = self.context_length // self.burstiness
    if self.source == 'tfds':
      first = self._images.num_classes - self.held_out_classes
      new = jax.random.permutation(classes_key, self.held_out_classes)
      if x_query is not None:  # any two classes can be exchanged
        of_query = jnp.argmax(self._images.shares(x_query)[first:])
        new = exchanged(new, new[slots[-1]], of_query)
      return self._images.sample(key, (first + new[:count])[slots])
    means = jax.random.normal(classes_key, (count, self.num_features))
    means = means / np.sqrt(self.num_features)
    if x_query is not None:
      # `μ ~ N(0, I/D)` given `(μ + ε η)/√(1 + ε²)`.
      within = jnp.asarray(self.within, x_query.dtype)
      of_query = (x_query + within * means[slots[-1]]) / jnp.sqrt(1 + within**2)
      means = means.at[slots[-1]].set(of_query)
    return self.around(key, means[slots])

  def baselines(self) -> dict[str, Predictor]:
    """`context` takes classes for new ones, `weights` does not see the context.

    `bayes`, which knows means and labels and sees the context, and `context` sum over
    the partitions of the context into classes; they are absent if there are more than
    `zoo.estimators.partitions.MOST`, but for `bayes` with B = 0, which is `weights`.
    Of images there is the label of the nearest example.
    """
    if self.source == 'tfds':
      return {'nearest_neighbours': NearestShares(1), 'zero': Zero()}
    # Bursts do not matter to it, so that tasks which differ in them have the same.
    plain: Any = dataclasses.replace(self, burstiness=0)  # pyright: ignore
    weights = WeightsBayes(plain)
    bayes: dict[str, Predictor] = {}
    if not self.burstiness:  # the classes of the context say nothing about the query's
      bayes = {'bayes': weights}
    elif is_small(self.context_length, self.burstiness):
      bayes = {'bayes': BurstBayes(self)}
    context: dict[str, Predictor] = {}
    if is_small(self.context_length, self.burstiness):
      context = {'context': self.context_bayes()}
    return {**bayes, **context, 'weights': weights, 'zero': Zero()}

  def context_bayes(self) -> ContextBayes:
    """The Bayes predictor if the classes of each prompt were new."""
    prior: Vector = 0.0
    if not self.burstiness:
      law = np.arange(1, self.num_classes + 1.0) ** -np.float64(self.zipf)
      prior = log_prior(self.context_length, law / law.sum())
    return ContextBayes(self.context_length, self.burstiness, self.within, prior)

  def shifts(self) -> dict[str, Task]:
    """The tests of the paper, with bursts of max(B, 1), and longer contexts."""
    tests: dict[str, Task] = {test: ClusterTest(self, test) for test in TESTS}
    return tests | super().shifts()


def one_label(task: BaseTask) -> UserError:
  """The error for a redraw with the same inputs, where a class has one label."""
  return UserError(
    f'{type(task).__name__} has one function: each class has the same label in all '
    "prompts, and there are no others with the same inputs. keep='query' draws other "
    'examples'
  )


def sample_slots(
  key: Key[Array, ''], context_length: int, burstiness: int
) -> Int[Array, ' t']:
  """Which examples are of one class: a slot for each example, and for the query.

  There are N/B slots, each B times in the context, or N + 1 for B = 0.
  """
  if not burstiness:
    return jnp.arange(context_length + 1)
  order_key, query_key = jax.random.split(key)
  slots = np.repeat(np.arange(context_length // burstiness), burstiness)
  query = jax.random.randint(query_key, (1,), 0, context_length // burstiness)
  return jnp.concatenate([jax.random.permutation(order_key, slots), query])


@struct.dataclass(eq=False, repr=False)
class WeightsBayes(OfClasses):
  """The probabilities of labels from the query's features, all means being known.

  `p(k | x_q) ∝ p_k N(x_q; μ_k/√(1 + ε²), ε²/(1 + ε²) I/D)`.
  """

  one_by_one = True  # there may be thousands of classes

  task: LabelledClusters

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    scores = self.task.log_probabilities() + _fits(self.task, examples.x_query[None])[0]
    labels = jax.nn.one_hot(self.task.labels, self.task.num_labels)
    return losses.log_probability(jax.nn.softmax(scores) @ labels)


@struct.dataclass(eq=False, repr=False)
class BurstBayes(OfClasses):
  """The Bayes predictor for B > 0, which knows all means and labels.

  The density of a prompt is a sum over the partitions of its examples into N/B classes,
  each once for every example in it that the query may go with. The density of a block
  T is `Σ_k p_k Π_{i ∈ T} N(x_i; k) [y_i is the label of k]`; of the query there is no
  label, and examples that are not seen have the factor 1.
  """

  one_by_one = True  # a block has as many terms as there are classes

  task: LabelledClusters

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    task = self.task
    table = partitions(task.context_length, task.burstiness)
    points = points_of(examples, task.context_length)
    labels = jax.nn.one_hot(task.labels, task.num_labels, dtype=points.x.dtype)
    wrong = points.y @ (1 - labels).T
    fits = (_fits(task, points.x) + IMPOSSIBLE * wrong) * points.present[:, None]
    scores = task.log_probabilities()[None] + sums_over(
      jnp.asarray(table.blocks, fits.dtype), fits
    )
    shares = jax.nn.softmax(scores) @ labels
    return predict_labels(table, logsumexp(scores, axis=1), shares, points.is_last)


def _fits(task: LabelledClusters, x: Float[Array, 'n d']) -> Float[Array, 'n m']:
  """The log density of points in each class, up to a constant."""
  variance = jnp.asarray(task.within, x.dtype) ** 2
  means = jnp.asarray(task.means, x.dtype) / jnp.sqrt(1 + variance)
  squares = jnp.sum(jnp.square(x[:, None] - means[None]), axis=-1)
  return -task.num_features * (1 + variance) / (2 * variance) * squares


TESTS = 'in_context', 'swapped', 'in_weights'


@struct.dataclass(eq=False, repr=False)
class ClusterTest(BaseTask):
  """A test of a model that was trained on labelled clusters, by name.

  `in_context`: each class is new, with a mean `~ N(0, I/D)`, or is one of the images'
  that are held out, and any label, all equally likely. `swapped`: classes are known,
  and the labels of a prompt are permuted by one permutation, drawn for it.
  `in_weights`: the query has a known class that is not in the context.
  """

  task: LabelledClusters
  test: str = struct.field(pytree_node=False)
  label_kind = 'classes'

  @property
  def num_features(self) -> int:
    """Features of an example, d."""
    return self.task.num_features

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
    return self.task.num_outputs

  @property
  def context_length(self) -> int:
    """Labelled examples of a prompt, C."""
    return self.task.context_length

  @property
  def bursty(self) -> LabelledClusters:
    """The task with bursts of at least one, so that a query's class is in a context."""
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

    'inputs' permutes the labels of all classes, so that it also keeps which examples
    have one label.
    """
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
    """The prompt with its labels permuted."""
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
    """Those of the task, whose `bayes` is `bayes_unshifted`.

    `bayes` of `in_context` is the `context` of bursts of max(B, 1).
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
  # NumPy guarantees that the numbers of a RandomState, unlike a Generator's, stay.
  random = np.random.RandomState(seed)
  means = random.standard_normal((num_classes, num_features)) / np.sqrt(num_features)
  means.flags.writeable = False
  return means
