"""Recall of the value that was paired with a key."""

# A size that follows from fields is a property.
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
  """Keys, each paired with a value of its own; the pairing is new in each prompt.

  Features are keys and labels are values, both one-hot. The target is the value of the
  query's key, even if that key was not in the context.

  Without `num_pairs` each key is drawn from all keys, with replacement (Lee et al.,
  arXiv 2310.08049, whose keys and values share one alphabet, of which a random half is
  the keys). With `num_pairs` = P the first P examples show P different keys, and each
  later example, like the query, has a random one of these; there may then be fewer
  values than keys, but at least P. This is multi-query recall (Arora et al., arXiv
  2312.04927) as a list of examples. Their prompt is a sequence of tokens that asks for
  each key once, after a gap from a power law, which other tokens fill.
  """

  num_keys: int = struct.field(pytree_node=False, default=16)  # different ones
  num_values: int = struct.field(pytree_node=False, default=16)  # different ones, ≥ 2
  context_length: int = struct.field(pytree_node=False, default=32)
  # Pairs of a prompt; None: each key is drawn from all keys.
  num_pairs: int | None = struct.field(pytree_node=False, default=None)
  label_kind = 'classes'

  @property
  def stationary(self) -> bool:
    """Whether each key is drawn from all keys."""
    return self.num_pairs is None

  @property
  def num_features(self) -> int:
    """Features of an example, d."""
    return self.num_keys

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
    return self.num_values

  def check(self) -> None:
    check_count('num_keys', self.num_keys)
    check_count('num_values', self.num_values, minimum=2)
    super().check()
    least = self.num_keys  # since each key has its own value
    if self.num_pairs is not None:
      most = min(self.num_keys, self.context_length)
      least = check_count('num_pairs', self.num_pairs, maximum=most)
    check_count('num_values', self.num_values, minimum=least)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    pairing_key, keys_key = jax.random.split(key)
    return self._paired(pairing_key, self._sample_keys(keys_key))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says; the pairing does not depend on keys."""
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
    """The prompt of these keys, with a pairing of their own."""
    values = jax.random.permutation(key, self.num_values)
    if self.num_values < self.num_keys:  # so that only the keys shown have values
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
    # With replacement: if each key were asked for once per round, the values still
    # missing in a round would give away the answer without a look at the key.
    asked = jax.random.choice(questions_key, shown, (length - self.num_pairs,))
    return jnp.concatenate([shown, asked])

  def baselines(self) -> dict[str, Predictor]:
    """`bayes` knows that a new key has a new value; `nearest_neighbours` does not."""
    return {
      'bayes': Recall(own_values=True),
      'nearest_neighbours': Recall(own_values=False),
      'zero': Zero(),
    }
