"""Losses of predictions, given their targets.

The prediction of a class is a logit: `log p/(1 − p)` of the label +1 against −1, or for
k classes their log probabilities up to a constant. Its target is a probability.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo.core.errors import UserError

# A mean square, or a divergence in nats, that is below this fraction of another on the
# same prompts is 0 up to the rounding of float32.
ROUNDING = 1e-10

# The least probability makes the logit of a certain prediction finite. If it is right,
# its loss is 1e-6 for two classes, and (k − 1)·1e-6 for k.
_SMALLEST = 1e-6


def _check_shapes(prediction: Array, target: Array) -> None:
  """Refuses predictions that broadcasting would pair with the targets of others.

  A prediction `[b, 1]` and a target `[b]` would give a loss for each of b² pairs.

  Raises:
    UserError: If the last axes of the prediction are not those of the target.
  """
  shape, wanted = jnp.shape(prediction), jnp.shape(target)
  if shape[max(len(shape) - len(wanted), 0) :] != wanted:
    raise UserError(
      f'the prediction has the shape {shape}; it must be {wanted}, as its target has'
    )


def squared_error(
  prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*n']:
  """Returns `(f − y)²`, whose mean over prompts is the in-context risk.

  Args:
    prediction: Predictions f of any shape.
    target: Their targets y, in the same shape.

  Returns:
    The losses, in the same shape.

  Raises:
    UserError: If the shapes differ, as those of `[b, 1]` and `[b]` do. (Predictions may
      have further axes before those of the targets.)

  Example:
    >>> zoo.core.losses.squared_error(jnp.array([3.0]), jnp.array([1.0])).tolist()
    [4.0]

  References:
    arXiv 2512.04268, eq. 4.
  """
  _check_shapes(prediction, target)
  return jnp.square(prediction - target)


def log_loss(
  prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*n']:
  """Returns the log loss of a logit, in nats.

  Args:
    prediction: Logits of the label +1 against −1, of any shape.
    target: The probabilities of the label +1, in the same shape.

  Returns:
    The losses, in the same shape. The loss of an infinite logit is 0 if its label has
    the probability 1, and infinite otherwise.

  Raises:
    UserError: If the shapes differ, as in `squared_error`.

  Example:
    >>> zoo.core.losses.log_loss(jnp.zeros(1), jnp.ones(1)).round(2).tolist()
    [0.6899999976158142]
  """
  _check_shapes(prediction, target)
  # Both terms are positive, so that nothing cancels where a prediction is right.
  of_plus, of_minus = jax.nn.softplus(-prediction), jax.nn.softplus(prediction)
  losses = target * of_plus + (1 - target) * of_minus
  # For infinite logits the formula above has 0 · ∞.
  is_right = target == (prediction > 0).astype(target.dtype)
  of_infinite = jnp.where(is_right, 0.0, jnp.inf)
  return jnp.where(jnp.isinf(prediction), of_infinite, losses)


def cross_entropy(
  prediction: Float[Array, '*n k'], target: Float[Array, '*n k']
) -> Float[Array, '*n']:
  """Returns the log loss of the logits of k classes, in nats.

  Args:
    prediction: Logits, with k classes along the last axis; −∞ is the logit of a class
      that is impossible.
    target: The probabilities of the classes, in the same shape.

  Returns:
    The losses, without the last axis.

  Raises:
    UserError: If the shapes differ, as in `squared_error`.

  Example:
    >>> zoo.core.losses.cross_entropy(jnp.zeros((1, 4)), jnp.eye(4)[:1]).shape
    (1,)
  """
  _check_shapes(prediction, target)
  log_p = log_softmax(prediction)
  # A class that has no part in the target may have the probability 0.
  return -jnp.sum(jnp.where(target > 0, target * log_p, 0), axis=-1)


def log_softmax(logits: Float[Array, '*n k']) -> Float[Array, '*n k']:
  """Returns the log probabilities of k classes, as `jax.nn.log_softmax` does.

  Its values and gradients keep their digits where a probability is near 1, whose
  logarithm that function rounds to 0.

  Args:
    logits: Logits, with k classes along the last axis; −∞ is the logit of a class that
      is impossible.

  Returns:
    The log probabilities, in the same shape.

  Example:
    >>> found = zoo.core.losses.log_softmax(jnp.array([20.0, 0.0]))
    >>> print(f'{found[0]:.4e}')  # −log(1 + e⁻²⁰)
    -2.0612e-09
  """
  top = jnp.argmax(logits, axis=-1, keepdims=True)
  is_top = jax.lax.broadcasted_iota(top.dtype, logits.shape, logits.ndim - 1) == top
  # Only the other classes are compared with the most likely one, so that neither its
  # logit minus itself nor 1 − p appears, in values and in gradients.
  above = jnp.where(is_top, 0, logits - jnp.take_along_axis(logits, top, axis=-1))
  others = jnp.sum(jnp.where(is_top, 0, jnp.exp(above)), axis=-1, keepdims=True)
  return above - jnp.log1p(others)


def error_rate(
  prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*n']:
  """Returns the probability that the more likely of two labels is wrong.

  A logit of 0 counts as a fair coin. `class_error_rate` is the same for k classes.

  Args:
    prediction: Logits of the label +1 against −1, of any shape.
    target: The probabilities of the label +1, in the same shape.

  Returns:
    The error rates, in the same shape.

  Example:
    >>> zoo.core.losses.error_rate(jnp.array([2.0]), jnp.array([0.75])).tolist()
    [0.25]
  """
  guess = (1 + jnp.sign(prediction)) / 2
  return guess * (1 - target) + (1 - guess) * target


def class_error_rate(
  prediction: Float[Array, '*n k'], target: Float[Array, '*n k']
) -> Float[Array, '*n']:
  """Returns the probability that the most likely of k classes is wrong.

  Ties are broken at random.

  Args:
    prediction: Logits, with k classes along the last axis.
    target: The probabilities of the classes, in the same shape.

  Returns:
    The error rates, without the last axis.

  Example:
    >>> logits, target = jnp.array([[2.0, 0.0]]), jnp.array([[0.75, 0.25]])
    >>> zoo.core.losses.class_error_rate(logits, target).tolist()
    [0.25]
  """
  best = prediction == jnp.max(prediction, axis=-1, keepdims=True)
  best = best.astype(target.dtype)
  return 1 - jnp.sum(best * target, axis=-1) / jnp.sum(best, axis=-1)


# The loss of each kind of labels.
LOSSES = {'numbers': squared_error, 'signs': log_loss, 'classes': cross_entropy}
# The error rate of each kind of labels that are not numbers.
ERROR_RATES = {'signs': error_rate, 'classes': class_error_rate}


def logit(probability: Float[Array, '*n']) -> Float[Array, '*n']:
  """Returns the logit of a probability, which is finite even where it is 0 or 1.

  Example:
    >>> zoo.core.losses.logit(jnp.array([0.5])).tolist()
    [0.0]
  """
  return log_probability(probability) - log_probability(1 - probability)


def log_probability(probability: Float[Array, '*n']) -> Float[Array, '*n']:
  """Returns the logarithm of a probability, which is finite even where it is 0.

  Example:
    >>> zoo.core.losses.log_probability(jnp.array([1.0])).tolist()
    [0.0]
  """
  return jnp.log(jnp.maximum(probability, _SMALLEST))
