"""What the steps see: whole prompts, or their statistics where these are cheaper."""

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.marks import FULL, SLOW, mostly_full
from tests.settings import isotropic
from tests.training.runs import small_config
from tests.wrapped import Wrapped
from zoo.config.mesh import make_mesh
from zoo.training.objective import (
  make_objective,
  numbers_of,
  sample,
  trained_losses,
  uses_statistics,
)

_AUTO, _RNGS = jax.sharding.AxisType.Auto, nnx.Rngs(0)


def _model(d, heads):
  return zoo.create_model(
    'multi_head_lsa', num_features=d, num_heads=heads, rngs=nnx.Rngs(0)
  )


@pytest.mark.parametrize(
  ('d', 'c', 'heads', 'statistics'),
  [
    (10, 10, 1, True),
    (10, 10, 11, True),
    (100, 10, 1, False),  # 5151 numbers a prompt, against 20 scores of a head
    (100, 10, 101, True),
    (100, 1000, 1, True),  # as many pseudo-examples as features
  ],
)
def test_statistics_are_seen_where_they_are_cheaper(d, c, heads, statistics):
  task = zoo.create_task('linear_regression', num_features=d, context_length=c)
  assert uses_statistics(small_config(), _model(d, heads), task) == statistics


def test_statistics_are_for_models_and_tasks_that_they_suffice_for():
  class Softmax:
    num_heads = 100

  task = zoo.create_task('linear_regression', num_features=3, context_length=4)
  assert not uses_statistics(small_config(), Softmax(), task)
  assert uses_statistics(small_config(), _model(3, 4), task)
  assert not uses_statistics(small_config(), _model(3, 4), Wrapped(task))


@pytest.mark.parametrize('name', mostly_full(['multi_head_lsa'], ['yq_lsa', 'ltb']))
def test_errors_are_the_same_either_way(name):
  config = small_config(name, model__init_scale=0.7, task__noise_std=0.4)
  task = zoo.create_task('linear_regression', **_without_name(config.task))
  moments = numbers_of(task).moments

  @jax.jit
  def losses(key):
    model = zoo.create_model(
      name, num_features=3, rngs=nnx.Rngs(1), **_without_name(config.model)
    )
    seen = [sample(task, key, 64, statistics) for statistics in (False, True)]
    return [trained_losses(model, task, batch, moments, every=False) for batch in seen]

  with jax.set_mesh(make_mesh(config)):
    prompts, statistics = losses(jax.random.key(2))
  # Predictions and targets near 10, in float32, after some 50 roundings; squared.
  np.testing.assert_allclose(prompts[:, 0], statistics, rtol=1e-3, atol=1e-3)


def _without_name(section):
  return {key: value for key, value in section.to_dict().items() if key != 'name'}


class _Loops(zoo.models.TokenModel):
  """Two loops of one matrix, the last of which counts four times as much."""

  def __init__(self, num_features, num_loops, *, rngs):
    super().__init__(num_features, rngs=rngs)
    self.num_loops = num_loops
    start = jax.random.normal(rngs.params(), (self.token_width, self.token_width))
    self.matrix = nnx.Param(start)

  def body(self, tokens, at):
    outputs, sums = [], jax.numpy.cumsum(tokens, axis=1)
    for _ in range(self.num_loops):
      sums = jax.numpy.tanh(sums @ self.matrix[...])
      outputs.append(sums[:, at, :1])
    return jax.numpy.stack(outputs) if self.num_loops > 1 else outputs[0]


@pytest.mark.parametrize(
  ('make', 'positions'),
  [
    pytest.param(lambda: _transformer(1), 'every', marks=FULL),
    pytest.param(lambda: _transformer(2), 'query', marks=SLOW),
    pytest.param(lambda: _Loops(3, 1, rngs=_RNGS), 'query', marks=FULL),
    (lambda: _Loops(3, 2, rngs=_RNGS), 'every'),
  ],
)
def test_what_is_trained_is_what_the_model_predicts(make, positions):
  task = isotropic(3, 4)
  config = small_config('transformer', objective__positions=positions)
  objective = make_objective(config, task, statistics=False)
  graph, state = nnx.split(make())

  def trained(state):
    return objective(nnx.merge(graph, state), jax.random.key(1), numbers_of(task))

  def predicted(state):
    model, prompt = nnx.merge(graph, state), task.sample(jax.random.key(1), 16)
    loops = model.loop_predictions(prompt, every=positions == 'every')
    last = model.predictions(prompt) if positions == 'every' else model(prompt)[:, None]
    targets = prompt.targets if positions == 'every' else prompt.y_query[:, None]
    # The last loop is the prediction; the others are trained beside it.
    predictions = [*list(loops)[:-1], last]
    return sum(
      jax.numpy.mean((prediction - targets) ** 2) for prediction in predictions
    ) / len(predictions)

  @jax.jit
  def both(state):
    return [jax.value_and_grad(loss)(state) for loss in (trained, predicted)]

  with jax.set_mesh(jax.make_mesh((1,), ('data',), axis_types=(_AUTO,))):
    (value, slope), (expected, expected_slope) = jax.device_get(both(state))
  # Float32, where the predictions are up to 100: 1e4 in the loss, 100 in its gradient.
  assert abs(value - expected) <= 1e-5 * expected
  largest = max(abs(leaf).max() for leaf in jax.tree.leaves(expected_slope))
  for leaf, expected_leaf in zip(
    *map(jax.tree.leaves, (slope, expected_slope)), strict=True
  ):
    assert abs(leaf - expected_leaf).max() <= 1e-4 * largest


def _transformer(num_loops):
  loops = {'num_loops': num_loops, 'num_trained_loops': 1}
  return zoo.models.Transformer(3, 4, num_layers=1, width=4, rngs=_RNGS, **loops)
