"""Models and gradients behind the numbers of studies/paper/README.md.

Call these functions inside `jax.enable_x64(True)`.
"""

import jax
import numpy as np
from flax import nnx

import zoo
from zoo import theory
from zoo.models import LTB, YqLSA
from zoo.tasks import LinearRegression
from zoo.theory import constructions


def task(c: int = 10, **fields: object) -> LinearRegression:
  """Returns the paper's setting: d = C = 10, Λ = Σ = I, w* = [2, …, 2], σ = 0."""
  sizes = {'num_features': 10, 'context_length': c, 'prior_mean': 2.0}
  made = zoo.create_task('linear_regression', **{**sizes, **fields})
  assert isinstance(made, LinearRegression)
  return made


def transformer(step_size: float) -> YqLSA:
  """Returns the GD transformer of eq. 7, corrected, from the prior mean."""
  return constructions.gd_transformer(task().prior_mean, step_size)


def slope_in_update(c: int) -> float:
  """Returns the norm of the gradient in U at the optimum with the guess 0."""
  gradient = jax.jit(jax.grad(theory.population_risk))
  slope = gradient(theory.optimal_rule(task(c), 0.0), theory.task_moments(task(c)))
  return float(np.linalg.norm(slope.update))


def slope_in_weights(step_size: float, c: int) -> float:
  """Returns the norm of the gradient in all weights of the GD transformer."""
  slope = nnx.grad(lambda model: theory.exact_risk(model, task(c)))(
    transformer(step_size)
  )
  return float(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(slope)) ** 0.5)


def two_scales() -> LinearRegression:
  """Returns a task with five features of variance 1 and five of variance 4."""
  return task(feature_covariance=np.diag([1.0] * 5 + [4.0] * 5))


def label_blind() -> LTB:
  """Returns the block of Lemma 3 with `Xw` instead of the labels."""
  block = constructions.ltb_from_yq_lsa(transformer(10 / 21))
  guess_for_label = np.eye(11)
  guess_for_label[-1] = np.append(np.asarray(task().prior_mean), 0)
  block.w_k[...] = block.w_k[...] @ guess_for_label
  block.w_v[...] = block.w_v[...] @ guess_for_label
  return block
