"""Attention with softmax or ReLU weights, and softmax attention that forgets."""

from __future__ import annotations

import abc
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from zoo.core.errors import UserError
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

Scores: TypeAlias = Float[Array, 'b h t n']  # query by key, or the weights from them


class _Attention(Mixer):
  """Multi-head attention, whose subclass turns scores into weights.

  `ignores_shifts` says that the weights are the same if a query's scores all rise by
  the same number, as by the bias of keys without positions. Then keys have no bias.
  """

  ignores_shifts = False
  shortcuts = True  # whether outputs may skip taps

  def __init__(
    self, slot: Slot, causal: bool = True, rotary: bool = False, *, rngs: nnx.Rngs
  ):
    """`rotary` rotates queries and keys by their positions (arXiv 2104.09864).

    Raises UserError unless the heads share the width evenly.
    """
    width, size, init = slot.width, slot.head_size, slot.init
    if rotary:
      check_rotary(size)
    self.num_heads, self.causal, self.rotary = slot.num_heads, causal, rotary
    self.query = project(width, width, init, rngs=rngs)
    use_bias = rotary or not self.ignores_shifts
    self.key = project(width, width, init, use_bias=use_bias, rngs=rngs)
    if not use_bias:
      rngs.params()  # a bias takes a key; without it the next kernels start the same
    self.value = project(width, width, init, rngs=rngs)
    self.out = project_back(width, width, init, rngs=rngs)
    self.query_tap, self.key_tap, self.value_tap = (
      Tap(axes='b n h s', kind=kind) for kind in ('query', 'key', 'value')
    )
    self.scores_tap = Tap(axes='b h q k', kind='scores')
    self.pattern_tap = Tap(axes='b h q k', kind='pattern')
    self.heads_tap = Tap(axes='b n h v', kind='heads')

  def __call__(self, tokens: Tokens) -> Tokens:
    return self._attend(tokens, slice(None))

  def outputs_at(self, tokens: Tokens, at: slice) -> Float[Array, 'b t w']:
    """The outputs for some tokens, without the queries of the others."""
    return self._attend(tokens, at)

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n']:
    """The attention weights, query by key."""
    weights, totals = self._weigh(tokens, slice(None))
    return weights / totals

  @abc.abstractmethod
  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, '*b t 1']]:
    """The attention weights before normalisation, and the divisor for each query.

    The scores are `q·k / √s`, query by key; the queries are those of the tokens `at`.
    """

  def _attend(self, tokens: Tokens, at: slice) -> Float[Array, 'b t w']:
    weights, totals = self._weigh(tokens, at)
    value = self.value_tap(split_heads(self.value(tokens), self.num_heads))
    value = jnp.swapaxes(value, 1, 2)
    if self.shortcuts:
      # Dividing the outputs is cheaper than dividing the weights, a larger array.
      outputs = jnp.einsum('bhqk,bhks->bhqs', weights, value) / totals
    else:
      pattern = self.pattern_tap(weights / totals)
      outputs = jnp.einsum('bhqk,bhks->bhqs', pattern, value)
    return self.out(merge_heads(self.heads_tap(jnp.swapaxes(outputs, 1, 2))))

  def _weigh(self, tokens: Tokens, at: slice) -> tuple[Scores, Float[Array, '*b t 1']]:
    query = split_heads(self.query(tokens[:, at]), self.num_heads)
    key = split_heads(self.key(tokens), self.num_heads)
    if self.rotary:
      positions = np.arange(tokens.shape[1])
      query, key = rotate(query, positions[at]), rotate(key, positions)
    query, key = self.query_tap(query), self.key_tap(key)
    # With the heads' axis after the tokens', XLA:CPU would transpose the scores.
    query, key = jnp.swapaxes(query, 1, 2), jnp.swapaxes(key, 1, 2)
    query /= query.shape[-1] ** 0.5
    scores = jnp.einsum('bhqs,bhks->bhqk', query, key)
    return self.weigh(scores, tokens, at)


# Not jax.nn.dot_product_attention, whose softmax is in float32 even for float64.
@register_mixer('softmax')
class SoftmaxAttention(_Attention):
  """Softmax attention (Vaswani et al., arXiv 1706.03762, eq. 1).

  o_t = Σ_i softmax_i(q_t·k_i / √s) v_i, with s features per head, over i ≤ t if causal,
  else over the context and t itself. q, v and the output have biases, which the paper
  does not have. k has one only if rotary: otherwise the softmax does not depend on it.

  The loop that defines it: `tests/mixers/reference/softmax.py`.
  """

  ignores_shifts = True

  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, 'b h t 1']]:
    n = scores.shape[-1]
    seen = causal_mask(n) if self.causal else context_mask(n) | np.eye(n, dtype=bool)
    return _exponentials(self.scores_tap(scores), seen[at])

  def among(self, tokens: Tokens, seen: Bool[Array, 'b k']) -> Tokens:
    """The outputs if all tokens of a prompt see the same ones.

    There are no positions, and `causal` does not matter.

    Args:
      tokens: The tokens of prompts.
      seen: Which of the first k tokens are seen; maybe none.
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
    query /= query.shape[-1] ** 0.5
    scores = self.scores_tap(jnp.einsum('bhqs,bhks->bhqk', query, key))
    scores = jnp.where(seen[:, None, None], scores, jnp.finfo(scores.dtype).min)
    pattern = self.pattern_tap(jax.nn.softmax(scores))
    value = jnp.where(seen[:, None, :, None], value, 0)  # if none is seen
    heads = jnp.swapaxes(jnp.einsum('bhqk,bhks->bhqs', pattern, value), 1, 2)
    return self.out(merge_heads(self.heads_tap(heads)))


@register_mixer('fox')
class ForgettingAttention(_Attention):
  """The Forgetting Transformer's attention (Lin et al., arXiv 2503.02130, eq. 5).

  Softmax attention with the scores q_t·k_i / √s + Γ_t − Γ_i, where Γ is the sum so far
  of log f, and f_t = sigmoid(W_f x_t + b_f) for each head: a token fades as later ones
  forget it. There are no rotary positions. The output gate, the norms and the shifts of
  keys and values of the authors' block Pro are left out.

  The loop that defines it: `tests/mixers/reference/fox.py`.
  """

  ignores_shifts = True

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    super().__init__(slot, rngs=rngs)
    self.forget = project(slot.width, slot.num_heads, slot.init, rngs=rngs)

  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, 'b h t 1']]:
    logs = jax.nn.log_sigmoid(widen(self.forget(tokens)))
    total = jnp.swapaxes(jnp.cumsum(logs, axis=1), 1, 2)
    kept = total[:, :, at, None] - total[:, :, None]
    seen = causal_mask(scores.shape[-1])[at]
    return _exponentials(self.scores_tap(scores + kept.astype(scores.dtype)), seen)


def _exponentials(
  scores: Scores, seen: Bool[np.ndarray, 't n']
) -> tuple[Scores, Float[Array, 'b h t 1']]:
  """The weights of a softmax before normalisation, and their sums."""
  scores = jnp.where(seen[None, None], scores, -jnp.inf)
  largest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
  weights = jnp.exp(scores - largest)
  return weights, weights.sum(axis=-1, keepdims=True)


@register_mixer('relu')
class ReLUAttention(_Attention):
  """ReLU attention (Bai et al., arXiv 2306.04637, eq. 2).

  o_t = (1/n_t) Σ_i relu(q_t·k_i / √s) v_i over the n_t tokens i ≤ t if causal, else
  over the n_t tokens of the context. The paper has neither 1/√s nor biases.

  The loop that defines it: `tests/mixers/reference/relu.py`.
  """

  def weigh(
    self, scores: Scores, tokens: Tokens, at: slice
  ) -> tuple[Scores, Float[Array, '1 1 t 1']]:
    n = scores.shape[-1]
    seen = (causal_mask(n) if self.causal else context_mask(n))[at]
    num_seen = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    scores = self.scores_tap(scores)
    weights = jnp.where(seen[None, None], jax.nn.relu(scores), 0)
    return weights, jnp.asarray(num_seen, scores.dtype)[None, None]


def causal_mask(n: int) -> Bool[np.ndarray, 'n n']:
  """Whether query t sees key i: i ≤ t."""
  return np.tri(n, dtype=bool)


def context_mask(n: int) -> Bool[np.ndarray, 'n n']:
  """Whether query t sees key i: all but the last token, as W_M of arXiv 2512.04268."""
  return np.broadcast_to(np.arange(n) < n - 1, (n, n))


def check_rotary(size: int) -> None:
  """Raises UserError unless the number of features per head is even."""
  if size % 2:
    raise UserError(f'the heads have {size} features; rotary needs an even number')


def rotate(
  features: Float[Array, 'b n h s'], positions: Int[np.ndarray | Array, ' n']
) -> Float[Array, 'b n h s']:
  """Rotates the pairs (j, j + s/2) of a token at t by the angle t · 10000^(−2j/s).

  Rotary positions of Su et al., arXiv 2104.09864, eq. 34, with the pairs of GPT-NeoX.
  """
  half = features.shape[-1] // 2
  speed = 10000.0 ** (-np.arange(half)[None] / half)
  if isinstance(positions, np.ndarray):
    angle = positions[:, None] * speed
    cosine, sine = np.cos(angle), np.sin(angle)
  else:  # precise angles need at least float32
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
