"""Which strategy a model follows: the mixture of known predictors nearest to it.

A prediction is a mean, or the probabilities of classes. For predictions f of a model
and g_j of the known predictors, the nearest mixture g = Σ_j w_j g_j, with w_j ≥ 0 and
Σ_j w_j = 1, has the least E (f − g)² for numbers, or the least E KL(f ‖ g), in nats,
for classes.
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
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.curve import check_ways
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  Programs,
  at_query,
  everywhere,
  gather,
  one_pass,
  sample_batches,
)
from zoo.measure.ratio import ratio
from zoo.measure.table import Rows, WithRows
from zoo.probing.checks import check_finite
from zoo.probing.nearest.context import PER_NUMBER, distances, variation_by_length
from zoo.probing.nearest.simplex import (
  groups_within,
  likelihood_stderrs,
  nearest,
  nearest_by_likelihood,
  rounding,
  simplex_stderrs,
  softmax,
)
from zoo.tasks.base import is_squared

_BATCH_SIZE = 512
# The largest number of predictions for one other context of the queries, over all
# numbers of examples.
_MOST_PREDICTIONS = 8192
_LEAST_IN_ALL = 64  # With fewer, mean ± half contains the truth in under 93 %.
_LEAST_PROMPTS = 8  # A fit to fewer prompts has no standard errors of its weights.
_LEAST_PROBABILITY = 1e-12  # With this least probability, no distance is infinite.


@dataclasses.dataclass(frozen=True)
class NearestMixture:
  """The mixture of predictors nearest to a model.

  It is fitted on half of the prompts, and measured on the other half. Predictors that
  are nearer to each other than the fit is known share a weight and a name, such as
  `ols, bayes`. These are predictors whose distance is rounding, or below the number
  after ± of the distance of the fit. If the model is far from all of them, this number
  is large, and predictors share a weight that other models would tell apart.

  Attributes:
    weights: The weights by name; they sum to 1.
    stderrs: The standard errors of the weights, computed as if weights could be
      negative. None of them is 0, not even at the weights 0 and 1, because predictions
      are known only up to rounding. They are NaN for under 16 prompts, and for a single
      weight, which is 1 for any model.
    distance: E (f − g)² for numbers, or E KL(f ‖ g) for classes.
    unexplained: The distance divided by the variation over contexts, which is E Var(f |
      x_q) for numbers and E KL(f ‖ E[f | x_q]) for classes. Both are means over those
      prompts for which other contexts were drawn, which may be fewer than those of
      `distance`. None for a model that ignores its context, and if the task has no
      other contexts for a query after some of the numbers of examples.
  """

  weights: dict[str, float]
  stderrs: dict[str, float]
  distance: Estimate
  unexplained: Estimate | None


@dataclasses.dataclass(frozen=True)
class LikelihoodMixture:
  """The mixture whose weights depend on the prompt, w_j ∝ prior_j · likelihood_j^power.

  The likelihood is that of the labels of the examples so far, each predicted from the
  examples before it. For numbers it is `exp(−Σ (y − g_j)²/2)`, so that the power is
  1/σ² for a noise of variance σ². Prior and power are fitted to one model, at all
  numbers of examples together.

  The form prior · likelihood^power is that of the posterior over predictors in Wurgaft
  et al. (arXiv 2506.17859), but its meaning differs. In that paper the likelihood is
  that of the training data, so that the weights are the same for all prompts; the power
  depends on the number N of training steps and grows as N^(1 − α); the prior falls with
  the complexity of a predictor; and α and two more constants are fitted to the models
  of all steps and task diversities together. Here the likelihood is that of the
  examples in the prompt, and the prior is free, so that it does not say how complex a
  predictor is.

  Attributes:
    prior: The prior by name; it sums to 1.
    stderrs: The standard errors of the prior, as in `NearestMixture`.
    power: The power. With 0 the weights are the same for all prompts, with 1 they are
      those of Bayes' rule.
    power_stderr: The standard error of the power, as if it could be negative. NaN for
      under 16 prompts, and for a mixture that does not depend on the power.
    distance: As in `NearestMixture`.
    unexplained: As in `NearestMixture`.
    by_length: `unexplained` after 0, 1, … examples.
  """

  prior: dict[str, float]
  stderrs: dict[str, float]
  power: float
  power_stderr: float
  distance: Estimate
  unexplained: Estimate | None
  by_length: tuple[Estimate | None, ...]


class StrategyRow(NamedTuple):
  """The weight of one predictor, or of several that cannot be distinguished.

  Attributes:
    examples: The number of examples. None means all numbers of examples together.
    predictor: The name or names.
    weight: The weight in the nearest mixture.
    distance: The distance of the mixture, E (f − g)² or E KL(f ‖ g).
    unexplained: The distance as a share of the variation over contexts.
  """

  examples: int | None
  predictor: str
  weight: Estimate
  distance: Estimate
  unexplained: Estimate | None


@dataclasses.dataclass(frozen=True)
class Strategies(NearestMixture, WithRows):
  """The mixtures nearest to a model, over all numbers of examples and for each of them.

  The weights, standard errors and distances are those of the mixture over all numbers
  of examples (see `NearestMixture`). It prints as a table; `to_frame` and `to_csv` give
  its rows to pandas and to a file.

  Attributes:
    num_prompts: The number of prompts, half of which are for the fits and the other
      half for the measurements.
    by_length: The mixtures after 0, 1, …, C examples.
    by_prompt: The mixture whose weights depend on the prompt. None if prompts show no
      labels.
  """

  num_prompts: int
  by_length: tuple[NearestMixture, ...]
  by_prompt: LikelihoodMixture | None

  @property
  def footer(self) -> str:
    """What ± is in the printed table."""
    said = f'± t·s.e. over {self.num_prompts // 2} prompts'
    share = self.unexplained
    return said if share is None else f'{said}; unexplained over {share.num}'

  @property
  def rows(self) -> Rows[StrategyRow]:
    """The weights over all numbers of examples, and after each of them."""
    mixtures = [(None, self), *enumerate(self.by_length)]
    return Rows(
      StrategyRow(
        examples,
        name,
        Estimate(weight, mixture.stderrs[name], self.num_prompts // 2),
        mixture.distance,
        mixture.unexplained,
      )
      for examples, mixture in mixtures
      for name, weight in mixture.weights.items()
    )


class _Samples(NamedTuple):
  """Predictions for p prompts after 0, …, C examples.

  The last axis k has the length 1 for numbers. The log likelihoods are those of the
  examples before.
  """

  own: Float[np.ndarray, 'p t k']
  others: Float[np.ndarray, 'm p t k']
  log_likelihoods: Float[np.ndarray, 'm p t']


class KnownPredictors(NamedTuple):
  """The predictions of known predictors on the prompts of a task, sampled once.

  They serve any number of models. The axis t has predictions after `least`, …, C
  examples.

  Attributes:
    task: The task.
    seed: The seed of the prompts, and of the contexts of `nearest_mixture`.
    least: The first number of examples.
    names: The names of the m predictors.
    batches: The prompts.
    others: The predictions of the predictors.
    log_likelihoods: Those of the examples before.
    losses: The losses of the task.
    programs: Compiled programs.
  """

  task: Task
  seed: int
  least: int
  names: list[str]
  batches: list[Prompt]
  others: Float[np.ndarray, 'm p t k']
  log_likelihoods: Float[np.ndarray, 'm p t']
  losses: Float[np.ndarray, 'm p t']
  programs: Programs


def strategies(
  model: Predictor,
  task: Task,
  predictors: Mapping[str, Predictor],
  num_prompts: int = 2048,
  seed: int = 0,
) -> Strategies:
  """Finds the mixture of named predictors nearest to a model, on the prompts of a task.

  The weights say which mixture is nearest, and `unexplained` says how near it is. If it
  is near, the weights say which strategy the model follows: with the Bayes predictors
  of the training tasks and of all tasks, for example, whether it has memorised the
  training tasks or generalises. There is one mixture for all numbers of examples, one
  for each number, and one whose weights depend on the prompt.

  - Quantity: the weights w of the mixture g = Σ_j w_j g_j with the least E (f − g)² or,
    of classes, E KL(f ‖ g); and `unexplained`, this distance divided by the variation
    over contexts, over prompts that the weights were not fitted to.
  - Null: `unexplained` is None for a model that ignores its context. A model that
    ignores the labels of its context may have any value from 0 on. Weights have no
    null: the nearest mixture may be far away.
  - Counterfactual: other contexts of the same query, from prompts in which it recurs or
    from `task.redraw(keep='query')`.
  - Denominator: the variation over contexts, E Var(f | x_q) or E KL(f ‖ E[f | x_q]).

  Args:
    model: A model or any other function of prompts.
    task: A task of numbers with the squared error, or a task of classes or signs.
    predictors: The known predictors by name, such as `task.baselines()`. A predictor
      without a method `predictions` is called on each prefix of the prompts.
    num_prompts: The number of prompts, at least 64 and at least 32 for each predictor.
      Half of them are for the fits. For three models near known mixtures, two of
      numbers and one of classes, `unexplained` ± half contains the truth in 0.91 to
      0.92 of draws of 16 and 32 prompts, and in 0.93 to 0.96 from 64 on. Other models
      may have heavier tails (see `sampled_algorithm`), so that ± is not called a 95 %
      interval.
    seed: The seed of the prompts.

  Returns:
    The nearest mixtures, with fixed weights and with weights that depend on the prompt.

  Raises:
    UserError: If the task or the predictors are not covered, if their predictions are
      wrong, or if there are too few prompts.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=2)
    >>> predictors = {
    ...   'gd': zoo.estimators.gradient_descent(task),
    ...   'zero': lambda prompt: jnp.zeros(len(prompt.x)),
    ... }
    >>> half = lambda prompt: 0.5 * predictors['gd'](prompt)
    >>> found = zoo.probing.strategies(half, task, predictors, num_prompts=64)
    >>> {name: round(weight, 3) for name, weight in found.weights.items()}
    {'gd': 0.5, 'zero': 0.5}

  References:
    Wurgaft et al., arXiv 2506.17859; `LikelihoodMixture` says how its mixture differs.
  """
  require_task(task)
  if not isinstance(predictors, Mapping):
    raise UserError(
      f'predictors is a {type(predictors).__name__}; it must be a dictionary of named '
      'predictors, such as task.baselines()'
    )
  least = max(_LEAST_IN_ALL, PER_NUMBER * len(predictors))
  check_count('num_prompts', num_prompts, minimum=least)
  known = sample_known(task, predictors, num_prompts, seed)
  fitted, measured, variation = _halves(model, known)
  mixture, by_prompt = _over_all(known, fitted, measured, variation, by_prompt=True)
  is_numbers = task.label_kind == 'numbers'
  by_length: list[NearestMixture] = []
  for t in range(task.context_length + 1):
    at = slice(t, t + 1)
    halves = _part(fitted, lengths=at), _part(measured, lengths=at)
    groups = _indistinguishable(halves[0], is_numbers)
    by_length.append(_fit(*halves, variation[:, at], groups, known.names, is_numbers))
  return Strategies(
    **vars(mixture),
    num_prompts=num_prompts,
    by_length=tuple(by_length),
    by_prompt=by_prompt,
  )


def nearest_mixture(
  model: Predictor, known: KnownPredictors, by_prompt: bool = True
) -> tuple[NearestMixture, LikelihoodMixture | None]:
  """Returns the mixtures of known predictors nearest to a model, over all lengths.

  Without `by_prompt` there is only the mixture of fixed weights, which takes a quarter
  of the time.
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
) -> KnownPredictors:
  """Returns the predictions of known predictors, for `nearest_mixture` of any models.

  The predictions are those after `least`, …, C examples.
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
    log_likelihoods = -np.square(seen - others[:, :, :-1])[..., 0] / 2
  else:
    losses = -np.sum(targets * np.log(others), axis=-1)
    log_likelihoods = np.sum(seen * np.log(others[:, :, :-1]), axis=-1)
  before = np.pad(np.cumsum(log_likelihoods, axis=-1), [(0, 0), (0, 0), (1, 0)])
  others, before, losses = (
    others[:, :, least:],
    before[..., least:],
    losses[..., least:],
  )
  return KnownPredictors(
    task, seed, least, [*predictors], batches, others, before, losses, programs
  )


def same_on(known: KnownPredictors) -> list[list[str]]:
  """Returns the names of predictors that predict the same, up to rounding."""
  is_numbers = known.task.label_kind == 'numbers'
  groups = groups_within(0.0, known.others, is_numbers)
  return [[known.names[j] for j in group] for group in groups if len(group) > 1]


def _halves(
  model: Predictor, known: KnownPredictors
) -> tuple[_Samples, _Samples, Float[np.ndarray, 'q t']]:
  """Returns the prompts for the fits and those for the measurements, and the variation.

  The variation over contexts is that at the first of the prompts for the measurements.
  """
  num_prompts = known.others.shape[1]
  check_ways([model], known.task, num_prompts, known.seed, known.programs)
  own = _sampled(
    'the model', model, known.task, known.batches, known.programs, known.least
  )
  samples = _Samples(own, known.others, known.log_likelihoods)
  fitted = _part(samples, slice(num_prompts // 2))
  measured = _part(samples, slice(num_prompts // 2, None))
  return fitted, measured, _variation(model, known, measured)


def _variation(
  model: Predictor, known: KnownPredictors, measured: _Samples
) -> Float[np.ndarray, 'q t']:
  """Returns the variation over contexts at prompts for the measurements.

  There are as many prompts as are affordable.
  """
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

  return variation_by_length(task, prompt, own, predict, known.least, known.seed)


def _over_all(
  known: KnownPredictors,
  fitted: _Samples,
  measured: _Samples,
  variation: Float[np.ndarray, 'q t'],
  by_prompt: bool,
) -> tuple[NearestMixture, LikelihoodMixture | None]:
  """Returns the mixtures over all numbers of examples together."""
  is_numbers = known.task.label_kind == 'numbers'
  groups = _indistinguishable(fitted, is_numbers)
  arguments = fitted, measured, variation, groups, known.names, is_numbers
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
  """Returns what a predictor predicts: means, or probabilities; raises UserError."""
  values = gather(
    lambda prompt: _after_each(predictor, prompt, programs, least), batches
  )
  classes = (task.num_outputs,) if task.label_kind == 'classes' else ()
  num_prompts = sum(len(prompt.x) for prompt in batches)
  shape = num_prompts, task.context_length + 1 - least, *classes
  if values.shape != shape:
    raise UserError(f'{name} predicts {values.shape}; it must be {shape}')
  check_finite(name, values)
  return _means(values, task.label_kind)


def _after_each(
  predictor: Predictor, prompt: Prompt, programs: Programs, least: int
) -> Float[Array, 'b t *k'] | Float[np.ndarray, 'b t *k']:
  """Returns the predictions after `least`, …, C examples."""
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
  """Returns numbers as they are, and logits as probabilities."""
  values = np.asarray(predictions, np.float64)
  if label_kind == 'numbers':
    return values[..., None]
  if label_kind == 'signs':  # The values are log p/(1 − p) of +1.
    values = np.stack([values, np.zeros_like(values)], axis=-1)
  values = np.exp(values - values.max(axis=-1, keepdims=True))
  values = np.maximum(values / values.sum(axis=-1, keepdims=True), _LEAST_PROBABILITY)
  return values / values.sum(axis=-1, keepdims=True)


def _as_means(
  labels: Float[np.ndarray, 'p t *k'], label_kind: str
) -> Float[np.ndarray, 'p t k']:
  """Returns targets as numbers, or as probabilities of all classes, two for signs."""
  values = np.asarray(labels, np.float64)
  if label_kind == 'numbers':
    return values[..., None]
  if label_kind == 'signs':
    return np.stack([values, 1 - values], axis=-1)
  return values


def _fit(
  fitted: _Samples,
  measured: _Samples,
  variation: Float[np.ndarray, 'q t'],
  groups: Sequence[Sequence[int]],
  names: Sequence[str],
  is_numbers: bool,
) -> NearestMixture:
  """Returns the nearest mixture of the first predictor of each group."""
  first = [group[0] for group in groups]
  weights = nearest(fitted.own, fitted.others[first], is_numbers)
  mixed = np.tensordot(weights, measured.others[first], 1)
  gaps = distances(measured.own, mixed, is_numbers)
  joined = _joined(groups, names)
  return NearestMixture(
    dict(zip(joined, weights.tolist(), strict=True)),
    dict(zip(joined, _stderrs(fitted, first, weights, is_numbers), strict=True)),
    estimate(gaps.mean(axis=1)),
    _share(gaps, variation, measured.own, is_numbers),
  )


def _stderrs(
  fitted: _Samples,
  first: Sequence[int],
  weights: Float[np.ndarray, ' m'],
  is_numbers: bool,
) -> list[float]:
  """Returns the standard errors of the weights, over the prompts of the fit."""
  own, others = fitted.own, fitted.others[first]
  if len(own) < _LEAST_PROMPTS or len(first) == 1:
    return [math.nan] * len(first)
  mixed = np.tensordot(weights, others, 1)
  # These are first and second derivatives of the distance in the mixture's predictions.
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
  variation: Float[np.ndarray, 'q t'],
  groups: Sequence[Sequence[int]],
  names: Sequence[str],
  is_numbers: bool,
) -> LikelihoodMixture:
  """Returns the nearest mixture by likelihoods, of the first member of each group."""
  first = [group[0] for group in groups]
  prior, power = nearest_by_likelihood(
    fitted.own, fitted.others[first], fitted.log_likelihoods[first], is_numbers
  )
  with np.errstate(divide='ignore'):  # A prior may be 0.
    logits = np.log(prior)[:, None, None] + power * measured.log_likelihoods[first]
  weights = softmax(logits)
  mixed = np.einsum('mpt,mptk->ptk', weights, measured.others[first])
  gaps = distances(measured.own, mixed, is_numbers)
  lengths = [slice(t, t + 1) for t in range(variation.shape[1])]
  stderrs, power_stderr = np.full(len(first), math.nan), math.nan
  if len(fitted.own) >= _LEAST_PROMPTS:
    stderrs, power_stderr = likelihood_stderrs(
      prior,
      power,
      fitted.own,
      fitted.others[first],
      fitted.log_likelihoods[first],
      is_numbers,
    )
  joined = _joined(groups, names)
  return LikelihoodMixture(
    dict(zip(joined, prior.tolist(), strict=True)),
    dict(zip(joined, stderrs.tolist(), strict=True)),
    power,
    power_stderr,
    estimate(gaps.mean(axis=1)),
    _share(gaps, variation, measured.own, is_numbers),
    tuple(
      _share(gaps[:, t], variation[:, t], measured.own[:, t], is_numbers)
      for t in lengths
    ),
  )


def _indistinguishable(fitted: _Samples, is_numbers: bool) -> list[list[int]]:
  """Returns groups of predictors whose distance from each other is small.

  The distance is rounding, or within the error of the fit. Groups are chosen on the
  prompts of the fit, not on those on which the fit is judged.
  """
  groups = groups_within(0.0, fitted.others, is_numbers)
  first = [group[0] for group in groups]
  weights = nearest(fitted.own, fitted.others[first], is_numbers)
  mixed = np.tensordot(weights, fitted.others[first], 1)
  distance = estimate(distances(fitted.own, mixed, is_numbers).mean(axis=1))
  return groups_within(distance.half, fitted.others, is_numbers)


def _joined(groups: Sequence[Sequence[int]], names: Sequence[str]) -> list[str]:
  """Returns the names of groups."""
  return [', '.join(names[j] for j in group) for group in groups]


def _part(
  samples: _Samples, prompts: slice = slice(None), lengths: slice = slice(None)
) -> _Samples:
  """Returns the predictions for some prompts after some numbers of examples."""
  own, others, log_likelihoods = samples
  return _Samples(
    own[prompts, lengths],
    others[:, prompts, lengths],
    log_likelihoods[:, prompts, lengths],
  )


def _share(
  gaps: Float[np.ndarray, 'p t'],
  variation: Float[np.ndarray, 'q t'],
  own: Float[np.ndarray, 'p t k'],
  is_numbers: bool,
) -> Estimate | None:
  """Returns the ratio of two means over the first q prompts.

  None if the variation over contexts is no larger than rounding.
  """
  part, whole = gaps[: len(variation)].mean(axis=1), variation.mean(axis=1)
  scale = float(np.mean(own**2)) if is_numbers else 1.0
  if not float(whole.mean()) > ROUNDING * scale:  # This is true for NaN, too.
    return None
  return ratio(part, whole)
