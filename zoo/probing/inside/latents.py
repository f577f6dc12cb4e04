"""Where a model's values hold what its prompts were drawn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr
from jaxtyping import Array, Float

from zoo import estimators, theory
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.core.taps import in_order, places
from zoo.measure.predict import run_once
from zoo.measure.statistics import Estimate, ratio
from zoo.probing.inside.activations import (
  calls_of,
  checked_module,
  no_value,
  recorded,
  wanted_sites,
)

# A number or an array for each prompt, `[b, …]`, from the prompts.
Target = Callable[[Prompt], Array]
_STEPS = 1, 2, 4  # of gradient descent
_PENALTIES = np.logspace(-6, 4, 21)  # in units of the largest squared singular value


PROMPT = 'the prompt itself'


class LatentScore(NamedTuple):
  """How well a linear map of a site's value at the query predicts a target.

  R² is 1 − Σ |error|² / Σ |target − mean|² on prompts that the map was not fitted to.
  """

  site: str  # or PROMPT: all features and labels of the prompt
  target: str
  r2: Estimate
  permuted: Estimate  # the same with the targets of other prompts


def probe_latents(
  model: Predictor,
  task: Task,
  targets: Mapping[str, Target] | None = None,
  sites: Sequence[str] | None = None,
  num_prompts: int = 2048,
  seed: int = 0,
) -> list[LatentScore]:
  """R² of ridge regression from each site to what its prompts were drawn from.

  The value is that at the query's token, the last one, where the axes of a site have
  tokens, and else all of it. Half of
  the prompts fit the map, with the penalty of the least generalised cross-validation
  error (Golub, Heath & Wahba, 1979); the other half score it. Controls: the targets
  permuted among prompts, and the same map from all features and labels of the prompt.

  Both controls are weak. Permuted targets only show that the map does not overfit, and
  a linear map of the prompt cannot multiply features by labels, as a mixer of random
  weights may. R² of a trained model is evidence of learning where it is above that of
  an untrained model of the same architecture: call this function for that one, too,
  with the same task, sites and seed.

  Args:
    model: a model with taps.
    task: where the prompts come from.
    targets: by name, functions of prompts. None: those of `latent_targets`.
    sites: None: all.
    num_prompts: ≥ 8, of which half are for the fit.
    seed: of the prompts.

  Raises UserError for an unknown site, and for a task that names no targets.
  """
  check_count('num_prompts', num_prompts, minimum=8)
  chosen = wanted_sites(model, sites)
  axes = {place.site: place.tap.axes or '' for place in places(checked_module(model))}
  prompt = task.sample(jax.random.key(seed), num_prompts, latents=True)
  wanted = latent_targets(task, prompt) if targets is None else targets
  if not wanted:
    raise UserError(f'{type(task).__name__} has no latents; give targets')
  prompt_alone = dataclasses.replace(prompt, latents=None)

  def values_of(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
    return recorded(models[0], prompt, chosen)[0]

  values = run_once(values_of, [model], prompt_alone)
  arrays = (prompt.x, prompt.y, prompt.x_query)
  inputs = {PROMPT: np.concatenate([_rows(array, '') for array in arrays], axis=1)}
  for site in chosen:
    if sites is not None and not calls_of(values, site):
      raise UserError(no_value(site))
  for name in in_order(values):
    inputs[name] = _rows(values[name], axes[name.partition('@')[0]])
  return _scores(inputs, {name: _rows(of(prompt), '') for name, of in wanted.items()})


def latent_targets(task: Task, prompt: Prompt) -> dict[str, Target]:
  """What a prompt was drawn from, and for linear regression what estimates it.

  The latents of the task, by name; and for a task that exact theory covers `X'y / C`,
  and the weights of least squares, of gradient descent from the prior mean after 1, 2
  and 4 steps with the best rates, and of the posterior mean.
  """
  targets: dict[str, Target] = {}
  for path, leaf in jax.tree.leaves_with_path(prompt.latents):
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      name = keystr(path, simple=True, separator='.')
      targets[f'latents.{name}' if name else 'latents'] = _latent(path)
  if theory.covers(task):
    targets["X'y / C"] = lambda prompt: (
      jnp.einsum('bcd,bc->bd', prompt.x, prompt.y) / max(prompt.x.shape[1], 1)
    )
    targets['least squares'] = _weights(estimators.ols(task))
    for steps in _STEPS:
      step = theory.best_step_size(task, steps)
      descent = estimators.gradient_descent(task, step, steps)
      targets[f'GD, {steps} step{"s" if steps > 1 else ""}'] = _weights(descent)
    targets['posterior mean'] = _weights(estimators.bayes(task))
  return targets


def _latent(path: tuple[Any, ...]) -> Target:
  def target(prompt: Prompt) -> Array:
    leaves = dict(jax.tree.leaves_with_path(prompt.latents))
    return leaves[path]

  return target


def _weights(predictor: Predictor) -> Target:
  """The weights of a predictor that is linear in the query's features."""

  def target(prompt: Prompt) -> Array:
    d = prompt.x.shape[-1]

    def predictions(predictors: Sequence[Any], prompt: Prompt) -> Array:
      def along(unit: Array) -> Array:
        x_query = jnp.broadcast_to(unit[None], prompt.x_query.shape)
        return predictors[0](dataclasses.replace(prompt, x_query=x_query))

      return jnp.stack([along(unit) for unit in jnp.eye(d, dtype=prompt.x.dtype)], -1)

    return run_once(predictions, [predictor], dataclasses.replace(prompt, latents=None))

  return target


def _rows(value: Array, axes: str) -> Float[np.ndarray, 'b m']:
  """The entries of each prompt, at the last token where there are tokens."""
  array = np.asarray(value, np.float64)
  for axis, name in enumerate(axes.split()):
    if name in ('n', 'q'):
      array = np.take(array, -1, axis=axis)
      break
  return array.reshape(len(array), -1)


def _scores(
  inputs: Mapping[str, Float[np.ndarray, 'b m']],
  targets: Mapping[str, Float[np.ndarray, 'b t']],
) -> list[LatentScore]:
  half = len(next(iter(inputs.values()))) // 2
  scores = []
  for site, rows in inputs.items():
    fit = _Ridge(rows[:half])
    for name, target in targets.items():
      both = (
        _r2(fit(wanted[:half], rows[half:]), wanted[half:], wanted[:half])
        for wanted in (target, _permuted(target))
      )
      scores.append(LatentScore(site, name, *both))
  return scores


def _permuted(target: Float[np.ndarray, 'b t']) -> Float[np.ndarray, 'b t']:
  return target[np.random.default_rng(0).permutation(len(target))]


def _r2(
  predicted: Float[np.ndarray, 'b t'],
  target: Float[np.ndarray, 'b t'],
  fitted_to: Float[np.ndarray, 'a t'],
) -> Estimate:
  error = np.square(predicted - target).sum(axis=1)
  unexplained = ratio(error, np.square(target - fitted_to.mean(axis=0)).sum(axis=1))
  return Estimate(1 - unexplained.mean, unexplained.stderr)


class _Ridge:
  """Ridge regression from standardised inputs, decomposed once for all targets."""

  def __init__(self, inputs: Float[np.ndarray, 'b m']):
    self.mean, self.spread = inputs.mean(axis=0), inputs.std(axis=0)
    self.spread[self.spread == 0] = 1
    self.left, self.singular, self.right = np.linalg.svd(
      self._standard(inputs), full_matrices=False
    )

  def __call__(
    self, targets: Float[np.ndarray, 'b t'], inputs: Float[np.ndarray, 'a m']
  ) -> Float[np.ndarray, 'a t']:
    """Predictions for other inputs, with the penalty of the least GCV error."""
    centre = targets.mean(axis=0)
    along = self.left.T @ (targets - centre)
    squares = np.square(self.singular)
    outside = np.square(targets - centre).sum() - np.square(along).sum()
    best, least = None, np.inf
    for penalty in _PENALTIES * max(squares.max(), np.finfo(float).tiny):
      kept = squares / (squares + penalty)
      error = np.square((1 - kept)[:, None] * along).sum() + max(outside, 0.0)
      freedom = len(targets) - 1 - kept.sum()  # one is for the mean
      gcv = error / freedom**2 if freedom > 0 else np.inf
      if gcv < least:
        least, best = gcv, penalty
    penalty = squares.max() if best is None else best
    weights = self.right.T @ ((self.singular / (squares + penalty))[:, None] * along)
    return centre + self._standard(inputs) @ weights

  def _standard(self, inputs: Float[np.ndarray, 'b m']) -> Float[np.ndarray, 'b m']:
    return (inputs - self.mean) / self.spread
