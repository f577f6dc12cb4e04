"""Sufficient statistics: the moments of a batch of prompts that the linear family uses.

The predictions of a learning rule depend on the context only through its second moment,
so the examples themselves are not needed. The moment is taken of labels relative to the
prior mean, so that the same statistics serve every prior mean.
"""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from zoo.core.learning_rule import LearningRule, symmetric

# Up to this many examples × entries the triangle is written out, which XLA:CPU computes
# several times faster than a matrix product per prompt; a larger one compiles slowly.
_WRITTEN_OUT = 1024


@typing.no_type_check  # JAX also builds one from placeholders or stacked arrays.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
  """A batch of prompts with `ŵ = w* + ε`, for any w*; the batch axis is last.

  Attributes:
    moment: The lower triangle, row by row, of `(1/C) Σ_i u_i u_iᵀ`, `[p, b]`. Here
      `u_i = [x_i; ε·x_i + σ n_i]`, where σ n_i is the label noise.
    x_query: The features of the query, `[d, b]`.
    deviation: ε·x_q, which is the query's target minus w*·x_q, `[b]`.
  """

  moment: Float[Array, 'p b']
  x_query: Float[Array, 'd b']
  deviation: Float[Array, ' b']

  def errors(
    self, rule: LearningRule, prior_mean: Float[ArrayLike, ' d']
  ) -> Float[Array, ' b']:
    """Returns the errors `f − ŵ·x_q` of a rule on the prompts, for one w*.

    Args:
      rule: The learning rule.
      prior_mean: w*, `[d]`.
    """
    dtype = self.moment.dtype
    mean = jnp.asarray(prior_mean, dtype)
    d = mean.shape[0]
    # z = M u with M = [[I, 0], [w*ᵀ, 1]], so that ⟨U, zzᵀ⟩ = ⟨Mᵀ U M, uuᵀ⟩: the
    # prior mean moves into the rule, which does not depend on prompts.
    change = jnp.eye(d + 1, dtype=dtype).at[d, :d].set(mean)
    update = jnp.concatenate([rule.update, rule.bias_update[None]])
    update = symmetric(jnp.einsum('nij,ik,jl->nkl', update, change, change))
    # The triangle has one of each pair of entries off the diagonal, which counts twice.
    # All indices differ, so that the gradient is a scatter without sums.
    rows, columns = np.tril_indices(d + 1)
    lower = update.reshape(d + 1, -1).at[:, rows * (d + 1) + columns]
    lower = lower.get(
      unique_indices=True, indices_are_sorted=True, mode='promise_in_bounds'
    )
    counts = np.where(rows == columns, 1, 2).astype(update.dtype)
    constant = jnp.concatenate([rule.init - mean, rule.bias[None]])
    coefficients_nb = (lower * counts[None]) @ self.moment + constant[:, None]
    query_nb = jnp.concatenate([self.x_query, jnp.ones_like(self.x_query[:1])])
    return jnp.sum(coefficients_nb * query_nb, axis=0) - self.deviation


def triangle(vectors: Float[Array, 'c u b']) -> Float[Array, 'p b']:
  """Returns the lower triangle of `Σ_i u_i u_iᵀ`, row by row."""
  c, width, _ = vectors.shape
  if c * width <= _WRITTEN_OUT:
    first, *others = vectors
    rows = [
      sum(u[i : i + 1] * u[: i + 1] for u in others) + first[i : i + 1] * first[: i + 1]
      for i in range(width)
    ]
  else:
    square = jnp.einsum('cib,cjb->ijb', vectors, vectors)
    rows = [square[i, : i + 1] for i in range(width)]
  return jnp.concatenate(rows)
