"""The learning rule: the one canonical form of every model in the linear family.

The context reaches the prediction of such a model only through its second moment `G`,
and the prediction is affine in the query:

    f = ω(G)·x_q + b(G),   ω(G)_i = init_i + ⟨U_i, G⟩,   b(G) = bias + ⟨V, G⟩

so linear attention models and steps of gradient descent are points of one vector space.
"""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from zoo.errors import UserError
from zoo.prompt import Prompt

AnyArray = Array | np.ndarray  # on the device, or float64 on the host


@typing.no_type_check  # JAX also builds one of placeholders, or of stacked rules
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LearningRule:
  """What a model of the linear family does with its context: `init, U, bias, V`.

  Only the symmetric parts of `update` and `bias_update` matter; the constructors here
  and the models give them symmetric.
  """

  init: Float[AnyArray, ' d']  # the weights before any example is seen
  update: Float[AnyArray, 'd e e']  # U: how G moves each weight
  bias: Float[AnyArray, '']  # the prediction's offset before any example is seen
  bias_update: Float[AnyArray, 'e e']  # V: how G moves the offset

  @classmethod
  def gradient_descent(
    cls, start: Float[ArrayLike, ' d'], step_size: Float[ArrayLike, '']
  ) -> LearningRule:
    """One step of gradient descent from the weights `start`.

    The loss is `Σ_i (w·x_i − y_i)² / (2C)`, so that the step is
    `start + (step_size / C) Σ_i (y_i − start·x_i) x_i` (arXiv 2212.07677, eq. 4).
    """
    start = _vector(start)
    if jnp.ndim(step_size):
      raise UserError(
        f'step_size has shape {jnp.shape(step_size)}; it must be a number'
      )
    return _one_step(start, step_size)

  @classmethod
  def gd_beta(
    cls, start: Float[ArrayLike, ' d'], step_matrix: Float[ArrayLike, 'd d']
  ) -> LearningRule:
    """One step from `start` with a matrix step: `start − Γ (1/C) Xᵀ(X start − y)`.

    GD-β of arXiv 2402.14951, with `step_matrix` for Γ.
    """
    start = _vector(start)
    if jnp.shape(step_matrix) != (start.size, start.size):
      raise UserError(
        f'step_matrix has shape {jnp.shape(step_matrix)}; it must be {start.size} × '
        f'{start.size}'
      )
    return _one_step(start, step_matrix)

  @property
  def num_features(self) -> int:
    """The length d of the weight vector."""
    return self.init.shape[0]

  def weights(self, prompt: Prompt) -> Float[Array, 'b d']:
    """ω(G), the weights learned in context; also `∂f/∂x_q`."""
    return self._weights(prompt.second_moment())

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction f for each prompt's query."""
    moment_bee = prompt.second_moment()
    offset_b = self.bias + jnp.einsum('ij,bij->b', self.bias_update, moment_bee)
    return jnp.einsum('bd,bd->b', self._weights(moment_bee), prompt.x_query) + offset_b

  def _weights(self, moment_bee: Float[Array, 'b e e']) -> Float[Array, 'b d']:
    moves_bd = jnp.einsum('dij,bij->bd', self.update, moment_bee)
    return jnp.asarray(self.init)[None] + moves_bd

  def __add__(self, other: LearningRule) -> LearningRule:
    """The rule that predicts the sum of both predictions."""
    return jax.tree.map(jnp.add, self, other)

  def __sub__(self, other: LearningRule) -> LearningRule:
    """The rule that predicts the difference of both predictions."""
    return jax.tree.map(jnp.subtract, self, other)

  def __mul__(self, scale: Float[ArrayLike, '']) -> LearningRule:
    """The rule that predicts `scale` times this one's prediction."""
    return jax.tree.map(lambda leaf: leaf * scale, self)

  __rmul__ = __mul__

  def distance(self, other: LearningRule) -> Float[Array, '']:
    """The Euclidean distance of two rules, over the symmetric parts.

    It is 0 exactly when both predict the same for every prompt of every length.
    """
    gap = self - other
    parts = gap.init, symmetric(gap.update), gap.bias, symmetric(gap.bias_update)
    return jnp.sqrt(sum(jnp.sum(jnp.square(part)) for part in parts))


def symmetric(matrix: Float[ArrayLike, '*n e e']) -> Float[Array, '*n e e']:
  """The symmetric part of a matrix, over the last two axes."""
  matrix = jnp.asarray(matrix)
  return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2


def _vector(start: ArrayLike) -> Array:
  vector = jnp.asarray(start, dtype=jnp.result_type(float, start))
  if vector.ndim != 1:
    raise UserError(f'start has shape {vector.shape}; it must be a vector [d]')
  return vector


@jax.jit  # op by op, each would be compiled
def _one_step(start: Float[Array, ' d'], step: Float[ArrayLike, ...]) -> LearningRule:
  """GD-β; a number for the step is that multiple of the identity."""
  d = start.size
  step_matrix = jnp.asarray(step)
  if step_matrix.ndim == 0:
    step_matrix = step_matrix * jnp.eye(d, dtype=start.dtype)
  # ⟨U_i, G⟩ = Γ_i·(Xᵀy/C − (XᵀX/C) start), Γ_i being row i.
  feature_block = -jnp.einsum('ij,k->ijk', step_matrix, start)
  label_column = step_matrix[:, :, None]
  top = jnp.concatenate([feature_block, label_column], axis=2)
  return LearningRule(
    init=start,
    update=symmetric(jnp.pad(top, ((0, 0), (0, 1), (0, 0)))),
    bias=jnp.zeros((), top.dtype),
    bias_update=jnp.zeros((d + 1, d + 1), top.dtype),
  )
