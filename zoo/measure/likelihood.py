"""How likely predictors make observed labels, and divergences between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

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
from zoo.measure.comparison import MODEL
from zoo.measure.intervals import Estimate, difference, estimate
from zoo.measure.predict import check_predictor
from zoo.measure.predictive import (
  check_divergence,
  check_not_nan,
  check_unknown,
  count_of,
  is_known,
  log_prob,
  measure_batches,
  said_by,
  with_drawn_labels,
)
from zoo.measure.table import Rows

_BAYES = 'bayes'  # The predictors are compared with this baseline, the posterior.
_NUM_NODES = 2048  # A divergence is averaged over this number of values of a label.
_AT_ONCE = 32  # This number of these values is computed at once, to save memory.
# A component of a mixture with fewer values has them at places that do not depend on
# where the component begins.
_FEW_NODES = 128
# Shares are kept at this distance from 0 and 1. Rounding may put them there, where the
# quantile of a normal distribution is infinite.
_LEAST_SHARE = 1e-7


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
    UserError: If a predictor has no distribution or is named `bayes`, if labels are not
      drawn or are known (their standard deviation is 0, as it is without noise), or if
      a log probability is not finite.

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
  named = dict(predictors) if isinstance(predictors, Mapping) else {MODEL: predictors}
  if not named:
    raise UserError('there are no predictors; likelihood needs at least one')
  if _BAYES in named:
    raise UserError(
      f'a predictor is named {_BAYES!r}, which is the name of the row of the posterior '
      'of the task; give it another name'
    )
  for predictor in named.values():
    check_predictor(predictor)
  exact = task.baselines().get(_BAYES)
  if exact is not None and not _has_distribution(exact, task):
    exact = None
  together = [*named.values(), *([] if exact is None else [exact])]
  function = _likelihoods if exact is None else _likelihoods_and_divergences
  parts = measure_batches(function, together, task, num_prompts, seed)
  names = [*named, *([] if exact is None else [_BAYES])]
  known, nll, *divergences = parts
  for i, name in enumerate(names):
    check_unknown(name, task, known[i])
  for i, name in enumerate(names):
    check_not_nan(name, task, nll[i])
    _check_possible(name, task, nll[i])
    for divergence in divergences:
      check_divergence(name, task, divergence[i])
  rows = Rows[Likelihood]()
  for i, name in enumerate(names):
    excess = None if exact is None else difference(nll[i], nll[-1])
    kl = None if exact is None else estimate(divergences[0][i])
    rows.append(Likelihood(name, estimate(nll[i]), excess, kl))
  return rows


def _check_possible(name: str, task: Task, nll: Float[np.ndarray, ' p']) -> None:
  """Raises UserError if a label has an infinite log probability."""
  if np.isfinite(nll).all():
    return
  labels = count_of(np.isinf(nll), task)
  if task.label_kind == 'numbers':
    raise UserError(
      f'{name} gives {labels} an infinite log density; the distribution is too narrow '
      'for float32, or the label lies where it has no probability'
    )
  raise UserError(
    f'{name} gives {labels} the probability 0, whose logarithm is −∞; the logit of a '
    'class that occurs must be finite'
  )


def _has_distribution(predictor: Predictor, task: Task) -> bool:
  prompt = jax.eval_shape(lambda key: task.sample(key, 1), jax.random.key(0))
  try:
    jax.eval_shape(lambda prompt: said_by(predictor, prompt, task), prompt)
  except UserError:
    return False
  return True


def _likelihoods(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> list[Array]:
  labels = with_drawn_labels(task, key, prompt).y_query
  said = [said_by(predictor, prompt, task) for predictor in predictors]
  nll = jnp.stack([-log_prob(each, labels) for each in said])
  known = [jnp.broadcast_to(is_known(each), nll.shape[1:]) for each in said]
  return [jnp.stack(known), nll]


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
