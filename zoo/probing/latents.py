"""Which values of a model contain what its prompts were drawn from: linear probes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.tree_util import keystr
from jaxtyping import Array, Float

from zoo import estimators, theory
from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.taps import in_order
from zoo.measure.intervals import Estimate, Interval
from zoo.measure.predict import run_once
from zoo.measure.ratio import ratio
from zoo.measure.table import Rows
from zoo.probing.activations import in_order_of_calls, site_of, values_at
from zoo.probing.checks import taps_of, wanted_sites
from zoo.probing.linear_maps import (
  LEAST_PROMPTS,
  Ridge,
  beside_untrained,
  check_untrained,
  one_minus,
  squares,
)

# A target is a function of prompts that returns a number or an array for each of them,
# `[b, …]`.
Target = Callable[[Prompt], Array]
_STEPS = 1, 2, 4  # Gradient descent takes these numbers of steps.
# Integers with at most so many values are probed as classes.
_MOST_CLASSES = 64
PROMPT = 'the prompt itself'


class LatentScore(NamedTuple):
  """How well a linear map of a site's value at the query predicts a target.

  It is a row of what `probe_latents` returns, a table whose `records`, `to_frame` and
  `to_csv` give it as dictionaries, to pandas and to a file.

  R² is `1 − Σ |error|² / Σ |target − mean|²` on prompts to which the map was not
  fitted. It is NaN for a target that does not vary beyond rounding.

  Attributes:
    site: The site, or 'the prompt itself' for all features and labels of the prompt.
    target: The name of the target. Latents that are classes end in ', one-hot': the
      target is a vector with 1 at the class and 0 elsewhere.
    r2: R² of the model.
    permuted: R² with the targets of other prompts, a control.
    untrained: R² of untrained models at this site. Its ± is half of the interval that
      contains the R² of one more untrained model. None if no untrained models were
      given, and for the prompt itself.
    above_untrained: `r2` minus the R² that one more untrained model would have on the
      same prompts. None in the same two cases.
    p_value: The one-sided p value that `above_untrained` is at most 0, by Welch's t
      test. With few untrained models it is far from that of a normal distribution with
      the same interval, so correct this number, as by Holm's method, if you look at
      many sites. None in the same two cases.
  """

  site: str
  target: str
  r2: Estimate
  permuted: Estimate
  untrained: Interval | None = None
  above_untrained: Estimate | None = None
  p_value: float | None = None


def probe_latents(
  model: Predictor,
  task: Task,
  targets: Mapping[str, Target] | None = None,
  sites: Sequence[str] | None = None,
  num_prompts: int = 2048,
  seed: int = 0,
  untrained: Sequence[Predictor] = (),
) -> Rows[LatentScore]:
  """Measures R² of linear probes from each site to what the prompts were drawn from.

  The probe is a ridge regression from the value at the query's token, the last one; at
  a site without an axis of tokens, it is from the whole value. Half of the prompts fit
  the probe, with the penalty that has the least generalised cross-validation error
  (Golub, Heath & Wahba, 1979); the other half score it.

  There are three controls, two of which are weak. Permuted targets show only that the
  probe does not overfit. A probe of the prompt itself is a weak control, since a linear
  map cannot multiply features by labels, while a mixer can even with random weights.
  The strong control is R² of untrained models of the same architecture, which the
  caller gives as `untrained`. R² of the model is evidence of learning where it is above
  R² of the untrained models.

  - Quantity: `above_untrained`, R² of the model minus that of one more untrained model,
    over prompts and untrained models. `r2` alone says what a linear map finds, not that
    it was learned.
  - Null: 0 for a model that is itself untrained.
  - Counterfactual: other initial weights of the same architecture, on the same prompts.
  - Denominator: `Σ |target − mean|²`, of R², which is NaN if this is 0 or rounding.

  Args:
    model: A model with taps.
    task: The task from which the prompts are drawn, those that it holds out.
    targets: Functions of prompts, by name, that return a number or an array for each
      prompt. None means those of `latent_targets`.
    sites: The sites to probe. None means all of them, except those whose values are
      computed on demand.
    num_prompts: The number of prompts, at least 128, of which half are for the fit.
    seed: The seed of the prompts.
    untrained: Three or more models of the same architecture with other initial weights,
      such as `[saved.untrained(seed) for seed in range(1, 9)]` of a loaded model.
      The error over these models is by Student's t, whose intervals are much narrower
      for three models than for two.

  Returns:
    A score for each target from the prompt itself, and from each site, in the order of
    a forward pass.

  Raises:
    UserError: If a site is unknown or has no value, if there are no targets, or if
      there are too few prompts or untrained models.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> scores = zoo.probing.probe_latents(
    ...   model,
    ...   task,
    ...   targets={'mean label': lambda prompt: prompt.y.mean(axis=1)},
    ...   sites=['layers.0.mixer.out'],
    ...   num_prompts=128,
    ... )
    >>> [score.site for score in scores]
    ['the prompt itself', 'layers.0.mixer.out']
  """
  require_task(task)
  check_untrained(untrained)
  check_count('num_prompts', num_prompts, minimum=LEAST_PROMPTS)
  chosen = wanted_sites(model, sites)
  axes = {site: tap.axes or '' for site, tap in taps_of(model).items()}
  task = task.held_out()
  prompt = task.sample(stream_of(seed, CURVE_STREAM), num_prompts, latents=True)
  wanted = latent_targets(task, prompt) if targets is None else targets
  if not wanted:
    name, has_latents = type(task).__name__, bool(jax.tree.leaves(prompt.latents))
    if not has_latents:
      raise UserError(f'{name} has no latents; give targets')
    raise UserError(
      f'the latents of {name} are integers with more than {_MOST_CLASSES} values, '
      'which are not probed as classes; give targets'
    )
  prompt_alone = dataclasses.replace(prompt, latents=None)

  def rows_of(of: Predictor) -> dict[str, Float[np.ndarray, 'b _']]:
    values = values_at(of, prompt_alone, chosen, sites)
    seen = {name: site_of(name, chosen) for name in values}
    names = sorted(in_order(values), key=lambda name: order.index(seen[name]))
    return {name: _rows(values[name], axes[seen[name]]) for name in names}

  for other in untrained:
    wanted_sites(other, chosen)
  # A compiled program returns values by the alphabet, and `final` is before `layers`.
  order = in_order_of_calls(model, prompt_alone, chosen)
  own, others = rows_of(model), [rows_of(other) for other in untrained]
  arrays = (prompt.x, prompt.y, prompt.x_query)
  whole = np.concatenate([_rows(array, '') for array in arrays], axis=1)
  targets_of = {name: _rows(of(prompt), '') for name, of in wanted.items()}
  return _scores({PROMPT: whole} | own, others, targets_of)


def latent_targets(task: Task, prompt: Prompt) -> dict[str, Target]:
  """Returns what a prompt was drawn from and, for linear regression, estimates of it.

  The targets are the latents of the task. Integers and booleans are classes: the target
  is a vector for each of them, with 1 at its class and 0 elsewhere. R² of a probe is
  then 0 for the frequencies of the classes. Integers with more than 64 values, such as
  numbers of rows of a table, are left out. For `linear_regression` there are also
  `X'y / C`, and the weights of least squares, of gradient descent from the prior mean
  after 1, 2 and 4 steps with the best rates, and of the posterior mean.

  Args:
    task: The task.
    prompt: Prompts with latents, from `task.sample(key, batch_size, latents=True)`.
      The classes are those that occur in them.

  Returns:
    The targets by name, each a function of prompts that returns an array for each
    prompt.

  Raises:
    UserError: If the task is linear regression whose feature covariance is not a
      multiple of the identity. The best rates of two and more steps are then not known.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8, latents=True)
    >>> [*zoo.probing.latent_targets(task, prompt)][:3]
    ['latents', "X'y / C", 'least squares']
  """
  require_task(task)
  targets: dict[str, Target] = {}
  for path, leaf in jax.tree.leaves_with_path(prompt.latents):
    path_name = keystr(path, simple=True, separator='.')
    name = f'latents.{path_name}' if path_name else 'latents'
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      targets[name] = _latent(path)
    elif len(classes := np.unique(leaf)) <= _MOST_CLASSES:
      targets[f'{name}, one-hot'] = _latent(path, classes)
    else:
      logging.warning('%s: integers with %d values are left out', name, len(classes))
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


def _latent(path: tuple[Any, ...], classes: np.ndarray | None = None) -> Target:
  """Returns a function that reads the latents at a path; classes become one-hot."""

  def target(prompt: Prompt) -> Array:
    leaf = dict(jax.tree.leaves_with_path(prompt.latents))[path]
    if classes is None:
      return leaf
    return jax.nn.one_hot(jnp.searchsorted(classes, leaf), len(classes))

  return target


def _weights(predictor: Predictor) -> Target:
  """Returns a function that reads the weights of a predictor.

  The predictor must be linear in the features of the query.
  """

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
  """Returns the entries of each prompt, at the last token where there are tokens."""
  array = np.asarray(value, np.float64)
  letters = axes.split()
  # An array in a tree may lack axes that the tap of the tree has.
  for axis, name in enumerate(letters if len(letters) == array.ndim else ()):
    if name in ('n', 'q'):
      array = np.take(array, -1, axis=axis)
      break
  return array.reshape(len(array), -1)


def _scores(
  inputs: Mapping[str, Float[np.ndarray, 'b _']],
  others: Sequence[Mapping[str, Float[np.ndarray, 'b _']]],
  targets: Mapping[str, Float[np.ndarray, 'b _']],
) -> Rows[LatentScore]:
  """Returns the scores of all inputs; the others are those of untrained models."""
  half = len(next(iter(inputs.values()))) // 2
  scores = Rows[LatentScore]()
  for site, rows in inputs.items():
    fit = Ridge(rows[:half])
    fits = [(Ridge(of[site][:half]), of[site]) for of in others if site in of]
    for name, target in targets.items():
      permuted = _permuted(target)
      error, whole = squares(fit(target[:half], rows[half:]), target, half)
      score = LatentScore(
        site,
        name,
        one_minus(ratio(error, whole)),
        one_minus(ratio(*squares(fit(permuted[:half], rows[half:]), permuted, half))),
      )
      if fits:
        errors = [
          squares(fit(target[:half], rows[half:]), target, half)[0]
          for fit, rows in fits
        ]
        score = score._replace(**beside_untrained(error, errors, whole))
      scores.append(score)
  return scores


def _permuted(target: Float[np.ndarray, 'b t']) -> Float[np.ndarray, 'b t']:
  return target[np.random.default_rng(0).permutation(len(target))]
