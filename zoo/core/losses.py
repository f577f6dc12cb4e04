"""Losses of predictions, given their targets.

A prediction of a class is a logit: `log p/(1 − p)` of the label +1 against −1, or for k
classes their log-probabilities up to a constant. Its target is a probability.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# A mean square, or a divergence in nats, below this part of another on the same prompts
# is 0 but for the rounding of float32.
ROUNDING = 1e-10

# So that the logit of a certain prediction is finite: its loss is 1e-6 if it is right.
_SMALLEST = 1e-6


def squared_error(
  prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*n']:
  """`(f − y)²`, whose mean over prompts is the in-context risk (2512.04268, eq. 4)."""
  return jnp.square(prediction - target)


def log_loss(
  prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*n']:
  """The log loss of a logit, in nats; the target is the probability of the label +1."""
  return jax.nn.softplus(prediction) - target * prediction


def cross_entropy(
  prediction: Float[Array, '*n k'], target: Float[Array, '*n k']
) -> Float[Array, '*n']:
  """The log loss of the logits of k classes, in nats; targets are probabilities."""
  return -jnp.sum(target * jax.nn.log_softmax(prediction), axis=-1)


def error_rate(
  prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*n']:
  """The probability that the more likely label is wrong; a logit of 0 is a fair coin.

  For `log_loss`; `class_error_rate` is the same for k classes.
  """
  guess = (1 + jnp.sign(prediction)) / 2
  return guess * (1 - target) + (1 - guess) * target


def class_error_rate(
  prediction: Float[Array, '*n k'], target: Float[Array, '*n k']
) -> Float[Array, '*n']:
  """The probability that the most likely class is wrong; ties are broken at random."""
  best = prediction == jnp.max(prediction, axis=-1, keepdims=True)
  best = best.astype(target.dtype)
  return 1 - jnp.sum(best * target, axis=-1) / jnp.sum(best, axis=-1)


# The loss of each kind of labels.
LOSSES = {'numbers': squared_error, 'signs': log_loss, 'classes': cross_entropy}
# The error rate of each kind of labels that are not numbers.
ERROR_RATES = {'signs': error_rate, 'classes': class_error_rate}


def logit(probability: Float[Array, '*n']) -> Float[Array, '*n']:
  """The logit of a probability, finite where it is 0 or 1."""
  p = jnp.clip(probability, _SMALLEST, 1 - _SMALLEST)
  return jnp.log(p) - jnp.log1p(-p)


def log_probability(probability: Float[Array, '*n']) -> Float[Array, '*n']:
  """The logarithm of a probability, finite where it is 0."""
  return jnp.log(jnp.maximum(probability, _SMALLEST))
