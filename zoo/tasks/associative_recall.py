"""Recall of the value that was paired with a key."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from zoo.core.errors import check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.estimators.baselines import Zero
from zoo.estimators.classes import Recall
from zoo.tasks.base import (
  BaseTask,
  exchanged,
  inputs_of,
  make_prompt,
  register_task,
)


@register_task('associative_recall')
@struct.dataclass(eq=False, repr=False)
class AssociativeRecall(BaseTask):
  """Recall of the value that was paired with a key, with a new pairing in each prompt.

  For each prompt, each key gets a value of its own, at random. An example has a key as
  its features and the value as its label, both one-hot. The target of the query is the
  value of its key, even if that key is not in the context. The latents are the number
  of the value of each key. There are two ways to draw the keys:

  - Without `num_pairs`, each key is drawn uniformly from all keys, with replacement.
    (In Lee et al. keys and values share one alphabet, of which a random half is the
    keys.)
  - With `num_pairs` = P, the first P examples show P different keys. The key of each
    later example, and of the query, is drawn uniformly from these, with replacement.
    This is multi-query recall as a list of examples. (The prompt of Arora et al. is a
    sequence of tokens. It asks for each key once, after a gap that other tokens fill,
    and whose length has a power law.)

  If the key of the query is in the context, the Bayes predictor is certain of its
  value. If not, all values that no key of the context has are equally probable
  (baseline `bayes`).

  Args:
    num_keys: Number of different keys, ≥ 1.
    num_values: Number of different values, ≥ 2. There must be a value for each key or,
      with `num_pairs`, for each of the P keys.
    context_length: Number of examples C ≥ 1.
    num_pairs: Number P of pairs in a prompt, from 1 to the smaller of `num_keys` and C.
      None draws each key from all keys.

  Example:
    >>> task = zoo.create_task('associative_recall', num_keys=3, num_values=4)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 32, 3), (2, 32, 4), (2, 4))

  References:
    Lee et al., arXiv 2310.08049; Arora et al., arXiv 2312.04927.
  """

  num_keys: int = struct.field(pytree_node=False, default=16)
  num_values: int = struct.field(pytree_node=False, default=16)
  context_length: int = struct.field(pytree_node=False, default=32)
  num_pairs: int | None = struct.field(pytree_node=False, default=None)
  label_kind = 'classes'

  @property
  def stationary(self) -> bool:
    """Whether each key is drawn from all keys."""
    return self.num_pairs is None

  @property
  def exchangeable(self) -> bool:
    """Whether each key is drawn from all keys."""
    return self.num_pairs is None

  @property
  def num_features(self) -> int:
    """Number of features of an example, d; here the number of keys."""
    return self.num_keys

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k; here the number of values."""
    return self.num_values

  def check(self) -> None:
    check_count('num_keys', self.num_keys)
    check_count('num_values', self.num_values, minimum=2)
    super().check()
    # Each key has its own value.
    least = self.num_keys
    if self.num_pairs is not None:
      most = min(self.num_keys, self.context_length)
      least = check_count('num_pairs', self.num_pairs, maximum=most)
    check_count('num_values', self.num_values, minimum=least)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    pairing_key, keys_key = jax.random.split(key)
    return self._paired(pairing_key, self._sample_keys(keys_key))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says. The pairing does not depend on keys.

    Args:
      key: Random key.
      prompt: One prompt, without the axis b.
      keep: 'query' or 'inputs'.

    Returns:
      One prompt, without the axis b.
    """
    pairing_key, keys_key = jax.random.split(key)
    if keep == 'inputs':
      return self._paired(pairing_key, jnp.argmax(inputs_of(prompt), axis=1))
    keys = self._sample_keys(keys_key)
    query = jnp.argmax(prompt.x_query)
    return self._paired(pairing_key, exchanged(keys, keys[-1], query))

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    if len(x) == 1 or self.num_pairs is None:
      return jnp.asarray(-len(x) * math.log(self.num_keys), x.dtype)
    return super().log_density(x)

  def _paired(self, key: Key[Array, ''], keys: Int[Array, ' t']) -> Prompt:
    """Returns the prompt of these keys, with a new pairing."""
    values = jax.random.permutation(key, self.num_values)
    # If there are fewer values than keys, only the keys of the prompt have values.
    if self.num_values < self.num_keys:
      shown, own = keys[: self.num_pairs], values[: self.num_pairs]
      values = jnp.zeros(self.num_keys, values.dtype).at[shown].set(own)
    x = jax.nn.one_hot(keys, self.num_keys)
    return make_prompt(x, jax.nn.one_hot(values[keys], self.num_values), None, values)

  def _sample_keys(self, key: Key[Array, '']) -> Int[Array, ' t']:
    length = self.context_length + 1
    if self.num_pairs is None:
      return jax.random.randint(key, (length,), 0, self.num_keys)
    pairs_key, questions_key = jax.random.split(key)
    shown = jax.random.permutation(pairs_key, self.num_keys)[: self.num_pairs]
    # Keys are drawn with replacement. If each key were asked for once in a round, the
    # values that are missing in the round would tell the answer without the key.
    asked = jax.random.choice(questions_key, shown, (length - self.num_pairs,))
    return jnp.concatenate([shown, asked])

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    `bayes` knows that a new key has a new value; `nearest_neighbours` does not know it.
    """
    return {
      'bayes': Recall(own_values=True),
      'nearest_neighbours': Recall(own_values=False),
      'zero': Zero(),
    }
