"""Which values of a model contain the exact belief at their token: linear probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Array, Float

from zoo.core.beliefs import Belief
from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.losses import ROUNDING
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.intervals import Estimate, Interval
from zoo.measure.ratio import ratio
from zoo.measure.table import Rows
from zoo.models.token_model import TokenModel
from zoo.probing.activations import in_order_of_calls, site_of, values_at
from zoo.probing.checks import sites_of_kind, taps_of, wanted_sites
from zoo.probing.latents import PROMPT
from zoo.probing.linear_maps import (
  LEAST_PROMPTS,
  Ridge,
  beside_untrained,
  check_untrained,
  one_minus,
)

RIVAL = 'the rival'
# A rival is a function of prompts that returns statistics at each token, `[b, t, r]`.
Rival: TypeAlias = Callable[[Prompt], Array]
_MOST_EXAMPLES = 32  # The probe of the prompt itself reads so many examples back.
# What a rival leaves of a column counts as rounding below this share of its deviation.
# Values inside a model are float32.
_LEFT = 1e-5


class BeliefScore(NamedTuple):
  """How well a linear map of a site's value at a token predicts the belief there.

  It is a row of what `probe_beliefs` returns, a table whose `records`, `to_frame` and
  `to_csv` give it as dictionaries, to pandas and to a file.

  R² is `1 − Σ |error|² / Σ |belief − mean|²`, a sum over coordinates, tokens and
  prompts to which the map was not fitted. It is NaN for a belief that does not vary
  beyond rounding.

  Attributes:
    site: The site; 'the prompt itself' for the features and labels up to the token; or
      'the rival' for its statistics.
    r2: R² of the belief.
    beyond_rival: R² of the part of the belief that no linear map of the rival explains:
      `1 − Σ |error with site and rival|² / Σ |error with the rival alone|²`. It is 1 if
      the site has the belief, and 0 if it adds nothing to the rival. None for the rival
      itself, and NaN if the rival explains the belief.
    untrained: R² of untrained models at this site. Its ± is half of the interval that
      contains the R² of one more untrained model. None if no untrained models were
      given, and for the prompt and the rival.
    above_untrained: `r2` minus the R² that one more untrained model would have on the
      same prompts. None in the same cases.
    p_value: The one-sided p value that `above_untrained` is at most 0, by Welch's t
      test; correct it, as by Holm's method, if you look at many sites. None in the same
      cases.
    beyond_untrained: `beyond_rival` minus that of one more untrained model. None in the
      same cases.
    by_token: R² at each token, `[t]`, of the same map; the mean is that of the token.
      NaN where the belief is the same in all prompts.
  """

  site: str
  r2: Estimate
  beyond_rival: Estimate | None
  untrained: Interval | None
  above_untrained: Estimate | None
  p_value: float | None
  beyond_untrained: Estimate | None
  by_token: Float[np.ndarray, ' t']


def probe_beliefs(
  model: Predictor,
  task: Task,
  *,
  sites: Sequence[str] | None = None,
  untrained: Sequence[Predictor] = (),
  rival: Rival | None = None,
  num_prompts: int = 1024,
  seed: int = 0,
) -> Rows[BeliefScore]:
  """Measures R² of linear maps from each site to the exact belief at the same token.

  The belief is that of `task.belief`: what the part of the prompt that the token has
  seen says of hidden states, members of a pool, or weights. One map serves all tokens
  at which the model predicts a label. Half of the prompts fit it, by ridge regression
  with the penalty of least generalised cross-validation error; the others score it. At
  a site whose value has no axis of tokens that fits, and in models that predict the
  query alone, the map is from the last token.

  A high R² may say little. The last symbol and the counts of symbols may already give
  most of a belief, and an untrained model mixes its inputs enough for a linear map. So
  there are three controls: the prompt itself, untrained models, and a *rival*, what can
  be known from one step. `beyond_rival` is R² of what is left of the belief after the
  best linear map of the rival, by what is left of the site's value after it.

  - Quantity: `beyond_rival`, `1 − Σ |error with site and rival|² / Σ |error with the
    rival alone|²`, over tokens and prompts. `r2` alone says what a linear map finds.
  - Null: 0 for a site that holds statistics of the rival, or nothing of the prompt.
  - Counterfactual: for `above_untrained` and `beyond_untrained`, other initial weights
    of the same architecture on the same prompts.
  - Denominator: of `r2` `Σ |belief − mean|²`, of `beyond_rival` the squared error of
    the rival alone.

  Args:
    model: A model with taps.
    task: A task with a belief. Prompts are drawn from those that it holds out.
    sites: The sites to probe. None means the embedded tokens and the residual stream:
      the taps of the kinds 'embed' and 'stream'.
    untrained: Three or more models of the same architecture with other initial weights,
      such as `[saved.untrained(seed) for seed in range(1, 9)]` of a loaded model.
    rival: The statistics of the rival, a function of prompts that returns `[b, t, r]`
      with t = c + 1. None means those of `rival_statistics`.
    num_prompts: The number of prompts, at least 128, of which half are for the fit.
    seed: The seed of the prompts.

  Returns:
    The scores of the prompt itself, of the rival, and of each site, in the order of a
    forward pass.

  Raises:
    UserError: If the task has no belief, if a site is unknown or has no value, or if
      there are too few prompts or untrained models.

  Example:
    >>> task = zoo.create_task('hidden_markov', process='mess3', context_length=8)
    >>> model = zoo.models.Transformer(
    ...   3, 8, num_layers=1, num_outputs=3, rngs=nnx.Rngs(0)
    ... )
    >>> scores = zoo.probing.probe_beliefs(model, task, num_prompts=128)
    >>> [score.site for score in scores][:3]
    ['the prompt itself', 'the rival', 'embed']

  References:
    Shai et al., arXiv 2405.15943.
  """
  check_untrained(untrained)
  prompt, belief = prompts_with_beliefs(task, num_prompts, seed)
  chosen = belief_sites(model, sites)
  order = in_order_of_calls(model, prompt, chosen)
  own = at_tokens(model, prompt, chosen, sites)
  names = sorted(own, key=lambda name: order.index(site_of(name, chosen)))
  for other in untrained:
    wanted_sites(other, chosen)
  others = [at_tokens(other, prompt, chosen, sites) for other in untrained]
  known = statistics(prompt, rival)
  rows = Rows[BeliefScore]()
  rows.append(_score(PROMPT, _prompt_so_far(prompt), [], belief, known))
  rows.append(_score(RIVAL, known, [], belief, known)._replace(beyond_rival=None))
  for name in names:
    of_others = [of[name] for of in others if name in of]
    rows.append(_score(name, own[name], of_others, belief, known))
  return rows


def prompts_with_beliefs(
  task: Task, num_prompts: int, seed: int
) -> tuple[Prompt, Float[np.ndarray, 'b t k']]:
  """Returns prompts that a task holds out, and their beliefs."""
  require_task(task)
  check_count('num_prompts', num_prompts, minimum=LEAST_PROMPTS)
  key = stream_of(check_count('seed', seed, minimum=0), CURVE_STREAM)
  task = task.held_out()
  prompt = task.sample(key, num_prompts)
  belief: Any = task.belief(prompt)
  if not isinstance(belief, Belief):
    raise UserError(
      f'{type(task).__name__}.belief returns a {type(belief).__name__}; it must be a '
      'zoo.Belief'
    )
  return prompt, np.asarray(belief.values, np.float64)


def belief_sites(model: Predictor, sites: Sequence[str] | None) -> list[str]:
  """Returns the sites that are asked for; None is the embedding and the stream."""
  if sites is not None:
    return wanted_sites(model, sites)
  chosen = sites_of_kind(model, 'embed', 'stream')
  if not chosen:
    raise UserError(
      f'{type(model).__name__} has no tap of the kind embed or stream; give sites'
    )
  return chosen


def at_tokens(
  model: Predictor,
  prompt: Prompt,
  chosen: Sequence[str],
  sites: Sequence[str] | None = None,
) -> dict[str, Float[np.ndarray, 'b t m']]:
  """Returns values of a model at the tokens where it predicts labels.

  Args:
    model: The model.
    prompt: Prompts `[b]`.
    chosen: The sites that are read.
    sites: The names that a user asked for, which must have values.

  Returns:
    The values by name. Those without such tokens, or of a model that predicts the query
    alone, have t = 1.
  """
  axes = {site: tap.axes or '' for site, tap in taps_of(model).items()}
  only_query = isinstance(model, TokenModel) and not model.predicts_all
  values, c = values_at(model, prompt, chosen, sites), prompt.x.shape[1]
  return {
    name: _of_tokens(value, axes[site_of(name, chosen)], c, only_query)
    for name, value in values.items()
  }


def _of_tokens(
  value: Array, axes: str, c: int, only_query: bool
) -> Float[np.ndarray, 'b t m']:
  array, letters = np.asarray(value, np.float64), axes.split()
  # An array in a tree may lack axes that the tap of the tree has.
  has_tokens = len(letters) == array.ndim and 'n' in letters
  if not has_tokens:
    return array.reshape(len(array), 1, -1)
  array = np.moveaxis(array, letters.index('n'), 1)
  array = array.reshape(*array.shape[:2], -1)
  if only_query or array.shape[1] not in (c + 1, 2 * c + 1):
    return array[:, -1:]
  # Of interleaved tokens, labels are predicted at every other one.
  return array[:, :: 1 if array.shape[1] == c + 1 else 2]


def rival_statistics(prompt: Prompt) -> Float[np.ndarray, 'b t r']:
  """Returns what can be known without a belief, at each token: the rival of a probe.

  These are the features of the example whose label is asked, which are the last symbol
  of a sequence; the label before it; the sum and the mean of all labels so far, which
  are counts of symbols; and the place, one-hot.

  Args:
    prompt: Prompts `[b]`.

  Returns:
    The statistics, with t = c + 1.

  Example:
    >>> task = zoo.create_task('hidden_markov', process='mess3', context_length=8)
    >>> prompt = task.sample(jax.random.key(0), 4)
    >>> zoo.probing.rival_statistics(prompt).shape  # 3 + 3·3 + 9
    (4, 9, 21)
  """
  x, labels = (np.asarray(a, np.float64) for a in (prompt.features, prompt.labels))
  b, t, _ = x.shape
  before = np.pad(labels, ((0, 0), (1, 0), (0, 0)))
  sums = np.cumsum(before, axis=1)
  means = sums / np.maximum(np.arange(t), 1)[None, :, None]
  place = np.broadcast_to(np.eye(t)[None], (b, t, t))
  return np.concatenate([x, before, sums, means, place], axis=-1)


def statistics(prompt: Prompt, rival: Rival | None) -> Float[np.ndarray, 'b t r']:
  """Returns the statistics of a rival; raises UserError if their shape is wrong."""
  found = (
    rival_statistics(prompt) if rival is None else np.asarray(rival(prompt), np.float64)
  )
  b, t = len(prompt.x), prompt.x.shape[1] + 1
  if found.ndim != 3 or found.shape[:2] != (b, t):
    raise UserError(
      f'the rival returns the shape {found.shape}; it must be [b, t, r] with b = {b} '
      f'prompts and t = {t} places'
    )
  return found


def _prompt_so_far(prompt: Prompt) -> Float[np.ndarray, 'b t m']:
  """Returns features and labels up to each token, by how far back they are."""
  x, labels = (np.asarray(a, np.float64) for a in (prompt.features, prompt.labels))
  before = np.pad(labels, ((0, 0), (1, 0), (0, 0)))
  pairs = np.concatenate([x, before], axis=-1)
  t = pairs.shape[1]
  back = min(t, _MOST_EXAMPLES)
  padded = np.pad(pairs, ((0, 0), (back, 0), (0, 0)))
  return np.concatenate([padded[:, back - j : back - j + t] for j in range(back)], -1)


def _score(
  name: str,
  value: Float[np.ndarray, 'b t m'],
  others: Sequence[Float[np.ndarray, 'b t m']],
  belief: Float[np.ndarray, 'b n k'],
  rival: Float[np.ndarray, 'b n r'],
) -> BeliefScore:
  """Returns the scores of one site; `others` are its values in untrained models."""
  t = value.shape[1]
  belief, rival = belief[:, -t:], rival[:, -t:]
  half = len(value) // 2
  target = _flat(belief)
  fits = [_Fit(of, half) for of in (value, *others)]
  whole = np.square(target - _flat(belief[:half]).mean(axis=0)[None])
  whole = _by_prompt(whole, t)[half:]
  if whole.sum() <= ROUNDING * np.square(belief[half:]).sum():
    whole = np.zeros_like(whole)
  squares = [fit.squares(target) for fit in fits]
  error, *errors = [_by_prompt(of, t)[half:] for of in squares]
  score = BeliefScore(
    name,
    r2=one_minus(ratio(error, whole)),
    beyond_rival=None,
    untrained=None,
    above_untrained=None,
    p_value=None,
    beyond_untrained=None,
    by_token=_by_token(squares[0].reshape(-1, t)[half:], belief[half:]),
  )
  if errors:
    score = score._replace(**beside_untrained(error, errors, whole))
  left = _without(target, rival, half)
  left_whole = _by_prompt(np.square(left).sum(axis=1), t)[half:]
  # What the rival leaves of a belief that it explains is rounding of float32.
  if left_whole.sum() <= _LEFT**2 * max(whole.sum(), np.finfo(float).tiny):
    left_whole = np.zeros_like(left_whole)
  fits = [_Fit(without_rival(of, rival, half), half) for of in (value, *others)]
  error, *errors = [_by_prompt(fit.squares(left), t)[half:] for fit in fits]
  score = score._replace(beyond_rival=one_minus(ratio(error, left_whole)))
  if errors:
    beside = beside_untrained(error, errors, left_whole)
    score = score._replace(beyond_untrained=beside['above_untrained'])
  return score


class _Fit:
  """A linear map from values `[b, t, m]`, fitted to the first half of the prompts."""

  def __init__(self, value: Float[np.ndarray, 'b t m'], half: int):
    self.rows, self.num = _flat(value), half * value.shape[1]
    self.ridge = Ridge(self.rows[: self.num])

  def squares(self, target: Float[np.ndarray, 'n k']) -> Float[np.ndarray, ' n']:
    """Returns the squared error of every row, also of those that fitted the map."""
    predicted = self.ridge(target[: self.num], self.rows)
    return np.square(predicted - target).sum(axis=1)


def _flat(value: Float[np.ndarray, 'b t m']) -> Float[np.ndarray, 'n m']:
  return value.reshape(-1, value.shape[-1])


def _by_prompt(values: np.ndarray, t: int) -> Float[np.ndarray, ' b']:
  """Returns the sum of the numbers of each prompt, over its tokens."""
  return values.reshape(-1, t * values[0].size).sum(axis=1)


def _without(
  target: Float[np.ndarray, 'n k'], rival: Float[np.ndarray, 'b t r'], half: int
) -> Float[np.ndarray, 'n k']:
  """Returns what the least-squares map of the rival, with an offset, leaves."""
  num = half * rival.shape[1]
  rows = np.concatenate([_flat(rival), np.ones((len(target), 1))], axis=1)
  # Of float64 sums of one-hot vectors, singular values below this are rounding.
  weights = np.linalg.lstsq(rows[:num], target[:num], rcond=1e-10)[0]
  return target - rows @ weights


def without_rival(
  value: Float[np.ndarray, 'b t m'], rival: Float[np.ndarray, 'b t r'], half: int
) -> Float[np.ndarray, 'b t m']:
  """Returns what the rival leaves of a value; 0 where that is rounding."""
  rows = _flat(value)
  left = _without(rows, rival, half)
  is_left = left.std(axis=0) > _LEFT * rows.std(axis=0)
  return np.where(is_left[None], left, 0).reshape(value.shape)


def _by_token(
  errors: Float[np.ndarray, 'b t'], belief: Float[np.ndarray, 'b t k']
) -> Float[np.ndarray, ' t']:
  whole = np.square(belief - belief.mean(axis=0)[None]).sum(axis=(0, 2))
  varies = whole > ROUNDING * np.square(belief).sum(axis=(0, 2))
  share = errors.sum(axis=0) / np.where(varies, whole, 1)
  return np.where(varies, 1 - share, np.nan)
