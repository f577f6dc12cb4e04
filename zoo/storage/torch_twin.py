"""A transformer of ICL Zoo in plain PyTorch: the same predictions from its weights.

  model = load('model.safetensors')
  model(x, y, x_query)              # x [b, c, d], y [b, c] or [b, c, k], x_query [b, d]
  model.predictions(x, y, x_query)  # each label from the examples before it, too

zoo.export(saved, 'model.safetensors', twin='transformer.py') writes the weights and a
copy of this file, which needs PyTorch and safetensors alone.
"""

# PyTorch is an extra.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import types

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn


def load(path: str | os.PathLike[str]) -> Transformer:
  """The transformer in a file of zoo.export; raises ValueError for another model."""
  with safe_open(os.fspath(path), framework='pt') as file:
    about = json.loads((file.metadata() or {}).get('icl_zoo', '{}'))
    arrays = file.get_tensors()
  if not about.get('has_twin'):
    raise ValueError(f'{path} holds no transformer of ICL Zoo with softmax attention')
  model = Transformer(types.SimpleNamespace(**about['arguments']))
  state = dict(_as_pytorch(name, array) for name, array in arrays.items())
  model.load_state_dict(state, assign=True)
  return model


def _as_pytorch(name: str, array: Tensor) -> tuple[str, Tensor]:
  """The name and the layout of an array of Flax in PyTorch."""
  if name.endswith('.kernel'):
    return f'{name.removesuffix("kernel")}weight', array.T.contiguous()
  if name.endswith('.scale'):
    return f'{name.removesuffix("scale")}weight', array
  return name, array


class Transformer(nn.Module):
  """Embedded tokens, layers that may be applied several times, and a readout."""

  def __init__(self, given: types.SimpleNamespace):
    """`given` has the arguments of the model in ICL Zoo."""
    super().__init__()
    self.layout, self.causal = given.tokens, given.causal
    self.num_loops, self.num_outputs = given.num_loops, given.num_outputs
    self.guess = Guess(given.guess, given.num_features, given.num_outputs)
    labels = (2 if given.tokens == 'shifted' else 1) * given.num_outputs
    self.read_in = nn.Linear(given.num_features + labels, given.width)
    self.positions = None
    if given.positions == 'learned':
      number = (2 if given.tokens == 'interleaved' else 1) * given.context_length + 1
      self.positions = nn.Parameter(torch.zeros(number, given.width))
    self.layers = nn.ModuleList(Layer(given) for _ in range(given.num_layers))
    self.norm = make_norm(given)
    self.read_out = nn.Linear(given.width, given.num_outputs)

  def forward(self, x: Tensor, y: Tensor, x_query: Tensor) -> Tensor:
    """The prediction for each prompt's query, [b] or [b, k]."""
    return self._outputs(x, y, x_query)[:, -1]

  def predictions(self, x: Tensor, y: Tensor, x_query: Tensor) -> Tensor:
    """The predictions for all examples and, last, the query, [b, c + 1] or with k.

    Raises ValueError for a model that predicts the query alone.
    """
    if self.layout == 'joint' or not self.causal:
      raise ValueError('the model predicts the query alone')
    outputs = self._outputs(x, y, x_query)
    return outputs[:, ::2] if self.layout == 'interleaved' else outputs

  def _outputs(self, x: Tensor, y: Tensor, x_query: Tensor) -> Tensor:
    x = torch.cat([x, x_query[:, None]], dim=1)
    y = y.reshape(*y.shape[:2], self.num_outputs)
    guess = self.guess(x)
    seen, labels = guess, y
    if self.guess.is_residual:
      seen, labels = torch.zeros_like(guess), y - guess[:, :-1]
    embedded = self.read_in(self._tokens(x, labels, seen))
    if self.positions is not None:
      embedded = embedded + self.positions[: embedded.shape[1]]
    tokens = torch.zeros_like(embedded)
    for _ in range(self.num_loops):
      tokens = tokens + embedded
      for layer in self.layers:
        tokens = layer(tokens)
    outputs = self.read_out(self.norm(tokens))
    if self.guess.is_residual:
      each = 2 if self.layout == 'interleaved' else 1
      outputs = outputs + guess.repeat_interleave(each, dim=1)[:, : outputs.shape[1]]
    return outputs if self.num_outputs > 1 else outputs[..., 0]

  def _tokens(self, x: Tensor, y: Tensor, guess: Tensor) -> Tensor:
    """The tokens of prompts; x and guess are of the examples and the query."""
    if self.layout == 'joint':
      return torch.cat([x, torch.cat([y, guess[:, -1:]], dim=1)], dim=-1)
    before = F.pad(y, (0, 0, 1, 0))  # y_0 = 0, y_1, …, y_C
    if self.layout == 'shifted':
      return torch.cat([x, before, guess], dim=-1)
    told = torch.cat([torch.zeros_like(x), before], dim=-1)
    asked = torch.cat([x, guess], dim=-1)
    return torch.stack([told, asked], dim=2).flatten(1, 2)[:, 1:]


class Layer(nn.Module):
  """Attention and a network, each after a norm and added to its input."""

  def __init__(self, given: types.SimpleNamespace):
    super().__init__()
    self.norm_1, self.mixer = make_norm(given), Attention(given)
    self.feed_forward = None
    if given.feed_forward != 'none':
      self.norm_2, self.feed_forward = make_norm(given), FeedForward(given)

  def forward(self, tokens: Tensor) -> Tensor:
    tokens = tokens + self.mixer(self.norm_1(tokens))
    if self.feed_forward is None:
      return tokens
    return tokens + self.feed_forward(self.norm_2(tokens))


class Attention(nn.Module):
  """Softmax attention; if it is not causal every token sees itself and the context."""

  def __init__(self, given: types.SimpleNamespace):
    super().__init__()
    self.num_heads, self.causal = given.num_heads, given.causal
    self.rotary, width = given.positions == 'rotary', given.width
    self.query = nn.Linear(width, width)
    # Without rotary positions the softmax does not depend on a bias of the keys.
    self.key = nn.Linear(width, width, bias=self.rotary)
    self.value = nn.Linear(width, width)
    self.out = nn.Linear(width, width)

  def forward(self, tokens: Tensor) -> Tensor:
    query, key, value = (
      layer(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
      for layer in (self.query, self.key, self.value)
    )
    if self.rotary:
      query, key = rotate(query), rotate(key)
    n = tokens.shape[1]
    mask = torch.ones(n, n, dtype=torch.bool, device=tokens.device)
    if self.causal:
      mask = mask.tril()
    else:
      mask[:-1, -1] = False  # the query
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return self.out(mixed.transpose(1, 2).flatten(2))


def rotate(features: Tensor) -> Tensor:
  """Rotates the pairs (j, j + s/2) of the token at t by the angle t · 10000^(−2j/s)."""
  n, size = features.shape[-2:]
  half = size // 2
  given = {'dtype': torch.float64, 'device': features.device}
  speed = 10000.0 ** (-torch.arange(half, **given) / half)
  angle = torch.arange(n, **given)[:, None] * speed
  cosine, sine = angle.cos().to(features.dtype), angle.sin().to(features.dtype)
  one, other = features[..., :half], features[..., half:]
  return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1)


class FeedForward(nn.Module):
  """W_2 f(W_1 z) with f the identity or GELU, or W_2 (silu(W_3 z) ∘ W_1 z)."""

  def __init__(self, given: types.SimpleNamespace):
    super().__init__()
    self.kind, width = given.feed_forward, given.width
    hidden, bias = given.hidden_features or 4 * width, self.kind != 'swiglu'
    self.up = nn.Linear(width, hidden, bias=bias)
    if self.kind == 'swiglu':
      self.gate = nn.Linear(width, hidden, bias=False)
    self.out = nn.Linear(hidden, width, bias=bias)

  def forward(self, tokens: Tensor) -> Tensor:
    hidden = self.up(tokens)
    if self.kind == 'gelu':
      hidden = F.gelu(hidden, approximate='tanh')
    if self.kind == 'swiglu':
      hidden = hidden * F.silu(self.gate(tokens))
    return self.out(hidden)


class Guess(nn.Module):
  """The initial guess [b, n, k] of the labels of features [b, n, d]."""

  weights: Tensor
  bias: Tensor

  def __init__(self, kind: str, num_features: int, num_outputs: int):
    super().__init__()
    self.kind, self.num_outputs = kind, num_outputs
    self.is_residual = kind in ('residual', 'residual_network')
    self.is_network = kind in ('network', 'residual_network')
    if self.is_network:
      self.hidden = nn.Linear(num_features, 32)
      self.out = nn.Linear(32, num_outputs)
    elif kind == 'fixed':
      self.register_buffer('weights', torch.zeros(num_features, num_outputs))
      self.register_buffer('bias', torch.zeros(num_outputs))
    elif kind != 'zero':
      self.weights = nn.Parameter(torch.zeros(num_features, num_outputs))

  def forward(self, x: Tensor) -> Tensor:
    if self.kind == 'zero':
      return x.new_zeros(*x.shape[:-1], self.num_outputs)
    if self.is_network:
      return self.out(F.gelu(self.hidden(x), approximate='tanh'))
    return x @ self.weights + (self.bias if self.kind == 'fixed' else 0.0)


def make_norm(given: types.SimpleNamespace) -> nn.Module:
  """The norm of a kind; the identity for `none`."""
  if given.norm == 'none':
    return nn.Identity()
  if given.norm == 'layer':
    return nn.LayerNorm(given.width, eps=1e-5)
  return nn.RMSNorm(given.width, eps=1e-6)
