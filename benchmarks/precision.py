"""Trains every architecture in float32 and in bfloat16, and prints both risks.

  python benchmarks/precision.py
  python benchmarks/precision.py --names=ttt,gru --seeds=8

Run it from the root of the repository. Both runs of a seed have the same initial
weights and the same prompts. The risk is that of the float32 weights at the end, on
fresh prompts. `ratio` is the mean over the seeds of the risk in bfloat16 divided by
that in float32, `error` its standard error, and `spread` the standard deviation of the
float32 risk over the seeds, divided by its mean.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict

import zoo
from configs import defaults
from zoo.config import build_model, build_task
from zoo.mesh import make_mesh
from zoo.optimizers import build_optimizer
from zoo.training.objective import make_objective, query_losses

_FORMS = 'sparse', 'gd_plus_plus', 'scalar'  # of deep_lsa, beside the default
_WIDTH = 16


def main() -> None:
  parser = argparse.ArgumentParser(description='Risks in float32 and in bfloat16.')
  parser.add_argument('--names', default='', help='architectures; all if empty')
  parser.add_argument('--seeds', type=int, default=2)
  parser.add_argument('--steps', type=int, default=500)
  arguments = parser.parse_args()
  print('architecture float32 bfloat16 ratio error spread seconds')
  for name in arguments.names.split(',') if arguments.names else _architectures():
    started = time.monotonic()
    one, other = (
      _risks(name, dtype, arguments.seeds, arguments.steps)
      for dtype in ('float32', 'bfloat16')
    )
    ratios = other / one
    error = ratios.std(ddof=1) / len(ratios) ** 0.5
    print(
      f'{name} {one.mean():.4f} {other.mean():.4f} {ratios.mean():.3f} {error:.3f} '
      f'{one.std(ddof=1) / one.mean():.3f} {time.monotonic() - started:.0f}',
      flush=True,
    )


def _architectures() -> list[str]:
  """Every model; the transformer with every mixer, and deep_lsa in every form."""
  models = [name for name in zoo.list_models() if name != 'transformer']
  return [*zoo.list_mixers(), *models, *(f'deep_lsa:{form}' for form in _FORMS)]


def _config(name: str, dtype: str, steps: int) -> Any:
  config: Any = defaults.get_general_config('')
  config.task.num_features, config.task.context_length = 2, 8
  config.task.noise_std, config.optimizer.learning_rate = 0.5, 5e-3
  config.train.num_steps, config.train.batch_size = steps, 128
  config.train.compute_dtype = dtype
  model, _, form = name.partition(':')
  mixer = model if model in zoo.list_mixers() else None
  config.model = ConfigDict({'name': 'transformer' if mixer else model})
  taken = zoo.registry.models.parameters(config.model.name)
  wanted = {
    'mixer': mixer,
    'form': form or None,
    'width': _WIDTH,
    'num_layers': 1 if mixer else 2,
    'num_heads': 2,
    'tokens': 'joint' if mixer else None,
    'positions': 'none' if mixer else None,
  }
  for field, value in wanted.items():
    if field in taken and value is not None:
      config.model[field] = value
  config.objective.positions = 'query'
  return config


def _risks(name: str, dtype: str, num_seeds: int, steps: int) -> np.ndarray:
  """The risk at the end of a run for each seed."""
  config = _config(name, dtype, steps)
  task = build_task(config)
  objective = make_objective(config, task, statistics=False)
  optimizer = build_optimizer(config.optimizer, steps)
  models = [build_model(config, nnx.Rngs(seed)) for seed in range(num_seeds)]
  graph, _, rest = nnx.split(models[0], nnx.Param, ...)
  weights = jax.tree.map(
    lambda *leaves: jnp.stack(leaves),
    *(nnx.state(model, nnx.Param) for model in models),
  )

  def loss(weights, key):
    return objective(nnx.merge(graph, weights, rest), key, None)

  def run(weights, seed):
    keys = jax.random.split(jax.random.key(seed), steps)

    def step(state, key):
      weights, moments = state
      gradient = jax.grad(loss)(weights, key)
      updates, moments = optimizer.update(gradient, moments, weights)
      return (optax.apply_updates(weights, updates), moments), None

    (weights, _), _ = jax.lax.scan(step, (weights, optimizer.init(weights)), keys)
    prompt = task.sample(jax.random.key(10**6), 16384)
    return query_losses(nnx.merge(graph, weights, rest), task, prompt, None).mean()

  with jax.set_mesh(make_mesh(config)):
    seeds = jnp.arange(num_seeds)
    return np.asarray(jax.jit(jax.vmap(run))(weights, seeds), float)


if __name__ == '__main__':
  main()
