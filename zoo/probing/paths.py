"""The risk on straight lines from one model to another."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from zoo import theory
from zoo.core.errors import check_count
from zoo.core.protocols import Predictor, Task
from zoo.models import LTB, MultiHeadLSA, YqLSA
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import best_step_matrix
from zoo.theory import constructions
from zoo.theory.exact import float64_rule, in_float64


@dataclasses.dataclass(frozen=True)
class Interpolation:
  """Exact risks on straight lines from a subject, at 0, to another predictor, at 1."""

  fraction: Float[np.ndarray, ' n']
  # The line through the space of learning rules, on which the risk is a parabola.
  rule_risk: Float[np.ndarray, ' n']
  # The line through the weights; None unless both are models of one class and shape.
  weight_risk: Float[np.ndarray, ' n'] | None


def interpolation(
  subject: Predictor, other: Predictor, task: Task, num_points: int = 21
) -> Interpolation:
  """The risk on the lines between two predictors, in the spaces of rules and weights.

  Raises UserError as `theory.exact_risk` does: both must have learning rules.
  """
  num_points = check_count('num_points', num_points, minimum=2)
  fraction = np.linspace(0, 1, num_points)
  one, two = (float(theory.exact_risk(end, task)) for end in (subject, other))
  # The risk is a parabola whose curvature is the mean squared difference of the ends.
  gap = float(theory.squared_difference(subject, other, task).prediction)
  rule_risk = (1 - fraction) * one + fraction * two - fraction * (1 - fraction) * gap
  return Interpolation(
    fraction, rule_risk, _weight_risk(subject, other, task, fraction)
  )


def _weight_risk(
  subject: Predictor, other: Predictor, task: Task, fraction: Float[np.ndarray, ' n']
) -> Float[np.ndarray, ' n'] | None:
  if not (isinstance(subject, nnx.Module) and isinstance(other, nnx.Module)):
    return None
  with jax.enable_x64(True):
    (graph, one), (_, two) = (nnx.split(in_float64(end)) for end in (subject, other))
    shapes, other_shapes = (jax.tree.map(np.shape, state) for state in (one, two))
    if type(subject) is not type(other) or shapes != other_shapes:
      return None
    one, two = (jax.tree.map(np.asarray, state) for state in (one, two))
    risks = []
    for part in fraction.tolist():
      state = jax.tree.map(lambda a, b, part=part: (1 - part) * a + part * b, one, two)
      rule = float64_rule(nnx.merge(graph, state))
      risks.append(float(theory.exact_risk(rule, task)))
  return np.array(risks)


def constructed_optimum(model: Predictor, task: LinearRegression) -> Predictor | None:
  """A model of the same class and shapes whose weights attain the optimum.

  For yq-LSA and LTB the optimum is the matrix step from the prior mean; for multi-head
  LSA it is the optimum for the model's fixed guess, in its first heads. The result is
  None if theory has no such weights: for too few heads, or other classes. Raises
  UserError for a task that theory does not cover.
  """
  if isinstance(model, YqLSA | LTB):
    step = best_step_matrix(task)
    # In the form of eq. 7 if possible; other weights have the same product.
    isotropic = np.allclose(step, step[0, 0] * np.eye(len(step)), rtol=0, atol=1e-12)
    made = constructions.gd_transformer(
      task.prior_mean, step[0, 0] if isotropic else step
    )
    if isinstance(model, LTB):
      made = constructions.ltb_from_yq_lsa(made)
  elif isinstance(model, MultiHeadLSA):
    guess, bias = model.initial_guess()
    made = constructions.multi_head_lsa(
      theory.optimal_rule(task, np.asarray(guess), float(bias))
    )
  else:
    return None
  graph, state = nnx.split(model)
  given, needed = jax.tree.leaves(state), jax.tree.leaves(nnx.state(made))
  if any(
    size > largest
    for one, other in zip(given, needed, strict=True)
    for largest, size in zip(one.shape, other.shape, strict=True)
  ):
    return None
  # Unneeded heads and hidden features are 0.
  padded = []
  for one, part in zip(given, needed, strict=True):
    whole = np.zeros(one.shape, one.dtype)
    whole[tuple(map(slice, part.shape))] = part
    padded.append(jnp.asarray(whole))
  return nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), padded))
