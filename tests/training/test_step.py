"""The compiled steps: one program, sharded and donated, and no hidden transfers."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import zoo
from tests.marks import FULL
from tests.training.runs import small_config
from zoo.core import registry
from zoo.core.draws import (
  CURVE_STREAM,
  EVAL_STREAM,
  INIT_STREAM,
  TRAIN_STREAM,
  stream_of,
)
from zoo.objectives import inputs_of
from zoo.sharding import replicate, shardings_of
from zoo.training.compilation import make_training
from zoo.training.experiment import build
from zoo.training.optimizers import OPTIMIZERS
from zoo.training.step import run_steps


class Run:
  """What the loop builds, without the loop."""

  def __init__(self, config):
    self.use(make_training(build(config)))

  @classmethod
  def of(cls, training):
    """One of what `make_training` or `make_many` has made."""
    run = cls.__new__(cls)
    run.use(training)
    return run

  def use(self, training):
    self.training, self.mesh = training, training.experiment.mesh
    self.inputs = replicate((training.key, training.inputs), self.mesh)
    self.restart()

  def restart(self):
    with jax.set_mesh(self.mesh):
      self.state = self.training.init(True)

  def train(self, start, stop):
    with jax.set_mesh(self.mesh):
      inputs = self.arguments(start, stop)
      with jax.transfer_guard('disallow'):
        self.state, metrics = self.training.steps(*inputs)
    return metrics

  def arguments(self, start, stop):
    key, numbers = self.inputs
    limits = replicate((np.int32(start), np.int32(stop)), self.mesh)
    return self.state, key, *limits, numbers

  def compiled_text(self):
    """What XLA has compiled the steps to."""
    with jax.set_mesh(self.mesh):
      lowered = self.training.steps.lower(*self.arguments(0, 0))
      return str(lowered.compile().as_text())

  def check_cut(self, step, last=12):
    """Steps that are cut in two calls end at the bits of one call."""
    self.restart()
    self.train(0, last)
    whole = self.bits()
    self.restart()
    self.train(0, step)
    self.train(step, last)
    assert self.bits() == whole

  def bits(self):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self.state)]


def four_by_two(**changes):
  return small_config(
    'multi_head_lsa', model__num_heads=4, mesh__data=4, mesh__model=2, **changes
  )


def test_however_steps_are_cut_into_calls_they_give_the_same_bits():
  run = Run(small_config())
  last, whole = run.train(0, 12), run.bits()
  run.restart()
  for start, stop in ((0, 1), (1, 2), (2, 7), (7, 12)):
    metrics = run.train(start, stop)
  assert run.bits() == whole
  assert metrics['loss'] == last['loss']
  assert metrics['step'] == last['step'] == 12
  compiled: Any = run.training.steps
  assert compiled._cache_size() == 1  # one program for any number of steps


@pytest.mark.slow
def test_the_state_is_sharded_from_birth_and_donated():
  run = Run(four_by_two())
  heads = [leaf for leaf in jax.tree.leaves(run.state) if leaf.shape == (4, 4, 4)]
  assert len(heads) == 3 * 4  # the four matrices, and Adam's two moments of each
  for leaf in heads:
    assert leaf.sharding.spec == P('model', None, None)
    assert leaf.addressable_shards[0].data.shape == (2, 4, 4)
  before = jax.tree.leaves(run.state)
  run.train(0, 1)
  assert all(leaf.is_deleted() for leaf in before)
  for leaf, sharding in zip(
    jax.tree.leaves(run.state),
    jax.tree.leaves(shardings_of(run.training.abstract)),
    strict=True,
  ):
    assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def test_initial_weights_do_not_depend_on_the_mesh():
  run = Run(small_config('multi_head_lsa', model__num_heads=4))
  assert run.bits() == Run(four_by_two()).bits()


def test_the_loop_ends_behind_the_first_step_that_is_not_finite():
  run = Run(small_config(optimizer__learning_rate=1e30))
  metrics = run.train(0, 10)
  assert metrics['step'] == 2
  assert not metrics['finite']


@pytest.mark.slow
def test_weights_that_are_not_finite_behind_a_finite_loss_are_seen():
  run = Run(small_config(optimizer__name='sgd', optimizer__learning_rate=3e38))
  metrics = run.train(0, 1)
  assert np.isfinite(metrics['loss'])
  assert not metrics['finite']


def test_a_model_that_is_lost_at_one_step_stays_lost_beside_others():
  """As it is alone: its metrics are those of that step, and no later call forgets it.

  Model 1 has an infinite loss at step 3 alone, and finite weights at all steps.
  """

  def take_step(state, key, step, numbers):
    overflows = (jnp.arange(2) == 1) & (step == 2)
    loss = jnp.where(overflows, jnp.inf, step.astype(jnp.float32))
    metrics = {'loss': loss, 'finite': jnp.isfinite(loss)}
    return jax.tree.map(lambda leaf: leaf + 1, state), metrics

  def run(state, start, stop):
    numbers = inputs_of(zoo.tasks.LinearRegression(2, 3))
    return run_steps(take_step, True, state, jax.random.key(0), start, stop, numbers)

  compiled = jax.jit(run)
  model = nnx.state(nnx.Dict(weights=nnx.Param(jnp.zeros((2, 3)))))
  start = {'model': model, 'optimizer': {'count': jnp.zeros(2, jnp.int32)}}
  state, metrics = compiled(start, 0, 5)
  np.testing.assert_array_equal(metrics['finite'], [True, False])
  np.testing.assert_array_equal(metrics['step'], [5, 3])
  np.testing.assert_array_equal(metrics['loss'], [4.0, np.inf])
  weights = state['model']['weights'][...]
  np.testing.assert_array_equal(weights, [[5.0] * 3, [np.nan] * 3])
  _, metrics = compiled(state, 5, 7)
  np.testing.assert_array_equal(metrics['finite'], [True, False])


def test_seeds_and_streams_differ():
  keys = {
    tuple(jax.random.key_data(stream_of(small_config(seed=seed).seed, stream)).tolist())
    for seed in (0, 1)
    for stream in (INIT_STREAM, TRAIN_STREAM, EVAL_STREAM, CURVE_STREAM)
  }
  assert len(keys) == 8


@pytest.mark.parametrize(
  'changes',
  [
    {},
    pytest.param({'task__context_length': 40}, marks=FULL),
  ],
  ids=['prompts', 'long context'],
)
def test_a_data_parallel_step_adds_up_gradients_once_and_sends_no_prompt(changes):
  """By what XLA compiled: each device draws its own part of the batch."""
  run = Run(small_config(**{'mesh__data': 8, 'train__batch_size': 104, **changes}))
  text = run.compiled_text()
  names = 'all-reduce|all-gather|all-to-all|reduce-scatter|collective-[a-z]+'
  sent = re.findall(rf'= (.*) ({names})(?:-start)?\(', text)
  assert {name for _, name in sent} == {'all-reduce'}
  # With a long context a bit: whether all devices have drawn what they need.
  (reduced,) = [shapes for shapes, _ in sent if shapes != 'pred[]']
  shapes = re.findall(r'f32\[([\d,]*)\]', reduced)
  sizes = [math.prod(map(int, shape.split(','))) if shape else 1 for shape in shapes]
  # No more than the gradient and the loss; less, as four matrices are seen as two.
  assert (
    sum(sizes) <= sum(leaf.size for leaf in jax.tree.leaves(run.state['model'])) + 1
  )
  # Nothing anywhere is as long as the whole batch.
  assert '104' not in re.findall(r'\d+', ' '.join(re.findall(r'\[[\d,]+\]', text)))


class _Steep(nnx.Module):
  """f = w·x_q + √r x_q, whose gradient with respect to r is infinite at r = 0."""

  def __init__(self, num_features, *, rngs):
    self.w = nnx.Param(jax.random.normal(rngs.params(), (num_features,)))
    self.r = nnx.Param(jnp.zeros(()))

  def __call__(self, prompt):
    return prompt.x_query @ self.w[...] + jnp.sqrt(self.r[...]) * prompt.x_query[:, 0]


def _sgd_that_keeps_the_least_loss(learning_rate):
  def init(params):
    del params
    return {'least': jnp.asarray(jnp.inf)}

  def update(updates, state, params=None):
    del params
    return jax.tree.map(lambda grad: -learning_rate(0) * grad, updates), state

  return optax.GradientTransformation(init, update)


def test_what_does_not_train_may_be_infinite_and_is_not_in_the_norm(monkeypatch):
  """The gradient of a frozen weight, and a number in the state of the optimizer."""
  monkeypatch.setitem(registry.MODELS, 'steep', _Steep)
  monkeypatch.setitem(OPTIMIZERS, 'own', _sgd_that_keeps_the_least_loss)
  config = small_config(optimizer__name='own', optimizer__learning_rate=1.0)
  config.optimizer.scales = {'r': 0.0}
  with config.unlocked():
    config.model = {'name': 'steep'}
  run = Run(config)
  before = np.asarray(run.state['model']['w'][...])
  metrics = run.train(0, 1)
  assert metrics['finite']
  moved = np.asarray(run.state['model']['w'][...]) - before
  # Weights below 16 are rounded by 2⁻²⁰ at most, and so are the three moves.
  norm = np.linalg.norm(moved)
  np.testing.assert_allclose(metrics['grad_norm'], norm, rtol=0, atol=3 * 2**-20)
