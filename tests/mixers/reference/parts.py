"""The layers that the mixers of this folder are made of, in NumPy."""

from collections.abc import Callable, Mapping

import numpy as np

QKV = 'query', 'key', 'value'

Weights = Mapping[str, np.ndarray]


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def silu(x):
  return x * sigmoid(x)


def softplus(x):
  return np.log(1 + np.exp(x))


def unit(x: np.ndarray) -> np.ndarray:
  """Each vector of the last axis at length 1, but for 10⁻⁶ under the root."""
  return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + 1e-6)


def linear(p: Weights, name: str, x: np.ndarray) -> np.ndarray:
  return x @ p[f'{name}.kernel'] + p.get(f'{name}.bias', 0.0)


def low_rank(
  p: Weights,
  name: str,
  x: np.ndarray,
  between: Callable[[np.ndarray], np.ndarray] = lambda inner: inner,
) -> np.ndarray:
  return linear(p, f'{name}.up', between(linear(p, f'{name}.down', x)))


def convolve(p: Weights, name: str, x: np.ndarray) -> np.ndarray:
  """The short convolution of `[n, channels]`."""
  kernel, out = p[f'{name}.kernel'], np.zeros_like(x)
  for t in range(len(x)):
    out[t] = p[f'{name}.bias']
    for back in range(4):  # the last row of the kernel is that of the token itself
      if t - back >= 0:
        out[t] += kernel[3 - back] * x[t - back]
  return out


def convolved(p: Weights, name: str, x: np.ndarray) -> np.ndarray:
  """A projection after its short convolution and SiLU."""
  return silu(convolve(p, f'convolutions.{name}', linear(p, name, x)))


def split(x: np.ndarray, num_heads: int) -> np.ndarray:
  """The heads `[h, n, s]` of `[n, h s]`."""
  return np.stack(np.split(x, num_heads, axis=-1))


def merge(heads: list[np.ndarray]) -> np.ndarray:
  """The tokens `[n, h s]` of heads `[n, s]`."""
  return np.concatenate(heads, axis=-1)


def rms(p: Weights, name: str, x: np.ndarray) -> np.ndarray:
  """The RMS norm over the last axis."""
  mean = (x**2).mean(axis=-1, keepdims=True)
  return x / np.sqrt(mean + 1e-6) * p[f'{name}.scale']


def turned(x: np.ndarray) -> np.ndarray:
  """Rotary positions of `[n, s]`: each pair (j, j + s/2) as one complex number."""
  half = x.shape[1] // 2
  angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
  z = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
  return np.concatenate([z.real, z.imag], axis=1)


def decays(p: Weights, x: np.ndarray) -> np.ndarray:
  """The decay e^g `[n, h]` of each head, g = −e^A softplus(W x + b)."""
  rate = softplus(linear(p, 'rate.linear', x) + p['rate.bias'])
  return np.exp(-np.exp(p['rate.log_a']) * rate)


def key_decays(p: Weights, x: np.ndarray, num_heads: int) -> np.ndarray:
  """The decay e^g `[h, n, k]` of each entry of a key; A is by head."""
  rate = softplus(low_rank(p, 'rates.linear', x) + p['rates.bias'])
  return np.exp(-np.exp(p['rates.log_a'])[:, None, None] * split(rate, num_heads))
