"""The learning rule: the canonical form of every model in the linear family.

The prediction of such a model depends on the context only through its second moment
`G`, and is affine in the query:

    f = ω(G)·x_q + b(G),   ω(G)_i = init_i + ⟨U_i, G⟩,   b(G) = bias + ⟨V, G⟩

So linear attention models and steps of gradient descent are points of one vector space.
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
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.trees import in_words

AnyArray = Array | np.ndarray  # An array on the host is float64.
ArrayT = typing.TypeVar('ArrayT', Array, np.ndarray, AnyArray)


@typing.no_type_check  # JAX also builds one from placeholders or stacked leaves.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LearningRule:
  """How a model of the linear family uses its context.

  With the second moment `G = (1/C) Σ_i z_i z_iᵀ` of the examples `z_i = [x_i; y_i]` the
  prediction is

      f = ω(G)·x_q + b(G),   ω(G)_i = init_i + ⟨U_i, G⟩,   b(G) = bias + ⟨V, G⟩.

  Rules form a vector space: `rule + other`, `rule - other` and `2 * rule` predict the
  sum, the difference and the multiple. Only the symmetric parts of `update` and
  `bias_update` matter; the constructors here and the models make both symmetric.

  Attributes:
    init: The weights before any example is seen, `[d]`.
    update: U, by which G moves each weight, `[d, e, e]` with e = d + 1.
    bias: The prediction's offset before any example is seen.
    bias_update: V, by which G moves the offset, `[e, e]`.

  Example:
    >>> prompt = zoo.Prompt(
    ...   x=jnp.array([[[1.0, 0.0], [0.0, 1.0]]]),
    ...   y=jnp.array([[1.0, 2.0]]),
    ...   x_query=jnp.array([[1.0, 1.0]]),
    ...   y_query=jnp.array([3.0]),
    ... )
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=2.0)
    >>> rule.weights(prompt).tolist(), rule(prompt).tolist()
    ([[1.0, 2.0]], [3.0])

  References:
    docs/theory_one_layer.md, section 1.
  """

  init: Float[AnyArray, ' d']
  update: Float[AnyArray, 'd e e']  # U: how G moves each weight
  bias: Float[AnyArray, '']
  bias_update: Float[AnyArray, 'e e']  # V: how G moves the offset

  def __repr__(self) -> str:
    """Returns the class and its fields on one line, with arrays by their shapes."""
    return in_words(self)

  # Rules made from numbers or arrays are float64 on the host, so that exact theory
  # loses no precision. Traced rules keep the caller's dtype.

  @classmethod
  def gradient_descent(
    cls, start: Float[ArrayLike, ' d'], step_size: Float[ArrayLike, '']
  ) -> LearningRule:
    """Returns one step of gradient descent from given weights.

    The loss is `Σ_i (w·x_i − y_i)² / (2C)`, so the weights after the step are
    `start + (step_size / C) Σ_i (y_i − start·x_i) x_i` (arXiv 2212.07677, eq. 4).

    Args:
      start: The weights at which the step begins, `[d]`.
      step_size: A number.

    Returns:
      The rule: float64 on the host, or in the caller's precision if an argument is
      traced.

    Raises:
      UserError: If an argument has a wrong shape or is not finite.

    Example:
      >>> zoo.LearningRule.gradient_descent(np.ones(2), step_size=0.5).init.tolist()
      [1.0, 1.0]
    """
    step = _array('step_size', step_size, ())
    return cls.gd_beta(start, step * np.eye(np.size(start), dtype=step.dtype))

  @classmethod
  def gd_beta(
    cls, start: Float[ArrayLike, ' d'], step_matrix: Float[ArrayLike, 'd d']
  ) -> LearningRule:
    """Returns GD-β, a step of gradient descent whose size is a matrix.

    The weights after the step are `start − Γ (1/C) Xᵀ(X start − y)` (arXiv 2402.14951).

    Args:
      start: The weights at which the step begins, `[d]`.
      step_matrix: Γ, `[d, d]`.

    Returns:
      The rule: float64 on the host, or in the caller's precision if an argument is
      traced.

    Raises:
      UserError: If an argument has a wrong shape or is not finite.

    Example:
      >>> zoo.LearningRule.gd_beta(np.ones(2), np.diag([0.5, 0.1])).num_features
      2
    """
    if len(shape := np.shape(start)) != 1:
      raise UserError(f'start has shape {shape}; it must be a vector [d]')
    start = _array('start', start, shape)
    step = _array('step_matrix', step_matrix, shape * 2)
    # NumPy computes the rule, unless an argument is traced.
    xp = jnp if isinstance(start, Tracer) or isinstance(step, Tracer) else np
    # ⟨U_i, G⟩ is Γ_i·(Xᵀy/C − (XᵀX/C) start), where Γ_i is row i.
    feature_block = -xp.einsum('ij,k->ijk', step, start)
    top = xp.concatenate([feature_block, step[:, :, None]], axis=2)
    return cls(
      init=start,
      update=symmetric(xp.pad(top, ((0, 0), (0, 1), (0, 0)))),
      bias=xp.zeros((), top.dtype),
      bias_update=xp.zeros((start.size + 1,) * 2, top.dtype),
    )

  def learning_rule(self) -> LearningRule:
    """Returns this rule itself, under the method name of models and estimators."""
    return self

  @property
  def num_features(self) -> int:
    """The length d of the weight vector."""
    return self.init.shape[0]

  def weights(self, prompt: Prompt) -> Float[Array, 'b d']:
    """Returns ω(G), the weights learned in context, which are also `∂f/∂x_q`."""
    prompt = checked_prompt(prompt, 'rule', self.num_features, of_numbers=True)
    moves_bd = jnp.einsum('dij,bij->bd', self.update, prompt.second_moment())
    return jnp.asarray(self.init)[None] + moves_bd

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """Returns the prediction f for each prompt's query."""
    prompt = checked_prompt(prompt, 'rule', self.num_features, of_numbers=True)
    moment_bee = prompt.second_moment()
    moves_bd = jnp.einsum('dij,bij->bd', self.update, moment_bee)
    weights_bd = jnp.asarray(self.init)[None] + moves_bd
    offset_b = self.bias + jnp.einsum('ij,bij->b', self.bias_update, moment_bee)
    return jnp.einsum('bd,bd->b', weights_bd, prompt.x_query) + offset_b

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    """Returns the prediction for each example from those before it, then for the query.

    For a prediction after k examples, G is their mean; before the first example it is
    0.
    """
    prompt = checked_prompt(prompt, 'rule', self.num_features, of_numbers=True)
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
    """Returns the rule whose prediction is the sum of both predictions."""
    return self._combine(operator.add, other)

  def __sub__(self, other: LearningRule) -> LearningRule:
    """Returns the rule whose prediction is the difference of both predictions."""
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
    """Returns the rule that predicts `scale` times the prediction of this one.

    Raises:
      UserError: If `scale` is not a finite number.
    """
    if np.ndim(scale):
      raise UserError(f'scale has shape {np.shape(scale)}; it must be a number')
    if not isinstance(scale, Tracer):
      check_number('scale', scale)
    return jax.tree.map(lambda leaf: leaf * scale, self)

  __rmul__ = __mul__

  def distance(self, other: LearningRule) -> float | Float[Array, '']:
    """Returns the Euclidean distance of two rules, over their symmetric parts.

    It is 0 exactly when both rules predict the same for every prompt of every length.

    Raises UserError if the rules are for different numbers of features.
    """
    gap = self - other
    parts = gap.init, symmetric(gap.update), gap.bias, symmetric(gap.bias_update)
    return sum((part**2).sum() for part in parts) ** 0.5


def symmetric(matrix: Float[ArrayT, '*n e e']) -> Float[ArrayT, '*n e e']:
  """Returns the symmetric part of a matrix, over the last two axes."""
  return (matrix + matrix.swapaxes(-1, -2)) / 2


def _array(name: str, value: ArrayLike, shape: tuple[int, ...]) -> AnyArray:
  """Returns a float64 array on the host, or a traced one in the caller's precision."""
  if not isinstance(value, Tracer):
    return check_array(name, value, [shape])
  if value.shape != shape or jnp.iscomplexobj(value):
    raise UserError(
      f'{name} has shape {value.shape} and type {value.dtype}; it must be real and of '
      f'shape {shape}'
    )
  return jnp.asarray(value, jnp.result_type(float, value))
