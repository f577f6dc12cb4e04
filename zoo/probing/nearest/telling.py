"""Prompts that tell algorithms apart, and the elimination of those that do not fit.

On most prompts of a task, different algorithms may predict nearly the same. With much
noise, for example, ridge regression with its large penalty is nearly a step of gradient
descent. A model can only be said to follow one of them if it does so on prompts on
which they differ.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.trees import fresh
from zoo.estimators.baselines import Baseline, HostBaseline, distinct
from zoo.estimators.linear import GDBeta, Ridge
from zoo.measure.intervals import Estimate
from zoo.measure.predict import BATCH_SIZE, Programs, at_query, gather, sample_batches
from zoo.measure.ratio import ratio
from zoo.measure.table import Rows, WithRows
from zoo.measure.tests import LEVEL, holm, p_value_above_zero
from zoo.probing.nearest.candidates import (
  Candidates,
  check_numbers,
  predict_with_variation,
)
from zoo.probing.nearest.context import SHARE_ROUNDING
from zoo.probing.nearest.sampled import (
  GD,
  SampledAlgorithm,
  is_a_step,
  least_prompts,
  sampled_algorithm,
)
from zoo.tasks.base import FunctionClass

# The features of a telling prompt are at least as probable as those of this share of
# the prompts of the task.
_LEAST_QUANTILE = 0.01
_NUM_DRAWN = 8192  # So many prompts are drawn to find the quantile, and to choose from.
# Each telling prompt is moved by so many steps. Each step has this root mean square, in
# standard deviations of the features.
_NUM_STEPS = 100
_STEP = 0.03
_PENALTY = 10.0  # The penalty of a nat below the least log density, in nats.
# A candidate that leaves more of the variation over contexts explains too little of it.
_MOST_UNEXPLAINED = 0.5
_TINY = 1e-30  # Added to squares, so that equal predictions have a logarithm.
_NUM_TELLING = 64  # This is the usual number of prompts of a pair.
_LEAST_TELLING = 32  # With fewer prompts for each pair a test can hardly tell.


class TellingPair(NamedTuple):
  """How far two algorithms differ, on prompts of the task and on telling prompts.

  It is a row of `TellingPrompts`, which `telling_prompts` returns.

  Attributes:
    first: The name of an algorithm.
    second: The name of the other one.
    on_task: √E (g − h)² for the predictions g and h of the two, on prompts of the task.
    on_telling: The same on the telling prompts of this pair.
  """

  first: str
  second: str
  on_task: float
  on_telling: float


@dataclasses.dataclass(frozen=True)
class TellingPrompts(WithRows):
  """Prompts on which algorithms differ, for each pair of them.

  `telling_prompts` returns it. It prints as a table of its rows.

  Attributes:
    rows: One row for each pair.
    prompts: The telling prompts `[b]` of each pair, in the order of the rows.
    is_searched: Whether the prompts were found by gradient ascent. If not, they were
      chosen among prompts of the task.
  """

  rows: Rows[TellingPair]
  prompts: list[Prompt]
  is_searched: bool


class Standing(NamedTuple):
  """What prompts say about one candidate. It is a row of an `Elimination`.

  Attributes:
    candidate: The name of the algorithm.
    on_task: E (f − g)² for the predictions f of the model and g of the candidate on
      prompts of the task, divided by the variation over contexts there.
    on_telling: E (f − g)² on the telling prompts of all pairs that have the candidate,
      divided by E (f − f')²/2, where f' is the prediction for the same query with a
      context of the task. Compare it with that of other candidates, not with `on_task`.
      None if the candidate leaves more than half of the variation on prompts of the
      task, so that no pair has it, and if no other candidate explains half.
    nearer_on_task: A candidate that is significantly nearer to the model on prompts of
      the task, the nearest of them. Empty if there is none.
    nearer_on_telling: A candidate that is significantly nearer on the telling prompts
      of the two, the one that leaves least on prompts of the task.
  """

  candidate: str
  on_task: Estimate
  on_telling: Estimate | None
  nearer_on_task: str
  nearer_on_telling: str


@dataclasses.dataclass(frozen=True)
class Elimination(WithRows):
  """Which of several algorithms a model may follow. `elimination` returns it.

  It prints as a table, with the remaining candidates below.

  Attributes:
    rows: One row for each candidate, the nearest one on prompts of the task first.
      There are none for a model that ignores its context, or the labels of its context.
    telling: The telling prompts of the candidates that explain half of the variation
      over contexts. None if there are fewer than two.
  """

  rows: Rows[Standing]
  telling: TellingPrompts | None

  @property
  def remaining(self) -> list[str]:
    """The candidates that explain half of the variation, and to which none is nearer.

    No other candidate is nearer to the model, neither on prompts of the task nor on
    telling prompts.
    """
    return [
      row.candidate
      for row in self.rows
      if row.on_task.mean <= _MOST_UNEXPLAINED
      and not row.nearer_on_task
      and not row.nearer_on_telling
    ]

  @property
  def footer(self) -> str:
    return f'remaining: {", ".join(self.remaining) or "none of these candidates"}'


def telling_prompts(
  task: Task,
  predictors: Mapping[str, Predictor],
  num_prompts: int = _NUM_TELLING,
  seed: int = 0,
) -> TellingPrompts:
  """Finds prompts on which algorithms differ most, within the support of a task.

  For each pair of algorithms, prompts are drawn from the task. Then gradient ascent on
  the features of each prompt makes the two predictions differ, while the function and
  the noise of the labels stay as they were drawn. The log density of all features of a
  prompt together stays above its 1 % quantile under the task. So the features are no
  less probable than those that training has shown, but they may be arranged as training
  hardly ever shows them.

  The features of some tasks have no known density, or are symbols. For these tasks the
  prompts of a pair are those that differ most among 8192 that are drawn.

  Args:
    task: A task whose labels are numbers, with the squared error.
    predictors: Two or more algorithms by name, such as baselines of the task. JAX must
      be able to compile them. A model that they are compared with is not among them, so
      that the choice of prompts does not depend on it.
    num_prompts: The number of prompts for each pair, at least 32.
    seed: The seed of the prompts.

  Returns:
    The prompts of each pair.

  Raises:
    UserError: If there are fewer than two predictors, if labels are not numbers, or if
      a predictor cannot be compiled.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=8, noise_std=10.0
    ... )
    >>> known = task.baselines()
    >>> pair = {name: known[name] for name in ('gd', 'ridge')}
    >>> print(zoo.probing.telling_prompts(task, pair, num_prompts=32))
    first  second  on_task  on_telling
    gd      ridge  0.01823      0.4629
  """
  require_task(task)
  check_numbers(task)
  num_prompts = check_count('num_prompts', num_prompts, minimum=_LEAST_TELLING)
  for name, predictor in predictors.items():
    if isinstance(predictor, HostBaseline):
      raise UserError(
        f'{name} is fitted to each prompt by another library, so that it cannot be '
        'compiled; leave it out'
      )
  if len(predictors) < 2:
    raise UserError(
      f'predictors has {len(predictors)} entries; two or more can be told apart'
    )
  check_count('seed', seed, minimum=0)
  pairs = [*itertools.combinations(predictors, 2)]
  return _telling_prompts(Programs(), task, predictors, pairs, num_prompts, seed)


def _telling_prompts(
  programs: Programs,
  task: Task,
  predictors: Mapping[str, Predictor],
  pairs: Sequence[tuple[str, str]],
  num_prompts: int,
  seed: int,
) -> TellingPrompts:
  """Returns what `telling_prompts` does, for some pairs of predictors."""
  key, task = stream_of(seed, CURVE_STREAM), fresh(task.held_out())
  drawn = task.sample(key, _NUM_DRAWN, latents=True)
  predicted = dict(
    zip(predictors, _predict(programs, [*predictors.values()], drawn), strict=True)
  )
  log_density = _log_density(task, drawn)
  least = -math.inf
  is_probable = np.ones(_NUM_DRAWN, bool)
  if log_density is not None:
    least = float(np.quantile(log_density, _LEAST_QUANTILE))
    is_probable = log_density >= least
  starts = [
    _chosen(np.square(predicted[first] - predicted[second]), is_probable, num_prompts)
    for first, second in pairs
  ]
  found = [jax.tree.map(lambda array, at=at: array[at], drawn) for at in starts]
  can_search = log_density is not None and _keeps_function(task, drawn)
  if can_search:
    found = [
      programs.run(_ascend, [predictors[name] for name in pair], prompt, task, least)
      for pair, prompt in zip(pairs, found, strict=True)
    ]
  rows = Rows[TellingPair]()
  for (first, second), prompt in zip(pairs, found, strict=True):
    of_first, of_second = _predict(
      programs, [predictors[first], predictors[second]], prompt
    )
    on_task, on_telling = (
      float(np.sqrt(np.mean(np.square(difference))))
      for difference in (predicted[first] - predicted[second], of_first - of_second)
    )
    rows.append(TellingPair(first, second, on_task, on_telling))
  found = [dataclasses.replace(prompt, latents=None) for prompt in found]
  return TellingPrompts(rows, found, can_search)


def elimination(
  subject: Predictor,
  task: Task,
  candidates: Mapping[str, Predictor] | None = None,
  num_prompts: int = 16384,
  num_telling: int = _NUM_TELLING,
  seed: int = 0,
) -> Elimination:
  """Says which of several algorithms a model may follow, and which it does not follow.

  A candidate is left out if another one is nearer to the model, on prompts of the task
  or on the telling prompts of the two (`telling_prompts`). Which one is nearer is
  tested by the paired difference of (f − g)² over prompts, by Student's t and with
  Holm's correction over all pairs, both kinds of prompts and both signs.

  Differences on 32 or 64 telling prompts have few draws for Student's t. If they are
  symmetric, as those of a model midway between two candidates, a test at 2.5 % errs in
  1.8 and 2.0 % of draws. If they are skewed, it errs more often: in 6.4 and 5.0 %
  towards the long tail of an exponential distribution. A permutation test that flips
  signs would err in 2.5 % of the first, and as often of the second.

  - Quantity: E (f − g)² / E Var(f | x_q) on each kind of prompts, and the candidates to
    which no other one is significantly nearer.
  - Null: no candidate for a model that ignores its context, or the labels of its
    context. A model that follows none of the candidates may still have one that is
    nearest; its share says how near.
  - Counterfactual: another context of the same query, `task.redraw(keep='query')`.
  - Denominator: the variation over contexts. On telling prompts it is half of the mean
    square of f − f', where f' is the prediction with another context of the task.

  Args:
    subject: A model or any other function of prompts.
    task: A task whose labels are numbers, with the squared error.
    candidates: Two or more algorithms by name, whose parameters are known. None means
      the step of gradient descent and the ridge regression that `sampled_algorithm`
      fits to the model on prompts of the task, and all baselines of the task that are
      not slow. The fits are not repeated on telling prompts.
    num_prompts: The number of prompts of the task; at least what `sampled_algorithm`
      needs.
    num_telling: The number of telling prompts for each pair, at least 32.
    seed: The seed of the prompts.

  Returns:
    What is known of each candidate.

  Raises:
    UserError: If the task is not covered, or if there are too few candidates or
      prompts.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=8, noise_std=10.0
    ... )
    >>> known = task.baselines()
    >>> candidates = {name: known[name] for name in ('gd', 'ridge', 'averaging')}
    >>> found = zoo.probing.elimination(
    ...   known['ridge'], task, candidates, num_prompts=2048
    ... )
    >>> print(found)
    candidate            on_task     on_telling  nearer_on_task  nearer_on_telling
    ridge          0.000 ± 0.000  0.000 ± 0.000
    gd         0.00211 ± 0.00041  0.035 ± 0.004           ridge              ridge
    averaging   164.306 ± 16.352              -           ridge
    remaining: ridge
  """
  require_task(task)
  check_numbers(task)
  least = least_prompts(task.num_features)
  num_prompts = check_count('num_prompts', num_prompts, minimum=least)
  num_telling = check_count('num_telling', num_telling, minimum=_LEAST_TELLING)
  if candidates is None:
    candidates = _known(sampled_algorithm(subject, task, num_prompts, seed), task)
  if len(candidates) < 2:
    raise UserError(
      f'candidates has {len(candidates)} entries; an elimination needs two or more'
    )
  pairs = [*itertools.combinations(candidates, 2)]
  return _elimination(subject, task, candidates, pairs, num_prompts, num_telling, seed)


def _elimination(
  subject: Predictor,
  task: Task,
  candidates: Mapping[str, Predictor],
  pairs: Sequence[tuple[str, str]],
  num_prompts: int,
  num_telling: int,
  seed: int,
) -> Elimination:
  """Returns what `elimination` does, by comparing some pairs of candidates."""
  programs = Programs()
  prompts = [*sample_batches(task, seed, num_prompts, BATCH_SIZE, programs)]
  on_task = _compare(programs, subject, task, candidates, prompts, seed)
  if on_task is None:
    reason = 'the model ignores its context, or the labels of its context'
    return Elimination(Rows[Standing](empty=reason), None)
  near = [
    pair
    for pair in pairs
    if all(on_task.unexplained(name).mean <= _MOST_UNEXPLAINED for name in pair)
  ]
  telling, on_telling = None, []
  if near:
    telling = _telling_prompts(programs, task, candidates, near, num_telling, seed)
    for row, prompt in zip(telling.rows, telling.prompts, strict=True):
      pair = {name: candidates[name] for name in (row.first, row.second)}
      on_telling.append(_compare(programs, subject, task, pair, [prompt], seed))
  nearer_on_task, nearer_on_telling = _nearer(
    [
      _p_values(pairs, [on_task] * len(pairs)),
      _p_values(near, on_telling),
    ]
  )
  rows = []
  for name in candidates:
    shares = [found for found in on_telling if found and name in found.gaps]
    rows.append(
      Standing(
        name,
        on_task.unexplained(name),
        _pooled(name, shares) if shares else None,
        _nearest(nearer_on_task.get(name, []), on_task),
        _nearest(nearer_on_telling.get(name, []), on_task),
      )
    )
  return Elimination(Rows(sorted(rows, key=lambda row: row.on_task.mean)), telling)


def standing_of_descent(
  subject: Predictor, task: Task, fitted: SampledAlgorithm, seed: int
) -> Standing | None:
  """Returns what prompts say about the fitted step of gradient descent.

  Its rivals are the fitted ridge regression and the baselines of the task that are no
  step of gradient descent. None for a model that ignores its context or its labels.
  """
  candidates = {
    name: candidate
    for name, candidate in _known(fitted, task).items()
    if name == GD or not is_a_step(name)
  }
  pairs = [(GD, name) for name in candidates if name != GD]
  found = _elimination(
    subject, task, candidates, pairs, fitted.num_prompts, _NUM_TELLING, seed
  )
  return next((row for row in found.rows if row.candidate == GD), None)


def _known(fitted: SampledAlgorithm, task: Task) -> dict[str, Predictor]:
  """Returns the fitted step and ridge regression, and the baselines of a task."""
  step, ridge = fitted.nearest_gd, fitted.nearest_ridge
  d = task.num_features
  known: dict[str, Predictor] = {
    GD: GDBeta(step.start, float(step.parameter) * np.eye(d)),
    f'ridge regression with λ = {ridge.parameter:.3g}': Ridge(
      float(ridge.parameter), ridge.start
    ),
  }
  return known | {
    name: baseline
    for name, baseline in distinct(task.baselines()).items()
    if isinstance(baseline, Baseline) and not baseline.is_slow
  }


def _predict(
  programs: Programs, predictors: Sequence[Predictor], prompt: Prompt
) -> list[Float[np.ndarray, ' b']]:
  """Returns the predictions of several algorithms for the queries, in float64."""
  return [
    np.asarray(programs.run(at_query, [predictor], prompt)[0], np.float64)
    for predictor in predictors
  ]


def _log_density(task: Task, prompt: Prompt) -> Float[np.ndarray, ' b'] | None:
  """Returns the log density of the features of prompts; None if it is not known."""
  try:
    return np.asarray(jax.vmap(task.log_density)(prompt.features), np.float64)
  except UserError:
    return None


def _keeps_function(task: Task, prompt: Prompt) -> bool:
  """Returns whether the targets are those of the function at any features.

  Prompts with other features then have targets that follow from the same function.
  """
  if not isinstance(task, FunctionClass) or not task.stationary:
    return False
  targets = np.asarray(jax.vmap(task.evaluate)(prompt.latents, prompt.features))
  return np.allclose(targets[:, -1], prompt.y_query, rtol=1e-4, atol=1e-4)


def _chosen(
  difference: Float[np.ndarray, ' p'], allowed: Bool[np.ndarray, ' p'], count: int
) -> Int[np.ndarray, ' n']:
  """Returns which prompts have the largest differences, among those allowed."""
  return np.argsort(np.where(allowed, difference, -1.0))[-count:]


def _ascend(
  pair: Sequence[Predictor], prompt: Prompt, task: Any, least: float | Array
) -> Prompt:
  """Returns prompts whose features were moved until two algorithms differ most.

  Each prompt climbs log (g − h)² by steps of one length. Below the least log density a
  penalty pulls it back. The best features that are allowed are kept.
  """
  start = prompt.features
  noise = prompt.y - (
    prompt.y if prompt.context_targets is None else prompt.context_targets
  )

  def prompts_at(x: Float[Array, 'b t d']) -> Prompt:
    targets = jax.vmap(task.evaluate)(prompt.latents, x)
    shown, asked = targets[:, :-1], targets[:, -1]
    return Prompt(x[:, :-1], shown + noise, x[:, -1], asked, context_targets=shown)

  def gains(x: Float[Array, 'b t d']) -> tuple[Array, tuple[Array, Array]]:
    first, second = (predictor(prompts_at(x)) for predictor in pair)
    gain = jnp.log(jnp.square(first - second) + _TINY)
    density = jax.vmap(task.log_density)(x)
    penalized = gain - _PENALTY * jax.nn.relu(least - density)
    return jnp.sum(penalized), (gain, density)

  climb = jax.grad(gains, has_aux=True)
  length = _STEP * jnp.std(start) * math.sqrt(start[0].size)

  def step(state: Any, _: None) -> tuple[Any, None]:
    x, best, best_gain = state
    slope, (gain, density) = climb(x)
    is_better = (density >= least) & (gain > best_gain)
    best = jnp.where(is_better[:, None, None], x, best)
    best_gain = jnp.where(is_better, gain, best_gain)
    # Without a slope, as where a baseline chooses a neighbour, the features stay.
    slope = jnp.nan_to_num(slope)
    size = jnp.sqrt(jnp.sum(jnp.square(slope), axis=(1, 2), keepdims=True))
    x = x + length * slope / jnp.maximum(size, _TINY)
    return (x, best, best_gain), None

  state = start, start, jnp.full(len(start), -jnp.inf)
  (_, best, _), _ = jax.lax.scan(step, state, length=_NUM_STEPS)
  return prompts_at(best)


def _compare(
  programs: Programs,
  subject: Predictor,
  task: Task,
  candidates: Mapping[str, Predictor],
  prompts: Sequence[Prompt],
  seed: int,
) -> Candidates | None:
  """Returns the squared differences of candidates from a model, on given prompts.

  None for a model that ignores its context, or the labels of its context.
  """
  own, variation, is_measured = predict_with_variation(
    programs, subject, task, prompts, seed
  )
  if not is_measured:
    return None
  gaps = {}
  for name, candidate in candidates.items():
    theirs = gather(
      lambda prompt, it=candidate: programs.run(at_query, [it], prompt)[0], prompts
    )
    gaps[name] = np.square(own - theirs.astype(np.float64))
  return Candidates(gaps, variation)


def _p_values(
  pairs: Sequence[tuple[str, str]], found: Sequence[Candidates | None]
) -> dict[tuple[str, str], float]:
  """Returns the p values that the second of two candidates is no nearer than the first.

  Each pair is compared on its own prompts, which `found` has, in both directions.
  """
  return {
    (one, other): p_value_above_zero(of.farther(one, other), SHARE_ROUNDING)
    for pair, of in zip(pairs, found, strict=True)
    if of is not None
    for one, other in (pair, pair[::-1])
  }


def _nearer(
  p_values: Sequence[dict[tuple[str, str], float]],
) -> list[dict[str, list[str]]]:
  """Returns which candidates are nearer than each one, for each kind of prompts.

  Holm's correction is over all pairs, both directions and both kinds of prompts.
  """
  adjusted = iter(holm([p for of_kind in p_values for p in of_kind.values()]))
  nearer: list[dict[str, list[str]]] = []
  for of_kind in p_values:
    nearer.append({})
    for one, other in of_kind:
      if next(adjusted) < LEVEL:
        nearer[-1].setdefault(one, []).append(other)
  return nearer


def _nearest(names: Sequence[str], on_task: Candidates) -> str:
  """Returns the candidate that leaves least of the variation; empty without names."""
  return min(names, key=lambda name: on_task.unexplained(name).mean, default='')


def _pooled(name: str, found: Sequence[Candidates]) -> Estimate:
  """Returns the share that a candidate leaves, over the prompts of all its pairs."""
  gaps = np.concatenate([of.gaps[name] for of in found])
  return ratio(gaps, np.concatenate([of.variation for of in found]))
