"""What the steps see: whole prompts, or their statistics where these are cheaper."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import configs
import zoo
from tests.compare import refuses
from tests.compiled import built
from tests.marks import FULL, SLOW, mostly_full, mostly_slow
from tests.settings import isotropic
from tests.training.runs import Loops, small_config
from tests.wrapped import Wrapped
from zoo.config.read import read
from zoo.measure.predictive import with_drawn_labels
from zoo.objectives import Sampled, build_objective, inputs_of
from zoo.objectives.base import sample
from zoo.objectives.losses import trained_losses
from zoo.sharding import make_mesh
from zoo.training.experiment import validate

_AUTO = jax.sharding.AxisType.Auto


def _model(d, heads):
  """As shapes, without weights."""
  return nnx.eval_shape(
    lambda: zoo.create_model(
      'multi_head_lsa', num_features=d, num_heads=heads, rngs=nnx.Rngs(0)
    )
  )


def _uses_statistics(model, task):
  return Sampled(read(small_config()), task, model).uses_statistics()


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
  assert _uses_statistics(_model(d, heads), task) == statistics


def test_statistics_are_for_models_and_tasks_that_they_suffice_for():
  loops = nnx.eval_shape(lambda: Loops(3, 1, rngs=nnx.Rngs(0)))  # without a rule
  task = zoo.create_task('linear_regression', num_features=3, context_length=4)
  assert not _uses_statistics(loops, task)
  assert _uses_statistics(_model(3, 4), task)
  assert not _uses_statistics(_model(3, 4), Wrapped(task))


@pytest.mark.parametrize('name', mostly_full(['multi_head_lsa'], ['yq_lsa', 'ltb']))
def test_errors_are_the_same_either_way(name):
  config = small_config(name, model__init_scale=0.7, task__noise_std=0.4)
  task = zoo.create_task('linear_regression', **_without_name(config.task))
  moments = inputs_of(task).moments

  @jax.jit
  def losses(key):
    model = zoo.create_model(
      name, num_features=3, rngs=nnx.Rngs(1), **_without_name(config.model)
    )
    seen = [sample(task, key, 64, statistics) for statistics in (False, True)]
    return [trained_losses(model, task, batch, moments, every=False) for batch in seen]

  with jax.set_mesh(make_mesh(read(config))):
    prompts, statistics = losses(jax.random.key(2))
  # Predictions and targets near 10, in float32, after some 50 roundings; squared.
  np.testing.assert_allclose(prompts[:, 0], statistics, rtol=1e-3, atol=1e-3)


def _without_name(section):
  return {key: value for key, value in section.to_dict().items() if key != 'name'}


@pytest.mark.parametrize(
  ('make', 'positions'),
  [
    pytest.param(lambda: _transformer(1), 'every', marks=FULL),
    pytest.param(lambda: _transformer(2), 'query', marks=SLOW),
    pytest.param(lambda: Loops(3, 1, rngs=nnx.Rngs(0)), 'query', marks=FULL),
    (lambda: Loops(3, 2, rngs=nnx.Rngs(0)), 'every'),
  ],
)
def test_what_is_trained_is_what_the_model_predicts(make, positions):
  task = isotropic(3, 4)
  config = small_config('transformer', objective__positions=positions)
  model = built(make)
  loss = build_objective(read(config), task, model).loss_of_step
  graph, state = nnx.split(model)

  def trained(state):
    return loss(nnx.merge(graph, state), jax.random.key(1), inputs_of(task))

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
  return zoo.models.Transformer(3, 4, num_layers=1, width=4, rngs=nnx.Rngs(0), **loops)


_TASKS = {
  'numbers': isotropic(2, 3, noise_std=0.5),
  'signs': zoo.create_task('logistic_regression', num_features=2, context_length=3),
  'classes': zoo.create_task('markov_chain', num_symbols=3, context_length=3),
}


@functools.partial(jax.jit, static_argnums=2)
def _drawn(task, key, number):
  """Prompts, and what they are with drawn labels."""
  prompt = task.sample(key, number)
  return prompt, with_drawn_labels(task, key, prompt)


@pytest.mark.parametrize('kind', mostly_slow(['numbers', 'classes'], _TASKS))
def test_an_observed_label_of_the_query_is_drawn_from_its_target(kind):
  prompt, drawn = jax.device_get(_drawn(_TASKS[kind], jax.random.key(3), 20_000))
  for name in 'x', 'y', 'x_query':
    np.testing.assert_array_equal(vars(drawn)[name], vars(prompt)[name])
  seen = np.asarray((1 + prompt.y) / 2 if kind == 'signs' else prompt.y)
  np.testing.assert_array_equal(drawn.context_targets, seen)
  label, target = (np.asarray(p.y_query, np.float64) for p in (drawn, prompt))
  errors = label - target
  variance = np.full(target.shape, 0.25) if kind == 'numbers' else target * (1 - target)
  # Unpredictable from the target: the mean is 0 wherever the target is large or small.
  for group in (target < np.median(target), target >= np.median(target)):
    assert abs(errors[group].sum()) < 4.5 * np.sqrt(variance[group].sum())
  ratio = np.square(errors).sum() / variance.sum()
  assert ratio == pytest.approx(1, abs=0.05)  # a kurtosis of 3: 5 standard errors
  if kind == 'classes':
    np.testing.assert_array_equal(label.sum(axis=-1), 1)
    assert {*label.ravel()} == {0, 1}


def test_observed_labels_depend_on_the_place_in_the_batch_alone():
  task, key = _TASKS['classes'], jax.random.key(4)
  few, many = (jax.device_get(_drawn(task, key, n)[1]) for n in (3, 20_000))
  np.testing.assert_array_equal(few.targets, many.targets[:3])


def test_with_observed_labels_the_mean_gradient_is_that_of_targets():
  task = _TASKS['classes']
  model = built(lambda: Loops(3, 1, 3, rngs=nnx.Rngs(0)))
  graph, state = nnx.split(model)

  def slopes(labels, keys):
    config = small_config('transformer', objective__labels=labels)
    objective = build_objective(read(config), task, model)

    def loss(state, key):
      return objective.loss_of_step(nnx.merge(graph, state), key, inputs_of(task))

    found = jax.vmap(jax.grad(loss), (None, 0))(state, keys)
    return jax.tree.leaves(found)

  @jax.jit
  def both(key):
    keys = jax.random.split(key, 400)
    return [slopes(labels, keys) for labels in ('observed', 'clean')]

  with jax.set_mesh(jax.make_mesh((1,), ('data',), axis_types=(_AUTO,))):
    observed, clean = jax.device_get(both(jax.random.key(5)))
  spreads = []
  for noisy, calm in zip(observed, clean, strict=True):
    gaps = np.asarray(noisy, np.float64) - np.asarray(calm, np.float64)
    spread = gaps.std(axis=0) / 20 + 1e-7
    assert np.abs(gaps.mean(axis=0) / spread).max() < 5  # of some 100 entries
    spreads.append(np.sum(np.var(noisy, axis=0)) / np.sum(np.var(calm, axis=0)))
  assert np.mean(spreads) > 1.1


def test_no_labels_are_drawn_where_it_is_not_known_how():
  refused = functools.partial(refuses, "config.objective.labels is 'observed'")
  config = small_config(objective__labels='observed', objective__name='exact')
  with refused("'exact'"):
    validate(config)
  config = configs.get_config('yq_lsa', 'smoke,task=outlier_regression')
  config.objective.labels = 'observed'
  validate(config)  # its labels are the targets
  config.task.kind = 'orthogonal'
  with refused('outlier_regression', 'no method sample_labels'):
    validate(config)
