"""What the heads of a model attend to, and whether they copy labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.measure.rows import Rows
from zoo.models.token_model import TokenModel
from zoo.probing.inside.activations import attention_maps, capture
from zoo.probing.inside.attribution import attribution


class HeadScore(NamedTuple):
  """What a head attends to, as shares of its absolute attention from 0 to 1."""

  layer: str
  head: int
  previous: float  # on the token before
  duplicate: float  # on earlier tokens that are the same, by queries that have any
  induction: float  # on tokens that follow these, by queries that have any
  # The correlation, over prompts, of what the head adds to the prediction for the query
  # with the labels weighted by its attention, from −1 to 1; NaN where it is not known.
  copying: float


def head_scores(model: Predictor, prompt: Prompt) -> Rows[HeadScore]:
  """Which tokens each head attends to: the one before, the same, or the next.

  A score is Σ A ∘ T / Σ A with the absolute attention A, query by key, and the mask T
  of the tokens in question; for duplicates and induction the sums are over the queries
  that have such tokens. So uniform causal attention over n tokens has the
  previous-token score (1/n) Σ_{i=2}^n 1/i. That of a recurrent mixer is the map
  that it computes. Tokens are the same if their embedded entries are, and where a token
  holds a label that is not asked for, if their features are. Without such tokens a
  score is NaN.

  Args:
    model: a model with mixers, or with layers of `deep_lsa`.
    prompt: prompts, in which tokens should recur if the last two scores are wanted.

  Sources: Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021;
  Olsson et al., arXiv 2209.11895. Raises UserError as `attention_maps` does.
  """
  maps = attention_maps(model, prompt)
  same = _same_tokens(model, prompt)
  copying = _copying(model, prompt, maps)
  scores = Rows[HeadScore]()
  for layer, attention in maps.items():
    sizes = np.abs(np.asarray(attention, np.float64))
    n = sizes.shape[-1]
    previous = np.broadcast_to(np.eye(n, k=-1, dtype=bool)[None], (len(sizes), n, n))
    duplicate, induction = _earlier(same, n, 0), _earlier(same, n, 1)
    for head in range(sizes.shape[1]):
      score = HeadScore(
        layer,
        head,
        previous=_share(sizes[:, head], previous, True),
        duplicate=_share(sizes[:, head], duplicate, False),
        induction=_share(sizes[:, head], induction, False),
        copying=copying.get((layer, head), float('nan')),
      )
      scores.append(score)
  return scores


def _copying(
  model: Predictor, prompt: Prompt, maps: dict[str, Array]
) -> dict[tuple[str, int], float]:
  """The copying score by layer and head, of models whose tokens hold labels."""
  if not isinstance(model, TokenModel):
    return {}
  try:
    added = attribution(model, prompt).contributions
  except UserError:  # its prediction is no sum of what heads add
    return {}
  tokens = np.asarray(_embedded(model, prompt), np.float64)
  d, k = prompt.x.shape[-1], model.num_outputs
  correlations = {}
  for layer, attention in maps.items():
    name, _, call = layer.partition('@')
    site = f'{name}.mixer.heads' + (f'@{call}' if call else '')
    if site not in added:
      continue
    attended = np.asarray(attention[:, :, -1], np.float64) @ tokens[..., d : d + k]
    parts = np.asarray(added[site], np.float64).reshape(attended.shape)
    for head in range(attended.shape[1]):
      added_by, seen = parts[:, head].ravel(), attended[:, head].ravel()
      moves = added_by.std() > 0 and seen.std() > 0
      correlation = np.corrcoef(added_by, seen)[0, 1] if moves else np.nan
      correlations[layer, head] = float(correlation)
  return correlations


def _same_tokens(model: Predictor, prompt: Prompt) -> Bool[np.ndarray, 'b n n']:
  """Which pairs of tokens are the same."""

  tokens = np.asarray(_embedded(model, prompt))
  if isinstance(model, TokenModel) and model.layout != 'interleaved':
    tokens = tokens[..., : prompt.x.shape[-1]]
  return (tokens[:, :, None] == tokens[:, None]).all(axis=-1)


def _embedded(model: Predictor, prompt: Prompt) -> Array:
  """The tokens; raises UserError for a model without the site `embed`."""
  return capture(model, prompt, ['embed'])['embed']


def _earlier(
  same: Bool[np.ndarray, 'b n n'], n: int, after: int
) -> Bool[np.ndarray, 'b n n']:
  """Query by key: whether the key comes `after` tokens after an earlier same token."""
  earlier = same & np.tri(same.shape[1], k=-1, dtype=bool)[None]
  mask = np.zeros_like(earlier)
  mask[:, :, after:] = earlier[:, :, : same.shape[1] - after]
  return mask[:, :n, :n] & np.tri(n, dtype=bool)[None]


def _share(
  sizes: Float[np.ndarray, 'b n n'], mask: Bool[np.ndarray, 'b n n'], all_queries: bool
) -> float:
  asked = np.ones(mask.shape[:2], bool) if all_queries else mask.any(axis=-1)
  total = (sizes.sum(axis=-1) * asked).sum()
  if not asked.any() or total == 0:
    return float('nan')
  return float((sizes * mask).sum() / total)
