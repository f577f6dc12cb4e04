"""The speed of training a transformer beside plain programs and a lower bound.

Five programs are timed, all in the setting of arXiv 2208.01066 with three layers:

- `PyTorch` and `torch.compile` are benchmarks/gpt2_pytorch.py. They need the extra
  `llm`.
- `plain Flax` is benchmarks/gpt2_flax.py.
- `zoo` is the compiled steps that `launch.main` runs.
- `bound` computes only the matrix products of such a step, forward and backward, in
  their shapes. Its products do not wait for one another. It reads each factor from
  memory, where a step finds some in the cache, so it is not a strict lower bound.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from benchmarks import gpt2_flax, models
from benchmarks.harness import Contender, Steps, of_steps, time_in_turns
from zoo.core.tables import format_table
from zoo.training.summary import matrix_products

NAME = 'transformer'
_SIZE = 'gpt2_tiny'


def products_of(jaxpr: jax.extend.core.Jaxpr) -> list[jax.extend.core.JaxprEqn]:
  """Returns the matrix products of a program, each as often as it runs."""
  return [product for product, times in matrix_products(jaxpr) for _ in range(times)]


def bound(steps: Steps) -> Callable[[int], object]:
  """Returns a program that computes only the matrix products of training steps."""
  products = products_of(steps.jaxpr())
  rng = np.random.default_rng(0)
  # Each product has factors of its own, so that XLA computes each of them.
  shapes: list[list[Any]] = [[of.aval for of in product.invars] for product in products]
  arrays = [
    [jnp.asarray(rng.normal(size=of.shape), of.dtype) for of in pair] for pair in shapes
  ]

  @jax.jit
  def multiply(arrays: Any, steps: jax.Array) -> jax.Array:
    def step(number: jax.Array, total: jax.Array) -> jax.Array:
      # The barrier hides from XLA that all steps compute the same.
      factors, _ = jax.lax.optimization_barrier((arrays, number))
      outputs = [
        jax.lax.dot_general_p.bind(*pair, **product.params)
        for pair, product in zip(factors, products, strict=True)
      ]
      # A barrier keeps XLA from computing only the entries that are read.
      for output in jax.lax.optimization_barrier(outputs):
        total += output.ravel()[0].astype(total.dtype)
      return total

    return jax.lax.fori_loop(0, steps, step, jnp.zeros(()))

  def run(count: int) -> object:
    with steps.computing():
      return jax.block_until_ready(multiply(arrays, jnp.int32(count)))

  return run


def has_pytorch() -> bool:
  """Returns whether the libraries of benchmarks/gpt2_pytorch.py are installed."""
  return all(map(importlib.util.find_spec, ('torch', 'transformers')))


def programs(smoke: bool) -> dict[str, Callable[[int], object]]:
  """Returns functions that take a number of training steps, by the names of programs.

  Args:
    smoke: Whether sizes are tiny, so that the speeds mean nothing.
  """
  config = models.model_config(_SIZE, smoke)
  model, task = config.model.arguments, config.task.arguments
  setting: dict[str, Any] = {
    **{name: model[name] for name in ('num_layers', 'width', 'num_heads')},
    'num_features': task['num_features'],
    'num_points': task['context_length'] + 1,
    'batch_size': config.train.batch_size,
  }
  by_name: dict[str, Callable[[int], object]] = {}
  if has_pytorch():
    from benchmarks import gpt2_pytorch

    device = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'
    for name, is_compiled in (('PyTorch', False), ('torch.compile', True)):
      by_name[name] = gpt2_pytorch.make_run(
        **setting, device=device, is_compiled=is_compiled
      )
  steps = Steps(config)
  by_name['plain Flax'] = gpt2_flax.make_run(**setting)
  by_name['zoo'] = steps.run
  by_name['bound'] = bound(steps)
  return by_name


def measure(repeats: int, seconds: float, smoke: bool) -> list[dict[str, Any]]:
  """Times the programs in turns; returns the speeds and CPU times of each.

  Args:
    repeats: Number of timings of each program.
    seconds: Duration of a timing.
    smoke: Whether sizes are tiny, so that the speeds mean nothing.
  """
  contenders = {
    name: of_steps(f'{NAME}, {name}', run) for name, run in programs(smoke).items()
  }
  time_in_turns([*contenders.values()], repeats, seconds)
  return rows(contenders)


def rows(contenders: Mapping[str, Contender]) -> list[dict[str, Any]]:
  """Returns the speeds and CPU times of programs, and their ratios to `zoo`."""
  zoo = contenders['zoo']
  return [
    {
      'program': name,
      'steps_per_second': contender.rates,
      'cpu_ms_per_step': contender.cpu_ms_per_step,
      'time_over_zoo': zoo.rates['median'] / contender.rates['median'],
      'cpu_over_zoo': contender.cpu_ms_per_step / zoo.cpu_ms_per_step,
    }
    for name, contender in contenders.items()
  ]


def table(rows: list[dict[str, Any]]) -> str:
  """Returns the results as a table for a terminal."""
  cells = [
    [
      row['program'],
      *(f'{row["steps_per_second"][name]:.2f}' for name in ('min', 'median', 'max')),
      f'{row["cpu_ms_per_step"]:.1f}',
      f'{row["time_over_zoo"]:.2f}',
      f'{row["cpu_over_zoo"]:.2f}',
    ]
    for row in rows
  ]
  header = 'steps/s', 'min', 'median', 'max', 'CPU-ms/step', 'time ÷ zoo', 'CPU ÷ zoo'
  text = format_table(cells, header)
  if 'PyTorch' not in {row['program'] for row in rows}:
    text += (
      '\nPyTorch was not timed: torch or transformers is not installed (the extra llm)'
    )
  return text
