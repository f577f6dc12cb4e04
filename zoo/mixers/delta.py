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
  """Base of the mixers with S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t).

  S'_t is S_{t−1} after a decay, and β_t = sigmoid(W_β x_t). With `negative_eigenvalues`
  β_t is twice as large, so that the eigenvalue 1 − β_t of I − β_t k_tᵀ k_t is in (−1,
  1) (Grazzi et al., arXiv 2411.12537). q, k and v go through a short convolution and
  SiLU; q and k are then scaled to length 1. Each head's output goes through an RMS
  norm.

  q has no other scale, as in the equations of the papers. Code that divides q by √k has
  the same outputs up to the ε of the norm, which removes the factor.

  Each token updates the state `steps` times by this rule, each time with another k, v
  and β. The state decays before the first of these updates, and q reads the state after
  the last one.
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
    self.max_strength = 2.0 if negative_eigenvalues else 1.0
    each = 'n' if steps == 1 else 'm'  # The axis counts tokens, or all their updates.
    self.strength_tap = Tap(axes=f'b {each} h', kind='strength')

  @abc.abstractmethod
  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h g'] | None:
    """Returns the logarithm of the decay before each token; None means no decay."""

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """Returns the inputs of the recurrence, one for each update of the state."""
    (query, key, value), past = self.heads(tokens, state)
    beta = self.max_strength * jax.nn.sigmoid(widen(self.strength(tokens)))
    decay = self.log_decay(tokens)
    query, key, value = self.tapped(normalize(query), normalize(key), value)
    beta = self.strength_tap(beta.reshape(key.shape[:3]))
    if self.steps > 1:
      query = as_steps(query, self.steps, -1)
      decay = None if decay is None else as_steps(decay, self.steps, 0)
    return delta_rule(query, key, value, decay, beta), past

  def recur(self, inputs: Inputs, memory: Memory) -> tuple[Read, Memory]:
    """Runs the recurrence, and returns what each token reads after its last update."""
    read, memory = recurrence(inputs, memory)
    return read[:, self.steps - 1 :: self.steps], memory

  def with_values(self, inputs: Inputs, values: Read) -> Inputs:
    """Returns the inputs with one value for each token, in all its updates."""
    return inputs._replace(value=jnp.repeat(values, self.steps, axis=1))


@register_mixer('delta')
class Delta(_DeltaRule):
  """The delta rule, the mixer of DeltaNet.

    β_t = sigmoid(W_β x_t)                                a number for each head
    S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1})
    o_t = q_t S_t
    y_t = W_o norm(o_t)

  Each token takes a step of gradient descent, of size β_t, on `|k_t S − v_t|²/2`.
  q, k and v are rows. They are linear in the tokens x, and then go through a causal
  convolution over four tokens and SiLU; q and k are then scaled to length 1. norm is
  the RMS norm of each head.

  The state is a `State` with S `[b, h, s, s]`, s = width / num_heads, and the last
  three inputs of the convolutions of q, k and v.

  Differences from the sources: the code of flash-linear-attention divides q by √s,
  where the paper and this class do not. The norm of o_t removes the factor, except for
  its ε.

  The NumPy loop that defines it is `tests/mixers/reference/delta.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    negative_eigenvalues: Whether the step size β_t is twice as large, so that the
      eigenvalue 1 − β_t of I − β_t k_tᵀ k_t may be negative (arXiv 2411.12537); False
      by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `negative_eigenvalues` is not True or False, if `slot.num_heads` is
      not a positive integer, or if it does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.Delta(slot, negative_eigenvalues=True, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)

  References:
    Schlag et al., arXiv 2102.11174. Convolutions, lengths and norm are those of Yang et
    al., arXiv 2406.06484.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
    super().__init__(slot, negative_eigenvalues, rngs=rngs)

  def log_decay(self, tokens: Tokens) -> None:
    """Returns None: the state does not decay."""
    return None


@register_mixer('gated_delta')
class GatedDelta(_DeltaRule):
  """The gated delta rule, the mixer of gated DeltaNet.

    g_t = −e^A softplus(W_a x_t + b)                      a number for each head
    β_t = sigmoid(W_β x_t)                                a number for each head
    S'_t = e^(g_t) S_{t−1}
    S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t)
    o_t = q_t S_t
    y_t = W_o (norm(o_t) ∘ silu(W_g x_t))

  q, k and v are linear in the tokens x, and then go through a causal convolution over
  four tokens and SiLU; q and k are then scaled to length 1. A and b are learned numbers
  for each head, and norm is the RMS norm of each head.

  The state is a `State` with S `[b, h, s, s]`, s = width / num_heads, and the last
  three inputs of the convolutions of q, k and v.

  Differences from the sources: the authors' values are twice as wide, and their e^A
  starts in [0, 16], not in [1, 16]. The code of flash-linear-attention divides q by √s,
  where the paper and this class do not. The norm of o_t removes the factor, except for
  its ε.

  The NumPy loop that defines it is `tests/mixers/reference/gated_delta.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    negative_eigenvalues: Whether the step size β_t is twice as large, so that the
      eigenvalue 1 − β_t of I − β_t k_tᵀ k_t may be negative (arXiv 2411.12537); False
      by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `negative_eigenvalues` is not True or False, if `slot.num_heads` is
      not a positive integer, or if it does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.GatedDelta(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)

  References:
    Yang et al., arXiv 2412.06464.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
    super().__init__(slot, negative_eigenvalues, gate=jax.nn.silu, rngs=rngs)
    self.rate = Rate(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h g', kind='decay')

  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h 1']:
    """Returns g, the logarithm of the decay of each head."""
    return self.decay_tap(self.rate(tokens)[1])


@register_mixer('kda')
class KimiDelta(_DeltaRule):
  """Kimi delta attention (KDA): a delta rule with a decay for each entry of a key.

    g_t = −e^A softplus(W_2 W_1 x_t + b)                  a vector for each head
    β_t = sigmoid(W_β x_t)                                a number for each head
    S'_t = diag(e^(g_t)) S_{t−1}
    S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t)
    o_t = q_t S_t
    y_t = W_o (norm(o_t) ∘ sigmoid(W_4 W_3 x_t + c))

  q, k and v are linear in the tokens x, and then go through a causal convolution over
  four tokens and SiLU; q and k are then scaled to length 1. A is a learned number for
  each head, W_1 and W_3 have s = width / num_heads outputs, and norm is the RMS norm of
  each head.

  The state is a `State` with S `[b, h, s, s]` and the last three inputs of the
  convolutions of q, k and v.

  Differences from the sources: the code of flash-linear-attention divides q by √s,
  where the paper and this class do not. The norm of o_t removes the factor, except for
  its ε.

  The NumPy loop that defines it is `tests/mixers/reference/kda.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    negative_eigenvalues: Whether the step size β_t is twice as large, so that the
      eigenvalue 1 − β_t of I − β_t k_tᵀ k_t may be negative (arXiv 2411.12537); False
      by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `negative_eigenvalues` is not True or False, if `slot.num_heads` is
      not a positive integer, or if it does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.KimiDelta(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)

  References:
    Kimi Team, Kimi Linear, arXiv 2510.26692, section 3.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
    gate = {'gate': jax.nn.sigmoid, 'gate_rank': slot.head_size}
    super().__init__(slot, negative_eigenvalues, **gate, rngs=rngs)
    self.rates = KeyRates(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h k', kind='decay')

  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h k']:
    """Returns g, the logarithm of the decay of each entry of a key."""
    return self.decay_tap(self.rates(tokens))


@register_mixer('gdn2')
class GatedDelta2(HeadState):
  """Gated DeltaNet-2: erasing and writing have separate gates, which are vectors.

    g_t = −e^A softplus(W_2 W_1 x_t + b)                  a vector for each head
    e_t = sigmoid(W_e x_t),  w_t = sigmoid(W_w x_t)       vectors for each head
    S'_t = diag(e^(g_t)) S_{t−1}
    S_t = S'_t − k_tᵀ ((e_t ∘ k_t) S'_t) + k_tᵀ (w_t ∘ v_t)
    o_t = q_t S_t
    y_t = W_o (norm(o_t) ∘ sigmoid(W_4 W_3 x_t + c))

  q, k and v are linear in the tokens x, and then go through a causal convolution over
  four tokens and SiLU; q and k are then scaled to length 1. A is a learned number for
  each head, W_1 and W_3 have s = width / num_heads outputs, and norm is the RMS norm of
  each head. If e_t and w_t have the same value β_t in all entries, this is `kda`.

  The state is a `State` with S `[b, h, s, s]` and the last three inputs of the
  convolutions of q, k and v.

  Differences from the sources: the paper writes b_t for e_t. The code of
  flash-linear-attention divides q by √s. The norm of o_t removes the factor, except for
  its ε.

  The NumPy loop that defines it is `tests/mixers/reference/gdn2.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    negative_eigenvalues: Whether e_t is doubled, so that its entries are in (0, 2) and
      up to twice what a key reads is erased. w_t stays the same.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `negative_eigenvalues` is not True or False, if `slot.num_heads` is
      not a positive integer, or if it does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.GatedDelta2(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)

  References:
    Hatamizadeh, Choi & Kautz, arXiv 2605.22791.
  """

  def __init__(self, slot: Slot, negative_eigenvalues: bool = False, *, rngs: nnx.Rngs):
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
    self.max_strength = 2.0 if negative_eigenvalues else 1.0

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """Returns the inputs of the recurrence, in which the gated key e ∘ k erases."""
    (query, key, value), past = self.heads(tokens, state)
    erase, write = (
      tap(split_heads(jax.nn.sigmoid(widen(layer(tokens))), self.num_heads))
      for layer, tap in ((self.erase, self.erase_tap), (self.write, self.write_tap))
    )
    query, key, value = self.tapped(normalize(query), normalize(key), value)
    log_decay = self.decay_tap(self.rates(tokens))
    erase = self.max_strength * decayed(erase * key, log_decay)
    value = write * widen(value)
    return Inputs(query, key, value, log_decay, erase=erase), past


@register_mixer('comba')
class Comba(HeadState):
  """Comba: a delta rule with separate factors for erasing and for the output.

    g_t = −e^A softplus(W_a x_t + b)                      a number for each head
    β_t = sigmoid(W_β x_t)                                a number for each head
    S_t = e^(g_t) S_{t−1} − σ(f) β_t k_tᵀ (k_t S_{t−1}) + β_t k_tᵀ v_t
    o_t = (q_t − d k_t) S_t
    y_t = W_o (norm(o_t) ∘ sigmoid(W_g x_t))

  What is erased is read before the decay. q, k and v are linear in the tokens x, and
  then go through a causal convolution over four tokens and SiLU; q and k are then
  scaled to length 1. f and d are learned numbers for each head, as are A and b; σ is
  the sigmoid, and norm is the RMS norm of each head. d starts at 0.02, as the authors
  advise for small models.

  The state is a `State` with S `[b, h, s, s]`, s = width / num_heads, and the last
  three inputs of the convolutions of q, k and v.

  The paper writes b for f. The code of flash-linear-attention differs from the paper
  and from this class:

  - σ(f) has no effect on what is erased, because σ(f) k is scaled to length 1 again.
  - The output correction has σ(f) k in place of k, and q − d σ(f) k is scaled to length
    1, while here q and k are.
  - `naive_recurrent_comba` erases after the decay. Its chunks and its kernel erase
    before it, as the paper and this class do.
  - What is read is divided by √s. The norm of o_t removes the factor, except for its ε.
  - Values are twice as wide.

  The NumPy loop that defines it is `tests/mixers/reference/comba.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.Comba(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)

  References:
    Hu et al., arXiv 2506.02475.
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
    """Returns the inputs of the recurrence, with the corrected query."""
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
  """Gated DeltaProduct: several delta rules per token after one decay.

    S_{t,0} = e^(g_t) S_{t−1}
    S_{t,j} = S_{t,j−1} + β_{t,j} k_{t,j}ᵀ (v_{t,j} − k_{t,j} S_{t,j−1}),  j = 1, …, n_h
    S_t = S_{t,n_h},   o_t = q_t S_t
    y_t = W_o (norm(o_t) ∘ silu(W_g x_t))

  With β = 2 the state is multiplied by a product of n_h Householder reflections. Each
  head has g_t = −e^A softplus(W_a x_t + b), with learned A and b, and
  β_{t,j} = 2 sigmoid(W_β x_t)_j, or half of that without `negative_eigenvalues`. q, k
  and v are linear in the tokens x, and then go through a causal convolution over four
  tokens and SiLU; q and k are then scaled to length 1. norm is the RMS norm of each
  head.

  The state is a `State` with S `[b, h, s, s]`, s = width / num_heads, and the last
  three inputs of the convolutions of q, k and v, which for k and v have n_h · width
  channels.

  Differences from the sources: the code of flash-linear-attention divides q by √s,
  where the paper and this class do not. The norm of o_t removes the factor, except for
  its ε.

  The NumPy loop that defines it is `tests/mixers/reference/gated_delta_product.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    num_householder: Number n_h of keys that a token erases and writes, from 1 to 64; 2
      by default.
    negative_eigenvalues: Whether β is in (0, 2), as in the paper, rather than in (0,
      1); True by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `num_householder` is not an integer from 1 to 64, if
      `negative_eigenvalues` is not True or False, if `slot.num_heads` is not a positive
      integer, or if it does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.GatedDeltaProduct(slot, num_householder=3, rngs=nnx.Rngs(0))
    >>> [past.shape for past in mixer.initial_state(1).past]
    [(1, 3, 8), (1, 3, 24), (1, 3, 24)]

  References:
    Siems et al., arXiv 2502.10297.
  """

  def __init__(
    self,
    slot: Slot,
    num_householder: int = 2,
    negative_eigenvalues: bool = True,
    *,
    rngs: nnx.Rngs,
  ):
    check_count('num_householder', num_householder, maximum=64)
    options = {'steps': num_householder, 'gate': jax.nn.silu}
    super().__init__(slot, negative_eigenvalues, **options, rngs=rngs)
    self.rate = Rate(slot, rngs=rngs)
    self.decay_tap = Tap(axes='b n h g', kind='decay')

  def log_decay(self, tokens: Tokens) -> Float[Array, 'b n h 1']:
    """Returns g, the logarithm of the decay of each head."""
    return self.decay_tap(self.rate(tokens)[1])


def as_steps(
  array: Float[Array, 'b n *f'], steps: int, at: int
) -> Float[Array, 'b m *f']:
  """Returns `steps` entries for each token: its own at the place `at`, else zeros."""
  b, n, *features = array.shape
  zeros = jnp.zeros((b, n, steps, *features), array.dtype)
  return zeros.at[:, :, at].set(array).reshape(b, n * steps, *features)
