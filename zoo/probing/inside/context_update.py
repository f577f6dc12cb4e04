"""The context of a layer as an update of its network's weights, of rank one.

In a layer `u = t_q + mixer(norm_1(t))_q`, `out = u + W_2 f(W_1 z + b_1) + b_2` with
`z = norm_2(u)`, the context reaches the network through z alone, after the norm, and
the rest of the output through u, which skips the network. With u' and z' of the query's
token alone, as if it were the whole prompt, Δu = u − u' and Δz = z − z',

    W_1 z = (W_1 + ΔW) z',    ΔW = (W_1 Δz) z'ᵀ / |z'|²,
    u + b_2 = u' + (b_2 + Δu).

So the layer with W_1 + ΔW and b_2 + Δu does for the query alone what the layer does for
it in context: exactly, for any mixer, norm and f, if z' is not 0. This is the theorem
of arXiv 2507.16003 in its version for skips, where the norm before the network belongs
to the contextual layer: without z' = norm_2(u') in place of u' it would not hold. The
gate W_3 of SwiGLU gets the same update; without a network only Δu is left.
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
  """What the context adds to the weights of a layer, for each prompt.

  ΔW of a first matrix is the outer product of its entry of `moved` and of `alone`.
  """

  alone: Float[Array, 'b w']  # z' / |z'|²
  moved: dict[str, Float[Array, 'b f']]  # W Δz by matrix: `up`, and `gate` of swiglu
  bias: Float[Array, 'b w']  # Δu, added to the bias of the output

  def matrix(self, name: str, prompt: int) -> Float[Array, 'w f']:
    """The update of a kernel, whose rows are inputs, for one prompt."""
    return jnp.outer(self.alone[prompt], self.moved[name][prompt])


def context_update(layer: Layer, tokens: Float[Array, 'b n w']) -> ContextUpdate:
  """The update of a layer's weights that is worth the tokens before the last one.

  - Quantity: the factors of ΔW = (W Δz) z'ᵀ / |z'|² and Δu, for each prompt; an
    identity, without sampling.
  - Null: 0 for a layer whose mixer adds nothing.
  - Counterfactual: the last token alone, as if it were the whole prompt.

  `tokens` are those before the layer. If z' is 0 there is no such update, and the
  factors are not finite.
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
  """The updates of all layers of a transformer, in each of its loops.

  The query's token alone, through layers with these weights, leads to the prediction in
  context, because each layer then has the input that it has in context.

  - Quantity: the factors of ΔW = (W Δz) z'ᵀ / |z'|² and Δu, for each prompt; an
    identity, without sampling.
  - Null: 0 for layers whose mixers add nothing.
  - Counterfactual: the query's token alone, as if it were the whole prompt.

  Raises UserError for another model.
  """
  if not isinstance(model, Transformer):
    raise UserError(
      f'{type(model).__name__} is no transformer; use context_update for a layer of a '
      'mixer and a network'
    )
  return run_once(_updates, [model], prompt)


def updated_layer(layer: Layer, update: ContextUpdate, prompt: int) -> Layer:
  """A copy of a layer with the weights that are worth the context of one prompt.

  Called on the last token alone, `[1, 1, w]`, it returns what the layer returns for it
  in context. Raises UserError for a layer without a network, which has no bias to add
  to, and for a number of a prompt that is out of range.
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
  if bias is None:  # as in swiglu
    network.out.bias, network.out.use_bias = nnx.Param(update.bias[prompt]), True
  else:
    bias[...] = bias[...] + update.bias[prompt]
  return copy


def _updates(models: Sequence[Any], prompt: Prompt) -> list[ContextUpdate]:
  (model,) = models
  embedded, *states = model.layer_tokens(prompt)
  tokens, updates = embedded, []
  for i, state in enumerate(states):
    updates.append(context_update(model.layers[i % len(model.layers)], tokens))
    ends_loop = (i + 1) % len(model.layers) == 0
    tokens = state + embedded if ends_loop else state
  return updates


def _mixed(layer: Layer, tokens: Float[Array, 'b n w']) -> Float[Array, 'b w']:
  """The last token and what the mixer adds to it."""
  tokens = layer.tokens_tap(tokens)
  normed = layer.mixer_in_tap(tokens if layer.norm_1 is None else layer.norm_1(tokens))
  mixed = layer.mixer.outputs_at(normed, slice(-1, None))
  return (tokens[:, -1:] + layer.mixer_out_tap(mixed))[:, 0]
