"""Balls drawn from an urn: which urn it is, or how many of each colour there were."""

# A size that follows from fields is a property.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, Key

from zoo.core import losses
from zoo.core.errors import check_count, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.core.trees import Matrix, Number
from zoo.estimators.baselines import Zero
from zoo.estimators.sequences import LawRetrieval, SequenceBaseline
from zoo.tasks.base import BaseTask, dot, inputs_are_labels, make_prompt, register_task


@register_task('urns')
@struct.dataclass(eq=False, repr=False)
class Urns(BaseTask):
  """Balls drawn with replacement from an urn (Wurgaft et al., arXiv 2506.17859).

  An urn is a law of symbols `~ Dirichlet(α, …, α)`, α = `concentration`. Each prompt
  has one of `num_urns` that depend only on `seed`, α and the sizes, all being equally
  likely, or without `num_urns` a fresh one.

  An example is a ball, one-hot, with the next ball as its label; the query is the last
  ball. So after n examples n + 1 balls are known. Targets are the urn's law.
  """

  num_urns: int | None = struct.field(pytree_node=False, default=64)  # None: fresh urns
  num_symbols: int = struct.field(pytree_node=False, default=8)  # colours, ≥ 2
  context_length: int = struct.field(pytree_node=False, default=100)
  concentration: Number = 1.0  # α > 0
  seed: int = struct.field(pytree_node=False, default=0)  # of the urns, 0 to 2³² − 1
  # The urns, which compiled programs are given with the number that they depend on.
  _urns: Matrix = None
  label_kind = 'classes'
  stationary = True

  def __post_init__(self):
    super().__post_init__()
    sizes = self.num_urns, self.num_symbols, self.seed
    if _are_right(*sizes, self.concentration):
      object.__setattr__(self, '_urns', _urns(*sizes, self.concentration))

  @property
  def num_features(self) -> int:
    """Features of an example, d."""
    return self.num_symbols

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
    return self.num_symbols

  @property
  def urns(self) -> Float[np.ndarray, 'm s'] | None:
    """The law of each urn, float64 and read-only; None if they are fresh."""
    return self._urns

  def check(self) -> None:
    if self.num_urns is not None:
      check_count('num_urns', self.num_urns)
    check_count('num_symbols', self.num_symbols, minimum=2)
    super().check()
    check_number('concentration', self.concentration, above=0.0)
    check_count('seed', self.seed, minimum=0, maximum=2**32 - 1)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    urn_key, balls_key = jax.random.split(key)
    if self.num_urns is None:
      law = self._fresh(urn_key, jnp.asarray(self.concentration, float))
    else:
      index = jax.random.randint(urn_key, (), 0, self.num_urns)
      law = jnp.asarray(self._urns, float)[index]
    return self._prompt_of(law, self._sample_balls(balls_key, law))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    if keep == 'inputs':
      raise inputs_are_labels(self)
    urn_key, balls_key = jax.random.split(key)
    # The query is a ball of the urn, which makes some urns more probable.
    if self.num_urns is None:
      law = self._fresh(urn_key, self.concentration + prompt.x_query)
    else:
      urns = jnp.asarray(self._urns, float)
      scores = losses.log_probability(dot(urns, prompt.x_query[None]))
      law = urns[jax.random.categorical(urn_key, scores)]
    x = self._sample_balls(balls_key, law).at[-1].set(prompt.x_query)
    return self._prompt_of(law, x)

  def log_density(self, x: Float[Array, 'n s']) -> Float[Array, '']:
    if len(x) > 1:
      return super().log_density(x)
    if self.num_urns is None:
      return jnp.asarray(-math.log(self.num_symbols), x.dtype)
    return jnp.log(dot(jnp.mean(jnp.asarray(self._urns, float), axis=0), x[0]))

  def _fresh(
    self, key: Key[Array, ''], alpha: Float[Array, '*s']
  ) -> Float[Array, ' s']:
    """The law of an urn `~ Dirichlet(α)`."""
    # For a small α gamma variables may round to 0; their logarithms do not.
    logs = jax.random.loggamma(key, alpha, (self.num_symbols,))
    law = jnp.exp(logs - jnp.max(logs))
    return law / dot(law, jnp.ones_like(law))

  def _sample_balls(
    self, key: Key[Array, ''], law: Float[Array, ' s']
  ) -> Float[Array, 't s']:
    size = self.num_symbols
    noise = jax.random.gumbel(key, (self.context_length + 1, size))
    return jax.nn.one_hot(jnp.argmax(jnp.log(law)[None] + noise, axis=1), size)

  def _prompt_of(self, law: Float[Array, ' s'], x: Float[Array, 't s']) -> Prompt:
    targets = jnp.broadcast_to(law[None], x.shape)
    return make_prompt(x, jnp.roll(x, -1, axis=0), targets, law)

  def baselines(self) -> dict[str, Predictor]:
    """`memorising` weighs the urns by the balls, and mixes their laws.

    `generalising` takes the urn for a fresh one: it counts the balls and adds α. The
    first is `bayes` with `num_urns`, the second without.
    """
    generalising = Generalising(self.num_symbols, self.concentration)
    if self.num_urns is None:
      known = {'bayes': generalising}
    else:
      memorising = LawRetrieval(self._urns)
      known = {'bayes': memorising, 'memorising': memorising}
    return {**known, 'generalising': generalising, 'zero': Zero()}

  def shifts(self) -> dict[str, Task]:
    """Longer contexts, and for known urns `fresh_urns` in their place."""
    fresh: dict[str, Task] = {}
    if self.num_urns is not None:
      other = dataclasses.replace(self, num_urns=None, _urns=None)  # pyright: ignore
      fresh = {'fresh_urns': other}
    return fresh | super().shifts()


@struct.dataclass(eq=False, repr=False)
class Generalising(SequenceBaseline):
  """The law of the next ball from an urn `~ Dirichlet(α, …, α)`: counts plus α."""

  num_symbols: int = struct.field(pytree_node=False)
  concentration: Number  # α

  def after_each(self, symbols: Int[Array, ' t']) -> Float[Array, 't k']:
    counts = jnp.cumsum(jax.nn.one_hot(symbols, self.num_symbols), axis=0)
    return jnp.log(counts + jnp.asarray(self.concentration, counts.dtype))


def _are_right(num_urns: Any, num_symbols: Any, seed: Any, alpha: Any) -> bool:
  """Whether urns can be drawn; JAX also rebuilds a task with others in their place.

  What is wrong with the numbers of a user `check` says.
  """
  sizes = num_urns, num_symbols, seed
  are_numbers = all(isinstance(size, int | np.integer) for size in sizes)
  are_numbers &= isinstance(alpha, int | float | np.floating)
  return are_numbers and min(sizes[:2]) > 0 and 0 <= seed < 2**32 and 0 < alpha < np.inf


@functools.lru_cache(maxsize=8)
def _urns(
  num_urns: int, num_symbols: int, seed: int, concentration: float
) -> Float[np.ndarray, 'm s']:
  # NumPy guarantees that the numbers of a RandomState, unlike a Generator's, stay.
  random = np.random.RandomState(seed)
  shape = int(num_urns), int(num_symbols)  # not bools, which `check` refuses
  # log of a gamma variable of shape α, as of shape α + 1 times U^(1/α) (Marsaglia &
  # Tsang, ACM TOMS 26, 2000): for a small α the variable itself may round to 0.
  logs = np.log(random.standard_gamma(concentration + 1, shape))
  logs += np.log1p(-random.random_sample(shape)) / concentration
  urns = np.exp(logs - logs.max(axis=1, keepdims=True))
  urns /= urns.sum(axis=1, keepdims=True)
  urns.flags.writeable = False
  return urns
