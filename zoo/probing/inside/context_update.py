"""The context of a layer as a rank-one update of the weights of its network.

For the last token t_q, a layer computes `u = t_q + mixer(norm_1(t))_q` and
`out = u + W_2 f(W_1 z + b_1) + b_2` with `z = norm_2(u)`. The context changes the
output in two ways: through z, which the network reads, and through u, which skips the
network. Let u' and z' be the values for the last token alone, as if it were the whole
prompt, and Δu = u − u', Δz = z − z'. Then

    W_1 z = (W_1 + ΔW) z',    ΔW = (W_1 Δz) z'ᵀ / |z'|²,
    u + b_2 = u' + (b_2 + Δu).

So a layer with the weights W_1 + ΔW and b_2 + Δu does for the last token alone what the
layer does for it in context. This is an identity for any mixer, norm and f, if z' is
not 0. It is the theorem of arXiv 2507.16003 in its version for skip connections, where
the norm before the network belongs to the contextual layer; with u' in place of
z' = norm_2(u') it would not hold. The gate W_3 of SwiGLU gets the same update. In a
layer without a network only Δu remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.measure.predict import run_once
from zoo.models.layers import Layer
from zoo.models.transformer import Transformer


class ContextUpdate(NamedTuple):
  """What the context adds to the weights of a layer, for each of b prompts.

  `context_update` returns it for one layer, and `context_updates` for each layer.

  In a layer, the mixer adds its output to the last token. The sum is u. The network
  reads z = norm_2(u). Without context, when the last token is the whole prompt, these
  values are u' and z'. The differences are Δu = u − u' and Δz = z − z'.

  The update has two parts. Each first matrix W of the network becomes W + ΔW with
  `ΔW = (W Δz) z'ᵀ / |z'|²`, which is the outer product of an entry of `moved` and of
  `alone`. Δu is added to the bias of the network's output.

  Attributes:
    alone: `z' / |z'|²`, `[b, w]`.
    moved: W Δz, `[b, f]`, by the name of W: `up` and, for SwiGLU, also `gate`. It is
      empty for a layer without a network.
    bias: Δu, `[b, w]`.
  """

  alone: Float[Array, 'b w']
  moved: dict[str, Float[Array, 'b f']]
  bias: Float[Array, 'b w']

  def matrix(self, name: str, prompt: int) -> Float[Array, 'w f']:
    """Returns the update of a kernel for one prompt.

    Args:
      name: The name of the matrix, `up` or `gate`.
      prompt: The number of the prompt, from 0.

    Returns:
      The update `[w, f]`, whose rows are inputs, as in the kernels of Flax.
    """
    return jnp.outer(self.alone[prompt], self.moved[name][prompt])


def context_update(layer: Layer, tokens: Float[Array, 'b n w']) -> ContextUpdate:
  """Returns a change of a layer's weights that has the same effect as the context.

  A layer reads a last token and the tokens before it, its context. A copy of the layer
  with the changed weights reads the last token alone, and returns the same output for
  it. Each first matrix of the network changes by a matrix of rank one, and the bias of
  the network's output changes as well. `ContextUpdate` defines the symbols.

  - Quantity: the factors of `ΔW = (W Δz) z'ᵀ / |z'|²` and Δu, for each prompt; an
    identity, without sampling.
  - Null: 0 for a layer whose mixer adds nothing.
  - Counterfactual: the last token alone, as if it were the whole prompt.

  Args:
    layer: A layer of a transformer. It has a mixer and, usually, a network.
    tokens: The tokens before the layer, `[b, n, w]`. The last one is the query's, and
      the others are its context.

  Returns:
    The factors of the update. If z' is 0, no update of this form exists, and `alone`
    has NaN or infinities.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> tokens = jax.random.normal(jax.random.key(0), (1, 5, 64))
    >>> update = zoo.probing.context_update(model.layers[0], tokens)
    >>> update.matrix('up', prompt=0).shape
    (64, 256)

  References:
    arXiv 2507.16003.
  """
  with_context = _mixed(layer, tokens)
  without = _mixed(layer, tokens[:, -1:])
  bias, network = with_context - without, layer.feed_forward
  seen, alone = (
    sums if layer.norm_2 is None else layer.norm_2(sums)
    for sums in (with_context, without)
  )
  moved = {}
  if network is not None:
    names = ('up', 'gate') if network.kind == 'swiglu' else ('up',)
    for name in names:
      moved[name] = (seen - alone) @ getattr(network, name).kernel[...]
  square = jnp.sum(jnp.square(alone), axis=-1, keepdims=True)
  return ContextUpdate(alone / square, moved, bias)


def context_updates(model: Predictor, prompt: Prompt) -> list[ContextUpdate]:
  """Returns the updates of all layers of a transformer, in each of its loops.

  With these updates, the layers turn the query's token alone into the prediction that
  the transformer makes in context. The reason is that each updated layer returns the
  token of the query that the original layer returns in context, and the next layer
  reads this token.

  - Quantity: the factors of `ΔW = (W Δz) z'ᵀ / |z'|²` and Δu, for each prompt; an
    identity, without sampling.
  - Null: 0 for layers whose mixers add nothing.
  - Counterfactual: the query's token alone, as if it were the whole prompt.

  Args:
    model: A `zoo.models.Transformer`.
    prompt: Prompts.

  Returns:
    One update for each layer, loop after loop.

  Raises:
    UserError: If the model is not a transformer.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> [update.bias.shape for update in zoo.probing.context_updates(model, prompt)]
    [(8, 64)]

  References:
    arXiv 2507.16003.
  """
  if not isinstance(model, Transformer):
    raise UserError(
      f'{type(model).__name__} is no transformer; use context_update for a layer of a '
      'mixer and a network'
    )
  return run_once(_updates, [model], prompt)


def updated_layer(layer: Layer, update: ContextUpdate, prompt: int) -> Layer:
  """Returns a copy of a layer whose weights replace the context of one prompt.

  Called on the last token alone, `[1, 1, w]`, the copy returns what the layer returns
  for that token in context.

  Args:
    layer: The layer for which the update was computed.
    update: The update, from `context_update`.
    prompt: The number of the prompt, from 0.

  Returns:
    The copy.

  Raises:
    UserError: If the layer has no network, and so no bias to change; if the number of
      the prompt is out of range.

  Example:
    >>> layer = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0)).layers[0]
    >>> tokens = jax.random.normal(jax.random.key(0), (1, 5, 64))
    >>> update = zoo.probing.context_update(layer, tokens)
    >>> copy = zoo.probing.updated_layer(layer, update, prompt=0)
    >>> alone, in_context = copy(tokens[:, -1:]), layer(tokens)
    >>> bool(jnp.allclose(alone[:, -1], in_context[:, -1], atol=1e-3))
    True
  """
  if layer.feed_forward is None:
    raise UserError('the layer has no network whose weights could change')
  check_count('prompt', prompt, minimum=0, maximum=len(update.bias) - 1)
  copy = nnx.clone(layer)
  network: Any = copy.feed_forward
  for name in update.moved:
    kernel = getattr(network, name).kernel
    kernel[...] = kernel[...] + update.matrix(name, prompt)
  bias = network.out.bias
  if bias is None:  # SwiGLU has none
    network.out.bias, network.out.use_bias = nnx.Param(update.bias[prompt]), True
  else:
    bias[...] = bias[...] + update.bias[prompt]
  return copy


def _updates(models: Sequence[Any], prompt: Prompt) -> list[ContextUpdate]:
  """Returns the update of each layer, from the tokens before it."""
  (model,) = models
  embedded, *states = model.layer_tokens(prompt)
  tokens, updates = embedded, []
  for i, state in enumerate(states):
    updates.append(context_update(model.layers[i % len(model.layers)], tokens))
    ends_loop = (i + 1) % len(model.layers) == 0
    tokens = state + embedded if ends_loop else state
  return updates


def _mixed(layer: Layer, tokens: Float[Array, 'b n w']) -> Float[Array, 'b w']:
  """Returns u: the last token plus what the mixer adds to it."""
  tokens = layer.tokens_tap(tokens)
  normed = layer.mixer_in_tap(tokens if layer.norm_1 is None else layer.norm_1(tokens))
  mixed = layer.mixer.outputs_at(normed, slice(-1, None))
  return (tokens[:, -1:] + layer.mixer_out_tap(mixed))[:, 0]
