"""The linear family: LSA, multi-head LSA, yq-LSA and the linear transformer block."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_number, check_vector
from zoo.core.learning_rule import LearningRule, symmetric
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.registry import register_model
from zoo.core.taps import Tap


class Constant(nnx.Variable):
  """A value that belongs to a model and its checkpoints but is not trained.

  Example:
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> model.bias = zoo.models.Constant(jnp.zeros(1))
    >>> list(nnx.state(model, nnx.Param))
    ['kernel']
  """


class LinearLayer(nnx.Module):
  """A layer of linear attention, with four matrices in each head.

    E + (1/C) Σ_h W_P W_V E W_M Eᵀ W_Kᵀ W_Q E   (arXiv 2512.04268, eqs. 3, 5 and 6)

  Tokens are columns in the paper and rows here. `LinearAttention` is a model of one
  such layer. `DeepLSA` has several of them, and a readout of its own. The initial
  entries of the matrices are drawn from N(0, init_scale²), head by head: with the same
  key, the heads of a smaller layer are the first heads of a larger one.

  Args:
    num_features: Number d of features of an example, ≥ 1; tokens have e = d + 1
      entries.
    num_heads: Number of heads, ≥ 1.
    init_scale: Standard deviation of the initial matrices, from 0 to 10³⁰.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range.
  """

  def __init__(
    self, num_features: int, num_heads: int, init_scale: float, *, rngs: nnx.Rngs
  ):
    self.num_features = check_count('num_features', num_features)
    self.num_heads = check_count('num_heads', num_heads)
    init_scale = check_number('init_scale', init_scale, minimum=0.0, maximum=1e30)
    e = num_features + 1
    self.w_k, self.w_q, self.w_v, self.w_p = (
      nnx.Param(
        init_scale * jax.random.normal(rngs.params(), (num_heads, e, e)),
        # The heads are split over the mesh axis `model`. Eager sharding would require a
        # mesh.
        out_sharding=('model', None, None),
        eager_sharding=False,
      )
      for _ in range(4)
    )
    self.keys_tap = Tap(axes='b h n e', kind='key')
    self.queries_tap = Tap(axes='b h n e', kind='query')
    self.values_tap = Tap(axes='b h n e', kind='value')
    self.scores_tap = Tap(axes='b h k q', kind='scores')
    self.update_tap = Tap(axes='b n e', kind='added')

  def split_heads(self, *axes: str) -> None:
    """Splits the heads over mesh axes.

    The heads are independent until their predictions are summed.

    Args:
      axes: The mesh axes, of which `model` is the first.
    """
    for matrices in (self.w_k, self.w_q, self.w_v, self.w_p):
      matrices.set_metadata(out_sharding=(axes, None, None))

  def keys(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b h t e']:
    """Returns `W_K E` of each head, for tokens `[b, t, e]`."""
    return self.keys_tap(jnp.einsum('hij,btj->bhti', self.w_k[...], tokens))

  def queries(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b h t e']:
    """Returns `W_Q E` of each head, for tokens `[b, t, e]`."""
    return self.queries_tap(jnp.einsum('hij,btj->bhti', self.w_q[...], tokens))

  def values(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b h t e']:
    """Returns `W_P W_V E` of each head, for tokens `[b, t, e]`."""
    values = jnp.einsum('hij,hjk,btk->bhti', self.w_p[...], self.w_v[...], tokens)
    return self.values_tap(values)

  def scores(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b h t t']:
    """Returns `(1/C) W_M Eᵀ W_Kᵀ W_Q E`, key by query.

    W_M masks the query's token as a key. Deep models, probes and checks compute the
    scores; models of one layer have cheaper ways to predict (`LinearAttention._way`).
    """
    t = tokens.shape[1]
    mask_t = (jnp.arange(t) < t - 1).astype(tokens.dtype)
    keys, queries = self.keys(tokens), self.queries(tokens)
    # At C = 0 the mask makes all scores 0, so the divisor may be 1.
    scores = jnp.einsum('bhki,bhqi->bhkq', keys, queries) / max(t - 1, 1)
    return self.scores_tap(scores * mask_t[None, None, :, None])

  def update(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    """Returns the sum of the heads' outputs for each token."""
    values, scores = self.values(tokens), self.scores(tokens)
    return self.update_tap(jnp.einsum('bhki,bhkq->bqi', values, scores))

  def forward_tokens(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    """Returns the tokens after the layer."""
    return tokens + self.update(tokens)


class LinearAttention(LinearLayer):
  """Base class of models with one layer of linear attention.

  The model embeds a prompt as the matrix E, updates it by a `LinearLayer`, and reads
  its prediction from the query's token. A subclass defines `initial_guess`, the label
  entry of the query's token. It may also define `readout`, the linear map from the
  query's updated token to the prediction, which by default is the last entry, and then
  `forward_tokens`, whose last entry must agree with it. A subclass that changes the
  prediction in another way defines the `learning_rule` that agrees with it, or sets
  `learning_rule = None`. `zoo.check_model` and the start of a run compare them.

  Args:
    num_features: Number d of features of an example, ≥ 1; tokens have e = d + 1
      entries.
    num_heads: Number of heads, ≥ 1.
    init_scale: Standard deviation of the initial matrices, from 0 to 10³⁰.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> class Ones(zoo.models.LinearAttention):
    ...   def initial_guess(self):
    ...     return jnp.ones(self.num_features), jnp.zeros(())
    >>> model = Ones(num_features=2, num_heads=1, init_scale=0.0, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> print(np.round(model(prompt), 2), np.round(prompt.x_query.sum(axis=1), 2))
    [-0.8   3.05  1.05] [-0.8   3.05  1.05]
  """

  order_invariant = True  # The order of the examples does not matter.
  guess_kind = 'fixed'  # zoo.models.initial_guess.GUESSES explains it.
  # Predictions may be computed in ways that skip the taps. In a copy of the model whose
  # taps are recorded or edited this is False, so that every value passes its tap.
  shortcuts = True

  def __init__(
    self, num_features: int, num_heads: int, init_scale: float, *, rngs: nnx.Rngs
  ):
    super().__init__(num_features, num_heads, init_scale, rngs=rngs)
    self.guess_tap, self.embed_tap = (
      Tap(axes='b', kind='guess'),
      Tap(axes='b n e', kind='embed'),
    )

  @abc.abstractmethod
  def initial_guess(self) -> tuple[Float[Array, ' d'], Float[Array, '']]:
    """Returns `(g, β)` of the initial guess `y_q = g·x_q + β`."""

  def readout(self) -> Float[Array, ' e']:
    """Returns r, with which the prediction is r · (the query's updated token).

    Here r selects the last entry.
    """
    return jnp.zeros(self.num_features + 1, self.w_k.dtype).at[-1].set(1)

  def embed(self, prompt: Prompt) -> Float[Array, 'b t e']:
    """Returns the embedding matrix E (eq. 2) with this model's initial guess in it.

    Args:
      prompt: Prompts `[b]` with d features and c examples.

    Returns:
      The tokens as rows, `[b, c + 1, d + 1]`, that of the query last.

    Raises:
      UserError: If the prompts have another number of features than the model.
    """
    prompt = checked_prompt(prompt, 'model', self.num_features, of_numbers=True)
    guess, bias = self.initial_guess()
    guesses = self.guess_tap(prompt.x_query @ guess + bias)
    return self.embed_tap(prompt.tokens(guesses))

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """Predicts the label of each prompt's query.

    Args:
      prompt: Prompts `[b]` with d features.

    Returns:
      Predictions `[b]`.

    Raises:
      UserError: If the prompts have another number of features than the model.
    """
    prompt = checked_prompt(prompt, 'model', self.num_features, of_numbers=True)
    way = self._way(prompt.x.shape[1])
    if way == 'tokens':
      return self.forward_tokens(self.embed(prompt))[:, -1, -1]
    return self.learning_rule()(prompt) if way == 'rule' else self._by_heads(prompt)

  def _way(self, num_examples: int) -> Literal['tokens', 'heads', 'rule']:
    """Chooses one of three ways to compute the predictions, which agree up to rounding.

    - `tokens`: `forward_tokens` updates every token, as the equation says. An edited
      copy needs this way, because an edited value is one of those in between.
    - `heads`: head by head, with the query's token q,

          f = r·q + (1/C) Σ_h Σ_i (b_h·z_i) (z_iᵀ A_h q),

      which takes e·H·(2C + e) multiplications per prompt for H heads, C examples and
      tokens of e = d + 1 entries. Devices over which the heads are split share them.
    - `rule`: the learning rule, which takes e²·(C + d) multiplications for any number
      of heads. Each device does all of them.

    The cheaper one of the last two is taken. Only predictions use this choice: training
    on second moments of prompts calls `learning_rule` itself.

    Returns:
      The name of the way.
    """
    if not self.shortcuts:
      return 'tokens'
    c, d = num_examples, self.num_features
    devices = dict(jax.sharding.get_abstract_mesh().shape).get('model', 1)
    is_dearer = self.num_heads * (2 * c + d + 1) > devices * (c + d) * (d + 1)
    return 'rule' if is_dearer else 'heads'

  def _by_heads(self, prompt: Prompt) -> Float[Array, ' b']:
    """Returns the predictions from the products of each head's matrices."""
    c = prompt.x.shape[1]
    # The products are computed where the weights are, and then gathered along the axes
    # that split the batch.
    heads = _split_heads(self.head_algebra(), self.w_k.get_metadata('out_sharding')[0])
    b_he, a_hee = _split_heads(heads, 'model')
    z_bce, query_be = prompt.examples(), self.embed(prompt)[:, -1]
    scores_bch = jnp.einsum('bci,hij,bj->bch', z_bce, a_hee, query_be)
    scores_bch /= max(c, 1)  # Without examples there are no scores.
    values_bch = jnp.einsum('bci,hi->bch', z_bce, b_he)
    return query_be @ self.readout() + jnp.sum(scores_bch * values_bch, axis=(1, 2))

  def head_algebra(self) -> tuple[Float[Array, 'h e'], Float[Array, 'h e e']]:
    """Returns `b_h = W_Vᵀ W_Pᵀ r` and `A_h = W_Kᵀ W_Q`.

    Predictions depend on the matrices through these products alone.

    Returns:
      The two arrays, `[h, e]` and `[h, e, e]`.
    """
    b_he = jnp.einsum('i,hij,hjk->hk', self.readout(), self.w_p[...], self.w_v[...])
    a_hee = jnp.einsum('hij,hik->hjk', self.w_k[...], self.w_q[...])
    return b_he, a_hee

  def learning_rule(self) -> LearningRule:
    """Returns the learning rule with the same predictions as this model.

    Raises:
      UserError: If the model is an edited copy, which no learning rule describes.
    """
    if not self.shortcuts:
      raise UserError('the model is edited: no learning rule is known for it')
    guess, bias = self.initial_guess()
    b_he, a_hee = self.head_algebra()
    readout = self.readout()
    # moves[j] says how G moves the coefficient of the query token's entry j.
    moves = symmetric(jnp.einsum('hi,hkj->jik', b_he, a_hee))
    return LearningRule(
      init=readout[:-1] + readout[-1] * guess,
      update=moves[:-1] + guess[:, None, None] * moves[-1:],
      bias=readout[-1] * bias,
      bias_update=bias * moves[-1],
    )


@register_model('multi_head_lsa')
class MultiHeadLSA(LinearAttention):
  """Multi-head linear self-attention (LSA) with a fixed initial guess.

    f = [E + (1/C) Σ_h W_P W_V E W_M Eᵀ W_Kᵀ W_Q E]_(-1,-1)
    y_q = g·x_q + β

  E has the tokens of the prompt, with y_q as the label entry of the query; W_M masks
  the query's token as a key. The matrices of the heads are trained, `w_k`, `w_q`, `w_v`
  and `w_p` `[h, e, e]` with e = d + 1; g and β are not.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_heads: Number H of heads, ≥ 1.
    initial_guess: Slope g of the fixed guess g·x + β: a number or `[d]`; 0 by default.
    initial_bias: Offset β of that guess, in the units of the labels; 0 by default.
    init_scale: Standard deviation of the initial matrices, ≥ 0; 0.1 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.MultiHeadLSA(num_features=2, num_heads=3, rngs=nnx.Rngs(0))
    >>> print(f'{zoo.theory.exact_risk(model, task):.2f}')  # not trained
    2.00

  References:
    arXiv 2512.04268, eqs. 5 and 6.
  """

  def __init__(
    self,
    num_features: int,
    num_heads: int,
    initial_guess: ArrayLike | Sequence[float] = 0.0,
    initial_bias: float = 0.0,
    init_scale: float = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(num_features, num_heads, init_scale, rngs=rngs)
    guess = check_vector('initial_guess', initial_guess, num_features)
    bias = check_number('initial_bias', initial_bias)
    self.guess = Constant(jnp.asarray(guess, float))
    self.bias = Constant(jnp.asarray(bias, float))

  def initial_guess(self) -> tuple[Float[Array, ' d'], Float[Array, '']]:
    """Returns the fixed `(g, β)`."""
    return self.guess[...], self.bias[...]


@register_model('lsa')
class LSA(MultiHeadLSA):
  """Linear self-attention (LSA) with one head and a fixed initial guess.

    f = [E + (1/C) W_P W_V E W_M Eᵀ W_Kᵀ W_Q E]_(-1,-1)
    y_q = g·x_q + β

  This is `MultiHeadLSA` with one head.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    initial_guess: Slope g of the fixed guess g·x + β: a number or `[d]`; 0 by default.
    initial_bias: Offset β of that guess, in the units of the labels; 0 by default.
    init_scale: Standard deviation of the initial matrices, ≥ 0; 0.1 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> model = zoo.models.LSA(num_features=2, initial_guess=1.5, rngs=nnx.Rngs(0))
    >>> model.w_k.shape
    (1, 3, 3)

  References:
    arXiv 2512.04268, eq. 3.
  """

  def __init__(
    self,
    num_features: int,
    initial_guess: ArrayLike | Sequence[float] = 0.0,
    initial_bias: float = 0.0,
    init_scale: float = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      num_features, 1, initial_guess, initial_bias, init_scale, rngs=rngs
    )


@register_model('yq_lsa')
class YqLSA(LinearAttention):
  """yq-LSA: linear self-attention whose initial guess is trained.

    f = [E + (1/C) Σ_h W_P W_V E W_M Eᵀ W_Kᵀ W_Q E]_(-1,-1)
    y_q = w·x_q

  The matrices `w_k`, `w_q`, `w_v` and `w_p` `[h, e, e]`, e = d + 1, and `w` `[d]` are
  trained; `w` starts at 0. The paper has one head. More heads do not lower the least
  risk.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_heads: Number H of heads, ≥ 1; 1 by default.
    init_scale: Standard deviation of the initial matrices, ≥ 0; 0.1 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> model = zoo.models.YqLSA(num_features=2, rngs=nnx.Rngs(0))
    >>> model.initial_guess()[0]
    Array([0., 0.], dtype=float32)

  References:
    arXiv 2512.04268, Definition 3.
  """

  guess_kind = 'linear'

  def __init__(
    self,
    num_features: int,
    num_heads: int = 1,
    init_scale: float = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(num_features, num_heads, init_scale, rngs=rngs)
    self.w = nnx.Param(jnp.zeros(num_features, self.w_k.dtype))

  def initial_guess(self) -> tuple[Float[Array, ' d'], Float[Array, '']]:
    """Returns the trained w as g, and β = 0."""
    return self.w[...], jnp.zeros((), self.w.dtype)


@register_model('ltb')
class LTB(LinearAttention):
  """The linear transformer block (LTB): linear self-attention, then two linear maps.

    f = [W_2ᵀ W_1 (E + (1/C) Σ_h W_P W_V E W_M Eᵀ W_Kᵀ W_Q E)]_(-1,-1)
    y_q = 0

  All matrices are trained: `w_k`, `w_q`, `w_v` and `w_p` `[h, e, e]`, e = d + 1, and
  `w_1` and `w_2` `[f, e]`.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_heads: Number H of heads, ≥ 1; 1 by default.
    hidden_features: Width f of the two linear maps, ≥ d + 1; None, the default, means
      d + 1.
    init_scale: Standard deviation of all initial matrices, ≥ 0; 0.1 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> model = zoo.models.LTB(num_features=2, hidden_features=5, rngs=nnx.Rngs(0))
    >>> model.w_1.shape
    (5, 3)

  References:
    Zhang, Wu & Bartlett, arXiv 2402.14951; arXiv 2512.04268, eq. 30.
  """

  # These matrices read out the prediction, and their product holds the guess.
  roles = {'w_1': 'embedding', 'w_2': 'embedding'}

  def __init__(
    self,
    num_features: int,
    num_heads: int = 1,
    hidden_features: int | None = None,
    init_scale: float = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(num_features, num_heads, init_scale, rngs=rngs)
    e = num_features + 1
    f = e if hidden_features is None else hidden_features
    self.hidden_features = check_count('hidden_features', f, minimum=e)
    self.w_1 = nnx.Param(init_scale * jax.random.normal(rngs.params(), (f, e)))
    self.w_2 = nnx.Param(init_scale * jax.random.normal(rngs.params(), (f, e)))

  def initial_guess(self) -> tuple[Float[Array, ' d'], Float[Array, '']]:
    """Returns zeros."""
    dtype = self.w_k.dtype
    return jnp.zeros(self.num_features, dtype), jnp.zeros((), dtype)

  def forward_tokens(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    """Returns the tokens after the layer and the two linear maps."""
    block = super().forward_tokens(tokens)
    return jnp.einsum('fi,fj,btj->bti', self.w_2[...], self.w_1[...], block)

  def readout(self) -> Float[Array, ' e']:
    """Returns the last row of `W_2ᵀ W_1`."""
    return self.w_2[:, -1] @ self.w_1[...]


def _split_heads(
  arrays: tuple[Float[Array, 'h ...'], ...], axes: str | Sequence[str]
) -> tuple[Float[Array, 'h ...'], ...]:
  """Splits the heads of arrays over mesh axes, if these divide the number of heads."""
  mesh = jax.sharding.get_abstract_mesh()
  names = (axes,) if isinstance(axes, str) else tuple(axes)
  if not {*names} <= {*mesh.axis_names} or not mesh.are_all_axes_auto:
    return arrays
  if len(arrays[0]) % math.prod(mesh.shape[name] for name in names):
    return arrays
  return jax.lax.with_sharding_constraint(arrays, P(names))
