"""What the heads of a model attend to, and whether they add the labels they see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.table import Rows
from zoo.models.token_model import TokenModel
from zoo.models.tokens import at_examples
from zoo.probing.activations import attention_maps, capture
from zoo.probing.checks import check_has_kind, sites_of_kind
from zoo.probing.logit_attribution import attribution

_NO_ATTENTION = 'the head attends to nothing'
# With fewer prompts the interval of a correlation contains the truth in 0.90 to 0.93 of
# draws, not in 0.95.
_LEAST_PROMPTS = 512


class HeadScore(NamedTuple):
  """What a head attends to, as shares of its absolute attention from 0 to 1.

  It is a row of what `head_scores` returns, a table whose `records`, `to_frame` and
  `to_csv` give it as dictionaries, to pandas and to a file.

  Attributes:
    layer: The name of the layer, such as `layers.0`.
    head: The head, from 0.
    previous: The share of attention on the token before the query.
    duplicate: The share on earlier tokens with the same features as the query, over the
      queries that have such tokens.
    induction: The share on the tokens right after these earlier tokens, over the
      queries that have such tokens.
    label_correlation: The correlation, over prompts, of what the head adds to the
      prediction for the query with the labels weighted by its attention, from −1 to 1,
      with its standard error over prompts. None below 512 prompts.
    reasons: Why a score is None, by the name of the score.
  """

  layer: str
  head: int
  previous: float | None
  duplicate: float | None
  induction: float | None
  label_correlation: Estimate | None
  reasons: Mapping[str, str]


def head_scores(model: Predictor, prompt: Prompt) -> Rows[HeadScore]:
  """Scores which tokens each head attends to, and whether it adds their labels.

  Two tokens count as the same if their features are equal; guesses and labels beside
  the features are ignored. Tokens that hold a label alone are neither queries nor the
  same as other tokens. In a model that is not a `TokenModel`, tokens are the same if
  all their embedded entries are equal.

  - Quantity: Σ A ∘ T / Σ A with the absolute attention A, query by key, and the mask T
    of the tokens in question; for duplicates and induction the sums are over the
    queries that have an earlier same token. The attention of a recurrent mixer is the
    map that it computes. `label_correlation` is corr(f_h, Σ_i A_qi y_i) over prompts
    and outputs, where f_h is the direct contribution of the head to the prediction
    (`attribution`), q is the query, and the sum is over tokens that hold a label. Both
    are taken relative to their means over prompts, output by output, so that a constant
    that favours frequent classes does not count.
  - Null: uniform causal attention over n tokens has the previous-token score
    (1/n) Σ_{i=2}^n 1/i. For scores of duplicates and induction, compare with an
    untrained model. The label correlation of a head that reads features alone is 0 if
    features do not say whether labels are high or low, as in linear regression with the
    prior mean 0: its 95 % interval leaves out 0 in 5 to 6 % of draws. With a prior mean
    labels can be guessed from features, and such a head correlates with them, too.
  - Counterfactual: none; scores describe one forward pass, and are no evidence of what
    a head does. See `effects`.
  - Denominator: the absolute attention of the queries that are asked.

  Args:
    model: A model with attention maps, see `attention_maps`.
    prompt: Prompts. Scores of duplicates and induction need prompts in which features
      recur. Label correlations need 512 prompts or more; with fewer their intervals
      would be too narrow.

  Returns:
    The scores of each head of each layer. A score that is not defined is None, and
    `reasons` says why.

  Raises:
    UserError: If the model lacks a tap of the kind `embed`, the embedded tokens, or if
      its attention has other axes, or other tokens as queries than as keys.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> first, second = zoo.probing.head_scores(model, prompt)
    >>> first.layer, first.head, 0 < first.previous < 1
    ('layers.0', 0, True)
    >>> first.reasons['induction']
    'no features recur in these prompts'

  References:
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021, whose
    copying score is `copying_score`; Olsson et al., arXiv 2209.11895.
  """
  maps = attention_maps(model, prompt)
  for layer, attention in maps.items():
    num_queries, num_keys = attention.shape[2:]
    if num_queries != num_keys:
      raise UserError(
        f'the attention of {layer!r} has {num_queries} queries and {num_keys} keys; '
        'head_scores needs layers whose queries and keys are the same tokens'
      )
  same = _same_tokens(model, prompt)
  correlations = _label_correlations(model, prompt, maps)
  scores = Rows[HeadScore](
    empty=f'{type(model).__name__} has no attention maps, so there are no heads to '
    'score: it has no taps of the kind pattern (see zoo.probing.attention_maps)'
  )
  for layer, attention in maps.items():
    sizes = np.abs(np.asarray(attention, np.float64))
    n = sizes.shape[-1]
    previous = np.broadcast_to(np.eye(n, k=-1, dtype=bool)[None], (len(sizes), n, n))
    duplicate, induction = _earlier(same, n, 0), _earlier(same, n, 1)
    for head in range(sizes.shape[1]):
      found = {
        'previous': _share(sizes[:, head], previous, True),
        'duplicate': _share(sizes[:, head], duplicate, False),
        'induction': _share(sizes[:, head], induction, False),
        'label_correlation': correlations
        if isinstance(correlations, str)
        else correlations[layer, head],
      }
      values: dict[str, Any] = {
        name: None if isinstance(score, str) else score for name, score in found.items()
      }
      reasons = {name: score for name, score in found.items() if isinstance(score, str)}
      scores.append(HeadScore(layer, head, **values, reasons=reasons))
  return scores


def _label_correlations(
  model: Predictor, prompt: Prompt, maps: dict[str, Array]
) -> dict[tuple[str, int], Estimate | str] | str:
  """Returns the label correlations by layer and head.

  In place of one of them, or of all, there may be the reason why it is not defined.
  """
  if len(prompt.x) < _LEAST_PROMPTS:
    return (
      f'there are {len(prompt.x)} prompts; the interval of a correlation needs '
      f'{_LEAST_PROMPTS} or more'
    )
  if not isinstance(model, TokenModel):
    return f'which tokens of {type(model).__name__} hold labels is not known'
  try:
    added = attribution(model, prompt).contributions
  except UserError as error:
    return f'there are no contributions of heads: {error}'
  tokens = np.asarray(_embedded(model, prompt), np.float64)
  d, k = prompt.x.shape[-1], model.num_outputs
  holds_label = _holds_label(model.layout, tokens.shape[1])
  labels = np.where(holds_label[None, :, None], tokens[..., d : d + k], 0)
  correlations: dict[tuple[str, int], Estimate | str] = {}
  for layer, attention in maps.items():
    site = _site_of_heads(model, layer)
    attended = np.asarray(attention[:, :, -1], np.float64) @ labels
    parts = None if site is None else added.get(site)
    if parts is None or parts.size != attended.size:
      reason = 'the layer has no single tap of the kind heads with an axis h'
      correlations |= {(layer, head): reason for head in range(attended.shape[1])}
      continue
    parts = np.asarray(parts, np.float64).reshape(attended.shape)
    for head in range(attended.shape[1]):
      added_by = parts[:, head].reshape(len(parts), -1)
      seen = attended[:, head].reshape(len(parts), -1)
      what = 'attended labels' if np.ptp(added_by) > 0 else 'contributions of the head'
      found = correlation(added_by, seen)
      correlations[layer, head] = f'the {what} do not vary' if found is None else found
  return correlations


def _site_of_heads(model: Predictor, layer: str) -> str | None:
  """Returns the name of the value of the kind heads in a layer, if there is one."""
  name, at, call = layer.partition('@')
  of_layer = f'{name}.' if name else ''
  sites = [site for site in sites_of_kind(model, 'heads') if site.startswith(of_layer)]
  return f'{sites[0]}{at}{call}' if len(sites) == 1 else None


def _holds_label(layout: str, n: int) -> Bool[np.ndarray, ' n']:
  """Returns which tokens hold a label.

  The other tokens may have a guess in the place of the label.
  """
  places = np.arange(n)
  if layout == 'interleaved':
    return places % 2 == 1
  return places > 0 if layout == 'shifted' else places < n - 1


def _same_tokens(model: Predictor, prompt: Prompt) -> Bool[np.ndarray, 'b n n']:
  """Returns which pairs of tokens have the same features, if both have features."""
  tokens = np.asarray(_embedded(model, prompt))
  if not isinstance(model, TokenModel):
    return (tokens[:, :, None] == tokens[:, None]).all(axis=-1)
  features = tokens[..., : prompt.x.shape[-1]]
  has_features = np.zeros(tokens.shape[1], bool)
  has_features[at_examples(model.layout)] = True
  are_same = (features[:, :, None] == features[:, None]).all(axis=-1)
  return are_same & has_features[None, None] & has_features[None, :, None]


def _embedded(model: Predictor, prompt: Prompt) -> Array:
  """Returns the tokens; raises UserError for a model without the kind `embed`."""
  check_has_kind(model, ['embed'], 'whose value has the tokens that are compared')
  site = sites_of_kind(model, 'embed')[0]
  return capture(model, prompt, [site])[site]


def _earlier(
  same: Bool[np.ndarray, 'b n n'], n: int, after: int
) -> Bool[np.ndarray, 'b n n']:
  """Returns where a key stands `after` tokens after an earlier same token.

  The array is query by key.
  """
  earlier = same & np.tri(same.shape[1], k=-1, dtype=bool)[None]
  mask = np.zeros_like(earlier)
  mask[:, :, after:] = earlier[:, :, : same.shape[1] - after]
  return mask[:, :n, :n] & np.tri(n, dtype=bool)[None]


def _share(
  sizes: Float[np.ndarray, 'b n n'], mask: Bool[np.ndarray, 'b n n'], all_queries: bool
) -> float | str:
  """Returns the share of attention on the mask, or the reason why there is none."""
  asked = np.ones(mask.shape[:2], bool) if all_queries else mask.any(axis=-1)
  total = (sizes.sum(axis=-1) * asked).sum()
  if not asked.any():
    return 'no features recur in these prompts'
  if total == 0:
    return _NO_ATTENTION
  return float((sizes * mask).sum() / total)


def correlation(
  first: Float[np.ndarray, 'p k'], second: Float[np.ndarray, 'p k']
) -> Estimate | None:
  """Returns the correlation of paired values of k outputs, over prompts and outputs.

  Each value is taken relative to the mean of its output. The error is the jackknife's
  over prompts, so that it also holds if one value says how much the other varies:
  without any correlation, a correlation then lies outside of ± 2/√p too often.

  Args:
    first: The values `[p, k]` for each of p prompts.
    second: As many other values.

  Returns:
    The correlation, with its standard error. None if the values of `first` or of
    `second` do not vary, or would not without one of the prompts.
  """
  # Equal values have the difference 0, which the rounding of a mean could change.
  apart = [np.asarray(values - values[0], np.float64) for values in (first, second)]
  x, y = (values - values.mean(axis=0) for values in apart)
  count = len(x)

  def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums over all prompts but one, and last over all."""
    sums = [
      np.append(v.sum(axis=0) - v, [v.sum(axis=0)], axis=0) for v in (a, b, a * b)
    ]
    nums = np.append(np.full(count, count - 1), count)[:, None]
    return (sums[2] - sums[0] * sums[1] / nums).sum(axis=1)

  squares = products(x, x) * products(y, y)
  if not (x.any() and y.any()) or squares.min() <= 0:
    return None
  *without_one, whole = products(x, y) / np.sqrt(squares)
  pseudo = count * whole - (count - 1) * np.array(without_one)
  return Estimate(float(whole), estimate(pseudo).stderr, count)
