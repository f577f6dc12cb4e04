"""Linear-state mixers that erase: the delta rule and its descendants."""

from __future__ import annotations

import abc

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import check_count, check_truth
from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.decay import KeyRates, Rate
from zoo.mixers.linear_state import QKV, HeadState, Past, State, normalize
from zoo.mixers.mixer import (
  Activation,
  Memory,
  Read,
  Slot,
  Tokens,
  project,
  split,
  split_heads,
  widen,
)
from zoo.mixers.recurrence import Inputs, decayed, delta_rule, recurrence


class _DeltaRule(HeadState):
  """S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t), where S'_t is S_{t−1} after a decay.

  β_t = sigmoid(W_β x_t), or twice that with `negative_eigenvalues`, so that the
  eigenvalue 1 − β_t of I − β_t k_tᵀ k_t is in (−1, 1) (Grazzi et al., arXiv
  2411.12537). q, k and v go through a short convolution and SiLU, q and k are scaled to
  length 1, and the RMS norm is that of each head. q has no other scale, as in the
  equations of the papers; code that divides it by √k has the same outputs, since the
  norm removes the factor, but for its ε. A token may have several `steps`, each with
  its own k, v and β, of which the first decays and the last is read.
  """

  def __init__(
    self,
    slot: Slot,
    negative_eigenvalues: bool,
    *,
    steps: int = 1,
    gate: Activation | None = None,
    gate_rank: int | None = None,
    rngs: nnx.Rngs,
  ):
    check_truth('negative_eigenvalues', negative_eigenvalues)
    options = {'steps': steps, 'gate': gate, 'gate_rank': gate_rank}
    super().__init__(slot, convolved=QKV, **options, rngs=rngs)
    self.steps = steps
    self.strength = project(
      slot.width, steps * slot.num_heads, slot.init, use_bias=False, rngs=rngs
    )
    self.most = 2.0 if negative_eigenvalues else 1.0
    each = 'n' if steps == 1 else 'm'
    self.strength_tap = Tap(axes=f'b {each} h', kind='strength')

  @abc.abstractmethod
  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h g'] | None:
    """The logarithm of the decay before each token; None: no decay."""

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    (query, key, value), past = self.heads(tokens, state)
    beta = self.most * jax.nn.sigmoid(widen(self.strength(tokens)))
    decay = self.log_decay(tokens)
    query, key, value = self.tapped(normalize(query), normalize(key), value)
    beta = self.strength_tap(beta.reshape(key.shape[:3]))
    if self.steps > 1:
      query = as_steps(query, self.steps, -1)
      decay = None if decay is None else as_steps(decay, self.steps, 0)
    return delta_rule(query, key, value, decay, beta), past

  def recur(self, inputs: Inputs, memory: Memory) -> tuple[Read, Memory]:
    read, memory = recurrence(inputs, memory)
    return read[:, self.steps - 1 :: self.steps], memory

  def with_values(self, inputs: Inputs, values: Read) -> Inputs:
    """The inputs in which all values of a token are the same."""
    return inputs._replace(value=jnp.repeat(values, self.steps, axis=1))


@register_mixer('delta')
class Delta(_DeltaRule):
  """The delta rule (Schlag et al., arXiv 2102.11174; as in Yang et al., 2406.06484).

  S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}), with β_t = sigmoid(W_β x_t) for each
  head: a step of gradient descent on |k_t S − v_t|²/2. q, k and v go through a short
  convolution and SiLU; q and k are scaled to length 1; out(norm(o_t)), with the RMS
  norm of each head. With `negative_eigenvalues` β_t is twice as large (arXiv
  2411.12537).

  q has length 1 and no other scale, as in the paper. The code of flash-linear-attention
  divides it by √k, a factor that the norm of o_t removes, but for its ε.

  The loop that defines it: `tests/mixers/reference/delta.py`.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      negative_eigenvalues: whether what is erased may be up to twice what is read.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    super().__init__(slot, negative_eigenvalues, rngs=rngs)

  def log_decay(self, tokens: Tokens) -> None:
    return None


@register_mixer('gated_delta')
class GatedDelta(_DeltaRule):
  """The gated delta rule (Yang et al., arXiv 2412.06464).

  S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t), S'_t = e^(g_t) S_{t−1},
  g_t = −e^A softplus(W x_t + b) for each head; the rest as in the delta rule, but with
  a gate: out(norm(o_t) ∘ silu(W_g x_t)). The authors' values are twice as wide, and e^A
  starts in [0, 16], not in [1, 16].

  q has length 1 and no other scale, as in the paper. The code of flash-linear-attention
  divides it by √k, a factor that the norm of o_t removes, but for its ε.

  The loop that defines it: `tests/mixers/reference/gated_delta.py`.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      negative_eigenvalues: whether what is erased may be up to twice what is read.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    super().__init__(slot, negative_eigenvalues, gate=jax.nn.silu, rngs=rngs)
    self.rate = Rate(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h g', kind='decay')

  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h 1']:
    return self.decay_tap(self.rate(tokens)[1])


@register_mixer('kda')
class KimiDelta(_DeltaRule):
  """Kimi delta attention (Kimi Linear, arXiv 2510.26692, section 3).

  The gated delta rule with a decay for each entry of a key,
  g_t = −e^A softplus(W_2 W_1 x_t + b) with A by head, and a gate of low rank:
  out(norm(o_t) ∘ sigmoid(W_4 W_3 x_t + c)). W_1 and W_3 have as many outputs as a head
  has entries.

  q has length 1 and no other scale, as in the paper. The code of flash-linear-attention
  divides it by √k, a factor that the norm of o_t removes, but for its ε.

  The loop that defines it: `tests/mixers/reference/kda.py`.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      negative_eigenvalues: whether what is erased may be up to twice what is read.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    gate = {'gate': jax.nn.sigmoid, 'gate_rank': slot.head_size}
    super().__init__(slot, negative_eigenvalues, **gate, rngs=rngs)
    self.rates = KeyRates(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h k', kind='decay')

  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h k']:
    return self.decay_tap(self.rates(tokens))


@register_mixer('gdn2')
class GatedDelta2(HeadState):
  """Gated DeltaNet-2 (arXiv 2605.22791): erasing and writing have gates of their own.

  S_t = S'_t − k_tᵀ ((b_t ∘ k_t) S'_t) + k_tᵀ (w_t ∘ v_t), S'_t = exp(g_t) ∘ S_{t−1},
  with the vectors b_t = sigmoid(W_b x_t) and w_t = sigmoid(W_w x_t), and the rest as in
  `kda`. With `negative_eigenvalues` b_t is twice as large, and w_t is not.

  q has length 1 and no other scale. The code of flash-linear-attention divides it by
  √k, a factor that the norm of o_t removes, but for its ε.

  The loop that defines it: `tests/mixers/reference/gdn2.py`.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      negative_eigenvalues: whether what is erased may be up to twice what is read.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    check_truth('negative_eigenvalues', negative_eigenvalues)
    gate = {'gate': jax.nn.sigmoid, 'gate_rank': slot.head_size}
    super().__init__(slot, convolved=QKV, **gate, rngs=rngs)
    self.rates = KeyRates(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h k', kind='decay')
    self.erase_tap = Tap(axes='b n h k', kind='strength')
    self.write_tap = Tap(axes='b n h v', kind='strength')
    self.erase, self.write = (
      project(slot.width, slot.width, slot.init, use_bias=False, rngs=rngs)
      for _ in range(2)
    )
    self.most = 2.0 if negative_eigenvalues else 1.0

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    (query, key, value), past = self.heads(tokens, state)
    erase, write = (
      tap(split_heads(jax.nn.sigmoid(widen(layer(tokens))), self.num_heads))
      for layer, tap in ((self.erase, self.erase_tap), (self.write, self.write_tap))
    )
    query, key, value = self.tapped(normalize(query), normalize(key), value)
    log_decay = self.decay_tap(self.rates(tokens))
    erase = self.most * decayed(erase * key, log_decay)
    value = write * widen(value)
    return Inputs(query, key, value, log_decay, erase=erase), past


@register_mixer('comba')
class Comba(HeadState):
  """Comba (Hu et al., arXiv 2506.02475): feedback from the state and to the output.

  S_t = α_t S_{t−1} − σ(b) β_t k_tᵀ (k_t S_{t−1}) + β_t k_tᵀ v_t and
  o_t = (q_t − d k_t) S_t with b and d by head; what is erased is read before the decay
  α_t = e^(g_t), which is that of `gated_delta`, as are β_t, the convolutions and the
  lengths of q and k; out(norm(o_t) ∘ sigmoid(W_g x_t)). d starts at 0.02, as the
  authors advise for small models. q − d k has no other scale, as in the paper. In the
  code of flash-linear-attention

  - σ(b) has no effect on what is erased, as σ(b) k is scaled to length 1 again;
  - the output correction has σ(b) k, where the paper and this class have k, and
    q − d σ(b) k is scaled to length 1, where here q and k are;
  - `naive_recurrent_comba` erases after the decay, while its chunks and its kernel do
    so before it, as the paper and this class;
  - what is read is divided by √k, a factor that the norm of o_t removes, but for its ε;
  - values are twice as wide.

  The loop that defines it: `tests/mixers/reference/comba.py`.
  """

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    super().__init__(slot, convolved=QKV, gate=jax.nn.sigmoid, rngs=rngs)
    num_heads = slot.num_heads
    self.strength = project(slot.width, num_heads, slot.init, use_bias=False, rngs=rngs)
    self.rate = Rate(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h g', kind='decay')
    self.strength_tap = Tap(axes='b n h', kind='strength')
    self.feedback = nnx.Param(jnp.ones(num_heads), **split('model'))
    self.correction = nnx.Param(jnp.full(num_heads, 0.02), **split('model'))

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    (query, key, value), past = self.heads(tokens, state)
    query, key, value = self.tapped(normalize(query), normalize(key), value)
    beta = self.strength_tap(jax.nn.sigmoid(widen(self.strength(tokens))))
    feedback, correction = (
      widen(gain[...])[None, None, :, None] for gain in (self.feedback, self.correction)
    )
    erase = jax.nn.sigmoid(feedback) * beta[..., None] * key
    query -= correction * key
    log_decay = self.decay_tap(self.rate(tokens)[1])
    return Inputs(query, key, value, log_decay, beta, erase), past


@register_mixer('gated_delta_product')
class GatedDeltaProduct(_DeltaRule):
  """Gated DeltaProduct (Siems et al., arXiv 2502.10297): n_h delta rules per token.

  S_t = S_{t,n_h} with S_{t,0} = e^(g_t) S_{t−1},
  S_{t,j} = S_{t,j−1} + β_{t,j} k_{t,j}ᵀ (v_{t,j} − k_{t,j} S_{t,j−1}), o_t = q_t S_t:
  a product of `num_householder` = n_h reflections, if β is 2. The rest is as in
  `gated_delta`, but with negative eigenvalues by default, as in the paper.

  q has length 1 and no other scale, as in the paper. The code of flash-linear-attention
  divides it by √k, a factor that the norm of o_t removes, but for its ε.

  The loop that defines it: `tests/mixers/reference/gated_delta_product.py`.
  """

  def __init__(
    self,
    slot: Slot,
    num_householder: int = 2,
    negative_eigenvalues: bool = True,
    *,
    rngs: nnx.Rngs,
  ):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      num_householder: keys that a token erases and writes, n_h, from 1 to 64.
      negative_eigenvalues: whether what is erased may be up to twice what is read.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    check_count('num_householder', num_householder, maximum=64)
    options = {'steps': num_householder, 'gate': jax.nn.silu}
    super().__init__(slot, negative_eigenvalues, **options, rngs=rngs)
    self.rate = Rate(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h g', kind='decay')

  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h 1']:
    return self.decay_tap(self.rate(tokens)[1])


def as_steps(
  array: Float[Array, 'b n *f'], steps: int, at: int
) -> Float[Array, 'b m *f']:
  """One entry per step: a token's entry is at the step `at`, and others are 0."""
  b, n, *features = array.shape
  zeros = jnp.zeros((b, n, steps, *features), array.dtype)
  return zeros.at[:, :, at].set(array).reshape(b, n * steps, *features)
