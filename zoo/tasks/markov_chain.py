"""Sequences of symbols from random Markov chains."""

# A size that follows from fields is a property.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Key

from zoo.core import losses
from zoo.core.errors import check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.tasks.base import BaseTask, dot, make_prompt, register_task
from zoo.tasks.baselines import Baseline, Examples, Zero


@register_task('markov_chain')
@struct.dataclass(eq=False, repr=False)
class MarkovChain(BaseTask):
  """The next symbol of a Markov chain (Edelman et al., arXiv 2402.11004).

  Each prompt has a fresh transition matrix, whose rows are Dirichlet(1, …, 1), and the
  first symbol is drawn from its stationary distribution. (For up to four symbols the
  authors' code draws the first symbol uniformly instead.) An example is a transition:
  `x_i` is symbol i, one-hot `[S]` with S = `num_symbols`, and `y_i = x_{i+1}` the next
  one; the query is the last symbol. So a prompt is one sequence of C + 1 symbols, and
  after k examples k + 1 of them are known. Targets are rows of the transition matrix.
  """

  num_symbols: int = struct.field(pytree_node=False, default=2)  # S ≥ 2
  context_length: int = struct.field(pytree_node=False, default=100)
  label_kind = 'classes'

  @property
  def num_features(self) -> int:
    """Features of an example, d."""
    return self.num_symbols

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
    return self.num_symbols

  def check(self) -> None:
    check_count('num_symbols', self.num_symbols, minimum=2)
    super().check()

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    matrix_key, symbols_key = jax.random.split(key)
    size = self.num_symbols
    # Independent exponentials, divided by their sum, are Dirichlet(1, …, 1).
    matrix = jax.random.exponential(matrix_key, (size, size))
    matrix = matrix / dot(matrix, jnp.ones_like(matrix))[:, None]
    logits, law = jnp.log(matrix), jnp.log(_stationary_law(matrix))
    gumbel = jax.random.gumbel(symbols_key, (self.context_length + 1, size))

    def step(symbol: Array, noise: Array) -> tuple[Array, Array]:
      following = jnp.argmax(logits[symbol] + noise)
      return following, following

    first = jnp.argmax(law + gumbel[0])
    _, others = jax.lax.scan(step, first, gumbel[1:])
    symbols = jnp.concatenate([first[None], others])
    x, targets = jax.nn.one_hot(symbols, size, dtype=matrix.dtype), matrix[symbols]
    # The label of an example is the next symbol; the query's is not part of a prompt.
    return make_prompt(x, jnp.roll(x, -1, axis=0), targets, matrix)

  def baselines(self) -> dict[str, Predictor]:
    """Counts with 1 added, and the exact Bayes predictor, only for two symbols.

    `bigram` would be the Bayes predictor if the first symbol said nothing about the
    transitions. For two symbols its loss exceeds that of Bayes by 0.016 nats before the
    first example, by 0.0030 after 9, and by less than 0.0001 after 99.
    """
    bayes = {'bayes': TwoSymbolBayes()} if self.num_symbols == 2 else {}
    return {
      'bigram': Bigram(),
      **bayes,
      'unigram': Unigram(),
      'zero': Zero(),
    }


def _stationary_law(matrix: Float[Array, 's s']) -> Float[Array, ' s']:
  """The stationary distribution of a transition matrix, up to a factor.

  States are eliminated one by one, without subtractions (Grassmann, Taksar & Heyman,
  Operations Research 33, 1985).
  """
  size = len(matrix)
  states = jnp.arange(size)

  def eliminate(i: Array, p: Array) -> Array:
    last = size - 1 - i
    kept = states < last
    leave = jnp.where(kept, p[last], 0)
    enter = jnp.where(kept, p[:, last], 0) / dot(leave, jnp.ones_like(leave))
    return (p + enter[:, None] * leave[None]).at[:, last].set(enter)

  p = jax.lax.fori_loop(0, size - 1, eliminate, matrix)
  law = jnp.zeros_like(matrix[0]).at[0].set(1)
  # The entries that are not known yet are 0.
  return jax.lax.fori_loop(
    1, size, lambda n, law: law.at[n].set(dot(law, p[:, n])), law
  )


@struct.dataclass(eq=False, repr=False)
class Bigram(Baseline):
  """Predicts from the counts of symbols after the query's symbol, each plus 1."""

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    x, y, _, x_query = examples.zeroed()
    return jnp.log((x @ x_query) @ y + 1)


@struct.dataclass(eq=False, repr=False)
class Unigram(Baseline):
  """Predicts from the counts of all symbols, the query's too, each plus 1."""

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    return jnp.log(jnp.sum(examples.zeroed().x, axis=0) + examples.x_query + 1)


@struct.dataclass(eq=False, repr=False)
class TwoSymbolBayes(Baseline):
  """The Bayes predictor for two symbols, if the first one is from the stationary law.

  Let u and v be the probabilities of leaving the first symbol and the other one. The
  first symbol then has the probability `v/(u + v)`, which weights the Beta posteriors
  from the transitions. The integrals are computed by Gauss–Legendre quadrature.
  """

  def predict(self, examples: Examples) -> Float[Array, ' 2']:
    x, y, seen, x_query = examples.zeroed()
    first = jnp.where(jnp.any(seen), x[0], x_query)
    # Several nodes within the least standard deviation of a posterior, about 1/(2√c).
    nodes, weights = np.polynomial.legendre.leggauss(32 + 4 * math.isqrt(len(x)))
    leave, weights = (jnp.asarray(a, y.dtype) for a in ((1 + nodes) / 2, weights))
    law = leave[None] / (leave[:, None] + leave[None])

    def posterior(symbol: Array) -> Array:
      stays, leaves = (x @ symbol) @ (y @ symbol), (x @ symbol) @ (y @ symbol[::-1])
      logs = leaves * jnp.log(leave) + stays * jnp.log1p(-leave)
      return jax.nn.softmax(logs + jnp.log(weights))

    of_first, of_other = posterior(first), posterior(first[::-1])
    leaves_first = (of_first * leave) @ law @ of_other
    leaves_other = of_first @ law @ (of_other * leave)
    p = jnp.where(first @ x_query > 0, leaves_first, leaves_other)
    p = p / (of_first @ law @ of_other)
    return losses.log_probability(p * x_query[::-1] + (1 - p) * x_query)
