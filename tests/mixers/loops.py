"""The equations of mixers a second time: NumPy, float64, one token after the other.

Nothing in the equations is taken from zoo but the parameters of a mixer.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.compare import assert_close
from tests.weights import double
from zoo.core import registry
from zoo.mixers import Site

B, N, W, H = 2, 7, 8, 2
EXACT = 1e-10  # float64: some thousand roundings of 1e-16, little cancellation


def warm(name: str, dtype: Any = 'float64', width: int = W, heads: int = H, **options):
  """A mixer whose parameters are random, so that none is 0 or 1."""

  def build():
    site = Site(width, heads)
    return registry.create_mixer(name, site=site, rngs=nnx.Rngs(0), **options)

  rng = np.random.default_rng(0)

  def draw(leaf):
    # Roots of the number of inputs keep features of order 1.
    scale = 0.5 if leaf.ndim == 1 else leaf.shape[-2] ** -0.5
    drawn = scale * rng.normal(size=leaf.shape)
    # Converted in NumPy: JAX would compile a program for each shape.
    return jnp.asarray(drawn.astype(jnp.dtype(dtype)), dtype)

  graph, parameters = nnx.split(nnx.eval_shape(build))
  return nnx.merge(graph, jax.tree.map(draw, parameters))


@nnx.jit
def call(mixer, x):
  """The outputs of a mixer, compiled: one by one its operations would take longer."""
  return mixer(x)


def tokens(n: int = N, dtype: Any = 'float64', width: int = W):
  drawn = np.random.default_rng(1).normal(size=(B, n, width))
  return jnp.asarray(drawn.astype(jnp.dtype(dtype)), dtype)


def parameters(module) -> dict[str, np.ndarray]:
  """By path, such as 'query.kernel', the parameters of a module."""
  flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
  return {'.'.join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}


def linear(p: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
  return x @ p[f'{name}.kernel'] + p.get(f'{name}.bias', 0.0)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def silu(x):
  return x * sigmoid(x)


def softplus(x):
  return np.log(1 + np.exp(x))


def convolve(p: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
  """The short convolution of `[n, channels]`."""
  kernel, out = p[f'{name}.kernel'], np.zeros_like(x)
  for t in range(len(x)):
    out[t] = p[f'{name}.bias']
    for back in range(4):  # the last row of the kernel is that of the token itself
      if t - back >= 0:
        out[t] += kernel[3 - back] * x[t - back]
  return out


def unit(x: np.ndarray) -> np.ndarray:
  return x / np.sqrt((x**2).sum() + 1e-6)


def rms(p: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
  return x / np.sqrt((x**2).mean() + 1e-6) * p[f'{name}.scale']


def heads(x: np.ndarray, h: int = H) -> np.ndarray:
  """`[h, n, s]` from `[n, w]`."""
  return np.stack(np.split(x, h, axis=-1))


def turned(vector: np.ndarray, position: int) -> np.ndarray:
  """Each pair (j, j + s/2) as a complex number, turned by its angle."""
  half = len(vector) // 2
  z = vector[:half] + 1j * vector[half:]
  z = z * np.exp(1j * position * 10000.0 ** (-np.arange(half) / half))
  return np.concatenate([z.real, z.imag])


def softmax(scores: np.ndarray) -> np.ndarray:
  return np.exp(scores) / np.exp(scores).sum()


def relu_weights(scores: np.ndarray) -> np.ndarray:
  return np.maximum(scores, 0) / max(len(scores), 1)


def attention(mixer, x, weigh=softmax, causal=True, rotary=False) -> np.ndarray:
  """Σ_i weight_i v_i of one prompt for each head; `weigh` is from scores to weights."""
  n, h = len(x), mixer.num_heads
  rows = []
  for layer in (mixer.query, mixer.key, mixer.value):
    kernel, bias = double(layer)
    rows.append(heads(x @ kernel + bias, h))
  query, key, value = rows
  out = np.zeros((n, *query.shape[::2]))
  for t, head in np.ndindex(n, h):
    # The query of a set is not among its keys, but for a softmax it sees itself.
    seen = range(t + 1) if causal else range(n - 1)
    if not causal and t == n - 1 and weigh is softmax:
      seen = range(n)
    q, keys = query[head, t], [key[head, i] for i in seen]
    if rotary:
      q, keys = turned(q, t), [turned(k, i) for i, k in zip(seen, keys, strict=True)]
    scores = np.array([q @ k / np.sqrt(len(q)) for k in keys])
    for i, weight in zip(seen, weigh(scores), strict=True):
      out[t, head] += weight * value[head, i]
  kernel, bias = double(mixer.out)
  return out.reshape(n, -1) @ kernel + bias


def recur(q, k, u, decay, erase=None, at=None, state=None):
  """Outputs `[n, v]` and the last state of one head; `decay` is e^g, `[n, k]`.

  S_t = decay ∘ S_{t−1} − atᵀ (erase S_{t−1}) + kᵀ u; `at` is k by default.
  """
  n, size = k.shape
  state = np.zeros((size, u.shape[-1])) if state is None else state
  out = np.zeros((n, u.shape[-1]))
  for t in range(n):
    read = 0 if erase is None else erase[t] @ state
    state = decay[t][:, None] * state + np.outer(k[t], u[t])
    state = state - np.outer(k[t] if at is None else at[t], read * np.ones_like(u[t]))
    out[t] = q[t] @ state
  return out, state


def assert_is(name: str, loop: Any, n: int = N, **options) -> None:
  """A mixer of random weights is `loop(p, x)` of each prompt, p being the weights."""
  with jax.enable_x64(True):
    mixer, x = warm(name, **options), tokens(n)
    p = parameters(mixer)
    expected = np.stack([loop(p, np.asarray(prompt)) for prompt in x])
    assert_close(call(mixer, x), expected, EXACT)
