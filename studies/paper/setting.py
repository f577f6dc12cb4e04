"""The setting of arXiv 2512.04268 (Table 1), and the quantities of the claims.

Models are made in JAX's default precision, which is float64 if x64 is enabled, as it is
while a claim is judged.
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
PRIOR_MEAN = 2.0  # of each weight
NORM = NUM_FEATURES * PRIOR_MEAN**2  # |w*|²


def close(number: float | jax.Array, other: float | jax.Array) -> bool:
  """Whether two exact numbers are the same up to rounding in float64."""
  return math.isclose(float(number), float(other), rel_tol=1e-9, abs_tol=1e-9)


def within(share: float, number: float, other: float) -> bool:
  """Whether `number` differs from `other` by at most that share of `other`."""
  return abs(number / other - 1) <= share


def task(
  c: int = CONTEXT_LENGTH,
  mean: float = PRIOR_MEAN,
  noise_std: float = 0.0,
) -> LinearRegression:
  """Linear regression with d = 10 features and C examples.

  `mean` is the prior mean of each weight.
  """
  return LinearRegression(NUM_FEATURES, c, prior_mean=mean, noise_std=noise_std)


def gd_risk(subject: LinearRegression) -> float:
  """The exact risk of one step of gradient descent with the best step on a task."""
  return float(theory.exact_risk(estimators.gradient_descent(subject), subject))


def best_risk(
  subject: LinearRegression, guess: float | None = 0.0, bias: float = 0.0
) -> float:
  """The least risk of multi-head LSA with a fixed guess and enough heads.

  `guess` None leaves it free, which gives the infimum of yq-LSA and of LTB.
  """
  return float(theory.exact_risk(theory.optimal_rule(subject, guess, bias), subject))


def head_limit(heads: int, c: int = CONTEXT_LENGTH, norm: float = NORM) -> float:
  """The infimum for a number of heads and `y_q = 0`; `norm` is |w*|²."""
  return theory.isotropic_head_limit(NUM_FEATURES, c, heads, math.sqrt(norm))


def one_step(step_size: float, start: float = PRIOR_MEAN) -> LearningRule:
  """One step of gradient descent from the weights (start, …, start)."""
  return LearningRule.gradient_descent(np.full(NUM_FEATURES, start), step_size)


def gd_transformer(step_size: float) -> YqLSA:
  """The GD transformer of eq. 7, corrected, that starts from the prior mean."""
  return constructions.gd_transformer(task().prior_mean, step_size)


def best_heads(subject: LinearRegression) -> MultiHeadLSA:
  """Multi-head LSA with `y_q = 0` and weights that attain its least risk."""
  return constructions.multi_head_lsa(theory.optimal_rule(subject, 0.0))


def zero_weights() -> MultiHeadLSA:
  """Multi-head LSA with d + 1 heads and `y_q = 0` in which all weights are 0."""
  heads = NUM_FEATURES + 1
  return MultiHeadLSA(NUM_FEATURES, heads, init_scale=0.0, rngs=nnx.Rngs(0))


def random_yq_lsa() -> YqLSA:
  """yq-LSA in which no weight is 0."""
  model = YqLSA(NUM_FEATURES, init_scale=0.5, rngs=nnx.Rngs(0))
  model.w[...] = jax.random.normal(jax.random.key(1), model.w.shape)
  return model


def random_ltb() -> LTB:
  """LTB in which no weight is 0."""
  return LTB(NUM_FEATURES, init_scale=0.5, rngs=nnx.Rngs(0))


def ltb_without_labels(model: YqLSA) -> LTB:
  """The LTB of the paper's proof of Lemma 3, which has `Xw` in place of the labels."""
  block = constructions.ltb_from_yq_lsa(model)
  guess_for_label = jnp.eye(NUM_FEATURES + 1, dtype=block.w_k.dtype)
  guess_for_label = guess_for_label.at[-1].set(jnp.append(model.w[...], 0))
  block.w_k[...] = block.w_k[...] @ guess_for_label
  block.w_v[...] = block.w_v[...] @ guess_for_label
  return block


def distance(model: LinearAttention, other: LinearAttention) -> float:
  """The distance of two models' learning rules: 0 if they agree on all prompts.

  It is `LearningRule.distance`, divided by the Euclidean norm of the first rule.
  """

  @nnx.jit  # otherwise each operation would be compiled by itself
  def relative(model: LinearAttention, other: LinearAttention) -> float | jax.Array:
    rule, nothing = model.learning_rule(), one_step(0.0, start=0.0)
    return rule.distance(other.learning_rule()) / rule.distance(nothing)

  return float(relative(model, other))


def update_gradient(rule: LearningRule, subject: LinearRegression) -> float:
  """`|∂R/∂U|`: the norm of the exact risk's gradient in the update U."""

  def risk(update: jax.Array) -> jax.Array:
    return jnp.asarray(
      theory.exact_risk(dataclasses.replace(rule, update=update), subject)
    )

  slope = jax.jit(jax.grad(risk))(jnp.asarray(rule.update))
  return float(jnp.linalg.norm(slope))


def weight_gradient(model: LinearAttention, subject: LinearRegression) -> float:
  """The norm of the exact risk's gradient in all trained weights of a model."""

  @nnx.jit  # otherwise each operation would be compiled by itself
  def norm(model: LinearAttention) -> jax.Array:
    gradient = nnx.grad(lambda model: theory.exact_risk(model, subject))(model)
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)]
    return jnp.sqrt(sum(squares))

  return float(norm(model))


def update_curvature(
  rule: LearningRule, direction: LearningRule, subject: LinearRegression
) -> float:
  """The second derivative of the exact risk at a rule, in the direction of another.

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
  """Exact risks of a model, half way, and with the signs of W_P and W_Q flipped.

  Half way, on the straight line through the weights, both matrices are 0.
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
) -> tuple[float | None, float | None]:
  """The mean paired difference of free answers in Fig. 6, and its interval's upper end.

  Both are None if no prompt has both answers.
  """
  try:
    differences = figures['6'].series('b', name)
  except KeyError:
    return None, None
  for x, mean, high in zip(differences.x, differences.y, differences.high, strict=True):
    if round(x) == 0:  # free answers are the first readout
      return mean, high
  return None, None
