"""Loads a transformer that `zoo.export` wrote, with PyTorch and without JAX."""

import json

import torch
from safetensors import safe_open
from torch.nn import functional

NEEDED = {'name': 'transformer', 'mixer': 'softmax', 'positions': 'learned'}
NEEDED |= {'norm': 'layer', 'feed_forward': 'gelu', 'tokens': 'interleaved'}
NEEDED |= {'guess': 'zero', 'causal': True, 'num_loops': 1}
NEEDED |= {'head': 'point', 'read_in': 'flat'}
PARTS = 'query', 'key', 'value'


def load(path):
  """Returns `predictions`; raises ValueError for a model of another form."""
  with safe_open(path, 'pt') as file:
    config = json.loads(file.metadata()['icl_zoo'])['config']['model']
    w = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  if {name: config.get(name) for name in NEEDED} != NEEDED:
    raise ValueError(f'the model is {config}; it must be {NEEDED}')

  def linear(name, z):
    return z @ w[f'{name}.kernel'] + w.get(f'{name}.bias', 0.0)

  def norm(name, z):
    weights = w[f'{name}.scale'], w[f'{name}.bias']
    return functional.layer_norm(z, z.shape[-1:], *weights, eps=1e-5)

  def attention(name, z):
    sizes = *z.shape[:2], config['num_heads'], -1
    q, k, v = (linear(f'{name}.{part}', z).view(sizes) for part in PARTS)
    scores = torch.einsum('bthi,bshi->bhts', q, k) / q.shape[-1] ** 0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    mixed = torch.einsum('bhts,bshi->bthi', shares, v)
    return linear(f'{name}.out', mixed.reshape(z.shape))

  def predictions(features, labels):
    """Predicts from features `[b, n, d]`, the query last, and labels `[b, n - 1]`.

    Returns the prediction for each example from those before it, and for the query.
    """
    b, n, d = features.shape
    tokens = torch.zeros(b, 2 * n - 1, d + 1)  # x_1, y_1, x_2, …, x_q
    tokens[:, ::2, :d], tokens[:, 1::2, d] = features, labels
    z = linear('read_in', tokens) + w['positions'][: 2 * n - 1]
    for layer in (f'layers.{i}' for i in range(config['num_layers'])):
      z = z + attention(f'{layer}.mixer', norm(f'{layer}.norm_1', z))
      hidden = linear(f'{layer}.feed_forward.up', norm(f'{layer}.norm_2', z))
      hidden = functional.gelu(hidden, approximate='tanh')
      z = z + linear(f'{layer}.feed_forward.out', hidden)
    return linear('read_out', norm('norm', z[:, ::2]))[..., 0]

  return predictions
