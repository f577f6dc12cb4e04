"""The learning rule: the canonical form of every model in the linear family.

The prediction of such a model depends on the context only through its second moment
`G`, and is affine in the query:

    f = ω(G)·x_q + b(G),   ω(G)_i = init_i + ⟨U_i, G⟩,   b(G) = bias + ⟨V, G⟩

so linear attention models and steps of gradient descent are points of one vector space.
"""

from __future__ import annotations

import dataclasses
import operator
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_array, check_number
from zoo.core.prompt import Prompt, check_prompt
from zoo.core.trees import in_words

AnyArray = Array | np.ndarray  # on the device, or float64 on the host
ArrayT = typing.TypeVar('ArrayT', Array, np.ndarray, AnyArray)


@typing.no_type_check  # JAX also builds one from placeholders or stacked leaves
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LearningRule:
  """How a model of the linear family uses its context: `init, U, bias, V`.

  Only the symmetric parts of `update` and `bias_update` matter; the constructors here
  and the models make both symmetric.
  """

  init: Float[AnyArray, ' d']  # the weights before any example is seen
  update: Float[AnyArray, 'd e e']  # U: how G moves each weight
  bias: Float[AnyArray, '']  # the prediction's offset before any example is seen
  bias_update: Float[AnyArray, 'e e']  # V: how G moves the offset

  def __repr__(self) -> str:
    """The class and its fields on one line, arrays by their shapes."""
    return in_words(self)

  # Rules made from numbers or arrays are float64 on the host, so that exact theory
  # loses no precision. Traced rules keep the caller's dtype.

  @classmethod
  def gradient_descent(
    cls, start: Float[ArrayLike, ' d'], step_size: Float[ArrayLike, '']
  ) -> LearningRule:
    """One step of gradient descent from the weights `start`.

    The loss is `Σ_i (w·x_i − y_i)² / (2C)`, so that the step is
    `start + (step_size / C) Σ_i (y_i − start·x_i) x_i` (arXiv 2212.07677, eq. 4).
    Raises UserError naming the argument that is wrong.
    """
    step = _array('step_size', step_size, ())
    return cls.gd_beta(start, step * np.eye(np.size(start), dtype=step.dtype))

  @classmethod
  def gd_beta(
    cls, start: Float[ArrayLike, ' d'], step_matrix: Float[ArrayLike, 'd d']
  ) -> LearningRule:
    """One step from `start` with a matrix step: `start − Γ (1/C) Xᵀ(X start − y)`.

    GD-β of arXiv 2402.14951, with `step_matrix` for Γ. Raises UserError naming the
    argument that is wrong.
    """
    if len(shape := np.shape(start)) != 1:
      raise UserError(f'start has shape {shape}; it must be a vector [d]')
    start = _array('start', start, shape)
    step = _array('step_matrix', step_matrix, shape * 2)
    # In NumPy unless a part is traced.
    xp = jnp if isinstance(start, Tracer) or isinstance(step, Tracer) else np
    # ⟨U_i, G⟩ = Γ_i·(Xᵀy/C − (XᵀX/C) start), Γ_i being row i.
    feature_block = -xp.einsum('ij,k->ijk', step, start)
    top = xp.concatenate([feature_block, step[:, :, None]], axis=2)
    return cls(
      init=start,
      update=symmetric(xp.pad(top, ((0, 0), (0, 1), (0, 0)))),
      bias=xp.zeros((), top.dtype),
      bias_update=xp.zeros((start.size + 1,) * 2, top.dtype),
    )

  def learning_rule(self) -> LearningRule:
    """This rule itself, under the method name of models and estimators."""
    return self

  @property
  def num_features(self) -> int:
    """The length d of the weight vector."""
    return self.init.shape[0]

  def weights(self, prompt: Prompt) -> Float[Array, 'b d']:
    """ω(G), the weights learned in context; also `∂f/∂x_q`."""
    check_prompt(prompt, 'rule', self.num_features)
    moves_bd = jnp.einsum('dij,bij->bd', self.update, prompt.second_moment())
    return jnp.asarray(self.init)[None] + moves_bd

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction f for each prompt's query."""
    check_prompt(prompt, 'rule', self.num_features)
    moment_bee = prompt.second_moment()
    moves_bd = jnp.einsum('dij,bij->bd', self.update, moment_bee)
    weights_bd = jnp.asarray(self.init)[None] + moves_bd
    offset_b = self.bias + jnp.einsum('ij,bij->b', self.bias_update, moment_bee)
    return jnp.einsum('bd,bd->b', weights_bd, prompt.x_query) + offset_b

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    """The prediction for each example from those before it, that for the query last.

    After k examples G is their mean; before the first it is 0.
    """
    check_prompt(prompt, 'rule', self.num_features)
    z_bce = prompt.examples()
    updates = jnp.concatenate([self.update, self.bias_update[None]])  # [d + 1, e, e]
    moves_bcn = jnp.einsum('nij,bci,bcj->bcn', updates, z_bce, z_bce)
    counts_t = jnp.maximum(jnp.arange(z_bce.shape[1] + 1), 1).astype(z_bce.dtype)
    sums_btn = jnp.pad(jnp.cumsum(moves_bcn, axis=1), ((0, 0), (1, 0), (0, 0)))
    start_n = jnp.append(jnp.asarray(self.init), jnp.asarray(self.bias))
    weights_btn = sums_btn / counts_t[None, :, None] + start_n[None, None]
    x_btd = prompt.features
    return jnp.sum(weights_btn[..., :-1] * x_btd, axis=-1) + weights_btn[..., -1]

  def __add__(self, other: LearningRule) -> LearningRule:
    """The rule whose prediction is the sum of both predictions."""
    return self._combine(operator.add, other)

  def __sub__(self, other: LearningRule) -> LearningRule:
    """The rule whose prediction is the difference of both predictions."""
    return self._combine(operator.sub, other)

  def _combine(
    self, operation: Callable[[AnyArray, AnyArray], AnyArray], other: LearningRule
  ) -> LearningRule:
    if not isinstance(other, LearningRule):
      return NotImplemented
    if self.num_features != other.num_features:
      raise UserError(
        f'the rules are for {self.num_features} and {other.num_features} features; '
        'both must be for the same number'
      )
    return jax.tree.map(operation, self, other)

  def __mul__(self, scale: Float[ArrayLike, '']) -> LearningRule:
    """The rule that predicts `scale` times this one's prediction; raises UserError."""
    if np.ndim(scale):
      raise UserError(f'scale has shape {np.shape(scale)}; it must be a number')
    if not isinstance(scale, Tracer):
      check_number('scale', scale)
    return jax.tree.map(lambda leaf: leaf * scale, self)

  __rmul__ = __mul__

  def distance(self, other: LearningRule) -> float | Float[Array, '']:
    """The Euclidean distance of two rules, over the symmetric parts.

    It is 0 exactly when both predict the same for every prompt of every length.
    """
    gap = self - other
    parts = gap.init, symmetric(gap.update), gap.bias, symmetric(gap.bias_update)
    return sum((part**2).sum() for part in parts) ** 0.5


def symmetric(matrix: Float[ArrayT, '*n e e']) -> Float[ArrayT, '*n e e']:
  """The symmetric part of a matrix, over the last two axes."""
  return (matrix + matrix.swapaxes(-1, -2)) / 2


def _array(name: str, value: ArrayLike, shape: tuple[int, ...]) -> AnyArray:
  """The value in float64 on the host or, if it is traced, in the caller's precision."""
  if not isinstance(value, Tracer):
    return check_array(name, value, [shape])
  if value.shape != shape or jnp.iscomplexobj(value):
    raise UserError(
      f'{name} has shape {value.shape} and type {value.dtype}; it must be real and of '
      f'shape {shape}'
    )
  return jnp.asarray(value, jnp.result_type(float, value))
