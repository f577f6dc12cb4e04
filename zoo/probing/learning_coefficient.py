"""The local learning coefficient: how many directions of the weights matter.

Around weights w* the volume of the weights whose loss is at most ε above that of w*
falls like ε^λ. For a minimum with an invertible Hessian the exponent λ is half of the
number of weights. Directions along which the loss hardly changes make it smaller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.trees import fresh
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import Programs, loss_of
from zoo.probing.checks import checked_module

# A step is too long if Metropolis' rule would accept fewer of the moves than this.
_LEAST_ACCEPTED = 0.8
# Chains still move if the mean energy of the last quarter of the steps and that of the
# quarter before it differ significantly, and by more than this share.
_MOST_DRIFT = 0.1
_CHECK_EVERY = 10  # Metropolis' rule is asked at every tenth step.
_LEAST_CHAINS = 4

# A loss takes a model and prompts, and returns the loss of each prompt.
Losses = Callable[[Any, Prompt], Float[Array, ' b']]


@dataclasses.dataclass(frozen=True)
class LearningCoefficient:
  """An estimate of the local learning coefficient, with what its chains say.

  `local_learning_coefficient` returns it.

  Attributes:
    value: λ, the mean over chains.
    loss: The loss of the model itself, on n prompts.
    accepted: The share of moves that Metropolis' rule would accept. It is near 1 if the
      steps are short enough.
    num_weights: The number of weights; half of it is λ for a regular model.
  """

  value: Estimate
  loss: float
  accepted: float
  num_weights: int

  def __str__(self) -> str:
    return (
      f'λ = {self.value} ({self.num_weights} weights, loss {self.loss:.4g}, '
      f'{self.accepted:.0%} accepted)'
    )


class _Chain(NamedTuple):
  """What a chain of Langevin steps leaves behind.

  Attributes:
    excess: nβ (L(w) − L(w*)) at each step, on its prompts.
    accepted: The probability with which Metropolis' rule accepts a move, at every tenth
      step; NaN at the others.
  """

  excess: Float[Array, ' s']
  accepted: Float[Array, ' s']


def local_learning_coefficient(
  model: Predictor,
  task: Task,
  loss: Losses | None = None,
  num_prompts: int = 1024,
  batch_size: int = 256,
  num_steps: int = 2000,
  num_chains: int = 8,
  step_size: float = 1e-4,
  localization: float = 1.0,
  seed: int = 0,
) -> LearningCoefficient:
  """Estimates the local learning coefficient λ of a model by Langevin dynamics.

  Chains start at the weights w* of the model, and follow

      w ← w − (ε/2) (nβ ∇L(w) + γ (w − w*)) + √ε ξ,   ξ ~ N(0, I),

  with the loss L on new prompts at each step, and nβ = n / log n. The estimate is
  λ = nβ (E L(w) − L(w*)), over the second half of the steps, where both losses are on
  the same prompts.

  - Quantity: nβ (E L(w) − L(w*)) with w from the density ∝ exp(−nβ L − γ|w − w*|²/2),
    which tends to λ for large n. A multiplicity m of λ lowers it by about
    (m − 1) / log n. A Gaussian direction of curvature h counts as
    nβ h / (nβ h + γ) / 2. Each step draws new prompts, so that L is the expected loss
    on the task. On n fixed prompts L(w*) would not be the lowest loss, and the estimate
    would be too small.
  - Null: 0 for a model whose loss does not depend on its weights.

  The estimate is refused if its own diagnostics fail: if the steps are too long by
  Metropolis' rule, if the chains still move to higher or lower loss, or if they find
  weights whose loss is significantly below that of the model, so that the model is at
  no minimum. The interval is over chains. It does not contain what the chains share:
  their start, their length and n.

  Args:
    model: A model with weights (`nnx.Param`), all of which are sampled.
    task: The task from which prompts are drawn.
    loss: A function of a model and prompts that returns the loss of each prompt `[b]`.
      None means the loss of the task at the query.
    num_prompts: n (≥ 16), the number of prompts that the temperature stands for.
    batch_size: The number of prompts of each step. The noise of the gradient adds to
      that of the dynamics; it is small if ε (nβ)² times the variance of a gradient is
      small beside 4 batches.
    num_steps: The number of steps of each chain (≥ 100). The first half is not used.
    num_chains: The number of chains (≥ 4), over which the interval is taken.
    step_size: ε > 0.
    localization: γ ≥ 0. A larger γ keeps the chains nearer to w*, and hides directions
      of small curvature.
    seed: The seed of prompts and chains.

  Returns:
    The estimate, with its interval over chains.

  Raises:
    UserError: If the model has no weights, if an argument is out of its range, or if a
      diagnostic fails; the message says which, and what to change.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> class Scale(nnx.Module):
    ...   def __init__(self):
    ...     self.weights = nnx.Param(jnp.zeros(2))
    ...   def __call__(self, prompt):
    ...     return prompt.x_query @ self.weights[...]
    >>> def from_zero(model, prompt):
    ...   return model(prompt) ** 2  # regular, with two weights, so λ is 1
    >>> print(zoo.probing.local_learning_coefficient(Scale(), task, from_zero))
    λ = 1.14 ± 0.19 (2 weights, loss 0, 100% accepted)

  References:
    Lau et al., arXiv 2308.12108; Watanabe, "Algebraic Geometry and Statistical Learning
    Theory", 2009.
  """
  require_task(task)
  graph, weights, _ = nnx.split(checked_module(model), nnx.Param, ...)
  num_weights = sum(leaf.size for leaf in jax.tree.leaves(weights))
  if not num_weights:
    raise UserError(f'{type(model).__name__} has no weights to sample')
  num_prompts = check_count('num_prompts', num_prompts, minimum=16)
  batch_size = check_count('batch_size', batch_size)
  num_steps = check_count('num_steps', num_steps, minimum=100)
  num_chains = check_count('num_chains', num_chains, minimum=_LEAST_CHAINS)
  check_number('step_size', step_size, above=0.0)
  check_number('localization', localization, minimum=0.0)
  key = stream_of(check_count('seed', seed, minimum=0), CURVE_STREAM)
  of_task, inverse_temperature = loss_of(task), num_prompts / math.log(num_prompts)

  def mean_loss(weights: PyTree, rest: PyTree, prompt: Prompt) -> Float[Array, '']:
    copy = nnx.merge(graph, weights, rest)
    if loss is not None:
      return jnp.mean(loss(copy, prompt))
    return jnp.mean(of_task(copy(prompt), prompt.y_query))

  def run_chains(
    models: Sequence[Any], prompt: Prompt, task: Task, keys: Key[Array, ' k']
  ) -> tuple[_Chain, Float[Array, '']]:
    _, start, rest = nnx.split(models[0], nnx.Param, ...)

    def energy(weights: PyTree, batch: Prompt) -> Float[Array, '']:
      return inverse_temperature * mean_loss(weights, rest, batch)

    def draw(key: Key[Array, '']) -> Prompt:
      return task.sample_batch(key, batch_size)

    chain = _chain(energy, start, draw, num_steps, step_size, localization)
    return jax.vmap(chain)(keys), mean_loss(start, rest, prompt)

  prompt = task.held_out().sample(key, num_prompts)
  keys = jax.random.split(jax.random.fold_in(key, 1), num_chains)
  chains, of_model = jax.device_get(
    Programs().run(run_chains, [model], prompt, fresh(task.held_out()), keys)
  )
  excess = np.asarray(chains.excess, np.float64)
  accepted = float(np.nanmean(chains.accepted))
  _check_chains(excess, accepted, step_size, num_steps)
  value = estimate(excess[:, num_steps // 2 :].mean(axis=1))
  if value.high < 0:
    raise UserError(
      f'the chains find weights of lower loss: λ would be {value}; the model is at no '
      'minimum of this loss, so that it has no local learning coefficient'
    )
  return LearningCoefficient(value, float(of_model), accepted, num_weights)


def _chain(
  energy: Callable[[PyTree, Prompt], Float[Array, '']],
  start: PyTree,
  draw: Callable[[Key[Array, '']], Prompt],
  num_steps: int,
  step_size: float,
  localization: float,
) -> Callable[[Key[Array, '']], _Chain]:
  """Returns a function that runs one chain with a key."""

  def total(weights: PyTree, batch: Prompt) -> tuple[Array, Array]:
    """The energy with the pull to the start, and the energy alone."""
    here = energy(weights, batch)
    apart = jax.tree.map(lambda w, s: jnp.sum(jnp.square(w - s)), weights, start)
    return here + localization / 2 * sum(jax.tree.leaves(apart)), here

  slope_of = jax.value_and_grad(total, has_aux=True)

  def step(
    weights: PyTree, scan: tuple[Array, Key[Array, '']]
  ) -> tuple[PyTree, tuple[Array, Array]]:
    i, key = scan
    batch_key, noise_key = jax.random.split(key)
    batch = draw(batch_key)
    (at_weights, here), slope = slope_of(weights, batch)
    leaves, structure = jax.tree.flatten(weights)
    noises = [
      jax.random.normal(key, leaf.shape, leaf.dtype)
      for key, leaf in zip(
        jax.random.split(noise_key, len(leaves)), leaves, strict=True
      )
    ]
    noise = jax.tree.unflatten(structure, noises)
    moved = jax.tree.map(
      lambda w, g, z: w - step_size / 2 * g + math.sqrt(step_size) * z,
      weights,
      slope,
      noise,
    )

    def acceptance() -> Array:
      """Metropolis' rule for the move, on the same batch."""
      (at_moved, _), slope_there = slope_of(moved, batch)
      back = jax.tree.map(
        lambda w, m, g: jnp.sum(jnp.square(w - m + step_size / 2 * g)),
        weights,
        moved,
        slope_there,
      )
      forth = jax.tree.map(lambda z: step_size * jnp.sum(jnp.square(z)), noise)
      ways = sum(jax.tree.leaves(forth)) - sum(jax.tree.leaves(back))
      log_ratio = at_weights - at_moved + ways / (2 * step_size)
      return jnp.exp(jnp.minimum(log_ratio, 0.0))

    is_asked = i % _CHECK_EVERY == 0
    accepted = jax.lax.cond(
      is_asked, acceptance, lambda: jnp.full((), jnp.nan, here.dtype)
    )
    return moved, (here - energy(start, batch), accepted)

  def run(key: Key[Array, '']) -> _Chain:
    keys = jax.random.split(key, num_steps)
    _, (excess, accepted) = jax.lax.scan(step, start, (jnp.arange(num_steps), keys))
    return _Chain(excess, accepted)

  return run


def _check_chains(
  excess: Float[np.ndarray, 'k s'], accepted: float, step_size: float, num_steps: int
) -> None:
  """Raises UserError if the chains have not sampled the weights around the model."""
  if not np.isfinite(excess).all():
    raise UserError(
      f'the chains diverge with step_size {step_size:g}; take a smaller one'
    )
  if not accepted >= _LEAST_ACCEPTED:
    raise UserError(
      f'step_size {step_size:g} is too long: Metropolis would accept {accepted:.0%} of '
      f'the moves, and {_LEAST_ACCEPTED:.0%} are needed; take a smaller one'
    )
  quarter = num_steps // 4
  last, before = excess[:, -quarter:], excess[:, -2 * quarter : -quarter]
  drift = estimate(last.mean(axis=1) - before.mean(axis=1))
  is_large = abs(drift.mean) > _MOST_DRIFT * abs(last.mean())
  if is_large and abs(drift.mean) > drift.half:
    raise UserError(
      f'the chains still move after {num_steps} steps: λ changes by {drift} from the '
      'third quarter of the steps to the last; take more steps'
    )
