"""Attention heads: what each one adds, attends to, and computes by its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from zoo import theory
from zoo.core.errors import UserError, check_count
from zoo.core.learning_rule import LearningRule
from zoo.core.losses import ROUNDING
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.table import Rows
from zoo.mixers.attention import ReLUAttention, SoftmaxAttention
from zoo.mixers.decay import LinearMixer
from zoo.mixers.mixer import Linear, RMSNorm
from zoo.models.linear_attention import LinearAttention
from zoo.models.token_model import TokenModel
from zoo.models.tokens import at_examples
from zoo.models.transformer import Transformer
from zoo.probing.activations import attention_maps, capture
from zoo.probing.checks import check_has_kind, sites_of_kind
from zoo.probing.logit_attribution import attribution
from zoo.theory.exact import in_float64, rule_of

_NO_ATTENTION = 'the head attends to nothing'
# With fewer prompts the interval of a correlation contains the truth in 0.90 to 0.93 of
# draws, not in 0.95.
_LEAST_PROMPTS = 512
_MIXERS = SoftmaxAttention, ReLUAttention, LinearMixer


@dataclasses.dataclass(frozen=True)
class Head:
  """One head of a linear attention model.

  It is a row of what `zoo.probing.heads` returns, a table that prints. `records`
  returns the rows as dictionaries, `to_frame` as a data frame of pandas, and `to_csv`
  writes them to a file.

  Predictions depend only on the product of the value vector and the bilinear form of a
  head. The contribution of head h to the prediction is called f_h, and the contribution
  of all heads together Δ.

  Attributes:
    value: The value vector b_h = W_Vᵀ W_Pᵀ r, `[e]`.
    form: The bilinear form A_h = W_Kᵀ W_Q, `[e, e]`.
    share: E f_h Δ / E Δ². The shares of all heads sum to 1, and a head that opposes the
      others has a negative share. None if the heads together contribute nothing, or
      cancel one another up to the rounding of float32.
    pruning_cost: The exact risk without this head, minus the risk with it.
  """

  value: Float[np.ndarray, ' e']
  form: Float[np.ndarray, 'e e']
  share: float | None
  pruning_cost: float


def heads(model: Predictor, task: Task) -> Rows[Head]:
  """Measures the share and the pruning cost of each head of a linear attention model.

  Everything is a closed form, computed in float64.

  - Quantity: `share`, E f_h Δ / E Δ² for the contribution f_h of a head and the
    contribution Δ of all heads; `pruning_cost`, the exact risk without the head minus
    that with it. Both are closed forms.
  - Null: 0 for a head whose W_P or W_V is 0; no share if all heads together add
    nothing.
  - Counterfactual: 0 in place of what the head adds.
  - Denominator: E Δ², of the share.

  Args:
    model: A linear attention model: LSA, multi-head LSA, yq-LSA or LTB.
    task: A task that exact theory covers, linear regression.

  Returns:
    The heads, in their order; they print as a table.

  Raises:
    UserError: If the model is not a linear attention model, or was edited, or if exact
      theory does not cover the task.

  Example:
    >>> saved = zoo.load('checkpoints/yq_lsa')
    >>> [head.share for head in zoo.probing.heads(saved.model, saved.task)]
    [1.0]
  """
  model = _with_heads(model)
  risk = float(theory.exact_risk(model, task))
  every = range(model.num_heads)
  all_heads = Rows[Head]()
  with jax.enable_x64(True):
    values, forms = map(np.asarray, _algebra(in_float64(model)))
    guess = rule_of(prune(model, every))
    together = rule_of(model) - guess
    nothing = together * 0.0
    total = _square(together, nothing, task)
    each_alone = [
      rule_of(prune(model, [other for other in every if other != head])) - guess
      for head in every
    ]
    squares = sum(_square(alone, nothing, task) for alone in each_alone)
    # Heads that cancel one another up to the rounding of their weights add nothing.
    add_nothing = total <= ROUNDING * squares
    for head, alone in zip(every, each_alone, strict=True):
      # The product is ⟨f, g⟩ = (|f + g|² − |f − g|²) / 4.
      product = _square(alone + together, nothing, task)
      product = (product - _square(alone, together, task)) / 4
      pruned = float(theory.exact_risk(prune(model, [head]), task))
      all_heads.append(
        Head(
          value=values[head],
          form=forms[head],
          share=None if add_nothing else product / total,
          pruning_cost=pruned - risk,
        )
      )
  return all_heads


def prune(model: Predictor, heads: Sequence[int]) -> LinearAttention:
  """Returns a copy of a linear attention model without the given heads.

  The W_P of these heads is set to 0; shapes do not change.

  Args:
    model: A linear attention model: LSA, multi-head LSA, yq-LSA or LTB.
    heads: Numbers of heads, from 0.

  Returns:
    The copy.

  Raises:
    UserError: If a head does not exist, or if the model is not a linear attention
      model.

  Example:
    >>> saved = zoo.load('checkpoints/yq_lsa')
    >>> without = zoo.probing.prune(saved.model, [0])
    >>> float(jnp.abs(without.w_p[...]).max())
    0.0
  """
  model = _with_heads(model)
  for head in heads:
    if head not in range(model.num_heads):
      raise UserError(
        f'head {head!r} cannot be pruned; heads are counted from 0 to '
        f'{model.num_heads - 1}'
      )
  copy = nnx.clone(model)
  kept = np.isin(np.arange(model.num_heads), np.asarray(heads, int), invert=True)
  copy.w_p[...] = jnp.where(kept[:, None, None], copy.w_p[...], 0)
  return copy


def _with_heads(model: Predictor) -> LinearAttention:
  """Returns the model; raises UserError unless it is linear attention."""
  if not isinstance(model, LinearAttention):
    raise UserError(
      f'{type(model).__name__} has no separable heads; it must be lsa, multi_head_lsa, '
      'yq_lsa or ltb; zoo.probing.head_scores describes the heads of a transformer'
    )
  return model


# Without compilation, each operation would be a program of its own.
_algebra = nnx.jit(LinearAttention.head_algebra)


def _square(first: LearningRule, second: LearningRule, task: Task) -> float:
  """Returns the mean squared difference of the predictions of two rules."""
  return float(theory.squared_difference(first, second, task).prediction)


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
    site = site_of_heads(model, layer)
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


def site_of_heads(model: Predictor, layer: str) -> str | None:
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


def qk(model: Predictor, layer: int, head: int) -> Float[np.ndarray, 'm m']:
  """Returns the QK circuit of a head: the matrix of its scores between two tokens.

  The matrix is `M = W_E W_Q W_Kᵀ W_Eᵀ`. For a token t of the query and a token s of the
  key, both row vectors, `t M sᵀ` is the score `q·k` before it is divided by the root of
  the head's size. Entry (i, j) of M is the factor of `t_i s_j` in this score.

  Tokens are those of `capture(model, prompt, ['embed'])`. Their entries are first the
  features, then the labels. A model with `read_in='convolutional'` has no linear map
  W_E of tokens. Its M is `W_Q W_Kᵀ`, whose entries are those of the residual stream.

  The weights of a norm before the mixer are a part of W_Q and W_K. The scale of this
  norm, 1 / √(variance + ε), is left out, because it depends on the token. M also leaves
  out biases, positions and earlier layers. With rotary positions, M gives the score of
  a key that has the same position as the query.

  - Quantity: a function of the weights; there is no expectation.
  - Null: 0, for a head without weights. M = 0 means that the head attends alike to all
    tokens; the reverse does not hold, since a score that depends on the query alone
    gives all keys the same attention.
  - Counterfactual: none.

  Args:
    model: A `zoo.models.Transformer` whose mixer is softmax, ReLU or linear attention.
    layer: The layer, from 0.
    head: The head, from 0.

  Returns:
    The matrix M in float64. Rows are entries of the query's token, and columns are
    entries of the key's token.

  Raises:
    UserError: If the model or its mixer is another one; if a norm is neither a layer
      norm nor an RMS norm; if there is no such layer or head.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> zoo.probing.qk(saved.model, layer=1, head=0).shape
    (6, 6)

  References:
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.
  """
  network, mixer = _layer(model, layer, head)
  own = _columns(mixer.num_heads, mixer.query.out_features, head)
  before = _embedding(network) @ _gain(network.layers[layer].norm_1, mixer)
  query, key = (before @ _kernel(part)[:, own] for part in (mixer.query, mixer.key))
  return query @ key.T


def ov(model: Predictor, layer: int, head: int) -> Float[np.ndarray, 'm k']:
  """Returns the OV circuit of a head: the matrix from a token to what the head adds.

  The matrix is `M = W_E W_V W_O W_U`. If the head attends to one token s alone, a row
  vector, `s M` is what the head adds to the outputs. Entry (i, j) of M is the factor of
  s_i in output j. A model with `read_in='convolutional'` has no linear map W_E of
  tokens. Its M is `W_V W_O`, whose entries are those of the residual stream.

  The weights of a norm before the mixer are a part of W_V, and those of the norm before
  the readout are a part of W_U. The scales 1 / √(variance + ε) of these norms are left
  out, because they depend on the token. M also leaves out biases, positions and other
  layers.

  - Quantity: a function of the weights; there is no expectation.
  - Null: 0, for a head that adds nothing to the prediction directly.
  - Counterfactual: none.

  Args:
    model: A `zoo.models.Transformer` whose mixer is softmax, ReLU or linear attention.
    layer: The layer, from 0.
    head: The head, from 0.

  Returns:
    The matrix M in float64. Rows are entries of the token, and columns are outputs of
    the readout.

  Raises:
    UserError: If the model or its mixer is another one; if a norm is neither a layer
      norm nor an RMS norm; if there is no such layer or head.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> zoo.probing.ov(saved.model, layer=1, head=0).shape
    (6, 1)

  References:
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.
  """
  network, mixer = _layer(model, layer, head)
  own = _columns(mixer.num_heads, mixer.value.out_features, head)
  before = _embedding(network) @ _gain(network.layers[layer].norm_1, mixer)
  written = before @ _kernel(mixer.value)[:, own] @ _kernel(mixer.out)[own]
  if not isinstance(network.read_in, Linear):
    return written
  return written @ _gain(network.norm, mixer) @ _kernel(network.read_out)


def copying_score(model: Predictor, layer: int, head: int) -> float | None:
  """Returns how far a head raises the outputs of the labels to which it attends.

  The score is `Σ λ / Σ |λ|` over the eigenvalues λ of a block of `ov`: from the entries
  of the labels in a token to the outputs for the same labels. Several outputs are
  logits of classes, and what a head adds to all of them alike changes no probability:
  their mean is subtracted. A model with one or two outputs has one eigenvalue other
  than 0, so that its score is a sign, 1 or −1.

  - Quantity: `Σ λ / Σ |λ|`, from −1 to 1; a head that copies has 1.
  - Null: the score of an untrained model. It is random around 0, and the fewer outputs
    k the model has, the wider is its range. For random normal weights, in a model of
    width 64 with heads of size 16, 95 % of the scores lie within ±0.93, ±0.47, ±0.28
    and ±0.23 for k = 4, 8, 16 and 32.
  - Counterfactual: none.
  - Denominator: `Σ |λ|`; if it is 0, the score is None.

  Args:
    model: A `zoo.models.Transformer` that reads its tokens by a linear map, and whose
      mixer is softmax, ReLU or linear attention.
    layer: The layer, from 0.
    head: The head, from 0.

  Returns:
    The score. None for a head that writes no label to the outputs.

  Raises:
    UserError: If the model has no such layer or head, or if a part of it is of a kind
      that this score does not cover.

  Example:
    >>> model = zoo.models.Transformer(
    ...   2, 4, num_outputs=3, num_layers=1, rngs=nnx.Rngs(0)
    ... )
    >>> round(zoo.probing.copying_score(model, layer=0, head=0), 2)  # untrained
    0.28

  References:
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.
  """
  network, _ = _layer(model, layer, head)
  if not isinstance(network.read_in, Linear):
    raise UserError(
      "read_in is not 'flat'; without a linear map of tokens there is no copying score"
    )
  if network.head == 'bars':
    raise UserError(
      "head is 'bars'; its outputs are logits of bars, which are not outputs of labels"
    )
  d, k = network.num_features, network.num_outputs
  # With head='gaussian' the means are the first k outputs.
  labels = ov(network, layer, head)[d : d + k, :k]
  if k > 1:
    labels = labels - labels.mean(axis=1, keepdims=True)
  eigenvalues = np.linalg.eigvals(labels)
  total = float(np.abs(eigenvalues).sum())
  # Complex eigenvalues come in conjugate pairs, so that their sum is real.
  return float(eigenvalues.sum().real) / total if total > 0 else None


def _layer(model: Predictor, layer: int, head: int) -> tuple[Transformer, Any]:
  """Returns the model and the mixer of the layer; raises UserError."""
  if not isinstance(model, Transformer):
    raise UserError(
      f'{type(model).__name__} is no zoo.models.Transformer, whose weights are known'
    )
  check_count('layer', layer, 0, len(model.layers) - 1)
  mixer: Any = model.layers[layer].mixer
  if not isinstance(mixer, _MIXERS):
    raise UserError(
      f'the mixer of layer {layer} is {type(mixer).__name__}; it must be softmax, relu '
      'or linear, whose scores and values are linear maps of tokens'
    )
  check_count('head', head, 0, mixer.num_heads - 1)
  return model, mixer


def _columns(num_heads: int, width: int, head: int) -> slice:
  """Returns the features of a head among those of all heads."""
  size = width // num_heads
  return slice(head * size, (head + 1) * size)


def _kernel(layer: nnx.Linear) -> Float[np.ndarray, 'i o']:
  return np.asarray(layer.kernel[...], np.float64)


def _embedding(model: Transformer) -> Float[np.ndarray, 'm w']:
  """Returns W_E; the identity if the tokens are not read by a linear map."""
  if isinstance(model.read_in, Linear):
    return _kernel(model.read_in)
  return np.eye(model.read_in.out_features)


def _gain(norm: Any, mixer: Any) -> Float[np.ndarray, 'w w']:
  """Returns a norm as a matrix, without its bias and its scale 1 / √(variance + ε).

  Raises:
    UserError: If the norm is neither a layer norm nor an RMS norm.
  """
  width = mixer.out.out_features
  if norm is None:
    return np.eye(width)
  if not isinstance(norm, nnx.LayerNorm | nnx.RMSNorm | RMSNorm):
    raise UserError(
      f'the norm is {type(norm).__name__}; it must be a layer norm or an RMS norm'
    )
  gain = np.ones(width)
  if norm.scale is not None:
    gain = np.asarray(norm.scale[...], np.float64)
  centred = np.eye(width)
  if isinstance(norm, nnx.LayerNorm):
    centred = centred - 1 / width
  return centred * gain
