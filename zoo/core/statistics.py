"""Sufficient statistics: the moments of a batch of prompts that the linear family uses.

The predictions of a learning rule depend on the context only through its second moment,
so the examples themselves are not needed. The moment is that of labels relative to the
prior mean, with the label noise separate: the same statistics then serve every prior
mean and noise level.
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


@typing.no_type_check  # JAX also builds one from placeholders or stacked arrays
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
  """A batch of prompts with `ŵ = w* + ε`, for any w* and σ; the batch axis is last.

  `moment` is the lower triangle, row by row, of `(1/C) Σ_i u_i u_iᵀ` with
  `u_i = [x_i; ε·x_i; n_i]`, where n_i is the label noise in units of σ, 0 without any.
  """

  moment: Float[Array, 'p b']
  x_query: Float[Array, 'd b']
  deviation: Float[Array, ' b']  # ε·x_q, the query's target minus w*·x_q

  def errors(
    self,
    rule: LearningRule,
    prior_mean: Float[ArrayLike, ' d'],
    noise_std: Float[ArrayLike, ''],
  ) -> Float[Array, ' b']:
    """`f − ŵ·x_q`, the errors of the rule on the prompts for this w* and σ."""
    dtype = self.moment.dtype
    mean, noise = jnp.asarray(prior_mean, dtype), jnp.asarray(noise_std, dtype)
    d = mean.shape[0]
    # z = M u with M = [[I, 0, 0], [w*ᵀ, 1, σ]], so that ⟨U, zzᵀ⟩ = ⟨Mᵀ U M, uuᵀ⟩: the
    # differences between tasks move into the rule, which does not depend on prompts.
    change = jnp.eye(d + 1, dtype=dtype).at[d, :d].set(mean)
    rules = jnp.concatenate([rule.update, rule.bias_update[None]])
    update = symmetric(jnp.einsum('nij,ik,jl->nkl', rules, change, change))
    # The last row of uuᵀ is that of the noise, whose entries off the diagonal count
    # twice.
    of_noise = noise * (rules[:, d] + rules[:, :, d]) @ change
    of_square = noise * noise * rules[:, d, d]
    row = jnp.concatenate([of_noise, of_square[:, None]], axis=1)
    constant = jnp.concatenate([rule.init - mean, rule.bias[None]])
    count = (d + 1) * (d + 2) // 2  # entries of the triangle without that row
    coefficients_nb = _halves(update) @ self.moment[:count] + constant[:, None]
    coefficients_nb = coefficients_nb + row @ self.moment[count:]
    query_nb = jnp.concatenate([self.x_query, jnp.ones_like(self.x_query[:1])])
    return jnp.sum(coefficients_nb * query_nb, axis=0) - self.deviation


def triangle(vectors: Float[Array, 'c u b']) -> Float[Array, 'p b']:
  """The lower triangle of `Σ_i u_i u_iᵀ`, row by row."""
  c, width, _ = vectors.shape
  if c * width <= _WRITTEN_OUT:
    rows = [
      sum(u[i][None] * u[: i + 1] for u in vectors[1:])
      + vectors[0, i][None] * vectors[0, : i + 1]
      for i in range(width)
    ]
  else:
    square = jnp.einsum('cib,cjb->ijb', vectors, vectors)
    rows = [square[i, : i + 1] for i in range(width)]
  return jnp.concatenate(rows)


def last_row(
  vectors: Float[Array, 'c u b'], last: Float[Array, 'c b']
) -> Float[Array, 'v b']:
  """The last row of that triangle for `[u_i; last_i]`, in place of the vectors u_i."""
  c, width, _ = vectors.shape
  vectors = jnp.concatenate([vectors, last[:, None]], axis=1)
  if c * (width + 1) <= _WRITTEN_OUT:
    row = sum(vector[-1][None] * vector for vector in vectors[1:])
    return row + vectors[0, -1][None] * vectors[0]
  return jnp.einsum('cb,cub->ub', last, vectors)


def _halves(update: Float[Array, 'n u u']) -> Float[Array, 'n p']:
  """The weights of a triangle, where entries off the diagonal count twice."""
  width = update.shape[-1]
  rows, columns = np.tril_indices(width)
  count = np.where(rows == columns, 1, 2).astype(update.dtype)
  entries = update.reshape(len(update), -1)
  # The indices are known to differ, so that the gradient is a scatter without sums.
  taken = entries.at[:, rows * width + columns].get(
    unique_indices=True, indices_are_sorted=True, mode='promise_in_bounds'
  )
  return taken * count[None]
