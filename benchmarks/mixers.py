"""Measures the time of one layer of each mixer, relative to softmax attention.

  python -m benchmarks.mixers --nocompilation_cache
  python -m benchmarks.mixers --mixers=delta,kda --tokens=41 --repeats=5

Two programs are timed: the forward pass alone, and the forward pass with the gradient
with respect to all weights and the tokens. Layers have width 64 and 2 heads, and read
4,096 tokens: 99 prompts of 41, or 4 prompts of 1,024. The steps of a run are a loop in
one compiled program, as in training: alone, a step would also pay for new memory, which
takes most of the time of some mixers. The programs take turns. Use an
idle machine; on a busy one the ratios of processor times are more exact than those of
the times. The last column has the processor seconds that the gradient takes to trace
and to compile. With compiled programs on the disk it would be the time to read them.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from jaxtyping import PyTree

import zoo
from benchmarks.harness import of_steps, time_in_turns
from launch import cli
from zoo.core import registry
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.tables import format_table
from zoo.mixers import Slot

_BATCH_TOKENS, _WIDTH, _HEADS = 4096, 64, 2
_BASE, _PARTS = 'softmax', ('forward', 'gradient')

flags.adopt_module_key_flags(cli)
_MIXERS = flags.DEFINE_list('mixers', None, 'Names of mixers. Default: all.')
_TOKENS = flags.DEFINE_list('tokens', ['41', '1024'], 'Numbers of tokens of a prompt.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Runs of each program, in turns.')
_SECONDS = flags.DEFINE_float('seconds', 0.5, 'Duration of a run in seconds.')


def programs(
  name: str, num_tokens: int
) -> tuple[dict[str, Callable[[int], object]], float]:
  """Compiles the forward pass of a mixer, and its gradient.

  Returns:
    Functions that run a number of steps of each; and the processor seconds that the
    gradient took to trace and to compile.
  """

  def build() -> nnx.Module:
    slot = Slot(_WIDTH, _HEADS)
    return registry.create_mixer(name, slot=slot, rngs=nnx.Rngs(0))

  graph = nnx.graphdef(nnx.eval_shape(build))
  weights = jax.jit(lambda: nnx.state(build()))()
  batch = max(1, _BATCH_TOKENS // num_tokens)
  drawn = np.random.default_rng(0).normal(size=(batch, num_tokens, _WIDTH))
  tokens = jnp.asarray(drawn, 'float32')

  def forward(weights: nnx.State, tokens: jax.Array) -> jax.Array:
    return nnx.merge(graph, weights)(tokens)

  def loss(weights: nnx.State, tokens: jax.Array) -> jax.Array:
    return jnp.square(forward(weights, tokens)).mean()

  def repeated(program: Callable) -> Callable[[int], object]:
    def loop(weights: nnx.State, tokens: jax.Array, steps: jax.Array) -> PyTree:
      def step(number: jax.Array, _: PyTree) -> PyTree:
        # The barrier hides from XLA that all steps compute the same.
        inputs, _ = jax.lax.optimization_barrier(((weights, tokens), number))
        return program(*inputs)

      nothing = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(program, weights, tokens),
      )
      return jax.lax.fori_loop(0, steps, step, nothing)

    compiled = jax.jit(loop).lower(weights, tokens, jnp.int32(1)).compile()
    return lambda steps: jax.block_until_ready(
      compiled(weights, tokens, jnp.int32(steps))
    )

  by_part = {'forward': repeated(forward)}
  start = time.process_time()
  by_part['gradient'] = repeated(jax.grad(loss, argnums=(0, 1)))
  return by_part, time.process_time() - start


def measure(
  names: list[str], lengths: list[int], repeats: int, seconds: float
) -> list[tuple[str, ...]]:
  """Returns rows of the table: mixer, tokens, ratios to softmax, time to compile."""
  rows = []
  for length in lengths:
    contenders, seconds_to_compile = {}, {}
    for name in dict.fromkeys([_BASE, *names]):
      by_part, seconds_to_compile[name] = programs(name, length)
      for part, run in by_part.items():
        label = f'{name}, {length} tokens, {part}'
        contenders[name, part] = of_steps(label, run)
    time_in_turns([*contenders.values()], repeats, seconds)
    for name in names:
      forward, gradient = (contenders[name, part] for part in _PARTS)
      base_forward, base_gradient = (contenders[_BASE, part] for part in _PARTS)
      ratios = (
        base_forward.rates['median'] / forward.rates['median'],
        base_gradient.rates['median'] / gradient.rates['median'],
        gradient.cpu_ms_per_step / base_gradient.cpu_ms_per_step,
      )
      cells = (f'{ratio:.2f}' for ratio in ratios)
      rows.append((name, str(length), *cells, f'{seconds_to_compile[name]:.1f}'))
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
  header = 'mixer', 'tokens', 'forward', 'gradient', 'gradient CPU', 'compile CPU-s'
  print(format_table(rows, header))


if __name__ == '__main__':
  cli.run(main)
