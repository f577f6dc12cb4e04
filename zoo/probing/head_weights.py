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
