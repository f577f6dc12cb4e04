"""Whole blocks of Mamba-2 and Mamba-3, by packages that others wrote in Flax.

  pip install --no-deps mamba2-jax==1.1.2 mamba3-jax==1.0.1
  python tests/data/mixers/make_blocks.py

in an environment of its own with JAX and Flax. Random weights, 2 prompts of 13 tokens
of width 8, 2 heads, states of 8, chunks of 4 tokens, and an ε of 10⁻⁶ in norms.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np
from flax import nnx
from mamba2_jax import modeling as two  # pyright: ignore[reportMissingImports]
from mamba3_jax import modeling as three  # pyright: ignore[reportMissingImports]

_SIZES = {'hidden_size': 8, 'state_size': 8, 'head_dim': 8, 'chunk_size': 4}


def run(mixer: Any, seed: int) -> dict[str, np.ndarray]:
  """The weights of a block by path, and its output for random tokens."""
  rng = np.random.default_rng(seed)
  graph, weights = nnx.split(mixer)

  def draw(leaf: jax.Array) -> np.ndarray:
    scale = 0.5 if leaf.ndim == 1 else leaf.shape[-2] ** -0.5
    return (scale * rng.normal(size=leaf.shape)).astype('float32')

  weights = jax.tree.map(draw, weights)
  tokens = rng.normal(size=(2, 13, 8)).astype('float32')
  out, *_ = nnx.merge(graph, weights)(tokens)
  paths = nnx.to_flat_state(weights)
  named = {'.'.join(map(str, path)): np.asarray(leaf[...]) for path, leaf in paths}
  return {**named, 'tokens': tokens, 'out': np.asarray(out)}


def main() -> None:
  config = dataclasses.replace(two.Mamba2Config(), **_SIZES)
  mamba2 = two.Mamba2Mixer(config, 0, rngs=nnx.Rngs(0))
  mamba2.norm.eps = 1e-6
  config = dataclasses.replace(three.Mamba3Config(), **_SIZES, bcnorm_eps=1e-6)
  mamba3 = three.Mamba3Mixer(config, 0, rngs=nnx.Rngs(0))
  arrays: dict[str, Any] = {
    f'{name}_block/{key}': array
    for seed, (name, mixer) in enumerate({'mamba2': mamba2, 'mamba3': mamba3}.items())
    for key, array in run(mixer, seed).items()
  }
  out = pathlib.Path(__file__).with_name('blocks.npz')
  np.savez_compressed(out, **arrays)
  print(f'{out}: {sorted(arrays)}, {out.stat().st_size} bytes')


if __name__ == '__main__':
  main()
