"""Measures the time of one layer of each mixer, relative to softmax attention.

  python -m benchmarks.mixers
  python -m benchmarks.mixers --mixers=delta,kda --tokens=41 --repeats=5

Two programs are timed: the forward pass alone, and the forward pass with the gradient
with respect to all weights and the tokens. Layers have width 64 and 2 heads, and read
32 prompts of 41 or of 512 tokens. Use an idle machine; the programs take turns.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

import zoo
from benchmarks.harness import Contender, of_steps, time_in_turns
from launch import cli
from zoo.core import registry
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.tables import format_table
from zoo.mixers import Slot

_BATCH, _WIDTH, _HEADS = 32, 64, 2
_BASE = 'softmax'

flags.adopt_module_key_flags(cli)
_MIXERS = flags.DEFINE_list('mixers', None, 'Names of mixers. Default: all.')
_TOKENS = flags.DEFINE_list('tokens', ['41', '512'], 'Numbers of tokens.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Runs of each program, in turns.')
_SECONDS = flags.DEFINE_float('seconds', 0.5, 'Duration of a run in seconds.')


def programs(name: str, num_tokens: int) -> dict[str, Callable[[int], object]]:
  """Returns programs that run a number of steps: forward pass, and gradient."""

  def build() -> nnx.Module:
    slot = Slot(_WIDTH, _HEADS)
    return registry.create_mixer(name, slot=slot, rngs=nnx.Rngs(0))

  graph = nnx.graphdef(nnx.eval_shape(build))
  weights = jax.jit(lambda: nnx.state(build()))()
  drawn = np.random.default_rng(0).normal(size=(_BATCH, num_tokens, _WIDTH))
  tokens = jnp.asarray(drawn, 'float32')

  def forward(weights: nnx.State, tokens: jax.Array) -> jax.Array:
    return nnx.merge(graph, weights)(tokens)

  def loss(weights: nnx.State, tokens: jax.Array) -> jax.Array:
    return jnp.square(forward(weights, tokens)).mean()

  def repeated(program: Callable) -> Callable[[int], object]:
    compiled = jax.jit(program)

    def run(steps: int) -> object:
      outputs = [compiled(weights, tokens) for _ in range(steps)]
      return jax.block_until_ready(outputs[-1])

    return run

  gradient = jax.grad(loss, argnums=(0, 1))
  return {'forward': repeated(forward), 'gradient': repeated(gradient)}


def measure(
  names: list[str], lengths: list[int], repeats: int, seconds: float
) -> list[tuple[str, ...]]:
  """Returns rows of the table: mixer, tokens, and both times relative to softmax."""
  rows = []
  for length in lengths:
    contenders: dict[tuple[str, str], Contender] = {
      (name, part): of_steps(f'{name}, {length} tokens, {part}', run)
      for name in dict.fromkeys([_BASE, *names])
      for part, run in programs(name, length).items()
    }
    time_in_turns([*contenders.values()], repeats, seconds)
    speed = {key: contender.rates['median'] for key, contender in contenders.items()}
    for name in names:
      ratios = (
        f'{speed[_BASE, part] / speed[name, part]:.2f}'
        for part in ('forward', 'gradient')
      )
      rows.append((name, str(length), *ratios))
  return rows


def main() -> None:
  known = zoo.list_mixers()
  names = known if _MIXERS.value is None else _MIXERS.value
  for name in names:
    check_name('--mixers', name, known)
  if not all(text.isdecimal() and int(text) for text in _TOKENS.value):
    raise UserError(f'--tokens is {_TOKENS.value}; it must be numbers ≥ 1')
  lengths = [int(text) for text in _TOKENS.value]
  repeats = check_count('--repeats', _REPEATS.value)
  seconds = check_number('--seconds', _SECONDS.value, above=0.0)
  rows = measure([*names], lengths, repeats, seconds)
  print(format_table(rows, ('mixer', 'tokens', 'forward', 'gradient')))


if __name__ == '__main__':
  cli.run(main)
