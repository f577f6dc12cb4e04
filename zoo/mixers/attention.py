"""Attention with softmax or ReLU weights, and softmax attention that forgets."""

from __future__ import annotations

import abc
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from zoo.core.errors import UserError, check_truth
from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.mixer import (
  Mixer,
  Slot,
  Tokens,
  merge_heads,
  project,
  project_back,
  split_heads,
  widen,
)

# The scores, query by key, or the weights that are made from them.
Scores: TypeAlias = Float[Array, 'b h t n']


class _Attention(Mixer):
  """Base of multi-head attention; a subclass turns scores into weights.

  The class attribute `ignores_shifts` says that the weights do not change if the same
  number is added to all scores of a query. Without rotary positions a bias of the keys
  does just that, so the keys then have no bias.
  """

  ignores_shifts = False
  # Outputs may skip taps, except in a copy of the model whose taps are used.
  shortcuts = True

  def __init__(
    self, slot: Slot, causal: bool = True, rotary: bool = False, *, rngs: nnx.Rngs
  ):
    width, size, init = slot.width, slot.head_size, slot.init
    if rotary:
      check_rotary(size)
    self.num_heads = slot.num_heads
    self.causal = check_truth('causal', causal)
    self.rotary = check_truth('rotary', rotary)
    self.query = project(width, width, init, rngs=rngs)
    use_bias = rotary or not self.ignores_shifts
    self.key = project(width, width, init, use_bias=use_bias, rngs=rngs)
    if not use_bias:
      # A bias would take a key. Taking one here lets the next kernels start the same.
      rngs.params()
    self.value = project(width, width, init, rngs=rngs)
    self.out = project_back(width, width, init, rngs=rngs)
    self.query_tap, self.key_tap, self.value_tap = (
      Tap(axes='b n h s', kind=kind) for kind in ('query', 'key', 'value')
    )
    self.scores_tap = Tap(axes='b h q k', kind='scores')
    self.pattern_tap = Tap(axes='b h q k', kind='pattern')
    self.heads_tap = Tap(axes='b n h v', kind='heads')

  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token."""
    return self._attend(tokens, slice(None))

  def outputs_at(self, tokens: Tokens, at: slice) -> Float[Array, 'b t w']:
    """Returns the outputs at some tokens, without computing the other tokens' queries.

    Args:
      tokens: All tokens, `[b, n, w]`.
      at: The tokens whose outputs are returned.
    """
    return self._attend(tokens, at)

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n']:
    """Returns the attention weights, query by key."""
    weights, totals = self._weigh(tokens, slice(None))
    return weights / totals

  @abc.abstractmethod
  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, '*b t 1']]:
    """Returns the weights before normalisation, and the divisor for each query.

    Args:
      scores: `q·k / √s`, query by key, in float32 or more precise.
      tokens: All tokens of the mixer.
      at: The tokens to which the queries belong.
    """

  def _attend(self, tokens: Tokens, at: slice) -> Float[Array, 'b t w']:
    weights, totals = self._weigh(tokens, at)
    value = self.value_tap(split_heads(self.value(tokens), self.num_heads))
    value = jnp.swapaxes(value, 1, 2)
    if self.shortcuts:
      # Dividing the outputs is cheaper than dividing the weights, a larger array.
      outputs = _read(weights, value) / totals
    else:
      outputs = _read(self.pattern_tap(weights / totals), value)
    outputs = jnp.swapaxes(outputs, 1, 2).astype(value.dtype)
    return self.out(merge_heads(self.heads_tap(outputs)))

  def _weigh(self, tokens: Tokens, at: slice) -> tuple[Scores, Float[Array, '*b t 1']]:
    query = split_heads(self.query(tokens[:, at]), self.num_heads)
    key = split_heads(self.key(tokens), self.num_heads)
    if self.rotary:
      positions = np.arange(tokens.shape[1])
      query, key = rotate(query, positions[at]), rotate(key, positions)
    query, key = self.query_tap(query), self.key_tap(key)
    # With the heads' axis after the tokens', XLA:CPU would transpose the scores.
    query, key = jnp.swapaxes(query, 1, 2), jnp.swapaxes(key, 1, 2)
    return self.weigh(_scores(query, key), tokens, at)


def _scores(query: Float[Array, 'b h t s'], key: Float[Array, 'b h n s']) -> Scores:
  """Returns `q·k / √s`, query by key, in float32 or more precise."""
  query /= query.shape[-1] ** 0.5
  return _wide_einsum('bhqs,bhks->bhqk', query, key)


def _read(weights: Scores, value: Float[Array, 'b h n s']) -> Float[Array, 'b h t s']:
  """Returns the weighted sums of the values, in float32 or more precise."""
  return _wide_einsum('bhqk,bhks->bhqs', weights.astype(value.dtype), value)


def _wide_einsum(formula: str, first: Array, second: Array) -> Array:
  """Returns a sum of products that `widen` would not change.

  The factors may be less precise than float32; the products are then added up in it.
  """
  wide = np.promote_types(first.dtype, 'float32')
  return jnp.einsum(formula, first, second, preferred_element_type=wide)


# The softmax of jax.nn.dot_product_attention is in float32 even for float64 inputs, so
# it is not used here.
@register_mixer('softmax')
class SoftmaxAttention(_Attention):
  """Softmax attention, causal or over a set.

    o_t = Σ_i softmax_i(q_t·k_i / √s) v_i
    y_t = W_o o_t + b_o

  Each head has s = width / num_heads features. The sum is over the tokens i ≤ t if
  `causal`. Otherwise it is over the context (all tokens but the last) and t itself.
  There is no recurrent state.

  Differences from the paper: q, v and the output have biases. k has a bias only with
  rotary positions, because without them the softmax does not depend on it.

  The NumPy loop that defines it is `tests/mixers/reference/softmax.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    causal: Whether a token sees only itself and the tokens before it; True by default.
      If False, it sees the context and itself.
    rotary: Whether queries and keys are rotated by their positions (arXiv 2104.09864);
      False by default. The heads then need an even number of features.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width, if `causal` or `rotary` is not True or False, or if `rotary` is True and
      the number of features of a head is odd.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.SoftmaxAttention(slot, rngs=nnx.Rngs(0))
    >>> print(mixer(jnp.ones((1, 5, 8)))[0, :, 0].round(2))  # equal tokens
    [1.04 1.04 1.04 1.04 1.04]

  References:
    Vaswani et al., arXiv 1706.03762, eq. 1.
  """

  ignores_shifts = True

  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, 'b h t 1']]:
    """Returns the weights before normalisation, and the divisor for each query."""
    n = scores.shape[-1]
    seen = causal_mask(n) if self.causal else context_mask(n) | np.eye(n, dtype=bool)
    return _exponentials(self.scores_tap(scores), seen[at])

  def among(self, tokens: Tokens, seen: Bool[Array, 'b k']) -> Tokens:
    """Returns the outputs if all tokens of a prompt see the same ones.

    Positions and `causal` have no effect here.

    Args:
      tokens: The tokens of prompts, `[b, n, w]`.
      seen: Which of the first k tokens are seen. If a prompt sees none, its heads read
        0.
    """
    keys = tokens[:, : seen.shape[1]]
    query, key, value = (
      jnp.swapaxes(tap(split_heads(layer(inputs), self.num_heads)), 1, 2)
      for layer, tap, inputs in (
        (self.query, self.query_tap, tokens),
        (self.key, self.key_tap, keys),
        (self.value, self.value_tap, keys),
      )
    )
    scores = self.scores_tap(_scores(query, key))
    scores = jnp.where(seen[:, None, None], scores, jnp.finfo(scores.dtype).min)
    pattern = self.pattern_tap(jax.nn.softmax(scores))
    # If no token is seen, the softmax is uniform, and the values must be 0.
    value = jnp.where(seen[:, None, :, None], value, 0)
    heads = jnp.swapaxes(_read(pattern, value), 1, 2).astype(value.dtype)
    return self.out(merge_heads(self.heads_tap(heads)))


@register_mixer('fox')
class ForgettingAttention(_Attention):
  """The attention of the Forgetting Transformer, which is always causal.

    f_t = sigmoid(W_f x_t + b_f)                 a number for each head
    Γ_t = log f_1 + … + log f_t
    o_t = Σ_{i ≤ t} softmax_i(q_t·k_i / √s + Γ_t − Γ_i) v_i
    y_t = W_o o_t + b_o

  Each head has s = width / num_heads features. A token fades as later tokens forget it:
  the forget gates f of the tokens after it multiply its weight. There is no recurrent
  state, and there are no rotary positions.

  Differences from the paper: this is its attention alone. The output gate, the norms
  and the shifts of keys and values of the authors' "Pro" block are left out.

  Limit: Γ is a sum over the whole sequence in float32, and its roundings grow with it:
  a weight is off by a share of about 6e-8 · `|Γ|`, which is 0.06 % for `|Γ|` = 10⁴.

  The NumPy loop that defines it is `tests/mixers/reference/fox.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.ForgettingAttention(slot, rngs=nnx.Rngs(0))
    >>> print(mixer.attention(jnp.ones((1, 5, 8)))[0, 0, -1].round(2))  # old ones fade
    [0.03 0.06 0.13 0.26 0.52]

  References:
    Lin et al., arXiv 2503.02130, eq. 5.
  """

  ignores_shifts = True

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    super().__init__(slot, rngs=rngs)
    self.forget = project(slot.width, slot.num_heads, slot.init, rngs=rngs)

  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, 'b h t 1']]:
    """Returns the weights before normalisation, and the divisor for each query."""
    logs = jax.nn.log_sigmoid(widen(self.forget(tokens)))
    total = jnp.swapaxes(jnp.cumsum(logs, axis=1), 1, 2)
    kept = total[:, :, at, None] - total[:, :, None]
    seen = causal_mask(scores.shape[-1])[at]
    return _exponentials(self.scores_tap(scores + kept.astype(scores.dtype)), seen)


def _exponentials(
  scores: Scores, seen: Bool[np.ndarray, 't n']
) -> tuple[Scores, Float[Array, 'b h t 1']]:
  """Returns the weights of a softmax before normalisation, and their sums."""
  scores = jnp.where(seen[None, None], scores, -jnp.inf)
  largest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
  weights = jnp.exp(scores - largest)
  return weights, weights.sum(axis=-1, keepdims=True)


@register_mixer('relu')
class ReLUAttention(_Attention):
  """Attention with ReLU weights, causal or over a set.

    o_t = (1/n_t) Σ_i relu(q_t·k_i / √s) v_i
    y_t = W_o o_t + b_o

  Each head has s = width / num_heads features. The sum is over the n_t tokens i ≤ t if
  `causal`, and otherwise over the n_t tokens of the context, which are all but the
  last. There is no recurrent state.

  Differences from the paper: the paper has no factor 1/√s and no biases. Over a set,
  the paper's query is also a key and counts in n_t; here the query's token, the last
  one, is masked as a key.

  The NumPy loop that defines it is `tests/mixers/reference/relu.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    causal: Whether a token sees only itself and the tokens before it; True by default.
      If False, it sees the context.
    rotary: Whether queries and keys are rotated by their positions (arXiv 2104.09864);
      False by default. The heads then need an even number of features.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width, if `causal` or `rotary` is not True or False, or if `rotary` is True and
      the number of features of a head is odd.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.ReLUAttention(slot, causal=False, rngs=nnx.Rngs(0))
    >>> print(mixer(jnp.ones((1, 5, 8)))[0, :, 0].round(2))  # equal tokens
    [0.84 0.84 0.84 0.84 0.84]

  References:
    Bai et al., arXiv 2306.04637, eq. 2.
  """

  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, '1 1 t 1']]:
    """Returns the ReLU of the scores, and the number of tokens that each query sees."""
    n = scores.shape[-1]
    seen = (causal_mask(n) if self.causal else context_mask(n))[at]
    num_seen = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    scores = self.scores_tap(scores)
    weights = jnp.where(seen[None, None], jax.nn.relu(scores), 0)
    return weights, jnp.asarray(num_seen, scores.dtype)[None, None]


def causal_mask(n: int) -> Bool[np.ndarray, 'n n']:
  """Returns whether query t sees key i: i ≤ t."""
  return np.tri(n, dtype=bool)


def context_mask(n: int) -> Bool[np.ndarray, 'n n']:
  """Returns whether query t sees key i: all but the last token are seen.

  This is the mask W_M of arXiv 2512.04268.
  """
  return np.broadcast_to(np.arange(n) < n - 1, (n, n))


def check_rotary(size: int) -> None:
  """Checks that rotary positions fit the heads.

  Raises:
    UserError: If the number of features per head is odd.
  """
  if size % 2:
    raise UserError(f'the heads have {size} features; rotary needs an even number')


def rotate(
  features: Float[Array, 'b n h s'], positions: Int[np.ndarray | Array, ' n']
) -> Float[Array, 'b n h s']:
  """Rotates the pairs (j, j + s/2) of a token at t by the angle t · 10000^(−2j/s).

  These are the rotary positions of Su et al., arXiv 2104.09864, eq. 34, with the pairs
  of GPT-NeoX.

  Returns:
    The rotated features, in the shape of `features`.
  """
  half = features.shape[-1] // 2
  speed = 10000.0 ** (-np.arange(half)[None] / half)
  if isinstance(positions, np.ndarray):
    angle = positions[:, None] * speed
    cosine, sine = np.cos(angle), np.sin(angle)
  else:  # Precise angles need at least float32.
    dtype = np.promote_types(features.dtype, 'float32')
    angle = positions.astype(dtype)[:, None] * jnp.asarray(speed, dtype)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
  cosine, sine = (
    jnp.asarray(array, features.dtype)[None, :, None] for array in (cosine, sine)
  )
  first, second = features[..., :half], features[..., half:]
  return jnp.concatenate(
    [first * cosine - second * sine, first * sine + second * cosine], axis=-1
  )
