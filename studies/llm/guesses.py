"""Initial guesses of labels: from small models, or made from the labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from studies.llm.benchmarks import Benchmark, Example
from studies.llm.config import FITTED, Config

Vectors: TypeAlias = Mapping[str, Float[np.ndarray, ' w']]  # the embedding of each text
Guesses: TypeAlias = dict[str, list[float | str]]  # a guess for each example, by split
# The guess network and its training, as in appendix C.3 of arXiv 2512.04268.
HIDDEN, NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 16, 10, 8, 1e-3


@dataclasses.dataclass(frozen=True)
class LabelScale:
  """The numerical form of labels: numbers within bounds, or one-hot classes.

  Attributes:
    low: The lowest number.
    high: The highest number.
    classes: The names of the classes. Empty if labels are numbers.
  """

  low: float
  high: float
  classes: tuple[str, ...] = ()

  def encode(self, examples: Sequence[Example]) -> Float[np.ndarray, 'n k']:
    """Returns labels as float32 vectors: one number, or one-hot."""
    if self.classes:
      indices = [self.classes.index(str(example.label)) for example in examples]
      return np.eye(len(self.classes), dtype=np.float32)[indices]
    return np.array([[example.label] for example in examples], np.float32)

  def decode(self, outputs: Float[np.ndarray, 'n k']) -> list[float | str]:
    """Returns vectors as labels: numbers in the bounds, rounded to 0.01, or classes."""
    if self.classes:
      return [self.classes[i] for i in outputs.argmax(axis=1)]
    clipped = np.clip(outputs[:, 0].astype(np.float64), self.low, self.high)
    return [round(value, 2) for value in clipped.tolist()]

  def loss(self, answer: float | str, label: float | str) -> float:
    """Returns the squared error or, with classes, 0 if they agree and 1 if not."""
    if self.classes:
      return float(answer != label)
    return (float(answer) - float(label)) ** 2

  def same(self, answer: float | str, guess: float | str) -> bool:
    """Returns whether an answer equals a guess, to the two decimals of a prompt."""
    if self.classes:
      return answer == guess
    return round(float(answer), 2) == round(float(guess), 2)

  def middle(self, labels: Sequence[float | str]) -> float | str:
    """Returns the mean, or the most frequent class; the first in a tie."""
    if self.classes:
      return max(self.classes, key=list(labels).count)
    return float(np.mean(np.asarray(labels, np.float64)))


def guess_network(num_features: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Module:
  """Builds the network concatenated embeddings → Linear(16) → ReLU → Linear.

  Returns:
    The network, with random weights.

  References:
    arXiv 2512.04268, appendix C.3.
  """
  return nnx.Sequential(
    nnx.Linear(num_features, HIDDEN, rngs=rngs),
    nnx.relu,
    nnx.Linear(HIDDEN, num_outputs, rngs=rngs),
  )


def make_guesses(
  config: Config, benchmark: Benchmark, scale: LabelScale, vectors: Vectors, seed: int
) -> Guesses:
  """Makes a guess for every example of every split.

  The guesses `network`, `cosine` and `constant` are fitted to the train split. `oracle`
  is the label plus a normal number with the standard deviation `noise` or, with
  classes, the label replaced with the probability `noise` by another class. `wrong` is
  the end of the scale farther from the label, or another class. If `shuffled`, the
  guesses of each split are permuted. Then `bias` is added, and numbers are clipped to
  the bounds of the scale.

  Args:
    config: The section `guess` of the config.
    benchmark: The examples.
    scale: The scale of the labels.
    vectors: The embeddings of the texts, which only `network` and `cosine` need.
    seed: The seed of the network, of noise and of permutations.

  Returns:
    The guesses of each split, in the order of the examples.
  """
  if config.model in FITTED:
    outputs = _outputs(config, benchmark, scale, vectors, seed)
  else:
    outputs = {
      split: _from_labels(config, scale, examples, np.random.default_rng((seed, i)))
      for i, (split, examples) in enumerate(benchmark.splits.items())
    }
  guesses: Guesses = {}
  for i, (split, values) in enumerate(outputs.items()):
    if config.shuffled:
      values = np.random.default_rng((seed, i)).permutation(values)
    guesses[split] = scale.decode(values + np.float32(config.bias))
  return guesses


def _from_labels(
  config: Config,
  scale: LabelScale,
  examples: Sequence[Example],
  rng: np.random.Generator,
) -> Float[np.ndarray, 'n k']:
  """Returns the oracle with its noise, or guesses that are wrong on purpose.

  All sizes of the noise use the same random draws.
  """
  labels = scale.encode(examples).astype(np.float64)
  wrong = config.model == 'wrong'
  if not scale.classes:
    if wrong:
      return np.where(labels < (scale.low + scale.high) / 2, scale.high, scale.low)
    return labels + config.noise * rng.standard_normal(labels.shape)
  # A shift by one or more places leads to another class.
  shifts = rng.integers(1, len(scale.classes), len(labels))
  moved = (rng.random(len(labels)) < config.noise) | wrong
  return np.eye(len(scale.classes))[
    (labels.argmax(axis=1) + moved * shifts) % len(scale.classes)
  ]


def _outputs(
  config: Config, benchmark: Benchmark, scale: LabelScale, vectors: Vectors, seed: int
) -> dict[str, Float[np.ndarray, 'n k']]:
  """Returns guesses fitted to the train split: a number, or one for each class."""
  splits = benchmark.splits
  targets = scale.encode(splits['train'])
  if config.model == 'constant':
    mean = targets.mean(axis=0, dtype=np.float64)
    return {split: np.tile(mean, (len(rows), 1)) for split, rows in splits.items()}
  features = {
    split: np.array([[vectors[text] for text in row.texts] for row in rows])
    for split, rows in splits.items()
  }
  if config.model == 'cosine':
    columns = {}
    for split, pairs in features.items():
      first, second = pairs.swapaxes(0, 1)  # embeddings have norm 1
      cosines = np.einsum('nw,nw->n', first, second, dtype=np.float64)
      columns[split] = np.vander(cosines, 2, increasing=True)
    line = np.linalg.lstsq(columns['train'], targets, rcond=None)[0]
    return {split: rows @ line for split, rows in columns.items()}
  flat = {split: rows.reshape(len(rows), -1) for split, rows in features.items()}
  key = jax.random.key(seed)
  return _network(flat, targets, key, of_classes=bool(scale.classes))


def _network(
  features: dict[str, Float[np.ndarray, 'n f']],
  targets: Float[np.ndarray, 'n k'],
  key: Key[Array, ''],
  of_classes: bool,
) -> dict[str, Float[np.ndarray, 'n k']]:
  """Trains the paper's network on the train split, and returns its outputs.

  The loss is the mean squared error or, with classes, the cross-entropy of logits. If
  the last examples of an epoch do not fill a batch, they are left out.

  Returns:
    The outputs for the examples of each split.
  """
  num_rows = len(targets)
  batch_size = min(BATCH_SIZE, num_rows)
  steps = num_rows // batch_size
  optimizer = optax.adam(LEARNING_RATE)

  @jax.jit
  def train(key: Array, features: dict[str, Array], y: Array) -> dict[str, Array]:
    x = features['train']
    keys = jax.random.split(key, 1 + NUM_EPOCHS)
    model = guess_network(x.shape[1], y.shape[1], nnx.Rngs(keys[0]))
    graph, weights = nnx.split(model)

    def loss(weights: PyTree, rows: Array) -> Array:
      outputs = nnx.merge(graph, weights)(x[rows])
      if of_classes:
        return optax.softmax_cross_entropy(outputs, y[rows]).mean()
      return jnp.mean(jnp.square(outputs - y[rows]))

    def step(state: PyTree, rows: Array) -> tuple[PyTree, None]:
      weights, moments = state
      grads = jax.grad(loss)(weights, rows)
      updates, moments = optimizer.update(grads, moments, weights)
      return (optax.apply_updates(weights, updates), moments), None

    orders = jax.vmap(lambda key: jax.random.permutation(key, num_rows))(keys[1:])
    batches = orders[:, : steps * batch_size].reshape(-1, batch_size)
    (weights, _), _ = jax.lax.scan(step, (weights, optimizer.init(weights)), batches)
    trained = nnx.merge(graph, weights)
    return {split: trained(rows) for split, rows in features.items()}

  outputs = train(key, features, targets)  # jit sorts the splits by name
  return {split: np.asarray(outputs[split]) for split in features}
