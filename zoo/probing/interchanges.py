"""Where a variable is: a subspace whose exchange between prompts exchanges it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.intervals import Estimate, Interval, one_more
from zoo.measure.predict import Programs
from zoo.measure.table import Rows
from zoo.probing.activations import in_order_of_calls
from zoo.probing.beliefs import at_tokens, belief_sites, prompts_with_beliefs
from zoo.probing.checks import takes
from zoo.probing.edit import edited
from zoo.probing.steering import (
  by_bayes,
  check_token_sites,
  compared,
  expected_labels,
  prompts_at,
)

# What should be predicted at a base prompt with the variable of a source prompt, as
# probabilities of classes or numbers. Both prompts have latents.
Counterfactual: TypeAlias = Callable[[Prompt, Prompt], Array]
_LEAST_PROMPTS = 512  # A quarter of them are the pairs that score.
_BATCH = 64  # Pairs of one step of the search.
_RATE = 0.05
_NUM_RANDOM = 8


class Interchanged(NamedTuple):
  """How predictions move when a subspace of a site is taken from another prompt.

  It is a row of what `interchange` returns, a table. Slopes and R² are those of
  `steer`: 1 if predictions move as they should with the other value of the variable,
  and 0 if they stay.

  Attributes:
    site: The site.
    rank: The dimension of the subspace.
    slope: The slope with the fitted subspace, on pairs that did not fit it.
    r2: R² with the fitted subspace, on the same pairs.
    random_r2: R² with a random subspace of the same rank. Its ± is half of the interval
      that contains that of one more draw.
    whole_r2: R² with the whole value at the query's token.
    basis: The fitted subspace, an orthonormal basis `[m, rank]`.
  """

  site: str
  rank: int
  slope: Estimate
  r2: Estimate
  random_r2: Interval
  whole_r2: Estimate
  basis: Float[np.ndarray, 'm r']


def interchange(
  model: Predictor,
  task: Task,
  *,
  rank: int,
  variable: Sequence[str] | Counterfactual | None = None,
  sites: Sequence[str] | None = None,
  num_prompts: int = 2048,
  num_steps: int = 200,
  seed: int = 0,
) -> Rows[Interchanged]:
  """Finds a subspace of each site that holds a variable, by exchange between prompts.

  This is distributed alignment search. Prompts are paired, a base and a source. In a
  forward pass on the base, the part of the site's value at the query's token that lies
  in a subspace is set to that of the source. If the subspace holds the variable, and
  nothing else that matters, the prediction becomes that of a reader who has the
  variable of the source and all else of the base. The subspace is found by gradient
  descent on half of the pairs, and scored on the others.

  Searched with high rank, a subspace exists even in models without the variable: it
  need only carry what the prediction depends on. Compare R² with that of the whole
  value, and take the least rank that reaches it. A variable that follows from the last
  symbol is exchanged with it, which `steer` tells apart and this search does not.

  - Quantity: `r2`, `1 − Σ |Δf − Δp|² / Σ |Δp|²`, where Δf is how the predicted
    probabilities (or number) move and Δp how they should.
  - Null: 0 for a model that does not read the site at the query's token.
  - Counterfactual: the variable of another prompt of the task, independently drawn.
  - Denominator: `Σ |Δp|²`.

  Args:
    model: A model with taps.
    task: The task.
    rank: The dimension of the subspace, from 1 to the size of the value.
    variable: What is exchanged. Names are coordinates of the task's belief, and None is
      the whole belief; Δp then follows from `task.belief_prediction`. A function of the
      base and the source, which have latents, returns what should be predicted, as
      probabilities of classes or numbers; Δp is what it returns minus what it returns
      for the base as its own source.
    sites: The sites, whose values have prompts and tokens as their first two axes and
      one more. None means the embedded tokens and the residual stream.
    num_prompts: The number of prompts, at least 512. Half are bases, half sources.
    num_steps: The number of steps of the search, each on 64 pairs.
    seed: The seed of the prompts and of the search.

  Returns:
    A row for each site, in the order of a forward pass.

  Raises:
    UserError: If the task has no belief, or none that determines a prediction, and
      `variable` is no function; if a name is not one of a coordinate; if a site is
      unknown, has no value or other axes, or is smaller than the rank.

  Example:
    >>> task = zoo.create_task('hidden_markov', process='mess3', context_length=8)
    >>> model = zoo.models.Transformer(
    ...   3, 8, num_layers=1, num_outputs=3, rngs=nnx.Rngs(0)
    ... )
    >>> (row,) = zoo.probing.interchange(
    ...   model, task, rank=2, sites=['final.stream'], num_prompts=512, num_steps=5
    ... )
    >>> row.basis.shape
    (64, 2)

  References:
    Geiger et al., arXiv 2303.02536.
  """
  check_count('num_prompts', num_prompts, minimum=_LEAST_PROMPTS)
  check_count('num_steps', num_steps)
  chosen = belief_sites(model, sites)
  check_token_sites(model, chosen)
  quarter = num_prompts // 4
  prompt, wanted = _pairs(task, variable, 4 * quarter, seed)
  base = prompts_at(prompt, slice(2 * quarter))
  base = dataclasses.replace(base, latents=None)
  chosen = in_order_of_calls(model, base, chosen)
  values = at_tokens(model, dataclasses.replace(prompt, latents=None), chosen, chosen)
  fitted, scored = slice(quarter), slice(quarter, 2 * quarter)
  programs, rows = Programs(), Rows[Interchanged]()
  generator = np.random.default_rng(seed)
  for site in chosen:
    source = values[site][2 * quarter :, -1].astype(np.float32)
    size = source.shape[1]
    check_count(f'rank at the site {site!r}', rank, maximum=size)
    start = _orthonormal(generator, size, rank)
    batches = generator.integers(quarter, size=(num_steps, _BATCH))
    basis = _search(
      programs,
      model,
      task,
      prompts_at(base, fitted),
      site,
      source[fitted],
      wanted[fitted],
      start,
      batches,
    )

    exchanged, others = Partial(_exchanged, site), source[scored]

    def labels(basis: np.ndarray, exchanged=exchanged, others=others) -> np.ndarray:
      basis = basis.astype(np.float32)
      after = programs.run(exchanged, [model], prompts_at(base, scored), others, basis)
      return expected_labels(task, after)

    # The same program without a change has the same rounding.
    before, before_whole = (
      labels(np.zeros((size, rank))),
      labels(np.zeros((size, size))),
    )
    slope, r2 = compared(labels(basis) - before, wanted[scored])
    turned = [_orthonormal(generator, size, rank) for _ in range(_NUM_RANDOM)]
    random = [compared(labels(of) - before, wanted[scored])[1].mean for of in turned]
    _, whole = compared(labels(np.eye(size)) - before_whole, wanted[scored])
    rows.append(Interchanged(site, rank, slope, r2, one_more(random), whole, basis))
  return rows


def _pairs(
  task: Task, variable: Any, num_prompts: int, seed: int
) -> tuple[Prompt, Float[np.ndarray, 'p o']]:
  """Returns prompts, the bases first, and how the predictions of bases should move."""
  half = num_prompts // 2
  if callable(variable):
    if not takes(variable, 2):
      raise UserError('variable is a function that cannot take a base and a source')
    prompt = _with_latents(task, num_prompts, seed)
    base, source = (
      prompts_at(prompt, slice(half)),
      prompts_at(prompt, slice(half, None)),
    )
    after, before = (
      np.asarray(variable(base, of), np.float64) for of in (source, base)
    )
    return prompt, (after - before).reshape(half, -1)
  prompt, beliefs = prompts_with_beliefs(task, num_prompts, seed)
  own, other = beliefs[:half, -1], beliefs[half:, -1]
  if variable is not None:
    names = task.held_out().belief(prompts_at(prompt, slice(1))).names
    if isinstance(variable, str):
      raise UserError(f'variable is {variable!r}; it must be a list of names')
    for name in variable:
      if name not in names:
        raise UserError(
          f'variable has {name!r}; the coordinates of the belief are '
          f'{", ".join(names[:12])}{", …" if len(names) > 12 else ""}'
        )
    other = np.where(np.isin(names, list(variable))[None], other, own)
  return prompt, by_bayes(task, prompts_at(prompt, slice(half)), own, other)


def _with_latents(task: Task, num_prompts: int, seed: int) -> Prompt:
  return task.held_out().sample(
    stream_of(seed, CURVE_STREAM), num_prompts, latents=True
  )


def _orthonormal(
  generator: np.random.Generator, size: int, rank: int
) -> Float[np.ndarray, 'm r']:
  return np.linalg.qr(generator.standard_normal((size, rank)))[0]


def _exchanged(
  site: str,
  models: Sequence[Any],
  prompt: Prompt,
  source: Float[Array, 'b m'],
  basis: Float[Array, 'm r'],
) -> Float[Array, ' b *k']:
  """Returns predictions with the part of a value in a subspace set to the source's."""

  def change(value: Array) -> Array:
    last = value[:, -1]
    apart = (source.reshape(last.shape) - last).reshape(len(last), -1)
    step = (apart @ basis.astype(apart.dtype)) @ basis.T.astype(apart.dtype)
    return value.at[:, -1].add(step.reshape(last.shape))

  return edited(models[0], {site: change})(prompt)


def _search(
  programs: Programs,
  model: Any,
  task: Task,
  prompt: Prompt,
  site: str,
  source: Float[np.ndarray, 'b m'],
  wanted: Float[np.ndarray, 'b o'],
  start: Float[np.ndarray, 'm r'],
  batches: Int[np.ndarray, 's p'],
) -> Float[np.ndarray, 'm r']:
  """Returns the basis with which predictions of the pairs move most as they should."""
  of_classes = task.label_kind == 'classes'
  optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, len(batches)))

  def found(
    models: Sequence[Any],
    prompt: Prompt,
    source: Array,
    wanted: Array,
    start: Array,
    batches: Array,
  ) -> Array:
    def labels(at: Array, basis: Array) -> Array:
      some = jax.tree.map(lambda array: array[at], prompt)
      predicted = _exchanged(site, models, some, source[at], basis)
      if of_classes:
        predicted = jax.nn.softmax(predicted)
      return predicted.reshape(len(at), -1)

    def loss(weights: Array, at: Array) -> Array:
      moved = labels(at, jnp.linalg.qr(weights)[0])
      moved -= labels(at, jnp.zeros_like(weights))
      return jnp.mean(jnp.sum(jnp.square(moved - wanted[at]), axis=1))

    def step(state: tuple[Array, Any], at: Array) -> tuple[tuple[Array, Any], None]:
      weights, moments = state
      updates, moments = optimizer.update(jax.grad(loss)(weights, at), moments)
      moved: Any = optax.apply_updates(weights, updates)
      return (moved, moments), None

    # Optax multiplies integers by floats.
    with jax.numpy_dtype_promotion('standard'):
      (weights, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), batches)
    return jnp.linalg.qr(weights)[0]

  inputs = source, wanted.astype(np.float32), start.astype(np.float32), batches
  return np.asarray(programs.run(found, [model], prompt, *inputs), np.float64)
