"""The speed of training any model, compared with a plain program and the matmul peak.

All contenders are timed in one process and in turns. `zoo` is the compiled steps that
`launch.main` runs; `plain` is the same model trained by the usual Flax program, one
compiled step at a time from a Python loop; `matmul` multiplies square matrices, which
gives the peak of the machine.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import PyTree
from zoo.benchmarks.linear import Timing, time_in_turns, time_steps

from zoo.config.mesh import make_mesh, replicate
from zoo.config.validation import Config, build_model, build_task, validate
from zoo.core.prompt import Prompt
from zoo.core.tables import format_table
from zoo.training.objective import make_objective, numbers_of
from zoo.training.step import TRAIN_STREAM, init_state, stream_key
from zoo.training.trainer import make_plan
from zoo.training.utilisation import product_flops

CONTENDERS = 'zoo', 'plain', 'matmul'
_SIZE = 2048  # of the matrices of `matmul`


class ModelRow(NamedTuple):
  """All runs of one contender for one config."""

  model: str
  contender: str
  tokens_per_step: int
  flops_per_step: int  # of the products of matrices
  timings: list[Timing]

  @property
  def label(self) -> str:
    return f'{self.model}, {self.contender}'

  @property
  def steps_per_second(self) -> float:
    return statistics.median(timing.steps_per_second for timing in self.timings)


class ModelContest:
  """The contenders for one config, compiled and ready to be timed again and again."""

  def __init__(self, config: Config):
    validate(config)
    self._config, self._mesh = config, make_mesh(config)
    self._key = replicate(stream_key(config, TRAIN_STREAM), self._mesh)
    with jax.set_mesh(self._mesh):
      plan = make_plan([config], self._mesh)
      self._state, self._steps = init_state(config, plan.layout), plan.train_steps
      self._numbers = replicate(plan.numbers, self._mesh)
      self._plain = _PlainProgram(config)
      self.flops = product_flops(jax.make_jaxpr(self._plain.gradient)(self._key).jaxpr)
    self.tokens = config.train.batch_size * _tokens_of(config)
    self._matrix = replicate(np.full((_SIZE, _SIZE), 1 / _SIZE, 'f'), self._mesh)

  def time(self, contender: str, seconds: float) -> Timing:
    """Runs a contender for about `seconds` and returns its speed."""
    return time_steps(functools.partial(self.run, contender), seconds)

  def run(self, contender: str, steps: int) -> PyTree:
    """Runs steps of a contender, waits for them to finish, and returns their result.

    `zoo` and `plain` continue from the state of their last call.
    """
    precision = self._config.train.matmul_precision
    with jax.set_mesh(self._mesh), jax.default_matmul_precision(precision):
      if contender == 'zoo':
        limits = (replicate(np.int32(step), self._mesh) for step in (0, steps))
        self._state, _ = self._steps(self._state, self._key, *limits, self._numbers)
        result = self._state
      elif contender == 'plain':
        result = self._plain.run(steps)
      else:
        result = _products(self._matrix, steps)
      return jax.block_until_ready(result)


class _PlainProgram:
  """A model trained as in Flax's tutorials: `nnx.jit` of one step, and a loop."""

  def __init__(self, config: Config):
    self._model: Any = nnx.jit(lambda: build_model(config, nnx.Rngs(0)))()
    transformation = optax.adam(config.optimizer.learning_rate)
    if config.optimizer.clip_norm is not None:
      clip = optax.clip_by_global_norm(config.optimizer.clip_norm)
      transformation = optax.chain(clip, transformation)
    self._optimizer = nnx.Optimizer(self._model, transformation, wrt=nnx.Param)
    self._objective = make_objective(config, build_task(config), False)
    self._numbers = numbers_of(build_task(config))
    self._step = nnx.jit(self._update)
    self._steps_done = 0

  def gradient(self, key: jax.Array) -> tuple[jax.Array, PyTree]:
    """The loss and its gradient at the current weights."""
    graph, weights, rest = nnx.split(self._model, nnx.Param, ...)

    def loss(weights: Any) -> jax.Array:
      return self._objective(nnx.merge(graph, weights, rest), key, self._numbers)

    return jax.value_and_grad(loss)(weights)

  def run(self, steps: int) -> jax.Array:
    """Runs steps; returns the loss of the last one."""
    loss = jnp.zeros(())
    for _ in range(steps):
      key = jax.random.fold_in(jax.random.key(0), self._steps_done)
      loss = self._step(self._model, self._optimizer, key)
      self._steps_done += 1
    return loss

  def _update(self, model: Any, optimizer: nnx.Optimizer, key: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(self._objective)(model, key, self._numbers)
    optimizer.update(model, grads)
    return loss


@jax.jit
def _products(matrix: jax.Array, steps: int) -> jax.Array:
  return jax.lax.fori_loop(0, steps, lambda _, product: product @ matrix, matrix)


def _tokens_of(config: Config) -> int:
  """The tokens of one prompt; its examples for a model that does not read tokens."""
  task = build_task(config)

  def tokens() -> jax.Array:
    model, prompt = build_model(config, nnx.Rngs(0)), task.sample(jax.random.key(0), 1)
    assert isinstance(prompt, Prompt)
    embed = getattr(model, 'embed', None)
    return prompt.features if embed is None else embed(prompt)

  return nnx.eval_shape(tokens).shape[1]


def compare(
  configs: Mapping[str, Config], repeats: int, seconds: float
) -> list[ModelRow]:
  """Times the contenders of each config `repeats` times, in turns.

  A timing takes about `seconds`. Shows a progress bar. Raises UserError for an invalid
  config.
  """
  pairs = []
  for name, config in configs.items():
    contest = ModelContest(config)
    for contender in CONTENDERS:
      flops = 2 * _SIZE**3 if contender == 'matmul' else contest.flops
      row = ModelRow(name, contender, contest.tokens, flops, [])
      pairs.append((contest, row))
  time_in_turns(pairs, repeats, seconds)
  return [row for _, row in pairs]


def summarise(rows: Sequence[ModelRow]) -> dict[str, dict[str, float]]:
  """By model: steps and tokens per second, and ratios to the other contenders."""
  by_model: dict[str, dict[str, ModelRow]] = {}
  for row in rows:
    by_model.setdefault(row.model, {})[row.contender] = row
  found = {}
  for model, of in by_model.items():
    zoo, matmul = of['zoo'], of['matmul']
    flops = zoo.flops_per_step * zoo.steps_per_second
    peak = matmul.flops_per_step * matmul.steps_per_second
    found[model] = {
      'steps_per_second': zoo.steps_per_second,
      'tokens_per_second': zoo.tokens_per_step * zoo.steps_per_second,
      'speed_over_plain': zoo.steps_per_second / of['plain'].steps_per_second,
      'gflops_per_second': flops / 1e9,
      'peak_gflops_per_second': peak / 1e9,
      'share_of_peak': flops / peak,
    }
  return found


def table(found: Mapping[str, Mapping[str, float]]) -> str:
  """The results of the benchmark as a table for a terminal."""
  rows = [
    [
      model,
      f'{of["steps_per_second"]:.1f}',
      f'{of["tokens_per_second"]:,.0f}',
      f'{of["speed_over_plain"]:.2f}',
      f'{of["gflops_per_second"]:.0f}',
      f'{of["share_of_peak"]:.0%}',
    ]
    for model, of in found.items()
  ]
  header = 'model', 'steps/s', 'tokens/s', 'over plain', 'GFLOP/s', 'of matmul peak'
  return format_table(rows, header)
