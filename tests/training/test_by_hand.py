"""Whole runs against loops of plain Flax and Optax, written out for the test."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from ml_collections import ConfigDict

import zoo
from tests import flax_models
from tests.built import task_of
from tests.training.runs import small_config
from zoo.core.draws import INIT_STREAM, TRAIN_STREAM, stream_of
from zoo.training import grid, sweep

NUM_STEPS = 8


@pytest.fixture(autouse=True)
def registered(register):
  """The models are registered for these tests alone."""
  flax_models.register_all(register)


def config_of(name: str = 'Plain', **changes: Any) -> Any:
  """The config of a short run of a model of tests/flax_models.py."""
  fields = {
    'train__num_steps': NUM_STEPS,
    'optimizer__schedule': 'constant',
    'eval__num_batches': 1,
    'checkpoint__every': 4,
  }
  config = small_config('lsa', **fields | changes)
  with config.unlocked():
    config.model = ConfigDict({'name': name})
  return config


class Loop(NamedTuple):
  """What a loop by hand has trained."""

  weights: list[Any]  # at which gradients were taken, after each step
  state: Any  # of the optimizer, at the end, as arrays


def loop_of(
  config: Any,
  optimizer: optax.GradientTransformation,
  start: Callable[[Any], None] = lambda model: None,
) -> Loop:
  """Trains the model of a config as the guides of Flax do.

  Args:
    config: The config of the run that the loop is compared with.
    optimizer: What updates the parameters.
    start: What changes the model before training.
  """
  task = task_of(config)
  cls = flax_models.FORMS[config.model.name]
  model = cls(task.num_features, rngs=nnx.Rngs(stream_of(config.seed, INIT_STREAM)))
  start(model)
  own = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
  key = stream_of(config.seed, TRAIN_STREAM)

  @nnx.jit
  def step(model, own, step):
    prompt = task.sample(jax.random.fold_in(key, step), config.train.batch_size)

    def loss_of(model):
      return jnp.mean(task.loss(model(prompt), prompt.y_query))

    own.update(model, nnx.grad(loss_of)(model))

  weights = []
  with jax.default_matmul_precision('highest'):
    for i in range(config.train.num_steps):
      step(model, own, i)
      weights.append(parameters(model))
  return Loop(weights, nnx.as_pure(own.opt_state))


def parameters(model: Any) -> dict[str, np.ndarray]:
  """The parameters of a model by path, on the host."""
  flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
  return {'/'.join(map(str, path)): np.asarray(value[...]) for path, value in flat}


def assert_close(weights: dict[str, Any], expected: dict[str, Any]) -> None:
  """Fails unless two models have the same parameters but for rounding.

  Adam divides a gradient by its own size, so that a rounding error of 1e-7 of a
  gradient moves a weight by 1e-7 of the learning rate, 5e-3, at each of 8 steps; a
  smaller gradient of 1e-3 of the largest has errors of 1e-4, or 4e-6 after 8 steps. A
  wrong weight differs by 5e-3.
  """
  assert weights.keys() == expected.keys()
  for path, weight in weights.items():
    np.testing.assert_allclose(
      np.asarray(weight, np.float32),
      np.asarray(expected[path], np.float32),
      rtol=1e-5,
      atol=5e-6,
      err_msg=path,
    )


def averages(weights: list[dict[str, np.ndarray]], decay: float) -> dict[str, Any]:
  """The averages of weights, in which each step counts `decay` times the next."""
  counts = [decay ** (len(weights) - 1 - i) for i in range(len(weights))]
  return {
    path: sum(
      count * np.asarray(step[path], np.float64)
      for count, step in zip(counts, weights, strict=True)
    )
    / sum(counts)
    for path in weights[0]
  }


_RATE = 5e-3  # of the config


def test_a_saved_model_is_the_average_of_the_weights_of_its_run(tmp_path):
  """And in the run's own events."""
  config = config_of(optimizer__ema_decay=0.8)
  loop = loop_of(config, optax.adam(_RATE))
  means = [averages(loop.weights[: i + 1], 0.8) for i in range(NUM_STEPS)]
  for event in zoo.training_run(config, tmp_path / 'run'):
    assert_close(parameters(event.model), means[event.step - 1])
  assert_close(parameters(zoo.load(tmp_path / 'run').model), means[-1])
  # What the test would miss if averages and weights were nearly the same.
  gap = np.abs(means[-1]['read_in/kernel'] - loop.weights[-1]['read_in/kernel']).max()
  assert gap > 100 * 5e-6


@pytest.mark.slow
def test_models_side_by_side_are_averages_of_weights(tmp_path):
  config = config_of(optimizer__ema_decay=0.8)
  rows = sweep(config, grid({'seed': [0, 1]}), tmp_path)
  assert rows is not None
  expected = averages(loop_of(config, optax.adam(_RATE)).weights, 0.8)
  assert_close(parameters(zoo.load(rows[0]['workdir']).model), expected)


@pytest.mark.slow
def test_a_run_without_a_schedule_saves_what_optax_evaluates(tmp_path):
  fields = {'optimizer__name': 'schedule_free', 'optimizer__weight_decay': 0.1}
  config = config_of(**fields, optimizer__decay='all')
  own = optax.contrib.schedule_free_adamw(_RATE, weight_decay=0.1)
  loop = loop_of(config, own)
  zoo.train(config, tmp_path)
  # Gradients are taken between the average, which is evaluated, and the weights z that
  # the base optimizer moves: y = 0.9 x + 0.1 z (arXiv 2405.15682, eq. 5).
  moved = {
    '/'.join(map(str, path)): np.asarray(z)
    for path, z in nnx.to_flat_state(loop.state.z)
  }
  last = loop.weights[-1]
  expected = {path: (last[path] - 0.1 * moved[path]) / 0.9 for path in last}
  assert_close(parameters(zoo.load(tmp_path).model), expected)


_OPTIMIZERS: dict[Hashable, Any] = {
  'frozen': optax.set_to_zero(),
  'bias': optax.adam(3 * _RATE),
  'other': optax.adam(_RATE),
}
_CASES = {
  'warm-up, cosine, clipping, decay': (
    {
      'optimizer__name': 'adamw',
      'optimizer__schedule': 'cosine',
      'optimizer__warmup_steps': 3,
      'optimizer__clip_norm': 0.5,
      'optimizer__weight_decay': 0.2,
      'optimizer__decay': 'all',
    },
    lambda: optax.chain(
      optax.clip_by_global_norm(0.5),
      optax.adamw(
        optax.warmup_cosine_decay_schedule(0.0, _RATE, 3, NUM_STEPS),
        weight_decay=0.2,
      ),
    ),
  ),
  'parts of a batch': ({'train__num_parts': 2}, lambda: optax.adam(_RATE)),
  'momentum': (
    {'optimizer__name': 'sgd', 'optimizer__beta1': 0.9},
    lambda: optax.sgd(_RATE, 0.9),
  ),
  'a frozen layer': (
    {'optimizer__scales': {'read_in': 0.0, '*/bias': 3.0}},
    lambda: optax.partition(
      _OPTIMIZERS,
      lambda tree: jax.tree_util.tree_map_with_path(_label, tree),
    ),
  ),
}


def _label(path: tuple, _: Any) -> str:
  names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
  if 'read_in' in names:
    return 'frozen'
  return 'bias' if 'bias' in names else 'other'


@pytest.mark.parametrize('case', _CASES)
@pytest.mark.slow
def test_a_run_is_the_loop_of_its_optimizer(case, tmp_path):
  changes, optimizer = _CASES[case]
  config = config_of(**changes)
  zoo.train(config, tmp_path)
  loop = loop_of(config, optimizer())
  assert_close(parameters(zoo.load(tmp_path).model), loop.weights[-1])


@pytest.mark.slow
def test_training_starts_from_all_arrays_of_another_run(tmp_path):
  """From fixed ones, too, but not from its random keys, which are of the new seed."""
  config = config_of('Untrained')
  task = task_of(config)
  source = flax_models.FORMS['Untrained'](task.num_features, rngs=nnx.Rngs(7))
  source.norm.mean[...] = jnp.full(flax_models.WIDTH, 0.5)
  source.scale = jnp.array(3.0)
  zoo.save(source, tmp_path / 'source', config)
  config.train.init_from = str(tmp_path / 'source')

  def start(model):
    arrays = nnx.filter_state(nnx.state(source), nnx.Not(nnx.RngState))
    nnx.update(model, jax.tree.map(jnp.copy, arrays))

  loop = loop_of(config, optax.adam(_RATE), start)
  zoo.train(config, tmp_path / 'run')
  trained = zoo.load(tmp_path / 'run').model
  assert_close(parameters(trained), loop.weights[-1])
  np.testing.assert_array_equal(trained.projection[...], source.projection[...])
  np.testing.assert_array_equal(trained.norm.mean[...], source.norm.mean[...])
  assert float(trained.scale) == 3.0
  rngs = nnx.Rngs(stream_of(config.seed, INIT_STREAM))
  own = flax_models.FORMS['Untrained'](task.num_features, rngs=rngs)
  np.testing.assert_array_equal(
    jax.random.key_data(trained.rngs.default.key[...]),
    jax.random.key_data(own.rngs.default.key[...]),
  )
