"""How good predictive distributions are: likelihood, calibration and consistency."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from zoo.core import losses
from zoo.core.distributions import (
  Bars,
  Classes,
  Distribution,
  Gaussian,
  GaussianMixture,
  Mixture,
)
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.trees import fresh
from zoo.measure.curves import checked_lengths
from zoo.measure.predict import Programs, check_predictor
from zoo.measure.predictive import (
  batches_with_keys,
  draws_labels,
  labels_for,
  log_prob,
  said_by,
  with_drawn_labels,
)
from zoo.measure.rows import Rows, Tabular
from zoo.measure.statistics import (
  Estimate,
  Interval,
  difference,
  estimate,
  ratio,
  wilson,
)
from zoo.tasks.base import FunctionClass

EXACT = 'bayes'  # The other predictors are compared with this baseline.
_MODEL = 'model'  # A single predictor has this name.
_NUM_NODES = 2048  # A divergence is averaged over this number of values of a label.
_AT_ONCE = 32  # This number of these values is computed at once, to save memory.
# A component of a mixture with fewer values has them at places that do not depend on
# where the component begins.
_FEW_NODES = 128
# Shares are kept at this distance from 0 and 1. Rounding may put them there, where the
# quantile of a normal distribution is infinite.
_LEAST_SHARE = 1e-7
_NUM_RESAMPLED = 500
_LEAST_IN_BIN = 5  # The chi-squared test needs this number of expected labels in a bin.


class Likelihood(NamedTuple):
  """How likely a predictor makes observed labels, in nats.

  Attributes:
    predictor: The name of the predictor.
    nll: The mean of −log p of the labels.
    excess: `nll` minus the same mean for the posterior of the task; None if the task
      has no posterior.
    kl: The mean divergence KL(posterior ‖ predictor). Its expectation is that of
      `excess`, up to the error of `kl_divergence`, and it has less noise. None if the
      task has no posterior.
  """

  predictor: str
  nll: Estimate
  excess: Estimate | None
  kl: Estimate | None


def likelihood(
  predictors: Predictor | Mapping[str, Predictor],
  task: Task,
  num_prompts: int = 2048,
  seed: int = 0,
) -> Rows[Likelihood]:
  """Measures the negative log likelihood of observed labels under predictors.

  The baseline `bayes` of the task is measured, too, if it has a distribution: no
  predictor has a smaller expected negative log likelihood.

  Args:
    predictors: A predictor with a distribution (see `zoo.distribution`), which is then
      named `model`, or several by name. The name `bayes` is taken.
    task: The task from which prompts and labels are drawn.
    num_prompts: The number of prompts, ≥ 2.
    seed: The seed of the prompts and their labels, ≥ 0.

  Returns:
    A `Likelihood` for each predictor, and a last one for `bayes`: the negative log
    likelihood, its excess over `bayes`, and the divergence KL from `bayes`, in nats.

  Raises:
    UserError: If a predictor has no distribution or is named `bayes`, if the task
      cannot draw the labels of targets, if labels are known (their standard deviation
      is 0, as it is without noise), or if a log probability is NaN or infinite.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=4, noise_std=0.5
    ... )
    >>> rows = zoo.likelihood(task.baselines()['bayes'], task, num_prompts=256)
    >>> [row.predictor for row in rows], rows[0].kl.mean
    (['model', 'bayes'], 0.0)
  """
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  require_task(task)
  named = dict(predictors) if isinstance(predictors, Mapping) else {_MODEL: predictors}
  if not named:
    raise UserError('there are no predictors; likelihood needs at least one')
  if EXACT in named:
    raise UserError(
      f'a predictor is named {EXACT!r}, which is the name of the row of the posterior '
      'of the task; give it another name'
    )
  for predictor in named.values():
    check_predictor(predictor)
  exact = task.baselines().get(EXACT)
  if exact is not None and not _has_distribution(exact, task):
    exact = None
  together = [*named.values(), *([] if exact is None else [exact])]
  function = _likelihoods if exact is None else _likelihoods_and_divergences
  parts = _measure(function, together, task, num_prompts, seed)
  names = [*named, *([] if exact is None else [EXACT])]
  known, nll, *divergences = parts
  for i, name in enumerate(names):
    _check_unknown(name, task, known[i])
  for i, name in enumerate(names):
    _check_not_nan(name, task, nll[i])
    _check_possible(name, task, nll[i])
    for divergence in divergences:
      _check_divergence(name, task, divergence[i])
  rows = Rows[Likelihood]()
  for i, name in enumerate(names):
    excess = None if exact is None else difference(nll[i], nll[-1])
    kl = None if exact is None else estimate(divergences[0][i])
    rows.append(Likelihood(name, estimate(nll[i]), excess, kl))
  return rows


def _check_unknown(name: str, task: Task, known: np.ndarray) -> None:
  """Raises UserError if the standard deviation of a label is 0."""
  if known.any():
    raise UserError(
      f'{name} gives {_count(known, task)} the standard deviation 0; such a label is '
      'known and has no density: where labels have no noise, give the task noise, or '
      'too few examples to determine the label'
    )


def _check_not_nan(name: str, task: Task, values: np.ndarray) -> None:
  if np.isnan(values).any():
    raise UserError(
      f'{name} gives {_count(np.isnan(values), task)} a distribution that is NaN'
    )


def _check_possible(name: str, task: Task, nll: Float[np.ndarray, ' p']) -> None:
  """Raises UserError if a label has an infinite log probability."""
  if np.isfinite(nll).all():
    return
  labels = _count(np.isinf(nll), task)
  if task.label_kind == 'numbers':
    raise UserError(
      f'{name} gives {labels} an infinite log density; the distribution is too narrow '
      'for float32, or the label lies where it has no probability'
    )
  raise UserError(
    f'{name} gives {labels} the probability 0, whose logarithm is −∞; the logit of a '
    'class that occurs must be finite'
  )


def _check_divergence(name: str, task: Task, kl: Float[np.ndarray, ' p']) -> None:
  _check_not_nan(name, task, kl)
  if np.isinf(kl).any():
    raise UserError(
      f'the divergence KL from {name} is infinite for {_count(np.isinf(kl), task)}; '
      f'{name} gives the probability 0 to values that are possible'
    )


def _count(which: np.ndarray, task: Task) -> str:
  return f'{int(which.sum())} of {len(which)} labels of {type(task).__name__}'


def _has_distribution(predictor: Predictor, task: Task) -> bool:
  prompt = jax.eval_shape(lambda key: task.sample(key, 1), jax.random.key(0))
  try:
    jax.eval_shape(lambda prompt: said_by(predictor, prompt, task), prompt)
  except UserError:
    return False
  return True


def _measure(
  function: Any,
  predictors: Sequence[Predictor],
  task: Task,
  num_prompts: int,
  seed: int,
) -> list[Float[np.ndarray, 'i p']]:
  """Returns what a function measures in all batches, joined along the last axis.

  Raises:
    UserError: If the task does not draw labels.
  """
  programs, task = Programs(), task.held_out()
  parts: list[Any] = []
  for prompt, key in batches_with_keys(task, seed, num_prompts, programs):
    if not draws_labels(task, prompt):
      raise UserError(
        f'{type(task).__name__} has labels that differ from their targets, and no '
        'method sample_labels, which says how they are drawn'
      )
    parts.append(programs.run(function, predictors, prompt, fresh(task), key))
  columns = zip(*jax.device_get(parts), strict=True)
  return [np.concatenate(column, axis=-1).astype(np.float64) for column in columns]


def _likelihoods(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> list[Array]:
  labels = with_drawn_labels(task, key, prompt).y_query
  said = [said_by(predictor, prompt, task) for predictor in predictors]
  nll = jnp.stack([-log_prob(each, labels) for each in said])
  known = [jnp.broadcast_to(_is_known(each), nll.shape[1:]) for each in said]
  return [jnp.stack(known), nll]


def _is_known(said: Any) -> Bool[Array, ' *b']:
  """Returns whether a number, or a component of a mixture, has standard deviation 0."""
  if isinstance(said, GaussianMixture):
    return jnp.any((said.stds == 0) & (said.weights > 0), axis=-1)
  if isinstance(said, Mixture):
    return jnp.any(jnp.stack([_is_known(part) for part in said.parts]), axis=0)
  if isinstance(said, Distribution):
    return said.std == 0
  return jnp.zeros((), bool)  # Classes always have probabilities.


def _likelihoods_and_divergences(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> list[Array]:
  known, nll = _likelihoods(predictors, prompt, task, key)
  said = [said_by(predictor, prompt, task) for predictor in predictors]
  return [known, nll, jnp.stack([kl_divergence(said[-1], each) for each in said])]


def kl_divergence(
  first: Distribution | Classes, second: Distribution | Classes
) -> Float[Array, ' b']:
  """Returns KL(first ‖ second) of each prompt, in nats.

  The divergence of two normal distributions has a closed form. Those of classes, and of
  bars with the same edges, are sums. Any other divergence is a weighted mean of log p −
  log q over 2,048 values.

  These values are quantiles of the first distribution at the shares v² (3 − 2v), for
  equally spaced v. Their weights 6v (1 − v) are the derivative of the share. Each bar
  and each component of a mixture therefore gets as many values as its probability says,
  however narrow it is, and the tails get more values than equal spacing would give
  them. The mean is a midpoint rule in v: its error is at most V / 4096, where V is the
  total variation in v of the weighted log p − log q. Where this function is smooth, the
  error falls with the square of the number of values.

  In a component of a mixture that gets fewer than 128 values, v is the fractional part
  of `(i + ½) (√5 − 1)/2`, where i = 0, 1, … is the number of the value. So neighbouring
  components have their values at different quantiles, and the bound does not hold for
  them. Of mixtures of 16 to 8,192 components the tests ask for an error below 0.004.

  Args:
    first: The distributions p, with one entry for each prompt.
    second: The distributions q, with one entry for each prompt.
  """
  # Rounding may make a divergence of 0 negative.
  return jnp.maximum(_divergence(first, second), 0)


def _divergence(
  first: Distribution | Classes, second: Distribution | Classes
) -> Float[Array, ' b']:
  if isinstance(first, Classes) or isinstance(second, Classes):
    assert isinstance(first, Classes)
    assert isinstance(second, Classes)
    p, log_p = first.probabilities, losses.log_softmax(first.logits)
    gaps = log_p - losses.log_softmax(second.logits)
    return jnp.sum(jnp.where(p == 0, 0, p * gaps), axis=-1)
  if isinstance(first, Gaussian) and isinstance(second, Gaussian):
    wider = (first.std - second.std) / second.std
    moved = (first.mean - second.mean) / second.std
    return (jnp.square(wider) + jnp.square(moved)) / 2 + (wider - jnp.log1p(wider))
  if (
    isinstance(first, Bars)
    and isinstance(second, Bars)
    and first.logits.shape == second.logits.shape
    and first.edges.shape == second.edges.shape
  ):
    # In a bar with the same edges the ratio of densities is that of probabilities.
    return jax.lax.cond(
      jnp.all(first.edges == second.edges),
      lambda: _divergence(Classes(first.logits), Classes(second.logits)),
      lambda: _mean_of_log_ratio(first, second),
    )
  return _mean_of_log_ratio(first, second)


def _mean_of_log_ratio(first: Distribution, second: Distribution) -> Float[Array, ' b']:
  """Returns the weighted mean of log p − log q over values of `first`."""

  def at(node: Float[Array, ' 2']) -> Array:
    y, weight = _value_at(first, node[0], node[1], float(_NUM_NODES))
    log_p = first.log_prob(y)
    # Rounding may put a value at an edge into a bar of probability 0.
    return jnp.where(log_p == -jnp.inf, 0, weight * (log_p - second.log_prob(y)))

  number = np.arange(_NUM_NODES) + 0.5
  places = np.mod(number * (math.sqrt(5) - 1) / 2, 1)
  nodes = np.stack([number / _NUM_NODES, places], axis=1)
  nodes = jnp.asarray(nodes, first.mean.dtype)
  return jnp.mean(jax.lax.map(at, nodes, batch_size=_AT_ONCE), axis=0)


def _value_at(
  label: Distribution, v: Float[Array, '*b'], place: Float[Array, ''], num_nodes: float
) -> tuple[Float[Array, ' b'], Float[Array, ' b']]:
  """Returns the value of a distribution at v in (0, 1), and its weight.

  The distribution gets `num_nodes` values. A component of a Gaussian mixture that gets
  few of them has them at the `place`, which is in (0, 1), too.

  If v is uniform, the weighted value has the distribution. A mixture has its components
  one after the other, each in an interval as long as its probability: quantiles of a
  component have a formula, and those of a mixture do not.
  """
  if isinstance(label, Mixture):
    number, v = jnp.divmod(v * len(label.parts), 1)
    num_nodes = num_nodes / len(label.parts)
    pairs = [_value_at(part, v, place, num_nodes) for part in label.parts]
    values, weights = (jnp.stack(column) for column in zip(*pairs, strict=True))
    return values[number.astype(int)], weights[number.astype(int)]
  if isinstance(label, GaussianMixture):
    ends = jnp.cumsum(label.weights, axis=-1)
    number = jnp.sum(ends[..., :-1] <= v, axis=-1, keepdims=True)
    mean, std, weight, end = (
      jnp.take_along_axis(array, number, axis=-1)[..., 0]
      for array in (label.means, label.stds, label.weights, ends)
    )
    v = jnp.clip(1 - (end - v) / weight, 0, 1)
    label, v = Gaussian(mean, std), jnp.where(weight * num_nodes < _FEW_NODES, place, v)
  share = jnp.clip(v**2 * (3 - 2 * v), _LEAST_SHARE, 1 - _LEAST_SHARE)
  value = label.quantile(share)
  return value, jnp.broadcast_to(6 * v * (1 - v), value.shape)


# This part measures calibration.


class PitBin(NamedTuple):
  """A bin of the probability integral transform, and the share of labels in it.

  It is a row of a `PitHistogram`.

  Attributes:
    low: The lower end of the bin, from 0 to 1.
    high: The upper end of the bin.
    share: The share of labels whose probability of a smaller label is in the bin. Its ±
      reaches the farther end of Wilson's 95 % interval.
  """

  low: float
  high: float
  share: Interval | Estimate


@dataclasses.dataclass(frozen=True)
class PitHistogram(Tabular):
  """The histogram of the probability integral transform of labels that are numbers.

  `calibration` returns it for labels that are numbers. It prints as a table, with the
  p-value below. `records` returns the rows as dictionaries, `to_frame` as a data frame
  of pandas, and `to_csv` writes them to a file.

  Attributes:
    bins: Bins of equal width. With n bins each has the share 1/n if the distributions
      are calibrated.
    p_value: The p-value of the chi-squared test that all shares are 1/n.
    num_prompts: The number of labels.
  """

  bins: tuple[PitBin, ...]
  p_value: float
  num_prompts: int

  @property
  def rows(self) -> Rows[PitBin]:
    """The bins, as a table."""
    return Rows(self.bins)

  @property
  def footer(self) -> str:
    """The result of the test."""
    return f'chi-squared test that all shares are equal: p = {self.p_value:.3g}'

  def __repr__(self) -> str:
    return str(self)


class ConfidenceBin(NamedTuple):
  """The predictions whose most probable class has a probability in a bin.

  It is a row of a `Reliability`.

  Attributes:
    low: The lower end of the bin, from 0 to 1.
    high: The upper end of the bin.
    num_prompts: The number of predictions in the bin.
    confidence: The mean probability of the most probable class; NaN without
      predictions.
    accuracy: The share of labels that are that class. Its ± reaches the farther end of
      Wilson's 95 % interval. None without predictions.
  """

  low: float
  high: float
  num_prompts: int
  confidence: float
  accuracy: Interval | Estimate | None


@dataclasses.dataclass(frozen=True)
class Reliability(Tabular):
  """How often the most probable class is the label, by its probability.

  `calibration` returns it for classes and signs. It prints as a table, with the error
  below. `records` returns the rows as dictionaries, `to_frame` as a data frame of
  pandas, and `to_csv` writes them to a file.

  Attributes:
    bins: Bins of equal width, from 0 to 1.
    ece: The expected calibration error, `Σ share of a bin · |accuracy − confidence|`
      (Naeini et al., 2015; Guo et al., arXiv 1706.04599). It is a sum of absolute
      values: its expectation is too large, and it is not normal near 0, so that it has
      no 95 % interval. Compare it with `null` instead.
    null: The 95 % quantile of the error of a calibrated predictor with these
      probabilities, on as many prompts. It is above 0, since labels are random.
    num_prompts: The number of labels.
  """

  bins: tuple[ConfidenceBin, ...]
  ece: float
  null: float
  num_prompts: int

  @property
  def rows(self) -> Rows[ConfidenceBin]:
    """The bins that hold a prediction, as a table."""
    return Rows(each for each in self.bins if each.num_prompts)

  @property
  def footer(self) -> str:
    """The error, and that of a calibrated predictor."""
    return (
      f'expected calibration error {self.ece:.3g}; of a calibrated predictor at '
      f'most {self.null:.3g} (95 %)'
    )

  def __repr__(self) -> str:
    return str(self)


def calibration(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
  *,
  num_bins: int = 10,
) -> PitHistogram | Reliability:
  """Measures whether events happen as often as a predictor says.

  For labels that are numbers the result is the histogram of u = P(label ≤ the observed
  label), the probability integral transform. For a calibrated predictor u is uniform on
  (0, 1). A distribution that is too narrow has too many labels in the outer bins. For
  classes the result is how often the most probable class is the label, by its
  probability.

  Args:
    predictor: A predictor with a distribution (see `zoo.distribution`).
    task: The task from which prompts and labels are drawn.
    num_prompts: The number of prompts, ≥ 2. For labels that are numbers the chi-squared
      test needs at least 5 for each bin.
    seed: The seed of the prompts and their labels, ≥ 0.
    num_bins: The number of bins of equal width between 0 and 1, ≥ 2.

  Returns:
    A `PitHistogram` for numbers, and a `Reliability` for classes and signs.
    `zoo.reports.calibration_plots.plot_calibration` draws both.

  Raises:
    UserError: If the predictor has no distribution, if the task does not draw labels,
      if labels are known (their standard deviation is 0), if a distribution is NaN, if
      there are too few prompts, or if labels are a number or a class, as they are in
      the task `tabular` with `kind='both'`.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=4, noise_std=0.5
    ... )
    >>> result = zoo.calibration(task.baselines()['bayes'], task, num_prompts=512)
    >>> result.p_value > 0.01
    True
  """
  check_predictor(predictor)
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  require_task(task)
  num_bins = check_count('num_bins', num_bins, minimum=2)
  if task.label_kind == 'numbers':
    if num_prompts < _LEAST_IN_BIN * num_bins:
      raise UserError(
        f'num_prompts is {num_prompts}; the chi-squared test of {num_bins} bins needs '
        f'at least {_LEAST_IN_BIN * num_bins}, which is {_LEAST_IN_BIN} for each bin'
      )
    known, shares = _measure(_below, [predictor], task, num_prompts, seed)
    _check_unknown(_MODEL, task, known[0])
    _check_not_nan(_MODEL, task, shares[0])
    return _histogram(shares[0], num_bins)
  confidence, correct = _measure(_best_class, [predictor], task, num_prompts, seed)
  _check_not_nan(_MODEL, task, confidence[0])
  return _reliability(confidence[0], correct[0], num_bins, seed)


def _described(
  predictor: Predictor, prompt: Prompt, task: Task
) -> Distribution | Classes:
  """Returns what `said_by` does; raises UserError for a number or a class."""
  said: Any = said_by(predictor, prompt, task)
  if not isinstance(said, Distribution | Classes):
    raise UserError(
      f'{type(predictor).__name__} gives labels of {type(task).__name__} a '
      f'{type(said).__name__}; calibration and exchangeability are of numbers or of '
      "classes, so that the task tabular needs kind='numbers' or kind='classes'"
    )
  return said


def _below(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> list[Array]:
  (predictor,) = predictors
  said = _described(predictor, prompt, task)
  assert isinstance(said, Distribution)
  below = said.cdf(with_drawn_labels(task, key, prompt).y_query)
  return [_is_known(said)[None], below[None]]


def _best_class(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> list[Float[Array, '1 b']]:
  (predictor,) = predictors
  said = _described(predictor, prompt, task)
  assert isinstance(said, Classes)
  labels = with_drawn_labels(task, key, prompt).y_query
  labels = labels_for(said, labels)
  p = said.probabilities
  best = jnp.argmax(p, axis=-1)[:, None]
  taken = [jnp.take_along_axis(array, best, axis=-1)[:, 0] for array in (p, labels)]
  return [array[None] for array in taken]


def _bins_of(shares: Float[np.ndarray, ' p'], num_bins: int) -> np.ndarray:
  """Returns which bin each share is in, as `[p, n]` of 0 and 1."""
  of_each = np.minimum((shares * num_bins).astype(int), num_bins - 1)
  return (of_each[:, None] == np.arange(num_bins)).astype(np.float64)


def _histogram(shares: Float[np.ndarray, ' p'], num_bins: int) -> PitHistogram:
  from scipy import stats  # It is slow to import.

  within = _bins_of(shares, num_bins)
  bins = tuple(
    PitBin(i / num_bins, (i + 1) / num_bins, wilson(within[:, i]))
    for i in range(num_bins)
  )
  test = stats.chisquare(within.sum(axis=0))
  return PitHistogram(bins, float(test.pvalue), len(shares))


def _reliability(
  confidence: Float[np.ndarray, ' p'],
  correct: Float[np.ndarray, ' p'],
  num_bins: int,
  seed: int,
) -> Reliability:
  within = _bins_of(confidence, num_bins)
  bins = []
  for i in range(num_bins):
    here = within[:, i] > 0
    bins.append(
      ConfidenceBin(
        i / num_bins,
        (i + 1) / num_bins,
        int(here.sum()),
        float(confidence[here].mean()) if here.any() else math.nan,
        wilson(correct[here]) if here.any() else None,
      )
    )
  gaps = within * (correct - confidence)[:, None]
  # The null has labels of a calibrated predictor. They are drawn one set after the
  # other, since all sets together would take 4 GB for a million prompts.
  generator = np.random.default_rng(seed)
  calibrated = np.array(
    [
      ((generator.random(len(confidence)) < confidence) - confidence) @ within
      for _ in range(_NUM_RESAMPLED)
    ]
  )
  return Reliability(
    bins=tuple(bins),
    ece=float(np.abs(gaps.mean(axis=0)).sum()),
    null=float(np.quantile(np.abs(calibrated).sum(axis=1), 0.95) / len(confidence)),
    num_prompts=len(confidence),
  )


# This part measures consistency.


class Spread(NamedTuple):
  """How far a predictive distribution depends on the order of the examples.

  It is a row of what `exchangeability` returns.

  Attributes:
    num_examples: The number of examples before the query.
    kl: The mean of KL(distribution in the given order ‖ distribution in another order),
      in nats.
  """

  num_examples: int
  kl: Estimate


def exchangeability(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 256,
  seed: int = 0,
  *,
  num_orders: int = 4,
  lengths: Sequence[int] | None = None,
) -> Rows[Spread]:
  """Measures how much a predictive distribution depends on the order of the examples.

  Each prompt is given in its own order and in random other orders, and the predictive
  distributions for its query are compared. If the order that is drawn is the given one,
  the first two examples are swapped instead. The distribution of a Bayesian predictor
  is the same in all orders, so that the divergence is 0. This holds only if the order
  says nothing about the label of the query, as a task says by `exchangeable`. It is so
  for every `zoo.tasks.FunctionClass`, and not for a Markov chain.

  Args:
    predictor: A predictor with a distribution (see `zoo.distribution`).
    task: The task from which prompts are drawn, which is `exchangeable`.
    num_prompts: The number of prompts, ≥ 2.
    seed: The seed of the prompts and of the permutations, ≥ 0.
    num_orders: The number of random permutations of each prompt, ≥ 1.
    lengths: The numbers of examples before the query, each from 2 to the context length
      C of the task. None means C alone.

  Returns:
    A row for each length: the mean over prompts and permutations of KL(distribution in
    the given order ‖ distribution in the permuted order).

  Raises:
    UserError: If the predictor has no distribution, if the task is not `exchangeable`,
      if it has one example, if `lengths` is not a list of lengths in their range, if
      labels are known (their standard deviation is 0), if a divergence is NaN or
      infinite, or if labels are a number or a class, as they are in the task `tabular`
      with `kind='both'`.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=4, noise_std=0.5
    ... )
    >>> rows = zoo.exchangeability(task.baselines()['bayes'], task, num_prompts=8)
    >>> abs(rows[0].kl.mean) < 1e-5
    True
  """
  check_predictor(predictor)
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  require_task(task)
  _check_exchangeable(task)
  num_orders = check_count('num_orders', num_orders)
  programs, task = Programs(), task.held_out()
  check_count('context_length of the task', task.context_length, minimum=2)
  lengths = [task.context_length] if lengths is None else lengths
  lengths = checked_lengths(lengths, 2, task.context_length)
  parts: list[list[Any]] = [[] for _ in lengths]
  for prompt, key in batches_with_keys(task, seed, num_prompts, programs):
    # Prompts fold the key with their numbers. No prompt has this number.
    keys = jax.random.split(jax.random.fold_in(key, 2**32 - 4), num_orders)
    for part, length in zip(parts, lengths, strict=True):
      arguments = prompt.prefix(length), fresh(task), keys
      part.append(jax.device_get(programs.run(_spread, [predictor], *arguments)))
  rows = Rows[Spread]()
  for length, part in zip(lengths, parts, strict=True):
    known, kl = (np.concatenate(column) for column in zip(*part, strict=True))
    _check_unknown(_MODEL, task, known)
    _check_divergence(_MODEL, task, kl)
    rows.append(Spread(length, estimate(kl)))
  return rows


def _check_exchangeable(task: Task) -> None:
  """Raises UserError for a task in which the order of the examples matters."""
  if not task.exchangeable:
    raise UserError(
      f'{type(task).__name__} does not say that its examples may be in any order, by '
      'exchangeable = True; if the order matters, a Bayesian predictor depends on it, '
      'too'
    )


def _spread(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, keys: Key[Array, ' o']
) -> tuple[Bool[Array, ' b'], Float[Array, ' b']]:
  """Returns whether labels are known, and the mean divergence over permutations."""
  (predictor,) = predictors
  given = _described(predictor, prompt, task)
  b, c = prompt.x.shape[:2]
  total, known = jnp.zeros(b, prompt.x.dtype), jnp.broadcast_to(_is_known(given), (b,))
  for key in keys:
    orders = jax.vmap(lambda key: jax.random.permutation(key, c))(
      jax.random.split(key, b)
    )
    # Of few examples a random order is often the given one, which shows nothing.
    is_given = jnp.all(orders == jnp.arange(c)[None], axis=1)
    swapped = jnp.array([1, 0, *range(2, c)])
    orders = jnp.where(is_given[:, None], swapped[None], orders)
    at = jnp.arange(b)[:, None]
    permuted = Prompt(
      prompt.x[at, orders], prompt.y[at, orders], prompt.x_query, prompt.y_query
    )
    other = _described(predictor, permuted, task)
    total, known = total + kl_divergence(given, other), known | _is_known(other)
  return known, total / len(keys)


class Drift(NamedTuple):
  """How predictions move when a predictor sees examples that it has drawn itself.

  It is a row of what `martingale` returns.

  Attributes:
    num_drawn: The number of examples that were drawn.
    drift: The mean change of the prediction, in the units of the labels. For classes it
      is the change of the probability of the class that was most probable.
    slope: The slope of that change on the first prediction. It shows predictions that
      all move towards their mean, or away from it, so that the mean change is 0. None
      if all first predictions are equal.
  """

  num_drawn: int
  drift: Estimate
  slope: Estimate | None


def martingale(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 1024,
  seed: int = 0,
  *,
  num_steps: int = 4,
) -> Rows[Drift]:
  """Tests whether predictions are a martingale under a predictor's own distribution.

  The labels of the last examples of each prompt are replaced, one after the other, by
  labels drawn from the predictive distribution given the examples before. The
  prediction of a Bayesian for a fixed query then changes at random, but on average
  stays as it was, whatever the prior (Falck et al., arXiv 2406.00793). A predictor that
  fails this test is the posterior of no prior, so that its uncertainty has no such
  meaning.

  Only means are tested. A predictor with the mean of the posterior and a wrong width
  passes if the mean is linear in the labels, as it is in linear regression;
  `zoo.calibration` finds a wrong width.

  Args:
    predictor: A predictor with a distribution (see `zoo.distribution`).
    task: A `zoo.tasks.FunctionClass`, whose features do not depend on labels, and whose
      examples may be in any order.
    num_prompts: The number of prompts, ≥ 2.
    seed: The seed of the prompts and the labels, ≥ 0.
    num_steps: The number of examples that are drawn, from 1 to the context length.

  Returns:
    A row after each drawn example, with standard errors over prompts.

  Raises:
    UserError: If the predictor has no distribution, if the task is not a
      `zoo.tasks.FunctionClass`, or if a number is out of its range.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=4, noise_std=0.5
    ... )
    >>> rows = zoo.martingale(task.baselines()['bayes'], task, 256, num_steps=2)
    >>> all(abs(row.drift.mean) < 2 * row.drift.half for row in rows)
    True

  References:
    Falck, Wang and Holmes, arXiv 2406.00793.
  """
  check_predictor(predictor)
  if not isinstance(task, FunctionClass):
    raise UserError(
      f'{type(task).__name__} is no zoo.tasks.FunctionClass; examples can be drawn one '
      'by one only where features do not depend on labels'
    )
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  require_task(task)
  _check_exchangeable(task)
  c = task.context_length
  num_steps = check_count('num_steps', num_steps, maximum=c)
  programs, held_out = Programs(), task.held_out()
  moves: list[np.ndarray] = []
  firsts: list[np.ndarray] = []
  for prompt, key in batches_with_keys(held_out, seed, num_prompts, programs):
    y, predictions = prompt.y[:, : c - num_steps], []
    own = jax.random.fold_in(key, 2**32 - 5)
    for length in range(c - num_steps, c + 1):
      seen = Prompt(prompt.x[:, :length], y, prompt.x_query, prompt.y_query)
      said = programs.run(_predicted, [predictor], seen, fresh(held_out))
      predictions.append(np.asarray(said, np.float64))
      if length < c:
        asked = dataclasses.replace(seen, x_query=prompt.x[:, length])
        drawn = programs.run(
          _drawn_label,
          [predictor],
          asked,
          fresh(held_out),
          jax.random.fold_in(own, length),
        )
        y = jnp.concatenate([y, drawn[:, None].astype(y.dtype)], axis=1)
    followed = np.stack(predictions, axis=1)
    if followed.ndim == 3:  # The class that was most probable is followed.
      best = followed[:, 0].argmax(axis=-1)
      followed = followed[np.arange(len(best)), :, best]
    firsts.append(followed[:, 0])
    moves.append(followed[:, 1:] - followed[:, :1])
  first, moved = np.concatenate(firsts), np.concatenate(moves)
  unknown = np.isnan(first) | np.isnan(moved).any(axis=1)
  if unknown.any():
    raise UserError(f'the predictor gives {_count(unknown, task)} a mean that is NaN')
  centred = first - first.mean()
  # Equal predictions may differ by the rounding of float32.
  differ = np.ptp(first) > 1e-6 * np.abs(first).max()
  return Rows(
    Drift(
      k + 1,
      estimate(moved[:, k]),
      ratio(centred * (moved[:, k] - moved[:, k].mean()), centred**2)
      if differ
      else None,
    )
    for k in range(num_steps)
  )


def _predicted(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task
) -> Float[Array, ' b *k']:
  """Returns the mean of the label, or the probabilities of its classes."""
  (predictor,) = predictors
  said = said_by(predictor, prompt, task)
  return said.probabilities if isinstance(said, Classes) else said.mean


def _drawn_label(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> Float[Array, ' b *k']:
  """Returns a label of each query, drawn from the predictive distribution."""
  (predictor,) = predictors
  drawn = said_by(predictor, prompt, task).sample(key)
  return 2 * drawn[..., 1] - 1 if task.label_kind == 'signs' else drawn
