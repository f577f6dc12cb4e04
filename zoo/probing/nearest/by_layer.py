"""Which algorithm a model has run by each of its layers, and after how many steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.estimators.baselines import distinct
from zoo.measure.intervals import difference, resampled_means
from zoo.measure.predict import Programs, at_query, gather, sample_batches
from zoo.measure.ratio import ratios
from zoo.measure.table import Rows, WithRows
from zoo.measure.tests import apart_from_extreme
from zoo.probing.checks import check_finite
from zoo.probing.logit_lens import (
  check_enough_prompts,
  check_layered,
  fitted_predictions,
  read_layers,
)
from zoo.probing.nearest.candidates import check_numbers
from zoo.probing.nearest.context import (
  PER_NUMBER,
  SHARE_ROUNDING,
  ignores_context,
  ignores_labels,
  variation_of_numbers,
  with_others,
)
from zoo.probing.nearest.solvers import AnyFamily, Member, families

_BATCH_SIZE = 512
_STEPLESS = 'ridge', 'ols', 'bayes'  # These baselines of a task take no steps.
_ENDS = 2.5, 97.5  # Between these percentiles are 95 % of bootstrap samples.


@dataclasses.dataclass(frozen=True)
class Match:
  """How far each of l layers is from an algorithm, by its number of steps k = 0, 1, ….

  What is unexplained is `E (f − g)²` for the predictions f of the layer and g of the
  algorithm, divided by the variation over contexts of the model's prediction after the
  last layer, `E Var(f | x_q)`. The number of steps is chosen on half of the prompts,
  and the shares are measured on the other half.

  Attributes:
    unexplained: The unexplained shares, `[l, k]`. An algorithm without steps has one
      column.
    stderr: Their standard errors over prompts, `[l, k]`. They make no 95 % interval
      (see `layer_algorithms`).
    nearest: The smallest number of steps with the least of these shares, `[l]`.
    low: The lower end of the range of `nearest` in 95 % of bootstrap samples, `[l]`.
    high: The upper end of this range.
    parameters: The fitted parameters, an array `[l, …]` for each number of steps.
  """

  unexplained: Float[np.ndarray, 'l k']
  stderr: Float[np.ndarray, 'l k']
  nearest: Int[np.ndarray, ' l']
  low: Int[np.ndarray, ' l']
  high: Int[np.ndarray, ' l']
  parameters: list[Float[np.ndarray, 'l _']]


@dataclasses.dataclass(frozen=True)
class Readout:
  """The predictions that are read after each layer, compared with algorithms.

  Attributes:
    matches: The distances, by the name of the algorithm.
    nearest: For each layer, the algorithms that cannot be distinguished from the
      nearest one on the same prompts, with Bonferroni's correction over all pairs. They
      are in the order of `matches`.
  """

  matches: dict[str, Match]
  nearest: list[list[str]]


class LayerRow(NamedTuple):
  """The distance of one layer from one algorithm, at the nearest number of steps.

  Attributes:
    readout: 'own' for the model's readout, or 'fitted' for the fitted linear map.
    layer: The number of layers before the readout.
    algorithm: The name of the algorithm.
    steps: The nearest number of steps; 0 for an algorithm without steps.
    low: The least number of steps in 95 % of bootstrap samples of prompts.
    high: The largest number of steps in these samples.
    unexplained: What the algorithm does not explain, as a share of the variation over
      contexts.
    unexplained_stderr: Its standard error over prompts. It makes no 95 % interval (see
      `layer_algorithms`).
    is_nearest: Whether the algorithm cannot be distinguished from the nearest one.
  """

  readout: str
  layer: int
  algorithm: str
  steps: int
  low: int
  high: int
  unexplained: float
  unexplained_stderr: float
  is_nearest: bool


@dataclasses.dataclass(frozen=True)
class LayerAlgorithms(WithRows):
  """The algorithms that are nearest to the predictions read after each layer.

  `layer_algorithms` returns it. Predictions are read before the first layer and after
  each layer, in two ways: by the model's own readout, and by a fitted linear map. The
  object prints as a table. `to_frame` returns its rows as a data frame of pandas, and
  `to_csv` writes them to a file.

  Attributes:
    num_prompts: The number of prompts for distances. One half of them chooses the
      number of steps, and the distances are measured on the other half.
    own: The comparison of the predictions by the model's own readout.
    fitted: The comparison of the predictions by a linear map of the query's token. The
      map is fitted to the targets, as in `lens`.
  """

  num_prompts: int
  own: Readout
  fitted: Readout

  @property
  def footer(self) -> str:
    """What the standard errors are over."""
    num = self.num_prompts - self.num_prompts // 2
    return f'standard errors over {num} prompts; they make no 95 % interval'

  @property
  def rows(self) -> Rows[LayerRow]:
    """The distances by readout, layer and algorithm."""
    return Rows([*layer_rows('own', self.own), *layer_rows('fitted', self.fitted)])


def layer_rows(name: str, readout: Readout) -> Rows[LayerRow]:
  """Returns the rows of a readout, under the given name."""
  rows = Rows[LayerRow]()
  for layer, alike in enumerate(readout.nearest):
    for algorithm, match in readout.matches.items():
      k = int(match.nearest[layer])
      ends = int(match.low[layer]), int(match.high[layer])
      share = float(match.unexplained[layer, k]), float(match.stderr[layer, k])
      is_nearest = algorithm in alike
      rows.append(LayerRow(name, layer, algorithm, k, *ends, *share, is_nearest))
  return rows


class _Samples(NamedTuple):
  """The predictions and prompts, of which the first half is to be judged."""

  predictions: Float[np.ndarray, 'n l']
  # These are the predictions after the last layer, in another context.
  other: Float[np.ndarray, ' n']
  tokens: Float[np.ndarray, 'n l w']
  x: Float[np.ndarray, 'n c d']
  y: Float[np.ndarray, 'n c']
  x_query: Float[np.ndarray, 'n d']
  y_query: Float[np.ndarray, ' n']


def layer_algorithms(
  model: Predictor,
  task: Task,
  num_prompts: int = 2048,
  num_steps: int = 8,
  seed: int = 0,
) -> LayerAlgorithms:
  """Measures how far each layer's prediction is from algorithms of a few steps.

  The algorithms take 0 to `num_steps` steps. All start from the prior mean of the task,
  or from 0. Their parameters are fitted to the predictions of the layer, for each layer
  and number of steps k, on other prompts than those that are judged. The algorithms,
  with their parameters, are

  - `gd`, gradient descent: the size η of its steps;
  - `preconditioned_gd`, if the task has a feature covariance Σ that is not a multiple
    of the identity: the size η of its steps η Σ⁻¹;
  - `gd_plus_plus` (von Oswald et al., arXiv 2212.07677): η and the contraction γ;
  - `chebyshev`, Richardson's iteration with the schedule that is the best for all
    eigenvalues in an interval: the logarithms of the ends of the interval;
  - `richardson`, any schedule of k steps: the coefficients of its polynomial;
  - `newton` (Fu et al., arXiv 2310.17086), whose 0 steps are `M_0 = S/|S|²`, and
    `conjugate_gradients`: no parameters;
  - `ridge`, `ols` and `bayes`, if they are baselines of the task: no steps and no
    parameters.

  - Quantity: `unexplained`, E (f_l − g_k)² / E Var(f | x_q) for the predictions f_l
    read after layer l, those f of the model, and those g_k of k steps of an algorithm,
    over prompts that neither its parameters nor k were fitted to.
  - Null: refused for a model that ignores its context, or the labels of its context. A
    model that uses labels a little may have any value from 0 on.
  - Counterfactual: another context of the same query, `task.redraw(keep='query')`.
  - Denominator: the variation over contexts, E Var(f | x_q), after the last layer.

  These shares have standard errors, but no intervals, since squared differences from
  algorithms have heavy tails. For `checkpoints/transformer` and the 2048 prompts of the
  default, an interval by Student's t contains the mean difference from the fitted
  algorithm in 0.94 of draws for one step of gradient descent, in 0.86 for four, and in
  0.29 for eight steps of Richardson's iteration, whose polynomial is far off on a few
  prompts; with 80 prompts these are 0.88, 0.61 and 0.06.

  Args:
    model: A model whose layers can be read (`zoo.core.protocols.Layered`), such as
      `transformer` and `deep_lsa`.
    task: A task whose labels are numbers, with the squared error.
    num_prompts: The number of prompts to judge, and of others for the fits; at least 32
      for each step, and twice the number of weights of the fitted map, which is one
      more than the width of the tokens.
    num_steps: The largest number of steps, at least 1.
    seed: The seed of the prompts.

  Returns:
    The distances with the model's own readout, and with the fitted linear map.

  Raises:
    UserError: If the layers of the model cannot be read, if it ignores its context, if
      the task is not covered, or if there are too few prompts.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, width=8, rngs=nnx.Rngs(0))
    >>> found = zoo.probing.layer_algorithms(model, task, num_prompts=32, num_steps=1)
    >>> [*found.own.matches][:2]
    ['gd', 'gd_plus_plus']
  """
  require_task(task)
  check_layered(model)
  check_numbers(task)
  num_steps = check_count('num_steps', num_steps)
  check_count('num_prompts', num_prompts, minimum=PER_NUMBER * num_steps)
  check_count('context_length', task.context_length)
  check_enough_prompts(model, task, num_prompts)
  samples, baselines = _sample(model, task, num_prompts, seed)
  start = task.mean_weights()
  start = np.zeros(task.num_features) if start is None else start
  last = samples.predictions[:, -1]
  variation = variation_of_numbers(last, samples.other)[:num_prompts]
  check_finite('the model', samples.predictions, variation)
  if ignores_context(variation, last):
    raise UserError(
      f'{type(model).__name__} ignores its context: its predictions for one query are '
      'the same in all prompts, and no algorithm can explain them'
    )
  programs = Programs()
  prompt = next(iter(sample_batches(task, seed, 2 * num_prompts, _BATCH_SIZE)))
  # The program of `_sample` runs again, so nothing is compiled for this.
  if ignores_labels(
    lambda asked: programs.run(read_layers, [model], asked)[0][-1], prompt
  ):
    raise UserError(
      f'{type(model).__name__} ignores the labels of its context: its predictions are '
      'the same with labels of other prompts, and no algorithm can explain them'
    )
  solved = families(samples.x, samples.y, samples.x_query, start, task)
  fitted = fitted_predictions(samples.tokens, samples.y_query, num_prompts)
  own, by_map = (
    _readout(predictions, solved, baselines, variation, num_steps)
    for predictions in (samples.predictions, fitted)
  )
  return LayerAlgorithms(num_prompts, own, by_map)


def _sample(
  model: Predictor, task: Task, num_prompts: int, seed: int
) -> tuple[_Samples, dict[str, Float[np.ndarray, ' p']]]:
  """Returns what layers predict on all prompts, and baselines on those to judge."""
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
      # The same program runs, so that a model without context predicts the same bits.
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
  """Returns the baselines of a task that take no steps.

  Baselines that predict the same are one entry, such as `ols, bayes`.
  """
  baselines = task.baselines()
  return distinct({name: baselines[name] for name in _STEPLESS if name in baselines})


def _readout(
  predictions: Float[np.ndarray, 'n l'],
  solved: Mapping[str, AnyFamily],
  baselines: Mapping[str, Float[np.ndarray, ' p']],
  variation: Float[np.ndarray, ' p'],
  num_steps: int,
) -> Readout:
  num_prompts, num_layers = len(variation), predictions.shape[1]
  judged, fitted = predictions[:num_prompts], predictions[num_prompts:]
  left = variation[num_prompts // 2 :]
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
  variation: Float[np.ndarray, ' p'],
  parameters: list[Float[np.ndarray, 'l _']],
) -> Match:
  """Returns the distances, and the number of steps nearest to each layer.

  The number of steps is the nearest by the squared differences on other prompts,
  `choosing`.
  """
  unexplained, stderr = ratios(errors, variation)
  least = SHARE_ROUNDING * variation.mean()
  again = resampled_means(choosing)
  ends = [
    np.percentile(_least(again[:, layer], least), _ENDS, method='inverted_cdf')
    for layer in range(choosing.shape[1])
  ]
  low, high = np.stack(ends, axis=1).astype(int)
  nearest = _least(choosing.mean(axis=0), least)
  return Match(unexplained, stderr, nearest, low, high, parameters)


def _least(means: Float[np.ndarray, 'r k'], rounding: float) -> Int[np.ndarray, ' r']:
  """Returns the first entry of each row that is the least, up to rounding."""
  return np.argmax(means <= means.min(axis=1, keepdims=True) + rounding, axis=1)


def _alike(
  errors: Mapping[str, Float[np.ndarray, ' p']], variation: Float[np.ndarray, ' p']
) -> list[str]:
  """Returns the algorithms that cannot be distinguished from the nearest one.

  The others are farther, with Bonferroni's correction over all pairs.
  """
  best = min(errors, key=lambda name: errors[name].mean())
  others = [name for name in errors if name != best]
  gaps = [difference(errors[name], errors[best]) for name in others]
  is_farther = apart_from_extreme(gaps, SHARE_ROUNDING * float(variation.mean()))
  farther = {name for name, far in zip(others, is_farther, strict=True) if far}
  return [name for name in errors if name not in farther]
