"""Weights of models that realise a given learning rule.

Every function returns a trainable model with float32 parameters. Inside a block
`with jax.enable_x64(True):` they are float64, which tests of exact numbers need.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import ArrayLike, Float

from zoo.core.errors import (
  UserError,
  check_array,
  check_number,
  check_object,
  check_vector,
)
from zoo.core.learning_rule import LearningRule
from zoo.models import LTB, DeepLSA, MultiHeadLSA, YqLSA


def gd_transformer(start: ArrayLike, step_size: float | ArrayLike) -> YqLSA:
  """Makes a yq-LSA whose prediction is one step of gradient descent.

  The weights are those of arXiv 2512.04268, eq. 7, with a correction: `W_P = −η I`.
  With the paper's `−(η/C) I` the update would be divided by C twice, since eq. 3 of the
  paper has the factor 1/C, too.

  Args:
    start: The weights `[d]` at which the step begins; also the model's initial guess.
    step_size: η, a number; or a step matrix `[d, d]`, with which the model is GD-β.
      `W_Q` holds the transposed matrix.

  Returns:
    The model, with one head.

  Raises:
    UserError: If an argument has a wrong shape or is not finite.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, prior_mean=1.0
    ... )
    >>> model = zoo.theory.constructions.gd_transformer([1.0, 1.0], step_size=0.5)
    >>> round(zoo.theory.exact_risk(model, task), 6)
    1.0
  """
  start = check_vector('start', start, None)
  d = start.size
  step_matrix = np.eye(d)
  if np.ndim(step_size) == 0:
    step_size = check_number('step_size', step_size)
  else:
    step_matrix, step_size = check_array('step_size', step_size, [(d, d)]), 1.0
  w_v = np.zeros((d + 1, d + 1))
  w_v[-1] = np.append(start, -1)
  model = YqLSA(d, init_scale=0.0, rngs=nnx.Rngs(0))
  _set(model.w, start)
  _set(model.w_v, w_v[None])
  _set(model.w_k, np.diag(np.append(np.ones(d), 0))[None])
  _set(model.w_q, np.pad(step_matrix.T, (0, 1))[None])
  _set(model.w_p, -step_size * np.eye(d + 1)[None])
  return model


def multi_head_lsa(rule: LearningRule) -> MultiHeadLSA:
  """Makes a multi-head LSA that realises a learning rule.

  The rule's `init` and `bias` are the model's fixed guess. The `b_h` of head h is the
  h-th unit vector. So d + 1 heads realise every rule that a multi-head LSA can follow.
  d heads realise those that do not depend on any `y_i²`, such as the optimum of every
  task without noise (docs/theory_one_layer.md, section 4).

  Args:
    rule: The learning rule.

  Returns:
    The model, with d heads if they are enough, else d + 1.

  Raises:
    UserError: If the rule is not a `LearningRule`; if `bias` is 0 and `bias_update` is
      not: multi-head LSA cannot change a bias of 0.

  Example:
    >>> rule = zoo.LearningRule.gradient_descent(np.ones(2), step_size=0.5)
    >>> model = zoo.theory.constructions.multi_head_lsa(rule)
    >>> model.num_heads, bool(model.learning_rule().distance(rule) < 1e-6)
    (2, True)
  """
  needs = 'it must be a zoo.LearningRule, such as model.learning_rule() returns'
  check_object('a learning rule', rule, LearningRule, needs)
  init, update, bias, bias_update = (
    np.asarray(leaf, np.float64)
    for leaf in (rule.init, rule.update, rule.bias, rule.bias_update)
  )
  d = init.size
  if bias == 0 and np.any(bias_update != 0):
    raise UserError(
      'bias is 0 and bias_update is not; multi-head LSA changes its bias only if it is '
      'not 0'
    )
  # These say how G moves the coefficients of the query's entries: x_q, and the guess
  # y_q = init·x_q + bias.
  last = bias_update / bias if bias != 0 else bias_update
  moves = np.append(update - init[:, None, None] * last, last[None], axis=0)
  moves = (moves + moves.swapaxes(1, 2)) / 2
  num_heads = d + 1
  if not moves[:, d, d].any():
    # Only symmetric parts matter, so the last row can be added to the last column.
    num_heads = d
    moves[:, :, d] += moves[:, d]
  model = MultiHeadLSA(d, num_heads, init, float(bias), 0.0, rngs=nnx.Rngs(0))
  identity = np.tile(np.eye(d + 1), (num_heads, 1, 1))
  w_v = np.zeros_like(identity)
  w_v[:, -1] = identity[0, :num_heads]
  _set(model.w_v, w_v)
  _set(model.w_p, identity)
  _set(model.w_k, identity)
  # Column i of A_h is moves[i, h].
  _set(model.w_q, moves[:, :num_heads].transpose(1, 2, 0))
  return model


def ltb_from_yq_lsa(model: YqLSA) -> LTB:
  """Makes an LTB that predicts the same as a yq-LSA.

  The weights are `W_1 = [[I, 0], [wᵀ, 1]]`, `W_2 = I`, `W_P' = W_1⁻¹ W_P` and
  `W_Q' = W_Q [[I, 0], [wᵀ, 0]]`; W_K and W_V do not change.

  Args:
    model: The yq-LSA.

  Returns:
    The LTB, with as many heads.

  Raises:
    UserError: If the model is not a `YqLSA`.

  Example:
    >>> model = zoo.theory.constructions.gd_transformer([1.0, 1.0], step_size=0.5)
    >>> block = zoo.theory.constructions.ltb_from_yq_lsa(model)
    >>> print(f'{block.learning_rule().distance(model.learning_rule()):.4f}')
    0.0000

  References:
    arXiv 2512.04268, Lemma 3, corrected (studies/paper/README.md).
  """
  check_object('a yq-LSA', model, YqLSA, 'it must be a zoo.models.YqLSA')
  d, identity = model.num_features, np.eye(model.num_features + 1, dtype=model.w.dtype)
  w_1, w_1_inverse, without_guess = (identity.copy() for _ in range(3))
  w_1[-1, :-1] = without_guess[-1, :-1] = model.w[...]
  w_1_inverse[-1, :-1] = -w_1[-1, :-1]
  without_guess[-1, -1] = 0
  block = LTB(d, model.num_heads, init_scale=0.0, rngs=nnx.Rngs(0))
  _set(block.w_1, w_1)
  _set(block.w_2, identity)
  _set(block.w_p, w_1_inverse @ model.w_p[...])
  _set(block.w_q, model.w_q[...] @ without_guess)
  _set(block.w_k, model.w_k[...])
  _set(block.w_v, model.w_v[...])
  return block


def yq_lsa_from_ltb(block: LTB) -> YqLSA:
  """Makes a yq-LSA that predicts the same as an LTB, the converse of Lemma 3.

  With r the last row of `W_2ᵀ W_1`: `w = r[:d]`, the last row of `W_P` is `rᵀ W_P`, and
  the last column of `W_Q` is 0, since LTB has no guess in its queries.

  Args:
    block: The LTB.

  Returns:
    The yq-LSA, with as many heads.

  Raises:
    UserError: If the block is not an LTB.

  Example:
    >>> block = zoo.create_model('ltb', num_features=2, rngs=nnx.Rngs(0))
    >>> model = zoo.theory.constructions.yq_lsa_from_ltb(block)
    >>> print(f'{block.learning_rule().distance(model.learning_rule()):.4f}')
    0.0000
  """
  check_object('an LTB', block, LTB, 'it must be a zoo.models.LTB')
  readout = block.readout()
  model = YqLSA(block.num_features, block.num_heads, 0.0, rngs=nnx.Rngs(0))
  _set(model.w, readout[:-1])
  _set(model.w_p, block.w_p[...].at[:, -1].set(readout @ block.w_p[...]))
  _set(model.w_q, block.w_q[...].at[:, :, -1].set(0))
  _set(model.w_k, block.w_k[...])
  _set(model.w_v, block.w_v[...])
  return model


def deep_gradient_descent(
  start: ArrayLike, step_sizes: ArrayLike | Sequence[float]
) -> DeepLSA:
  """Makes deep linear attention whose prediction is k steps of gradient descent.

  Each layer is sparse, with `A = step I`, and does one step. The residual guess is
  `start`.

  Args:
    start: The weights `[d]` at which descent begins.
    step_sizes: The step sizes `[k]`, one for each layer.

  Returns:
    The model, with k layers.

  Raises:
    UserError: If an argument has a wrong shape or is not finite.

  Example:
    >>> model = zoo.theory.constructions.deep_gradient_descent([0.0, 0.0], [0.3, 0.3])
    >>> len(model.layers)
    2

  References:
    Ahn et al., arXiv 2306.00297.
  """
  start = check_vector('start', start, None)
  step_sizes = check_vector('step_sizes', step_sizes, None)
  model = _deep_lsa_from(start, num_layers=step_sizes.size, form='sparse')
  for layer, step_size in zip(model.layers, step_sizes, strict=True):
    _set(layer.a, step_size * np.eye(start.size)[None])
  return model


def gd_plus_plus(
  start: ArrayLike,
  steps: ArrayLike | Sequence[float],
  preconditions: ArrayLike | Sequence[float],
  readout: float = -1.0,
) -> DeepLSA:
  """Makes deep linear attention of the GD++ family.

  The layers are dense, with `W_P W_V = diag(b I, c)` and `W_Kᵀ W_Q = diag(I, 0)`. The
  prediction is the guess plus `readout` times the label entry of the query's token
  after the last layer. `theory.deep.gd_plus_plus_risk` has the model's risk if the
  start is the prior mean.

  Args:
    start: The weights `[d]` of the residual guess.
    steps: The c of each layer, `[L]`. With the default `readout`, a c below 0 is a step
      of gradient descent, of size −c. (`deep_gradient_descent` takes the sizes.)
    preconditions: The b of each layer but the last, `[L − 1]`.
    readout: The factor of the label entry.

  Returns:
    The model, with L layers.

  Raises:
    UserError: If an argument has a wrong shape or is not finite.

  Example:
    >>> model = zoo.theory.constructions.gd_plus_plus([0.0, 0.0], [-0.5, -0.5], [-0.1])
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> round(zoo.theory.deep.gd_plus_plus_risk(task, [-0.5, -0.5], [-0.1]), 4)
    0.6829

  References:
    von Oswald et al., arXiv 2212.07677. docs/theory_depth.md, section 8.
  """
  start, steps = check_vector('start', start, None), check_vector('steps', steps, None)
  d, size = start.size, steps.size
  preconditions = check_vector('preconditions', preconditions, size - 1)
  readout = check_number('readout', readout)
  model = _deep_lsa_from(start, num_layers=size, readout='linear')
  _set(model.read_out, np.append(np.zeros(d), readout)[:, None])
  features = np.diag(np.append(np.ones(d), 0))
  moves = zip(steps, np.append(preconditions, 0.0), strict=True)
  for layer, (step, precondition) in zip(model.layers, moves, strict=True):
    _set(layer.w_p, np.eye(d + 1)[None])
    _set(layer.w_v, np.diag(np.append(np.full(d, precondition), step))[None])
    _set(layer.w_k, features[None])
    _set(layer.w_q, features[None])
  return model


def _deep_lsa_from(start: Float[np.ndarray, ' d'], **arguments: Any) -> Any:
  """Returns deep linear attention with weights 0, which predicts the residual guess."""
  model: Any = DeepLSA(
    start.size, **arguments, guess='residual', init_scale=0.0, rngs=nnx.Rngs(0)
  )
  _set(model.guess.weights, start[:, None])
  return model


def multi_head_lsa_for_signs(model: YqLSA) -> MultiHeadLSA:
  """Makes a multi-head LSA that predicts as a yq-LSA does, if all labels are ±1.

  The result has the guess `y_q = 0` and one more head. Since `(1/C) Σ_i y_i² = 1`, a
  head with `b = e_{d+1}` and `A = e_{d+1} [w; 0]ᵀ` adds `w·x_q`. The other heads have
  `W_Q' = W_Q [[I, 0], [wᵀ, 0]]`, which puts the guess into their queries although the
  query's token lacks it. With other labels the predictions differ.

  Args:
    model: The yq-LSA.

  Returns:
    The multi-head LSA.

  Raises:
    UserError: If the model is not a yq-LSA.

  Example:
    >>> model = zoo.theory.constructions.gd_transformer([1.0, 1.0], step_size=0.5)
    >>> zoo.theory.constructions.multi_head_lsa_for_signs(model).num_heads
    2

  References:
    docs/theory_labels.md, section 10.
  """
  check_object('a yq-LSA', model, YqLSA, 'it must be a zoo.models.YqLSA')
  d, dtype = model.num_features, model.w.dtype
  guess = model.w[...]
  result = MultiHeadLSA(d, model.num_heads + 1, init_scale=0.0, rngs=nnx.Rngs(0))
  see_guess = jnp.eye(d + 1, dtype=dtype).at[-1, :-1].set(guess).at[-1, -1].set(0)
  identity = jnp.eye(d + 1, dtype=dtype)
  label = jnp.zeros_like(identity).at[-1, -1].set(1)
  constant = jnp.zeros_like(identity).at[-1, :-1].set(guess)
  for name, head in (
    ('w_k', identity),
    ('w_q', constant),
    ('w_v', label),
    ('w_p', identity),
  ):
    heads = getattr(model, name)[...]
    if name == 'w_q':
      heads = heads @ see_guess
    _set(getattr(result, name), jnp.concatenate([heads, head[None]]))
  return result


def _set(parameter: nnx.Param, value: Float[ArrayLike, '...']) -> None:
  parameter[...] = jnp.asarray(value, parameter.dtype)
