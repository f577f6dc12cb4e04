"""Whether a model reads a belief: another one is set, and predictions should follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.intervals import Estimate, Interval, one_more
from zoo.measure.predict import Programs
from zoo.measure.ratio import ratio
from zoo.measure.table import Rows
from zoo.probing.activations import in_order_of_calls
from zoo.probing.beliefs import (
  Rival,
  at_tokens,
  belief_sites,
  prompts_with_beliefs,
  statistics,
  without_rival,
)
from zoo.probing.checks import taps_of
from zoo.probing.edit import edited
from zoo.probing.linear_maps import one_minus

_NUM_RANDOM = 8  # Random subspaces, whose spread gives the interval of one more.


class Steered(NamedTuple):
  """How the predictions of a model move when a belief is set at one site.

  It is a row of what `steer` returns, a table.

  Attributes:
    site: The site.
    slope: How far predictions move along what Bayes says, as a share of it:
      `Σ Δf·Δp / Σ Δp·Δp`. It is 1 if they follow the belief, and 0 if the model does
      not read it.
    r2: `1 − Σ |Δf − Δp|² / Σ |Δp|²`: 1 if predictions move as Bayes says, 0 if they
      stay. It is negative if they move, but not so.
    random_slope: The slope with random directions of the same lengths in place of the
      fitted ones. Its ± is half of the interval that contains that of one more draw.
    random_r2: R² with random directions, in the same way.
  """

  site: str
  slope: Estimate
  r2: Estimate
  random_slope: Interval
  random_r2: Interval


def steer(
  model: Predictor,
  task: Task,
  *,
  sites: Sequence[str] | None = None,
  rival: Rival | None = None,
  num_prompts: int = 2048,
  seed: int = 0,
) -> Rows[Steered]:
  """Sets another belief at a site, and compares how predictions move with Bayes.

  A probe finds what a site holds; it does not say that the model reads it. Here the
  site's value v at the query's token is regressed, on half of the prompts, on the exact
  belief b and a rival's statistics, `v ≈ b E + rival R + offset`. The rows of E span
  the subspace in which the value moves with the belief while the rival stays. In the
  other prompts `(b' − b) E` is added to the value, where b' is the belief of a prompt
  of the first half. A model that reads the belief from there then predicts what a
  reader with the belief b' would: `task.belief_prediction`.

  Only the query's token is changed. Where a later layer reads the belief from other
  tokens, too, predictions move less. If a site holds the last symbol alone, E is 0,
  since the rival has the last symbol.

  - Quantity: `slope`, `Σ Δf·Δp / Σ Δp·Δp`, and `r2`, `1 − Σ |Δf − Δp|² / Σ |Δp|²`. Δf
    is the change of the predicted probabilities (or number), Δp that by Bayes.
  - Null: 0 for a model that does not read the belief at the site.
  - Counterfactual: the belief of another prompt of the task, independently drawn.
  - Denominator: `Σ |Δp|²`, of the change by Bayes.

  Args:
    model: A model with taps.
    task: A task with a belief that determines a prediction: `belief_prediction`.
    sites: The sites, whose values have the prompts and the tokens as their first two
      axes. None means the embedded tokens and the residual stream.
    rival: The statistics of the rival, as in `probe_beliefs`.
    num_prompts: The number of prompts, at least 128, of which half fit E.
    seed: The seed of the prompts and of the random directions.

  Returns:
    A row for each site, in the order of a forward pass.

  Raises:
    UserError: If the task has no belief, or none that determines a prediction; if a
      site is unknown, has no value, or is no array with tokens as its second axis.

  Example:
    >>> task = zoo.create_task('hidden_markov', process='mess3', context_length=8)
    >>> model = zoo.models.Transformer(
    ...   3, 8, num_layers=1, num_outputs=3, rngs=nnx.Rngs(0)
    ... )
    >>> site = 'final.stream'
    >>> (row,) = zoo.probing.steer(model, task, sites=[site], num_prompts=128)
    >>> abs(row.slope.mean) < 0.3  # The model is not trained.
    True
  """
  prompt, beliefs = prompts_with_beliefs(task, num_prompts, seed)
  chosen = belief_sites(model, sites)
  check_token_sites(model, chosen)
  chosen = in_order_of_calls(model, prompt, chosen)
  half = num_prompts // 2
  own, other = beliefs[half : 2 * half, -1], beliefs[:half, -1]
  scored = prompts_at(prompt, slice(half, 2 * half))
  moved = by_bayes(task, scored, own, other)
  known = statistics(prompt, rival)[:half, -1]
  values = at_tokens(model, prompt, chosen, chosen)
  programs, rows = Programs(), Rows[Steered]()
  generator = np.random.default_rng(seed)
  for site in chosen:
    directions = _directions(values[site][:half, -1], beliefs[:half, -1], known)
    stepped = Partial(_stepped, site)

    def predictions(directions: np.ndarray, stepped=stepped) -> np.ndarray:
      step = ((other - own) @ directions).astype(np.float32)
      return expected_labels(task, programs.run(stepped, [model], scored, step))

    # The same program without a change has the same rounding.
    before = predictions(np.zeros_like(directions))

    def change(directions: np.ndarray, of=predictions, before=before) -> np.ndarray:
      return of(directions) - before

    slope, r2 = compared(change(directions), moved)
    turned = [_turned(directions, generator) for _ in range(_NUM_RANDOM)]
    random = [compared(change(of), moved) for of in turned]
    rows.append(
      Steered(
        site,
        slope,
        r2,
        one_more([of[0].mean for of in random]),
        one_more([of[1].mean for of in random]),
      )
    )
  return rows


def check_token_sites(model: Predictor, sites: Sequence[str]) -> None:
  """Checks that the values of sites have prompts and tokens as their first two axes.

  Raises:
    UserError: If one has other axes.
  """
  taps = taps_of(model)
  for site in sites:
    if (taps[site].axes or '').split()[:2] != ['b', 'n']:
      raise UserError(
        f'the axes of the site {site!r} are {taps[site].axes!r}; they must begin with '
        'b n, prompts and tokens'
      )


def prompts_at(prompt: Prompt, at: slice) -> Prompt:
  """Returns some of the prompts."""
  return jax.tree.map(lambda array: array[at], prompt)


def by_bayes(
  task: Task,
  prompt: Prompt,
  own: Float[np.ndarray, 'b k'],
  other: Float[np.ndarray, 'b k'],
) -> Float[np.ndarray, 'b o']:
  """Returns how a prediction moves if one belief becomes another, by Bayes."""
  task = task.held_out()
  after, before = (
    np.asarray(task.belief_prediction(jax.numpy.asarray(of, float), prompt), np.float64)
    for of in (other, own)
  )
  return (after - before).reshape(len(own), -1)


def compared(
  moved: Float[np.ndarray, 'b o'], wanted: Float[np.ndarray, 'b o']
) -> tuple[Estimate, Estimate]:
  """Returns the slope and R² of how predictions move against how they should."""
  whole = np.square(wanted).sum(axis=1)
  slope = ratio(np.sum(moved * wanted, axis=1), whole)
  return slope, one_minus(ratio(np.square(moved - wanted).sum(axis=1), whole))


def expected_labels(task: Task, prediction: ArrayLike) -> Float[np.ndarray, 'b o']:
  """Returns probabilities of classes from logits; numbers as they are."""
  array = np.asarray(prediction, np.float64)
  if task.label_kind == 'classes':
    array = np.exp(array - array.max(axis=-1, keepdims=True))
    array /= array.sum(axis=-1, keepdims=True)
  return array.reshape(len(array), -1)


def _stepped(
  site: str, models: Sequence[Any], prompt: Prompt, step: Float[Array, 'b m']
) -> Float[Array, ' b *k']:
  """Returns predictions with a step added to the value at the query's token."""

  def change(value: Array) -> Array:
    return value.at[:, -1].add(step.reshape(value[:, -1].shape).astype(value.dtype))

  return edited(models[0], {site: change})(prompt)


def _directions(
  value: Float[np.ndarray, 'b m'],
  belief: Float[np.ndarray, 'b k'],
  rival: Float[np.ndarray, 'b r'],
) -> Float[np.ndarray, 'k m']:
  """Returns how a value moves with each coordinate of the belief, the rival fixed."""
  # A belief that the rival explains, up to rounding, leaves no direction.
  left = without_rival(belief[:, None], rival[:, None], len(belief))[:, 0]
  return np.linalg.lstsq(left, value - value.mean(axis=0), rcond=1e-6)[0]


def _turned(
  directions: Float[np.ndarray, 'k m'], generator: np.random.Generator
) -> Float[np.ndarray, 'k m']:
  """Returns the directions after a random rotation, which keeps all lengths."""
  m = directions.shape[1]
  rotation, triangle = np.linalg.qr(generator.standard_normal((m, m)))
  return directions @ (rotation * np.sign(np.diag(triangle))[None])
