"""Which algorithm a model has run by each of its layers, and after how many steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from zoo.core.errors import UserError, check_count
from zoo.core.losses import ROUNDING
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.estimators.baselines import distinct
from zoo.measure.predict import Programs, at_query, gather, sample_batches
from zoo.measure.rows import Rows, Tabular
from zoo.measure.statistics import (
  Estimate,
  above_zero,
  difference,
  ratios,
  resampled_means,
)
from zoo.probing.context import SHARE_ROUNDING, effect_of_numbers, with_others
from zoo.probing.inside.lens import check_layered, fitted_predictions, read_layers
from zoo.probing.nearest_algorithms.families import AnyFamily, Member, families
from zoo.probing.nearest_algorithms.sampled import check_numbers

_BATCH_SIZE = 512
_LEAST_PROMPTS = 10  # for each step, whose sizes are fitted
_STEPLESS = 'ridge', 'ols', 'bayes'  # baselines of a task that take no steps
_ENDS = 2.5, 97.5  # percentiles: an interval of 95 %


@dataclasses.dataclass(frozen=True)
class Match:
  """How far layers are from an algorithm, by its number of steps k = 0, 1, ….

  `distance` is `E (f − g)²` of a layer's prediction f and the algorithm's g, divided by
  the effect of the context on the model's prediction, `E Var(f | x_q)` after the last
  layer. An algorithm without steps has one column. The number of steps is chosen on
  half of the prompts, and distances are those of the other half.
  """

  distance: Float[np.ndarray, 'l k']
  stderr: Float[np.ndarray, 'l k']  # over prompts
  nearest: Int[np.ndarray, ' l']  # the least number of steps at the least distance
  low: Int[np.ndarray, ' l']  # its 95 % interval, from prompts drawn again
  high: Int[np.ndarray, ' l']
  parameters: list[Float[np.ndarray, 'l _']]  # those fitted, by number of steps


@dataclasses.dataclass(frozen=True)
class Readout:
  """What is read after each layer, compared with algorithms by name."""

  matches: dict[str, Match]
  # By layer, the algorithms that are not told apart from the nearest on the same
  # prompts, by Holm over all others; those with the fewest parameters come first.
  nearest: list[list[str]]


class LayerRow(NamedTuple):
  """The distance of one layer from one algorithm, after its nearest number of steps.

  Attributes:
    readout: 'own', by the model's readout, or 'fitted', by the best linear map.
    layer: After how many layers.
    algorithm: The name of the algorithm.
    steps: The nearest number of steps; 0 for an algorithm without steps.
    low: The least number of steps in its 95 % interval.
    high: The largest one.
    distance: As a share of the effect of the context.
    is_nearest: Whether it is not told apart from the nearest algorithm.
  """

  readout: str
  layer: int
  algorithm: str
  steps: int
  low: int
  high: int
  distance: Estimate
  is_nearest: bool


@dataclasses.dataclass(frozen=True)
class LayerAlgorithms(Tabular):
  """The algorithms nearest to a model before its first layer, and after each."""

  num_prompts: int
  own: Readout  # by the model's own readout
  fitted: Readout  # by the best linear map of the query's token, as in `lens`

  @property
  def rows(self) -> Rows[LayerRow]:
    """The distances by readout, layer and algorithm."""
    return Rows([*layer_rows('own', self.own), *layer_rows('fitted', self.fitted)])


def layer_rows(name: str, readout: Readout) -> Rows[LayerRow]:
  """The rows of one readout, of this name."""
  rows = Rows[LayerRow]()
  for layer, alike in enumerate(readout.nearest):
    for algorithm, match in readout.matches.items():
      k = int(match.nearest[layer])
      distance = Estimate(
        float(match.distance[layer, k]), float(match.stderr[layer, k])
      )
      ends = int(match.low[layer]), int(match.high[layer])
      rows.append(
        LayerRow(name, layer, algorithm, k, *ends, distance, algorithm in alike)
      )
  return rows


class _Samples(NamedTuple):
  """The first half of the prompts is to be judged, the other for fits."""

  predictions: Float[np.ndarray, 'n l']
  other: Float[np.ndarray, ' n']  # after the last layer, in another context
  tokens: Float[np.ndarray, 'n l w']
  x: Float[np.ndarray, 'n c d']
  y: Float[np.ndarray, 'n c']
  x_query: Float[np.ndarray, 'n d']
  y_query: Float[np.ndarray, ' n']


def algorithms(
  model: Predictor,
  task: Task,
  num_prompts: int = 2048,
  num_steps: int = 8,
  seed: int = 0,
) -> LayerAlgorithms:
  """How far each layer's prediction is from algorithms of 0 to `num_steps` steps.

  All start from the prior mean of the task, or 0. Their parameters are those nearest to
  the layer on other `num_prompts` prompts than those judged, for each layer and k:

  - `gd`: the size η of its steps; `preconditioned_gd`, if the task has a feature
    covariance Σ that is no multiple of the identity: likewise, with steps η Σ⁻¹;
  - `gd_plus_plus`: η and the contraction γ (von Oswald et al., arXiv 2212.07677);
  - `chebyshev`: Richardson's iteration with the schedule that is the best for the
    eigenvalues in an interval, the logarithms of whose ends are fitted;
  - `richardson`: any schedule of k steps, by the coefficients of its polynomial;
  - `newton` (Fu et al., arXiv 2310.17086), whose 0 steps are M_0 = S/|S|²,
    `conjugate_gradients`, and the task's `ridge`, `ols` and `bayes`: none.

  - Quantity: `distance`, E (f_l − g_k)² / E Var(f | x_q) for the predictions f_l read
    after layer l, those f of the model, and those g_k of k steps of an algorithm, over
    prompts that neither its parameters nor k were fitted to.
  - Null: 1 or more for a model that does not use the labels of its context; refused for
    one that ignores its context.
  - Counterfactual: another context of the same query, `task.redraw(keep='query')`.
  - Denominator: the effect of the context, E Var(f | x_q), after the last layer.

  Raises UserError for a model that is not `zoo.core.protocols.Layered`, for labels that
  are no numbers or have another loss than the squared error, for a model that ignores
  its context, and for fewer than ten prompts a step.
  """
  check_layered(model)
  check_numbers(task)
  num_steps = check_count('num_steps', num_steps)
  check_count('num_prompts', num_prompts, minimum=_LEAST_PROMPTS * num_steps)
  check_count('context_length', task.context_length)
  samples, baselines = _sample(model, task, num_prompts, seed)
  start = task.mean_weights()
  start = np.zeros(task.num_features) if start is None else start
  last = samples.predictions[:, -1]
  effect = effect_of_numbers(last, samples.other)[:num_prompts]
  if not effect.mean() > ROUNDING * np.mean(last**2):
    raise UserError(
      f'{type(model).__name__} ignores its context: its predictions for one query are '
      'the same in all prompts, and no algorithm can explain them'
    )
  solved = families(samples.x, samples.y, samples.x_query, start, task)
  fitted = fitted_predictions(samples.tokens, samples.y_query, num_prompts)
  own, by_map = (
    _readout(predictions, solved, baselines, effect, num_steps)
    for predictions in (samples.predictions, fitted)
  )
  return LayerAlgorithms(num_prompts, own, by_map)


def _sample(
  model: Predictor, task: Task, num_prompts: int, seed: int
) -> tuple[_Samples, dict[str, Float[np.ndarray, ' p']]]:
  """What layers predict on all prompts, and what baselines do on those to judge."""
  programs, baselines = Programs(), _baselines(task)

  def measure(
    pair: tuple[Prompt, list[Prompt]],
  ) -> tuple[_Samples, list[Float[np.ndarray, ' b']]]:
    prompt, (other,) = pair
    predictions, tokens = programs.run(read_layers, [model], prompt)
    answers = [
      programs.run(at_query, [baseline], prompt)[0] for baseline in baselines.values()
    ]
    samples = _Samples(
      predictions=np.stack(predictions, axis=1, dtype=np.float64),
      # By the same program, so that a model without context predicts the same bits.
      other=np.asarray(programs.run(read_layers, [model], other)[0][-1], np.float64),
      tokens=np.stack(tokens, axis=1, dtype=np.float64),
      x=np.asarray(prompt.x, np.float64),
      y=np.asarray(prompt.y, np.float64),
      x_query=np.asarray(prompt.x_query, np.float64),
      y_query=np.asarray(prompt.y_query, np.float64),
    )
    return samples, [np.asarray(answer, np.float64) for answer in answers]

  batches = sample_batches(task, seed, 2 * num_prompts, _BATCH_SIZE)
  samples, answers = gather(measure, with_others(task, batches, seed))
  answers = [answer[:num_prompts] for answer in answers]
  return samples, dict(zip(baselines, answers, strict=True))


def _baselines(task: Task) -> dict[str, Predictor]:
  """The baselines of a task that take no steps; equal ones are one, as `ols, bayes`."""
  baselines = task.baselines()
  return distinct({name: baselines[name] for name in _STEPLESS if name in baselines})


def _readout(
  predictions: Float[np.ndarray, 'n l'],
  solved: Mapping[str, AnyFamily],
  baselines: Mapping[str, Float[np.ndarray, ' p']],
  effect: Float[np.ndarray, ' p'],
  num_steps: int,
) -> Readout:
  num_prompts, num_layers = len(effect), predictions.shape[1]
  judged, fitted = predictions[:num_prompts], predictions[num_prompts:]
  left = effect[num_prompts // 2 :]
  matches, errors = {}, {}
  members = {
    name: [family.member(fitted, k) for k in range(num_steps + 1)]
    for name, family in solved.items()
  }
  for name, baseline in baselines.items():
    same = np.tile(baseline[:, None], num_layers)
    members[name] = [Member(same, np.empty((num_layers, 0)))]
  for name, by_steps in members.items():
    gaps = np.stack([judged - member.predictions for member in by_steps], axis=-1)
    choosing, other = np.split(gaps**2, [num_prompts // 2])
    parameters = [member.parameters for member in by_steps]
    matches[name] = _match(choosing, other, left, parameters)
    at = matches[name].nearest[None, :, None]
    errors[name] = np.take_along_axis(other, at, axis=-1)[..., 0]
  nearest = [
    _alike({name: error[:, layer] for name, error in errors.items()}, left)
    for layer in range(num_layers)
  ]
  return Readout(matches, nearest)


def _match(
  choosing: Float[np.ndarray, 'n l k'],
  errors: Float[np.ndarray, 'p l k'],
  effect: Float[np.ndarray, ' p'],
  parameters: list[Float[np.ndarray, 'l _']],
) -> Match:
  """The shares of squared differences in the effect, and each layer's nearest k.

  That is the nearest by the squared differences on other prompts, `choosing`.
  """
  distance, stderr = ratios(errors, effect)
  least = SHARE_ROUNDING * effect.mean()
  again = resampled_means(choosing)
  ends = [
    np.percentile(_least(again[:, layer], least), _ENDS, method='inverted_cdf')
    for layer in range(choosing.shape[1])
  ]
  low, high = np.stack(ends, axis=1).astype(int)
  nearest = _least(choosing.mean(axis=0), least)
  return Match(distance, stderr, nearest, low, high, parameters)


def _least(means: Float[np.ndarray, 'r k'], rounding: float) -> Int[np.ndarray, ' r']:
  """The first entry of each row that is the least up to rounding."""
  return np.argmax(means <= means.min(axis=1, keepdims=True) + rounding, axis=1)


def _alike(
  errors: Mapping[str, Float[np.ndarray, ' p']], effect: Float[np.ndarray, ' p']
) -> list[str]:
  """The algorithms that are not farther than the nearest, by Holm over all others."""
  best = min(errors, key=lambda name: errors[name].mean())
  others = [name for name in errors if name != best]
  gaps = [difference(errors[name], errors[best]) for name in others]
  is_farther = above_zero(gaps, SHARE_ROUNDING * float(effect.mean()))
  farther = {name for name, far in zip(others, is_farther, strict=True) if far}
  return [name for name in errors if name not in farther]
