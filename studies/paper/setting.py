"""The setting of arXiv 2512.04268 (Table 1), and the quantities of the claims.

Models are made in JAX's default precision. While a claim is judged x64 is enabled, and
that precision is float64.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from zoo import estimators, theory
from zoo.core.learning_rule import LearningRule
from zoo.models import LTB, MultiHeadLSA, YqLSA
from zoo.models.linear_attention import LinearAttention
from zoo.reports.plots import Plot
from zoo.tasks import LinearRegression
from zoo.theory import constructions
from zoo.theory.constructions import ltb_from_yq_lsa as ltb_from_yq_lsa
from zoo.theory.constructions import yq_lsa_from_ltb as yq_lsa_from_ltb

NUM_FEATURES = 10
CONTEXT_LENGTH = 10
PRIOR_MEAN = 2.0  # the prior mean of each weight
NORM = NUM_FEATURES * PRIOR_MEAN**2  # |w*|²


def close(number: float | jax.Array, other: float | jax.Array) -> bool:
  """Returns whether two exact numbers agree up to rounding in float64."""
  return math.isclose(float(number), float(other), rel_tol=1e-9, abs_tol=1e-9)


def within(share: float, number: float, other: float) -> bool:
  """Returns whether |number / other − 1| ≤ share."""
  return abs(number / other - 1) <= share


def task(
  c: int = CONTEXT_LENGTH,
  mean: float = PRIOR_MEAN,
  noise_std: float = 0.0,
) -> LinearRegression:
  """Returns linear regression with d = 10 features.

  Args:
    c: The number C of examples.
    mean: The prior mean of each weight.
    noise_std: The standard deviation of the label noise.
  """
  return LinearRegression(NUM_FEATURES, c, prior_mean=mean, noise_std=noise_std)


def gd_risk(subject: LinearRegression) -> float:
  """Returns the exact risk of one step of GD with the best step size on a task."""
  return float(theory.exact_risk(estimators.gradient_descent(subject), subject))


def best_risk(
  subject: LinearRegression, guess: float | None = 0.0, bias: float = 0.0
) -> float:
  """Returns the least risk of multi-head LSA with a fixed guess and enough heads.

  Args:
    subject: The task.
    guess: Each entry of the guess g. None leaves the guess free, which gives the
      infimum of yq-LSA and of LTB.
    bias: The bias β of the guess.
  """
  return float(theory.exact_risk(theory.optimal_rule(subject, guess, bias), subject))


def head_limit(heads: int, c: int = CONTEXT_LENGTH, norm: float = NORM) -> float:
  """Returns the infimum of the risk of multi-head LSA with the guess 0.

  Args:
    heads: The number of heads.
    c: The number C of examples.
    norm: |w*|², the squared norm of the prior mean.
  """
  return theory.isotropic_head_limit(NUM_FEATURES, c, heads, math.sqrt(norm))


def one_step(step_size: float, start: float = PRIOR_MEAN) -> LearningRule:
  """Returns one step of gradient descent from the weights (start, …, start)."""
  return LearningRule.gradient_descent(np.full(NUM_FEATURES, start), step_size)


def gd_transformer(step_size: float) -> YqLSA:
  """Returns the corrected GD transformer of eq. 7, which starts at the prior mean."""
  return constructions.gd_transformer(task().prior_mean, step_size)


def best_heads(subject: LinearRegression) -> MultiHeadLSA:
  """Returns multi-head LSA with `y_q = 0` whose weights attain its least risk."""
  return constructions.multi_head_lsa(theory.optimal_rule(subject, 0.0))


def zero_weights() -> MultiHeadLSA:
  """Returns multi-head LSA with d + 1 heads and `y_q = 0`, with all weights 0."""
  heads = NUM_FEATURES + 1
  return MultiHeadLSA(NUM_FEATURES, heads, init_scale=0.0, rngs=nnx.Rngs(0))


def random_yq_lsa() -> YqLSA:
  """Returns a yq-LSA in which no weight is 0."""
  model = YqLSA(NUM_FEATURES, init_scale=0.5, rngs=nnx.Rngs(0))
  model.w[...] = jax.random.normal(jax.random.key(1), model.w.shape)
  return model


def random_ltb() -> LTB:
  """Returns an LTB in which no weight is 0."""
  return LTB(NUM_FEATURES, init_scale=0.5, rngs=nnx.Rngs(0))


def ltb_without_labels(model: YqLSA) -> LTB:
  """Returns the LTB of the proof of Lemma 3, which has `Xw` in place of the labels."""
  block = constructions.ltb_from_yq_lsa(model)
  guess_for_label = jnp.eye(NUM_FEATURES + 1, dtype=block.w_k.dtype)
  guess_for_label = guess_for_label.at[-1].set(jnp.append(model.w[...], 0))
  block.w_k[...] = block.w_k[...] @ guess_for_label
  block.w_v[...] = block.w_v[...] @ guess_for_label
  return block


def distance(model: LinearAttention, other: LinearAttention) -> float:
  """Returns the distance of the learning rules of two models, relative to the first.

  It is `LearningRule.distance` divided by the Euclidean norm of the first rule. It is 0
  if the models agree on all prompts.
  """

  @nnx.jit  # otherwise each operation would be compiled by itself
  def relative(model: LinearAttention, other: LinearAttention) -> float | jax.Array:
    rule, nothing = model.learning_rule(), one_step(0.0, start=0.0)
    return rule.distance(other.learning_rule()) / rule.distance(nothing)

  return float(relative(model, other))


def update_gradient(rule: LearningRule, subject: LinearRegression) -> float:
  """Returns |∂R/∂U|, the norm of the gradient of the exact risk in the update U."""

  def risk(update: jax.Array) -> jax.Array:
    return jnp.asarray(
      theory.exact_risk(dataclasses.replace(rule, update=update), subject)
    )

  slope = jax.jit(jax.grad(risk))(jnp.asarray(rule.update))
  return float(jnp.linalg.norm(slope))


def weight_gradient(model: LinearAttention, subject: LinearRegression) -> float:
  """Returns the norm of the gradient of the exact risk in all weights of a model."""

  @nnx.jit  # otherwise each operation would be compiled by itself
  def norm(model: LinearAttention) -> jax.Array:
    gradient = nnx.grad(lambda model: theory.exact_risk(model, subject))(model)
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)]
    return jnp.sqrt(sum(squares))

  return float(norm(model))


def update_curvature(
  rule: LearningRule, direction: LearningRule, subject: LinearRegression
) -> float:
  """Returns the second derivative of the exact risk at a rule, along another rule.

  The risk is quadratic, so a second difference is exact.
  """
  ahead, here, behind = (
    float(theory.exact_risk(rule + scale * direction, subject))
    for scale in (1.0, 0.0, -1.0)
  )
  return ahead - 2 * here + behind


def risks_to_flipped(
  model: LinearAttention, subject: LinearRegression
) -> tuple[float, float, float]:
  """Returns three exact risks on the line between two settings of the weights.

  They are the risks of the model, of the middle, in which W_P and W_Q are 0, and of the
  model with the signs of W_P and W_Q flipped.
  """
  risks = []
  for factor in 1.0, 0.0, -1.0:
    other = nnx.clone(model)
    other.w_p[...], other.w_q[...] = factor * model.w_p[...], factor * model.w_q[...]
    risks.append(float(theory.exact_risk(other, subject)))
  unchanged, middle, flipped = risks
  return unchanged, middle, flipped


def free_difference(
  figures: Mapping[str, Plot], name: str
) -> tuple[float | None, float | None, float | None]:
  """Reads the mean paired difference of free answers from Fig. 6.

  Args:
    figures: The figures by name.
    name: The name of the series of differences.

  Returns:
    The mean, and the lower and the upper end of its interval. All are None if no prompt
    has both answers.
  """
  try:
    differences = figures['6'].series('b', name)
  except KeyError:
    return None, None, None
  of_readouts = (differences.x, differences.y, differences.low, differences.high)
  for x, mean, low, high in zip(*of_readouts, strict=True):
    if round(x) == 0:  # free answers are the first readout
      return mean, low, high
  return None, None, None
