"""Test-time training: a layer whose state is a model that it trains on the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from zoo.core.errors import check_count
from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.mixer import (
  Mixer,
  Slot,
  Tokens,
  in_heads,
  merge_heads,
  project,
  project_back,
  split,
  widen,
)
from zoo.mixers.recurrence import Inputs, chunkwise, in_chunks, joined, update


class NetworkState(NamedTuple):
  """The state of `ttt`: the weights [W; b] of each head's model.

  Attributes:
    start: The weights at the start of the mini-batch, `[b, h, k, v]`, where `k` counts
      the features of a key and the bias.
    now: The weights after the last token, `[b, h, k, v]`.
    position: The number of tokens seen, an integer.
  """

  start: Float[Array, 'b h k v']
  now: Float[Array, 'b h k v']
  position: Int[Array, '']


class _Examples(NamedTuple):
  """The inner models' data: [q, 1], [k, 1], the target v − k and the rate η."""

  query: Float[Array, '... h k']
  key: Float[Array, '... h k']
  target: Float[Array, '... h v']
  rate: Float[Array, '... h']


_Norm = Callable[[Float[Array, 'b n h v']], Float[Array, 'b n h v']]


@register_mixer('ttt')
class TTT(Mixer):
  """TTT-Linear: each head trains a model on the tokens by gradient descent.

  The model of a head is f(z) = LN(z W + b). At each token it takes a step of gradient
  descent on ½|f(k_t) − (v_t − k_t)|², and then answers the query.

    [W; b]_t = [W; b]_{t−1} − η_t [k_t, 1]ᵀ ∇_t
    o_t = q_t + f_t(q_t)
    y_t = W_o o_t

  ∇_t is the gradient with respect to k_t W + b, at the weights at the start of the
  mini-batch of `mini_batch_size` tokens. A prompt of at most that many tokens is
  therefore one step of batch gradient descent. η_t = sigmoid(W_η x_t + b_η)/s for heads
  of s = width / num_heads features. q, k and v are linear in the tokens x. The initial
  weights [W; b]_0, and the scale and bias of LN, are learned.

  The state has [W; b] at the start of the mini-batch and now, `[b, h, s + 1, s]` each,
  and the number of tokens.

  Differences from the authors' code: it also has rotary positions within mini-batches,
  a factor of η that depends on the position within the mini-batch, a second norm, and
  the gate and short convolutions of the Mamba block, which are not in the paper's
  equations.

  The NumPy loop that defines it is `tests/mixers/reference/ttt.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    mini_batch_size: Number of tokens whose gradients are taken at the same weights, ≥
      1; 16 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `mini_batch_size` or `slot.num_heads` is not a positive integer, or if
      `slot.num_heads` does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.TTT(slot, mini_batch_size=4, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).now.shape
    (1, 2, 5, 4)

  References:
    Sun et al., arXiv 2407.04620, section 2.
  """

  # Keys and queries go through the initial weights of a head, which are a matrix.
  roles = {
    'weights': 'hidden',
    'bias': 'vector',
    'norm_scale': 'vector',
    'norm_bias': 'vector',
  }

  def __init__(self, slot: Slot, mini_batch_size: int = 16, *, rngs: nnx.Rngs):
    check_count('mini_batch_size', mini_batch_size)
    width, size, init = slot.width, slot.head_size, slot.init
    num_heads = slot.num_heads
    self.num_heads = num_heads
    self.mini_batch_size = mini_batch_size
    self.query, self.key, self.value = (
      project(width, width, init, rngs=rngs) for _ in range(3)
    )
    self.rate = project(width, num_heads, init, rngs=rngs)
    self.out = project_back(width, width, init, rngs=rngs)
    weights = 0.02 * jax.random.normal(rngs.params(), (num_heads, size, size))
    self.weights = nnx.Param(weights, **split('model', None, None))
    self.bias, self.norm_bias = (
      nnx.Param(jnp.zeros((num_heads, size)), **split('model', None)) for _ in range(2)
    )
    self.norm_scale = nnx.Param(jnp.ones((num_heads, size)), **split('model', None))
    self.query_tap, self.key_tap = (
      Tap(axes='b n h k', kind=kind) for kind in ('query', 'key')
    )
    self.value_tap = Tap(axes='b n h v', kind='value')
    self.rate_tap = Tap(axes='b n h', kind='strength')
    self.read_tap = Tap(axes='b n h v', kind='read')
    self.heads_tap = Tap(axes='b n h v', kind='heads')

  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token, mini-batch by mini-batch."""
    b, n, _ = tokens.shape
    size, norm = min(self.mini_batch_size, n), self._norm()

    def body(weights, examples):
      moves = _moves(examples, weights, norm)
      return chunkwise(Inputs(examples.query, examples.key, moves), weights)[::-1]

    examples = self._examples(tokens)
    start = self.initial_state(b).start
    start = start.astype(np.promote_types(start.dtype, examples.key.dtype))
    # Padded tokens have the rate 0, so they do not change the weights.
    batches = jax.tree.map(lambda array: in_chunks(array, size), examples)
    _, read = jax.lax.scan(body, start, batches)
    return self._outputs(examples, norm(joined(read, n)), tokens.dtype)

  def initial_state(self, batch: int) -> NetworkState:
    """Returns the state before the first token: the learned initial weights.

    Args:
      batch: Number b of sequences.
    """
    start, bias = widen((self.weights[...], self.bias[...]))
    weights = jnp.concatenate([start, bias[:, None]], axis=1)
    weights = jnp.broadcast_to(weights[None], (batch, *weights.shape))
    return NetworkState(weights, weights, jnp.zeros((), int))

  def step(
    self, token: Float[Array, 'b w'], state: NetworkState
  ) -> tuple[Float[Array, 'b w'], NetworkState]:
    """Returns the output of one token, and the next state.

    Args:
      token: One token of each sequence, `[b, w]`.
      state: The state before it.
    """
    examples, norm = self._examples(token[:, None]), self._norm()
    moves = _moves(examples, state.start, norm)
    query, key, moves = (array[:, 0] for array in (examples.query, examples.key, moves))
    now = update(Inputs(query, key, moves), state.now)
    read = jnp.einsum('bhk,bhkv->bhv', query, now)
    position = state.position + 1
    start = jnp.where(position % self.mini_batch_size == 0, now, state.start)
    outputs = self._outputs(examples, norm(read[:, None]), token.dtype)
    return outputs[:, 0], NetworkState(start, now, position)

  def _examples(self, tokens: Tokens) -> _Examples:
    # The gradient of a norm is a difference of numbers of similar size, for which
    # bfloat16 is not precise enough.
    query, key, value = widen(
      in_heads(tokens, (self.query, self.key, self.value), self.num_heads)
    )
    query, key = self.query_tap(query), self.key_tap(key)
    value = self.value_tap(value)
    with_one = [(0, 0)] * 3 + [(0, 1)]
    rate = self.rate_tap(jax.nn.sigmoid(widen(self.rate(tokens))) / query.shape[-1])
    query, extended = (
      jnp.pad(array, with_one, constant_values=1) for array in (query, key)
    )
    return _Examples(query, extended, value - key, rate)

  def _norm(self) -> _Norm:
    """Returns LN, with the scale and the bias of each head."""
    scale, bias = widen((self.norm_scale[...], self.norm_bias[...]))

    def norm(read: Float[Array, 'b n h v']) -> Float[Array, 'b n h v']:
      centred = read - read.mean(axis=-1, keepdims=True)
      variance = jnp.square(centred).mean(axis=-1, keepdims=True)
      normed = centred * jax.lax.rsqrt(variance + 1e-6)
      return normed * scale[None, None] + bias[None, None]

    return norm

  def _outputs(
    self, examples: _Examples, normed: Float[Array, 'b n h v'], dtype: jnp.dtype
  ) -> Float[Array, 'b n w']:
    heads = self.heads_tap(examples.query[..., :-1] + self.read_tap(normed))
    return self.out(merge_heads(heads).astype(dtype))


def _moves(
  examples: _Examples, weights: Float[Array, 'b h k v'], norm: _Norm
) -> Float[Array, 'b n h v']:
  """Returns −η_t ∇_t at these weights."""
  read = jnp.einsum('bnhk,bhkv->bnhv', examples.key, weights)
  predicted, back = jax.vjp(norm, read)
  (gradient,) = back(predicted - examples.target)
  return -examples.rate[..., None] * gradient
