"""Balls that are drawn from an urn, which is one of a pool or new in each prompt."""

# A size that the base class declares as a field may be a property here.
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
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Key

from zoo.core import losses
from zoo.core.beliefs import Belief, values_of
from zoo.core.errors import check_count, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.core.trees import Matrix, Number
from zoo.estimators.baselines import Zero
from zoo.estimators.sequences import (
  LawRetrieval,
  SequenceBaseline,
  dirichlet_moments,
)
from zoo.tasks.base import BaseTask, dot, inputs_are_labels, make_prompt, register_task


@register_task('urns')
@struct.dataclass(eq=False, repr=False)
class Urns(BaseTask):
  """Prediction of the next ball that is drawn, with replacement, from an urn.

  An urn is a distribution of colours `~ Dirichlet(α, …, α)`. Each prompt has one of
  `num_urns` urns, all equally probable, which depend only on `seed`, α and the sizes;
  or, if `num_urns` is None, an urn that is new. C + 1 balls are drawn. The latents are
  the distribution of the urn.

  An example is a ball, as a one-hot vector of its colour, with the next ball as its
  label. The query is the last ball. After n examples n + 1 balls are therefore known.
  Targets are the distribution of the urn.

  The Bayes predictor for a pool weighs the urns by the likelihood of the balls, and for
  new urns counts the balls and adds α (baseline `bayes`). The property `urns` has the
  distribution of each urn of a pool.

  Args:
    num_urns: Number of urns in the pool, ≥ 1. None draws a new urn for each prompt.
    num_symbols: Number of colours, ≥ 2.
    context_length: Number of examples C ≥ 1.
    concentration: Concentration α of the Dirichlet distribution, at least 1e-30.
    seed: Seed of the pool, from 0 to 2³² − 1.

  Example:
    >>> task = zoo.create_task('urns', num_symbols=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, task.urns.shape
    ((2, 5, 3), (2, 5, 3), (64, 3))

  References:
    Wurgaft et al., arXiv 2506.17859.
  """

  num_urns: int | None = struct.field(pytree_node=False, default=64)
  num_symbols: int = struct.field(pytree_node=False, default=8)
  context_length: int = struct.field(pytree_node=False, default=100)
  concentration: Number = 1.0
  seed: int = struct.field(pytree_node=False, default=0)
  # The urns are a field, so that compiled programs get them as arguments, as they get
  # the concentration.
  _urns: Matrix = None
  label_kind = 'classes'
  stationary = True
  exchangeable = True

  def __post_init__(self):
    super().__post_init__()
    is_pool = self.num_urns is not None
    if is_pool and self._urns is None and _is_one_number(self.concentration):
      # A user may give an array with one number. JAX rebuilds a pool with its urns.
      object.__setattr__(self, 'concentration', float(self.concentration))
    sizes = self.num_urns, self.num_symbols, self.seed
    if _are_right(*sizes, self.concentration):
      object.__setattr__(self, '_urns', _urns(*sizes, self.concentration))

  @property
  def num_features(self) -> int:
    """Number of features of an example, d; here the number of colours."""
    return self.num_symbols

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k; here the number of colours."""
    return self.num_symbols

  @property
  def urns(self) -> Float[np.ndarray, 'm s'] | None:
    """The distribution of each urn of the pool, in float64; None for new urns."""
    return self._urns

  def check(self) -> None:
    if self.num_urns is not None:
      check_count('num_urns', self.num_urns)
    check_count('num_symbols', self.num_symbols, minimum=2)
    super().check()
    check_number('concentration', self.concentration, minimum=1e-30)
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
    # The query is a ball of the urn, so it makes some urns more probable.
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
    """Draws the distribution of an urn `~ Dirichlet(α)`."""
    # For a small α gamma variables may round to 0, but their logarithms do not.
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
    """Returns the baselines of this task, by name.

    `memorising` weighs the urns of the pool by the balls, and mixes their
    distributions. `generalising` takes the urn for a new one: it counts the balls and
    adds α. `bayes` is `memorising` for a pool, and `generalising` for new urns.
    """
    generalising = Generalising(self.num_symbols, self.concentration)
    if self.num_urns is None:
      known = {'bayes': generalising}
    else:
      memorising = LawRetrieval(self._urns)
      known = {'bayes': memorising, 'memorising': memorising}
    return {**known, 'generalising': generalising, 'zero': Zero()}

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the probabilities of the urns of a pool, or moments of a new urn.

    For a new urn the values are the means and then the variances of the probabilities
    of the colours, by their Dirichlet distribution.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, num_urns]`, or `[b, c + 1, 2 num_symbols]`.
    """
    if self.num_urns is not None:
      names = tuple(f'urn {i}' for i in range(self.num_urns))
      return Belief(values_of(LawRetrieval(self._urns), prompt), names)
    names = tuple(
      f'{what} of colour {i}'
      for what in ('mean', 'variance')
      for i in range(self.num_symbols)
    )
    new = Generalising(self.num_symbols, self.concentration)
    return Belief(values_of(new, prompt), names, 'moments')

  def belief_prediction(
    self, values: Float[Array, 'b m'], prompt: Prompt
  ) -> Float[Array, 'b s']:
    if self.num_urns is None:
      return values[:, : self.num_symbols]
    urns = jnp.asarray(self._urns, values.dtype)
    return jnp.matmul(values, urns, precision='highest')

  def shifts(self) -> dict[str, Task]:
    """Returns longer contexts and, for a pool, `fresh_urns`, new in each prompt."""
    fresh: dict[str, Task] = {}
    if self.num_urns is not None:
      other = dataclasses.replace(self, num_urns=None, _urns=None)  # pyright: ignore
      fresh = {'fresh_urns': other}
    return fresh | super().shifts()


@struct.dataclass(eq=False, repr=False)
class Generalising(SequenceBaseline):
  """The posterior of the next ball from an urn `~ Dirichlet(α, …, α)`: counts plus α.

  Args:
    num_symbols: Number of colours.
    concentration: Concentration α.
  """

  num_symbols: int = struct.field(pytree_node=False)
  concentration: Number

  def after_each(self, symbols: Int[Array, ' t']) -> Float[Array, 't k']:
    counts = jnp.cumsum(jax.nn.one_hot(symbols, self.num_symbols), axis=0)
    return jnp.log(counts + jnp.asarray(self.concentration, counts.dtype))

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the means and then the variances of the colours, after each ball."""
    counts = jnp.cumsum(prompt.features, axis=1)
    moments = dirichlet_moments(counts + jnp.asarray(self.concentration, counts.dtype))
    return jnp.concatenate(moments, axis=-1)


def _is_one_number(value: Any) -> bool:
  """Returns whether a value is an array of one real number that is not traced."""
  is_array = isinstance(value, np.ndarray | jax.Array) and not isinstance(value, Tracer)
  return is_array and value.ndim == 0 and value.dtype.kind in 'iuf'


def _are_right(num_urns: Any, num_symbols: Any, seed: Any, alpha: Any) -> bool:
  """Returns whether urns can be drawn with these numbers.

  JAX also rebuilds a task with other objects in their place. If the numbers of a user
  are wrong, `check` explains the mistake.
  """
  sizes = num_urns, num_symbols, seed
  are_numbers = all(isinstance(size, int | np.integer) for size in sizes)
  are_numbers &= isinstance(alpha, int | float | np.floating)
  return are_numbers and min(sizes[:2]) > 0 and 0 <= seed < 2**32 and 0 < alpha < np.inf


@functools.lru_cache(maxsize=8)
def _urns(
  num_urns: int, num_symbols: int, seed: int, concentration: float
) -> Float[np.ndarray, 'm s']:
  # NumPy guarantees the numbers of a RandomState for all its versions, but not those of
  # a Generator.
  random = np.random.RandomState(seed)
  # `check` refuses bools, which are integers here.
  shape = int(num_urns), int(num_symbols)
  # `logs` are logarithms of gamma variables of shape α. A gamma variable of shape α is
  # one of shape α + 1 times U^(1/α) (Marsaglia & Tsang, ACM TOMS 26, 2000). Logarithms
  # are needed since a gamma variable of a small shape α may round to 0.
  logs = np.log(random.standard_gamma(concentration + 1, shape))
  logs += np.log1p(-random.random_sample(shape)) / concentration
  urns = np.exp(logs - logs.max(axis=1, keepdims=True))
  urns /= urns.sum(axis=1, keepdims=True)
  urns.flags.writeable = False
  return urns
