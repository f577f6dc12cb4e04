"""What a head does by its weights alone: what it looks for, and what it writes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float

from zoo.core.errors import UserError, check_count
from zoo.core.protocols import Predictor
from zoo.mixers.attention import ReLUAttention, SoftmaxAttention
from zoo.mixers.decay import LinearMixer
from zoo.mixers.mixer import Linear, RMSNorm
from zoo.models.transformer import Transformer

_MIXERS = SoftmaxAttention, ReLUAttention, LinearMixer


def qk(model: Predictor, layer: int, head: int) -> Float[np.ndarray, 'm m']:
  """Returns the QK circuit of a head, `W_E W_Q W_Kᵀ W_Eᵀ`: what attends to what.

  Entry (i, j) is what entry i of the query's token and entry j of the key's token add
  to the score `q·k`, before the score is divided by the root of the head's size. Tokens
  are those of `capture(model, prompt, ['embed'])`: features, then labels. If the tokens
  are not read by a linear map (`read_in='convolutional'`), W_E is left out, and the
  entries are those of the residual stream.

  The weights of a norm before the mixer are a part of W_Q and W_K. Its scale
  1 / √(variance + ε) is left out, because it depends on the token. Biases, positions
  and earlier layers are left out, too. With rotary positions the matrix is the score of
  a key at the position of the query.

  - Quantity: a function of the weights; there is no expectation.
  - Null: 0, for a head that attends alike to all tokens.
  - Counterfactual: none.

  Args:
    model: A `zoo.models.Transformer` whose mixer is softmax, ReLU or linear attention.
    layer: The layer, from 0.
    head: The head, from 0.

  Returns:
    The matrix in float64, query by key.

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
  """Returns the OV circuit of a head, `W_E W_V W_O W_U`: what it writes for each token.

  Entry (i, j) is what entry i of a token adds to output j if the head attends to that
  token alone. If the tokens are not read by a linear map (`read_in='convolutional'`),
  W_E and W_U are left out, and the entries are those of the residual stream.

  The weights of a norm before the mixer are a part of W_V, and those of the norm before
  the readout are a part of W_U. The scales 1 / √(variance + ε) of norms are left out,
  because they depend on the token. Biases, positions and other layers are left out,
  too.

  - Quantity: a function of the weights; there is no expectation.
  - Null: 0, for a head that adds nothing to the prediction directly.
  - Counterfactual: none.

  Args:
    model: A `zoo.models.Transformer` whose mixer is softmax, ReLU or linear attention.
    layer: The layer, from 0.
    head: The head, from 0.

  Returns:
    The matrix in float64, token by output of the readout.

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
  of the labels in a token to the outputs for the same labels. A model with one output
  has one eigenvalue, so that its score is a sign, 1 or −1.

  - Quantity: `Σ λ / Σ |λ|`, from −1 to 1; a head that copies has 1.
  - Null: the scores of untrained models with as many outputs k. They are around 0, and
    far from it if k is small. For random normal weights, in a model of width 64 with
    heads of size 16, 95 % of the scores lie within ±0.8, ±0.4, ±0.3 and ±0.2 for k = 4,
    8, 16 and 32. For k ≤ 2 this range is all of −1 to 1.
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
    UserError: If the model or its mixer is another one; if the tokens are not read by a
      linear map; if the outputs are logits of bars (`head='bars'`); if a norm is
      neither a layer norm nor an RMS norm; if there is no such layer or head.

  Example:
    >>> model = zoo.models.Transformer(
    ...   2, 4, num_outputs=3, num_layers=1, rngs=nnx.Rngs(0)
    ... )
    >>> round(zoo.probing.copying_score(model, layer=0, head=0), 2)  # untrained
    0.16

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
