"""Which strategy a model follows: the mixture of known predictors nearest to it.

A prediction is a mean, or the probabilities of classes. With predictions f of a model
and g_j of the predictors, the nearest mixture g = Σ_j w_j g_j, w_j ≥ 0, Σ_j w_j = 1,
has the least E (f − g)² of numbers, or the least E KL(f ‖ g) of classes, in nats.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count
from zoo.core.losses import ROUNDING
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.curves import check_ways
from zoo.measure.predict import (
  Programs,
  at_query,
  everywhere,
  gather,
  one_pass,
  sample_batches,
)
from zoo.measure.rows import Rows, Tabular
from zoo.measure.statistics import Estimate, estimate, ratio, simplex_stderrs
from zoo.probing.context import distances, effects_by_length
from zoo.probing.nearest_strategies.simplex import (
  groups_within,
  nearest,
  nearest_by_likelihood,
  rounding,
  softmax,
)
from zoo.tasks.base import is_squared

_BATCH_SIZE = 512
# Of one other context for the queries of prompts, at all numbers of examples together.
_MOST_PREDICTIONS = 8192
_LEAST_PROMPTS = 8  # of a fit, for standard errors of its weights
_LEAST_PROBABILITY = 1e-12  # of predictors, so that no distance is infinite


@dataclasses.dataclass(frozen=True)
class NearestMixture:
  """The nearest mixture: fitted on half of the prompts, measured on the other half.

  Predictors that cannot be told apart share a weight and a name, as `ols, bayes`: their
  distance is rounding, or below half of the 95 % interval of that of the fit.
  """

  weights: dict[str, float]  # they add up to 1
  # Of the weights, as if they might be negative: none is 0, not even at 0 and 1, where
  # predictions are known up to rounding alone. They are NaN for under 16 prompts, and
  # for a single weight, which is 1 whatever the model predicts.
  stderrs: dict[str, float]
  distance: Estimate  # E (f − g)² or E KL(f ‖ g)
  # `distance` divided by the effect of the context: E Var(f | x_q) or, of classes,
  # E KL(f ‖ E[f | x_q]). None for a model that ignores its context, and where the task
  # has no other contexts for a query after some of the numbers of examples.
  unexplained: Estimate | None


@dataclasses.dataclass(frozen=True)
class LikelihoodMixture:
  """The mixture whose weights depend on the prompt, w_j ∝ prior_j · likelihood_j^power.

  The likelihood is that of the labels of the examples before, each predicted from those
  before it; of numbers it is `exp(−Σ (y − g_j)²/2)`, and the power 1/σ² of a noise.
  Prior and power are fitted to one model, at all lengths at once.

  The form prior · likelihood^power is that of the posterior over predictors in Wurgaft
  et al. (arXiv 2506.17859), but it says something else. There the likelihood is that of
  the training data, so that the weights are the same for all prompts: the power belongs
  to the number N of training steps and grows as N^(1 − α), and the prior falls with the
  complexity of a predictor; α and two more constants are fitted to the models of all
  steps and task diversities together. Here the likelihood is that of the examples in
  the prompt, and the prior is free, so that it does not say how complex a predictor is.
  """

  prior: dict[str, float]  # they add up to 1
  power: float  # 0: the same weights for all prompts; 1: those of Bayes' rule
  distance: Estimate
  unexplained: Estimate | None
  by_length: tuple[Estimate | None, ...]  # `unexplained` after 0, 1, … examples


class StrategyRow(NamedTuple):
  """The weight of one predictor, or of some that are not told apart.

  Attributes:
    examples: After how many examples; None is over all numbers of examples.
    predictor: The name, or names.
    weight: In the nearest mixture.
    distance: Of the mixture, E (f − g)² or E KL(f ‖ g).
    unexplained: The distance as a share of the effect of the context.
  """

  examples: int | None
  predictor: str
  weight: Estimate
  distance: Estimate
  unexplained: Estimate | None


@dataclasses.dataclass(frozen=True)
class Strategies(NearestMixture, Tabular):
  """The nearest mixtures over all numbers of examples, and for each of them."""

  num_prompts: int  # one half for the fits, the other for the measurements
  by_length: tuple[NearestMixture, ...]  # after 0, 1, …, C examples
  by_prompt: LikelihoodMixture | None  # None where prompts show no labels

  @property
  def rows(self) -> Rows[StrategyRow]:
    """The weights over all numbers of examples, and after each of them."""
    mixtures = [(None, self), *enumerate(self.by_length)]
    return Rows(
      StrategyRow(
        examples,
        name,
        Estimate(weight, mixture.stderrs[name]),
        mixture.distance,
        mixture.unexplained,
      )
      for examples, mixture in mixtures
      for name, weight in mixture.weights.items()
    )


class _Samples(NamedTuple):
  """Predictions of p prompts after 0, …, C examples, with an axis k also of numbers."""

  own: Float[np.ndarray, 'p t k']
  others: Float[np.ndarray, 'm p t k']
  scores: Float[np.ndarray, 'm p t']  # log likelihoods of the examples before


class Known(NamedTuple):
  """What predictors predict on the prompts of a task, sampled once for many models.

  The axis t has predictions after `least`, …, C examples.
  """

  task: Task
  least: int
  names: list[str]  # m of them
  batches: list[Prompt]
  others: Float[np.ndarray, 'm p t k']
  scores: Float[np.ndarray, 'm p t']  # log likelihoods of the examples before
  losses: Float[np.ndarray, 'm p t']  # of the task
  programs: Programs


def strategies(
  model: Predictor,
  task: Task,
  predictors: Mapping[str, Predictor],
  num_prompts: int = 2048,
  seed: int = 0,
) -> Strategies:
  """The mixture of named predictors nearest to a model, on the prompts of a task.

  - Quantity: the weights w of the mixture g = Σ_j w_j g_j with the least E (f − g)² or,
    of classes, E KL(f ‖ g); and `unexplained`, this distance divided by the effect of
    the context, over prompts that the weights were not fitted to.
  - Null: `unexplained` is 1 or more for a model that does not use the labels of its
    context, and None for one that ignores its context. Weights have no null: the
    nearest mixture may be far away.
  - Counterfactual: other contexts of the same query, from prompts in which it recurs or
    from `task.redraw(keep='query')`.
  - Denominator: the effect of the context, E Var(f | x_q) or E KL(f ‖ E[f | x_q]).

  A predictor that has no `predictions` is called on each prefix of the prompts. Raises
  UserError without predictors, for a task of numbers without the squared error, and for
  predictions that contradict one another, are not finite or do not fit the task.
  """
  if not isinstance(predictors, Mapping):
    raise UserError(
      f'predictors is a {type(predictors).__name__}; it must be a dictionary of named '
      'predictors, such as task.baselines()'
    )
  known = sample_known(task, predictors, num_prompts, seed)
  fitted, measured, effect = _halves(model, known)
  mixture, by_prompt = _over_all(known, fitted, measured, effect, by_prompt=True)
  is_numbers = task.label_kind == 'numbers'
  by_length: list[NearestMixture] = []
  for t in range(task.context_length + 1):
    at = slice(t, t + 1)
    halves = _part(fitted, lengths=at), _part(measured, lengths=at)
    groups = _told_apart(halves[0], is_numbers)
    by_length.append(_fit(*halves, effect[:, at], groups, known.names, is_numbers))
  return Strategies(
    **vars(mixture),
    num_prompts=num_prompts,
    by_length=tuple(by_length),
    by_prompt=by_prompt,
  )


def nearest_mixture(
  model: Predictor, known: Known, by_prompt: bool = True
) -> tuple[NearestMixture, LikelihoodMixture | None]:
  """The mixtures of known predictors nearest to a model, over all lengths alone.

  Without `by_prompt` only the first, for which a quarter of the time is enough.
  """
  return _over_all(known, *_halves(model, known), by_prompt)


def check_mixture(task: Task, predictors: Mapping[str, Predictor]) -> None:
  """Raises UserError unless predictors of a task can be mixed."""
  if task.label_kind == 'numbers' and not is_squared(task):
    raise UserError(
      f'{type(task).__name__} has numbers and a loss of its own; mixtures are nearest '
      'by the squared error, or by probabilities of classes'
    )
  if not predictors:
    raise UserError('predictors is empty; a mixture needs at least one')


def sample_known(
  task: Task,
  predictors: Mapping[str, Predictor],
  num_prompts: int,
  seed: int,
  least: int = 0,
) -> Known:
  """The predictions of known predictors, for `nearest_mixture` of any models.

  They are those after `least`, …, C examples.
  """
  check_mixture(task, predictors)
  num_prompts = check_count('num_prompts', num_prompts, minimum=4)
  programs = Programs()
  check_ways([*predictors.values()], task, num_prompts, seed, programs)
  batches = [*sample_batches(task, seed, num_prompts, _BATCH_SIZE, programs)]
  others = np.stack(
    [
      _sampled(name, predictor, task, batches, programs, 0)
      for name, predictor in predictors.items()
    ]
  )
  seen, targets = gather(lambda prompt: (prompt.y, prompt.targets), batches)
  if task.label_kind == 'signs':
    seen = (1 + np.asarray(seen, np.float64)) / 2
  seen, targets = _as_means(seen, task.label_kind), _as_means(targets, task.label_kind)
  if task.label_kind == 'numbers':
    losses = np.square(targets - others)[..., 0]
    scores = -np.square(seen - others[:, :, :-1])[..., 0] / 2
  else:
    losses = -np.sum(targets * np.log(others), axis=-1)
    scores = np.sum(seen * np.log(others[:, :, :-1]), axis=-1)
  before = np.pad(np.cumsum(scores, axis=-1), [(0, 0), (0, 0), (1, 0)])
  others, before, losses = (
    others[:, :, least:],
    before[..., least:],
    losses[..., least:],
  )
  return Known(task, least, [*predictors], batches, others, before, losses, programs)


def same_on(known: Known) -> list[list[str]]:
  """The names of predictors that predict the same on all prompts, but for rounding."""
  is_numbers = known.task.label_kind == 'numbers'
  groups = groups_within(0.0, known.others, is_numbers)
  return [[known.names[j] for j in group] for group in groups if len(group) > 1]


def _halves(
  model: Predictor, known: Known
) -> tuple[_Samples, _Samples, Float[np.ndarray, 'q t']]:
  """The prompts for the fits, those for the measurements, and effects of contexts.

  The effects are those of the first of the prompts for the measurements.
  """
  num_prompts = known.others.shape[1]
  check_ways([model], known.task, num_prompts, 0, known.programs)
  own = _sampled(
    'the model', model, known.task, known.batches, known.programs, known.least
  )
  samples = _Samples(own, known.others, known.scores)
  fitted = _part(samples, slice(num_prompts // 2))
  measured = _part(samples, slice(num_prompts // 2, None))
  return fitted, measured, _effects(model, known, measured)


def _effects(
  model: Predictor, known: Known, measured: _Samples
) -> Float[np.ndarray, 'q t']:
  """The effects of contexts in prompts for the measurements, as many as affordable."""
  task = known.task.held_out()
  half = known.others.shape[1] // 2
  most = max(_MOST_PREDICTIONS // measured.own.shape[1], _LEAST_PROMPTS)
  prompt = jax.tree.map(
    lambda *parts: jnp.concatenate(parts)[half:][:most], *known.batches
  )
  own = measured.own[:most]

  def predict(prompt: Prompt, t: int) -> Float[np.ndarray, 'p k']:
    if one_pass(model) is not None:
      values = known.programs.run(_everywhere, [model], prompt)[:, t]
    else:
      (values,) = known.programs.run(at_query, [model], prompt.prefix(t))
    return _means(np.asarray(values)[:, None], task.label_kind)[:, 0]

  return effects_by_length(task, prompt, own, predict, known.least, 0)


def _over_all(
  known: Known,
  fitted: _Samples,
  measured: _Samples,
  effect: Float[np.ndarray, 'q t'],
  by_prompt: bool,
) -> tuple[NearestMixture, LikelihoodMixture | None]:
  is_numbers = known.task.label_kind == 'numbers'
  groups = _told_apart(fitted, is_numbers)
  arguments = fitted, measured, effect, groups, known.names, is_numbers
  mixture = _fit(*arguments)
  if not (by_prompt and known.task.shows_labels):
    return mixture, None
  return mixture, _fit_by_prompt(*arguments)


def _sampled(
  name: str,
  predictor: Predictor,
  task: Task,
  batches: Sequence[Prompt],
  programs: Programs,
  least: int,
) -> Float[np.ndarray, 'p t k']:
  """What a predictor predicts: means, or probabilities; raises UserError."""
  values = gather(
    lambda prompt: _after_each(predictor, prompt, programs, least), batches
  )
  classes = (task.num_outputs,) if task.label_kind == 'classes' else ()
  num_prompts = sum(len(prompt.x) for prompt in batches)
  shape = num_prompts, task.context_length + 1 - least, *classes
  if values.shape != shape:
    raise UserError(f'{name} predicts {values.shape}; it must be {shape}')
  if not np.isfinite(values).all():
    raise UserError(f'{name} predicts numbers that are not finite on these prompts')
  return _means(values, task.label_kind)


def _after_each(
  predictor: Predictor, prompt: Prompt, programs: Programs, least: int
) -> Float[Array, 'b t *k'] | Float[np.ndarray, 'b t *k']:
  """The predictions after `least`, …, C examples."""
  if one_pass(predictor) is not None:
    return programs.run(_everywhere, [predictor], prompt)[:, least:]
  lengths = range(least, prompt.x.shape[1] + 1)
  prefixes = [programs.run(at_query, [predictor], prompt.prefix(k)) for k in lengths]
  return np.stack([np.asarray(values) for (values,) in prefixes], axis=1)


def _everywhere(
  predictors: Sequence[Predictor], prompt: Prompt
) -> Float[Array, 'b t *k']:
  return everywhere(predictors[0], prompt)


def _means(
  predictions: Float[np.ndarray, 'p t *k'], label_kind: str
) -> Float[np.ndarray, 'p t k']:
  """Numbers as they are, and logits as probabilities."""
  values = np.asarray(predictions, np.float64)
  if label_kind == 'numbers':
    return values[..., None]
  if label_kind == 'signs':  # log p/(1 − p) of the label +1 against −1
    values = np.stack([values, np.zeros_like(values)], axis=-1)
  values = np.exp(values - values.max(axis=-1, keepdims=True))
  values = np.maximum(values / values.sum(axis=-1, keepdims=True), _LEAST_PROBABILITY)
  return values / values.sum(axis=-1, keepdims=True)


def _as_means(
  labels: Float[np.ndarray, 'p t *k'], label_kind: str
) -> Float[np.ndarray, 'p t k']:
  """Targets as numbers, or as probabilities of all classes, two for signs."""
  values = np.asarray(labels, np.float64)
  if label_kind == 'numbers':
    return values[..., None]
  if label_kind == 'signs':
    return np.stack([values, 1 - values], axis=-1)
  return values


def _fit(
  fitted: _Samples,
  measured: _Samples,
  effect: Float[np.ndarray, 'q t'],
  groups: Sequence[Sequence[int]],
  names: Sequence[str],
  is_numbers: bool,
) -> NearestMixture:
  """The nearest mixture of the first of each group."""
  first = [group[0] for group in groups]
  weights = nearest(fitted.own, fitted.others[first], is_numbers)
  mixed = np.tensordot(weights, measured.others[first], 1)
  gaps = distances(measured.own, mixed, is_numbers)
  joined = _joined(groups, names)
  return NearestMixture(
    dict(zip(joined, weights.tolist(), strict=True)),
    dict(zip(joined, _stderrs(fitted, first, weights, is_numbers), strict=True)),
    estimate(gaps.mean(axis=1)),
    _share(gaps, effect, measured.own, is_numbers),
  )


def _stderrs(
  fitted: _Samples,
  first: Sequence[int],
  weights: Float[np.ndarray, ' m'],
  is_numbers: bool,
) -> list[float]:
  """Standard errors of the weights of some predictors, over the prompts of the fit."""
  own, others = fitted.own, fitted.others[first]
  if len(own) < _LEAST_PROMPTS or len(first) == 1:
    return [math.nan] * len(first)
  mixed = np.tensordot(weights, others, 1)
  # Of the distances: their slopes at a number, or a probability, and what bends them.
  slopes, bends = 2 * (mixed - own), np.full_like(own, 2.0)
  if not is_numbers:
    slopes, bends = -own / mixed, own / mixed**2
  num_lengths = own.shape[1]
  gradients = np.einsum('mptk,ptk->pm', others, slopes) / num_lengths
  hessian = np.einsum('mptk,ptk,nptk->mn', others, bends, others, optimize=True)
  hessian /= len(own) * num_lengths
  known_to = rounding(is_numbers, own)
  return simplex_stderrs(weights, gradients, hessian, known_to).tolist()


def _fit_by_prompt(
  fitted: _Samples,
  measured: _Samples,
  effect: Float[np.ndarray, 'q t'],
  groups: Sequence[Sequence[int]],
  names: Sequence[str],
  is_numbers: bool,
) -> LikelihoodMixture:
  """The nearest mixture by likelihoods, of the first of each group."""
  first = [group[0] for group in groups]
  prior, power = nearest_by_likelihood(
    fitted.own, fitted.others[first], fitted.scores[first], is_numbers
  )
  with np.errstate(divide='ignore'):  # a prior of 0
    logits = np.log(prior)[:, None, None] + power * measured.scores[first]
  weights = softmax(logits)
  mixed = np.einsum('mpt,mptk->ptk', weights, measured.others[first])
  gaps = distances(measured.own, mixed, is_numbers)
  lengths = [slice(t, t + 1) for t in range(effect.shape[1])]
  return LikelihoodMixture(
    dict(zip(_joined(groups, names), prior.tolist(), strict=True)),
    power,
    estimate(gaps.mean(axis=1)),
    _share(gaps, effect, measured.own, is_numbers),
    tuple(
      _share(gaps[:, t], effect[:, t], measured.own[:, t], is_numbers) for t in lengths
    ),
  )


def _told_apart(fitted: _Samples, is_numbers: bool) -> list[list[int]]:
  """Groups of predictors whose distance is rounding, or within the error of the fit.

  They are chosen on the prompts of the fit, and not on those that the fit is judged on.
  """
  groups = groups_within(0.0, fitted.others, is_numbers)
  first = [group[0] for group in groups]
  weights = nearest(fitted.own, fitted.others[first], is_numbers)
  mixed = np.tensordot(weights, fitted.others[first], 1)
  distance = estimate(distances(fitted.own, mixed, is_numbers).mean(axis=1))
  return groups_within(distance.half, fitted.others, is_numbers)


def _joined(groups: Sequence[Sequence[int]], names: Sequence[str]) -> list[str]:
  """The names of groups."""
  return [', '.join(names[j] for j in group) for group in groups]


def _part(
  samples: _Samples, prompts: slice = slice(None), lengths: slice = slice(None)
) -> _Samples:
  """The predictions of some prompts after some numbers of examples."""
  own, others, scores = samples
  return _Samples(
    own[prompts, lengths], others[:, prompts, lengths], scores[:, prompts, lengths]
  )


def _share(
  gaps: Float[np.ndarray, 'p t'],
  effect: Float[np.ndarray, 'q t'],
  own: Float[np.ndarray, 'p t k'],
  is_numbers: bool,
) -> Estimate | None:
  """The ratio of two means over the first q prompts; None if the whole is rounding."""
  part, whole = gaps[: len(effect)].mean(axis=1), effect.mean(axis=1)
  scale = float(np.mean(own**2)) if is_numbers else 1.0
  if not float(whole.mean()) > ROUNDING * scale:  # also where it is not known
    return None
  return ratio(part, whole)
