"""Which algorithm a model has run by each of its layers, and after how many steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.predict import Programs, at_query, gather, sample_batches
from zoo.probing.families import AnyFamily, Member, families
from zoo.probing.lens import check_layered, fitted_predictions, read_layers
from zoo.probing.nearest import check_numbers
from zoo.tasks.baselines import HostBaseline

_BATCH_SIZE = 512
_LEAST_PROMPTS = 10  # for each step, whose sizes are fitted
# An effect below this share of the targets' mean square is float32 rounding.
_LEAST_EFFECT = 1e-10
_REFERENCES = 'ridge', 'ols', 'bayes'  # baselines of a task that take no steps
_NUM_RESAMPLED = 500
_ENDS = 2.5, 97.5  # percentiles: an interval of 95 %
_SIGNIFICANT = 2  # standard errors; sentences write this number out
_ROUNDING = 1e-8  # shares of float32 predictions that differ by less are equal


@dataclasses.dataclass(frozen=True)
class Match:
  """How far layers are from an algorithm, by its number of steps k = 0, 1, ….

  `distance` is `E (f − g)²` of a layer's prediction f and the algorithm's g, divided by
  `E (y_q − w_0·x_q)²`, which is what the start w_0 leaves to be learned in context. An
  algorithm without steps has one column.
  """

  distance: Float[np.ndarray, 'l k']
  standard_error: Float[np.ndarray, 'l k']  # over prompts
  nearest: Int[np.ndarray, ' l']  # the least number of steps at the least distance
  low: Int[np.ndarray, ' l']  # its 95 % interval, from prompts drawn again
  high: Int[np.ndarray, ' l']
  parameters: list[Float[np.ndarray, 'l _']]  # those fitted, by number of steps


@dataclasses.dataclass(frozen=True)
class Readout:
  """What is read after each layer, compared with algorithms by name."""

  matches: dict[str, Match]
  # By layer, the algorithms within two standard errors of the nearest, on the same
  # prompts; those with the fewest parameters come first.
  nearest: list[list[str]]


@dataclasses.dataclass(frozen=True)
class LayerAlgorithms:
  """The algorithms nearest to a model before its first layer, and after each."""

  num_prompts: int
  own: Readout  # by the model's own readout
  fitted: Readout  # by the best linear map of the query's token, as in `lens`


class _Samples(NamedTuple):
  """The first half of the prompts is to be judged, the other for fits."""

  predictions: Float[np.ndarray, 'n l']
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

  Raises UserError for a model that is not `zoo.core.protocols.Layered`, for labels that
  are no numbers or have another loss than the squared error, for a task that leaves
  nothing to be learned, and for fewer than ten prompts a step.
  """
  check_layered(model)
  check_numbers(task)
  num_steps = check_count('num_steps', num_steps)
  check_count('num_prompts', num_prompts, minimum=_LEAST_PROMPTS * num_steps)
  check_count('context_length', task.context_length)
  samples, references = _sample(model, task, num_prompts, seed)
  start = task.mean_weights()
  start = np.zeros(task.num_features) if start is None else start
  effect = np.square(samples.y_query - samples.x_query @ start)[:num_prompts]
  if not effect.mean() > _LEAST_EFFECT * np.mean(samples.y_query**2):
    raise UserError('the prior mean of the task is right: nothing is to be learned')
  solved = families(samples.x, samples.y, samples.x_query, start, task)
  fitted = fitted_predictions(samples.tokens, samples.y_query, num_prompts)
  own, by_map = (
    _readout(predictions, solved, references, effect, num_steps)
    for predictions in (samples.predictions, fitted)
  )
  return LayerAlgorithms(num_prompts, own, by_map)


def _sample(
  model: Predictor, task: Task, num_prompts: int, seed: int
) -> tuple[_Samples, dict[str, Float[np.ndarray, ' p']]]:
  """What layers predict on all prompts, and what baselines do on those to judge."""
  programs, baselines = Programs(), _references(task)

  def measure(prompt: Prompt) -> tuple[_Samples, list[Float[np.ndarray, ' b']]]:
    predictions, tokens = programs.run(read_layers, [model], prompt)
    answers = [
      programs.run(at_query, [baseline], prompt)[0] for baseline in baselines.values()
    ]
    samples = _Samples(
      predictions=np.stack(predictions, axis=1, dtype=np.float64),
      tokens=np.stack(tokens, axis=1, dtype=np.float64),
      x=np.asarray(prompt.x, np.float64),
      y=np.asarray(prompt.y, np.float64),
      x_query=np.asarray(prompt.x_query, np.float64),
      y_query=np.asarray(prompt.y_query, np.float64),
    )
    return samples, [np.asarray(answer, np.float64) for answer in answers]

  batches = sample_batches(task, seed, 2 * num_prompts, _BATCH_SIZE)
  samples, answers = gather(measure, batches)
  answers = [answer[:num_prompts] for answer in answers]
  return samples, dict(zip(baselines, answers, strict=True))


def _references(task: Task) -> dict[str, Predictor]:
  """The baselines of a task that take no steps; equal ones are one, as `ols, bayes`."""
  baselines, groups = task.baselines(), []
  for name in _REFERENCES:
    baseline = baselines.get(name)
    if baseline is None or isinstance(baseline, HostBaseline):
      continue
    alike = next((names for names in groups if baselines[names[0]] == baseline), None)
    if alike is None:
      groups.append([name])
    else:
      alike.append(name)
  return {', '.join(names): baselines[names[0]] for names in groups}


def _readout(
  predictions: Float[np.ndarray, 'n l'],
  solved: Mapping[str, AnyFamily],
  references: Mapping[str, Float[np.ndarray, ' p']],
  effect: Float[np.ndarray, ' p'],
  num_steps: int,
) -> Readout:
  num_prompts, num_layers = len(effect), predictions.shape[1]
  judged, fitted = predictions[:num_prompts], predictions[num_prompts:]
  matches, errors = {}, {}
  members = {
    name: [family.member(fitted, k) for k in range(num_steps + 1)]
    for name, family in solved.items()
  }
  for name, reference in references.items():
    same = np.tile(reference[:, None], num_layers)
    members[name] = [Member(same, np.empty((num_layers, 0)))]
  for name, by_steps in members.items():
    gaps = np.stack([judged - member.predictions for member in by_steps], axis=-1)
    matches[name] = _match(gaps**2, effect, [m.parameters for m in by_steps])
    at = matches[name].nearest[None, :, None]
    errors[name] = np.take_along_axis(gaps**2, at, axis=-1)[..., 0]
  nearest = [
    _alike({name: error[:, layer] for name, error in errors.items()}, effect)
    for layer in range(num_layers)
  ]
  return Readout(matches, nearest)


def _match(
  errors: Float[np.ndarray, 'p l k'],
  effect: Float[np.ndarray, ' p'],
  parameters: list[Float[np.ndarray, 'l _']],
) -> Match:
  """The shares of squared differences in the effect, and each layer's nearest k."""
  num_prompts, num_layers = errors.shape[:2]
  distance = errors.mean(axis=0) / effect.mean()
  # To the first order in the errors of both means.
  spread = errors - distance * effect[:, None, None]
  error = spread.std(axis=0, ddof=1) / effect.mean() / math.sqrt(num_prompts)
  shares = np.full(num_prompts, 1 / num_prompts)
  counts = np.random.default_rng(0).multinomial(num_prompts, shares, _NUM_RESAMPLED)
  counts = counts.astype(np.float64)
  least = _ROUNDING * effect.mean()
  ends = []
  for layer in range(num_layers):
    again = counts @ errors[:, layer] / num_prompts
    ends.append(
      np.percentile(_least(again, least), _ENDS, method='inverted_cdf').astype(int)
    )
  low, high = np.stack(ends, axis=1)
  return Match(distance, error, _least(distance, _ROUNDING), low, high, parameters)


def _least(means: Float[np.ndarray, 'r k'], rounding: float) -> Int[np.ndarray, ' r']:
  """The first entry of each row that is the least up to rounding."""
  return np.argmax(means <= means.min(axis=1, keepdims=True) + rounding, axis=1)


def _alike(
  errors: Mapping[str, Float[np.ndarray, ' p']], effect: Float[np.ndarray, ' p']
) -> list[str]:
  """The algorithms that are not farther than the nearest by two standard errors."""
  best = min(errors.values(), key=np.mean)
  names = []
  for name, error in errors.items():
    gap = error - best
    allowed = _SIGNIFICANT * gap.std(ddof=1) / math.sqrt(len(gap))
    if gap.mean() <= allowed + _ROUNDING * effect.mean():
      names.append(name)
  return names
