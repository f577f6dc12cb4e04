"""The speed of training any model beside a plain program and the matmul peak.

Three programs are timed:

- `zoo` is the compiled steps that `launch.main` runs.
- `plain` trains the same model by the usual Flax program: a Python loop calls one
  compiled step at a time.
- `matmul` multiplies square matrices, which gives the peak of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import PyTree

import zoo
from benchmarks.harness import Contender, Steps, of_steps, time_in_turns
from benchmarks.linear import config_of
from zoo.config.building import build_model, build_task
from zoo.config.read import with_fields
from zoo.config.run import Run
from zoo.core.errors import unknown_name
from zoo.core.prompt import Prompt
from zoo.core.tables import format_table
from zoo.models import LinearAttention, TokenModel
from zoo.objectives import build_objective, inputs_of
from zoo.sharding import replicate
from zoo.training.summary import product_flops

_SIZE = 2048  # The matrices of `matmul` have so many rows and columns.
_SIZES = 'gpt2_tiny', 'gpt2_small', 'gpt2'
_OTHERS = 'deep_lsa', 'deep_set', 'gru', 'lstm', 'mlp', 'mlp_mixer'


def model_config(name: str, smoke: bool) -> Run:
  """Returns the config of a size, a mixer or a model, as in arXiv 2208.01066.

  Args:
    name: A size of GPT-2, a mixer for the smallest size, or another model.
    smoke: Whether sizes are tiny, so that the speeds mean nothing.

  Raises:
    UserError: If the name is unknown.
  """
  mixers = zoo.list_mixers()
  if name in _SIZES:
    config = config_of('transformer', name, {})
  elif name in mixers:
    config = config_of('transformer', 'gpt2_tiny', {'model.mixer': name})
  elif name in _OTHERS:
    config = config_of(name, '', {})
  else:
    raise unknown_name('--models', name, [*_SIZES, *mixers, *_OTHERS])
  d, c, b = (2, 3, 2) if smoke else (20, 40, 64)
  fields = {'task.num_features': d, 'task.context_length': c, 'train.batch_size': b}
  return with_fields(config, fields)


class Contest:
  """The programs of one config, compiled and ready to be timed again and again."""

  def __init__(self, config: Run):
    self.steps, self.plain = Steps(config), PlainProgram(config)
    with self.steps.computing():
      jaxpr = jax.make_jaxpr(self.plain.gradient)(self.steps.key).jaxpr
    self.flops = product_flops(jaxpr)  # These are the operations of a step.
    # These are the tokens of a step.
    self.tokens = config.train.batch_size * _tokens_of(config)
    self._matrix = replicate(np.full((_SIZE, _SIZE), 1 / _SIZE, 'f'), self.steps.mesh)

  def contenders(self, name: str) -> dict[str, Contender]:
    """Returns the programs by kind; `name` is the model in their labels."""
    programs = {
      'zoo': self.steps.run,
      'plain': self.run_plain,
      'matmul': self._multiply,
    }
    return {kind: of_steps(f'{name}, {kind}', run) for kind, run in programs.items()}

  def run_plain(self, steps: int) -> jax.Array:
    """Runs steps of the plain program; returns the loss of the last one."""
    with self.steps.computing():
      return jax.block_until_ready(self.plain.run(steps))

  def _multiply(self, steps: int) -> jax.Array:
    with self.steps.computing():
      return jax.block_until_ready(_products(self._matrix, steps))


class PlainProgram:
  """A model trained as in Flax's tutorials: a loop around `nnx.jit` of one step."""

  def __init__(self, config: Run):
    task = build_task(config)
    self._model: Any = nnx.jit(lambda: build_model(config, task, nnx.Rngs(0)))()
    transformation = optax.adam(config.optimizer.learning_rate)
    if config.optimizer.clip_norm is not None:
      clip = optax.clip_by_global_norm(config.optimizer.clip_norm)
      transformation = optax.chain(clip, transformation)
    self._optimizer = nnx.Optimizer(self._model, transformation, wrt=nnx.Param)
    self._loss = build_objective(config, task, self._model).loss_of_step
    self._numbers = inputs_of(task)
    self._step = nnx.jit(self._update)
    self._steps_done = 0

  def gradient(self, key: jax.Array) -> tuple[jax.Array, PyTree]:
    """Returns the loss and its gradient at the current weights."""
    graph, weights, rest = nnx.split(self._model, nnx.Param, ...)

    def loss(weights: Any) -> jax.Array:
      return self._loss(nnx.merge(graph, weights, rest), key, self._numbers)

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
    def loss_of(model: Any) -> jax.Array:
      return self._loss(model, key, self._numbers)

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


@jax.jit
def _products(matrix: jax.Array, steps: int) -> jax.Array:
  return jax.lax.fori_loop(0, steps, lambda _, product: product @ matrix, matrix)


def _tokens_of(config: Run) -> int:
  """Returns the number of tokens of a prompt; of examples if a model has no tokens."""
  task = build_task(config)

  def tokens() -> jax.Array:
    model = build_model(config, task, nnx.Rngs(0))
    prompt = task.sample(jax.random.key(0), 1)
    assert isinstance(prompt, Prompt)
    reads_tokens = isinstance(model, TokenModel | LinearAttention)
    return model.embed(prompt) if reads_tokens else prompt.features

  return nnx.eval_shape(tokens).shape[1]


def measure(
  models: Mapping[str, Run], repeats: int, seconds: float
) -> dict[str, dict[str, float]]:
  """Measures steps and tokens per second, and ratios to the other programs, by model.

  Args:
    models: The configs by name.
    repeats: Number of timings of each program.
    seconds: Duration of a timing.

  Returns:
    The results of `summary` by name.

  Raises:
    UserError: If a config is invalid.
  """
  contests = {name: Contest(config) for name, config in models.items()}
  contenders = {name: contest.contenders(name) for name, contest in contests.items()}
  every = [
    contender for of_model in contenders.values() for contender in of_model.values()
  ]
  time_in_turns(every, repeats, seconds)
  return {
    name: summary(contenders[name], contest.tokens, contest.flops)
    for name, contest in contests.items()
  }


def summary(
  contenders: Mapping[str, Contender], tokens: int, flops: int
) -> dict[str, float]:
  """Returns the speeds of a model, whose step has so many tokens and operations."""
  rates = {name: contender.rates['median'] for name, contender in contenders.items()}
  speed, peak = flops * rates['zoo'], 2 * _SIZE**3 * rates['matmul']
  return {
    'steps_per_second': rates['zoo'],
    'tokens_per_second': tokens * rates['zoo'],
    'speed_over_plain': rates['zoo'] / rates['plain'],
    'gflops_per_second': speed / 1e9,
    'peak_gflops_per_second': peak / 1e9,
    'share_of_peak': speed / peak,
  }


def table(speeds: Mapping[str, Mapping[str, float]]) -> str:
  """Returns the results of the benchmark as a table for a terminal."""
  rows = [
    [
      model,
      f'{of["steps_per_second"]:.1f}',
      f'{of["tokens_per_second"]:,.0f}',
      f'{of["speed_over_plain"]:.2f}',
      f'{of["gflops_per_second"]:.0f}',
      f'{of["share_of_peak"]:.0%}',
    ]
    for model, of in speeds.items()
  ]
  header = 'model', 'steps/s', 'tokens/s', 'over plain', 'GFLOP/s', 'of matmul peak'
  return format_table(rows, header)
