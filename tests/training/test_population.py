"""Seeds, learning rates and initial scales side by side: each point as if alone."""

import inspect

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.marks import mostly_full
from tests.training.runs import compile_init, small_config
from zoo.config.mesh import make_mesh
from zoo.config.validation import build_task
from zoo.training import comparison
from zoo.training.population import unstack
from zoo.training.trainer import make_program, on_mesh


def _config(**changes):
  config = small_config('transformer', **changes)
  config.model.num_layers, config.model.width = 1, 8
  return config


def test_models_of_all_seeds_are_compared_on_the_same_prompts(monkeypatch):
  asked = []

  def compare(models, task, num_prompts, seed):
    weights = [one.w[...].tolist() for one in models]
    asked.append((seed, weights))
    return [{'model': seed, 'w': w[0]} for w in weights]

  monkeypatch.setattr(comparison, 'compare_all', compare)
  changes = {'eval__num_compared': 16, 'eval__seed': 5}
  configs = [_config(seed=seed, **changes) for seed in (3, 1, 3)]
  tasks, mesh = [build_task(one) for one in configs], make_mesh(configs[0])
  graph, models = nnx.split(nnx.Dict(w=nnx.Param(np.array([[0, 0], [1, 1], [2, 2]]))))
  found = inspect.unwrap(comparison.compare_members)(
    configs, tasks, graph, mesh, models
  )
  assert asked == [(5, [[0, 0], [1, 1], [2, 2]])]
  assert found == [{'model': 5, 'w': i} for i in range(3)]


_RATE = {'optimizer__learning_rate': 2e-2}
_GROWING = {f'curriculum__{field}': 1 for field in ('features', 'examples', 'loops')}
# What two points share, and in what the second one differs. These optimizers have a
# state that is more than Adam's, and a model that is an average.
_PAIRS = [
  ({'model__mixer': 'rwkv7'}, {'seed': 1}),
  ({'optimizer__name': 'muon', 'optimizer__ema_decay': 0.8}, _RATE),
  ({'optimizer__name': 'schedule_free', 'optimizer__schedule': 'constant'}, _RATE),
  (
    {'model__num_loops': 2, 'model__num_trained_loops': 2, 'curriculum__every': 3}
    | _GROWING,
    {'seed': 1},
  ),
]
_MIXERS = [{'model__mixer': mixer} for mixer in zoo.list_mixers()]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('shared', 'other'), mostly_full(_PAIRS, _MIXERS, [{'seed': 1}]), ids=str
)
def test_transformers_side_by_side_are_what_they_are_alone(shared, other, monkeypatch):
  compile_init(monkeypatch)
  configs = [_config(**shared), _config(**shared | other)]

  def weights(program, num_steps):
    with on_mesh(program.mesh, configs[0]):
      given = program.arguments(program.init(), 0, num_steps)
      state = jax.device_get(program.train_steps(*given)[0])
    several = len(program.configs) > 1
    first = next(unstack(configs, state)) if several else state
    leaves = jax.tree.leaves(first['model'])
    return np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(float)

  program = make_program(configs[:1])
  start, alone = weights(program, 0), weights(program, 4)
  together = weights(make_program(configs), 4)
  # Sums in another order; Adam moves weights whose gradient is rounding as well.
  assert np.linalg.norm(together - alone) < 1e-2 * np.linalg.norm(alone - start)
