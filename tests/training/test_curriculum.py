"""Curricula: what counts at a stage, and that a run is resumed in the middle of one."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import zoo
from tests.built import model_of, task_of
from tests.compare import refuses
from tests.compiled import built
from tests.training.runs import Loops, small_config
from tests.training.test_step import Run
from zoo.config.read import read
from zoo.objectives import build_objective, curricula, inputs_of
from zoo.objectives.curricula import Stage, stage_at
from zoo.objectives.stages import FirstFeatures, draw_lengths
from zoo.sharding import make_mesh
from zoo.training.experiment import validate


def _config(**changes):
  """A transformer of two loops, for prompts of 3 features and 4 examples."""
  config = small_config('transformer')
  config.model.num_layers, config.model.width, config.model.num_heads = 1, 8, 2
  config.model.num_loops = config.model.num_trained_loops = 2
  for name, content in changes.items():
    setattr(config.curriculum, name, content)
  return config


def _model(config):
  return nnx.jit(lambda: model_of(config, nnx.Rngs(0)))()


def _at(config: Any, step: int) -> dict[str, Any]:
  """The features, examples and loops of the stage at a step."""
  return stage_at(read(config).curriculum, jnp.int32(step))._asdict()


def test_stages_grow_by_what_each_adds():
  config = _config(every=5, features=1, examples=0, more_examples=3)
  stages = [_at(config, step) for step in (0, 4, 5, 10)]
  assert [int(stage['features']) for stage in stages] == [1, 1, 2, 3]
  assert [int(stage['examples']) for stage in stages] == [0, 0, 3, 6]
  assert all(stage['loops'] is None for stage in stages)
  assert int(_at(config, 2**31 - 1)['features']) > 1000
  config = _config(every=1, examples=10, more_examples=2000)
  stages = [_at(config, step) for step in (0, 1, 2)]
  assert [int(stage['examples']) for stage in stages] == [10, 2010, 4010]
  for step, more in (2**31 - 1, 2000), (3, 2**31 - 1):
    config = _config(every=1, examples=10, more_examples=more)
    assert int(_at(config, step)['examples']) > 2**29


def test_a_curriculum_that_does_not_end_is_a_warning(caplog):
  config = _config(every=3, features=1, examples=2, loops=1)
  task, model = task_of(config), nnx.eval_shape(lambda: _model(config))
  config.train.num_steps = 6  # the second stage is the last
  curricula.log_unended(read(config), task, model)
  assert 'at the last step, 6, which is trained on 2 of 3 features' in caplog.text
  assert 'examples' not in caplog.text
  caplog.clear()
  config.train.num_steps = 7
  curricula.log_unended(read(config), task, model)
  assert not caplog.text


def test_features_beyond_a_stage_are_0_and_labels_follow_from_the_others():
  task = zoo.create_task('linear_regression', num_features=5, context_length=4)
  key = jax.random.key(0)
  prompt = jax.jit(lambda n: FirstFeatures(task, n).sample_batch(key, 20))(2)
  assert not prompt.x[..., 2:].any()
  assert not prompt.x_query[..., 2:].any()
  # Four examples determine the two weights, and so the label of the query.
  for x, y, x_query, y_query in zip(
    *map(np.asarray, (prompt.x, prompt.y, prompt.x_query, prompt.y_query)), strict=True
  ):
    weights = np.linalg.lstsq(x[:, :2], y, rcond=None)[0]
    np.testing.assert_allclose(x_query[:2] @ weights, y_query, atol=1e-3)


def test_losses_that_count_are_those_of_the_stage():
  """Against a loop over the losses at each loop and example."""
  config = _config()
  task: Any = task_of(config)
  model = built(lambda: Loops(3, 2, rngs=nnx.Rngs(0)))
  loss = build_objective(read(config), task, model).loss_of_step
  key, numbers = jax.random.key(1), inputs_of(task)

  @jax.jit
  def losses(key: Any) -> Any:
    batch = task.sample(key, config.train.batch_size)
    predictions = model.loop_predictions(batch, every=True)
    return jnp.square(predictions - batch.targets[None])

  @jax.jit
  def at(stage: Stage) -> Any:
    return loss(model, key, numbers._replace(stage=stage))

  loss_of_each = np.asarray(losses(key))
  assert loss_of_each.shape == (2, 16, 5)
  with jax.set_mesh(make_mesh(read(config))):
    for examples, loops in (0, 1), (2, 2), (9, 1), (9, 9):
      # Losses after at most so many examples, from 0, of the first so many loops.
      counted = loss_of_each[:loops, :, : examples + 1]
      stage = Stage(None, jnp.int32(examples), jnp.int32(loops))
      np.testing.assert_allclose(at(stage), counted.mean(), rtol=1e-5)
    np.testing.assert_allclose(at(Stage()), loss_of_each.mean(), rtol=1e-5)


def test_a_run_goes_from_stage_to_stage():
  """A weight of the guess moves from the step on at which its feature is used."""
  changes = {'objective__name': 'sampled', 'optimizer__name': 'sgd'}
  run = Run(small_config(**changes, curriculum__every=2, curriculum__features=1))
  before = np.asarray(run.state['model']['w'][...])
  for start, moved in (0, 1), (1, 1), (2, 2), (3, 2), (4, 3):
    run.train(start, start + 1)
    after = np.asarray(run.state['model']['w'][...])
    np.testing.assert_array_equal(after != before, np.arange(3) < moved)
    before = after


def test_lengths_are_drawn_uniformly_from_the_least_to_the_most():
  lengths = np.asarray(draw_lengths(jax.random.key(0), 10_000, 2, 5))
  values, counts = np.unique(lengths, return_counts=True)
  np.testing.assert_array_equal(values, [2, 3, 4, 5])
  # The key is fixed, so this does not vary. One test in a thousand is below the limit.
  assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
def test_a_prompt_of_its_own_length_has_the_loss_of_one_that_is_cut():
  """Against the mean over prompts that are cut, one length after the other."""
  config = small_config('transformer', objective__positions='query')
  config.model.num_layers, config.model.width, config.model.num_heads = 1, 8, 2
  config.objective.min_examples = 2
  task, model = task_of(config), cast(Any, _model(config))
  key, numbers = jax.random.key(1), inputs_of(task)
  lengths = np.asarray(draw_lengths(key, 16, 2, 4))
  assert {*lengths.tolist()} == {2, 3, 4}
  batch = jax.device_get(task.sample(key, 16))
  errors = np.zeros(16)
  for n in 2, 3, 4:
    short = batch.prefix(n)
    prediction = np.asarray(nnx.jit(lambda model, prompt: model(prompt))(model, short))
    errors[lengths == n] = np.square(prediction - short.y_query)[lengths == n]
  for parts in 1, 4:
    config.train.num_parts = parts
    objective = build_objective(read(validate(config)), task, model)
    with jax.set_mesh(make_mesh(read(config))):
      loss = nnx.jit(objective.loss_of_step)(model, key, numbers)
    np.testing.assert_allclose(loss, errors.mean(), rtol=1e-5)


_GROWING = {'every': 3, 'features': 1, 'examples': 1, 'loops': 1}


@pytest.fixture(scope='module')
def growing():
  with jax.numpy_dtype_promotion('standard'):  # as tests/training/conftest.py for each
    return Run(_config(**_GROWING))


@pytest.mark.slow
def test_steps_that_are_cut_within_a_curriculum_end_at_the_same_bits(growing):
  growing.check_cut(7)


def test_a_curriculum_of_ones_own(register, unchecked):
  @zoo.register_curriculum('early')
  def early(step):
    return Stage(features=jnp.where(step < 5, 1, 3))

  config = validate(_config(name='early'))
  assert [int(_at(config, step)['features']) for step in (4, 5)] == [1, 3]

  @zoo.register_curriculum('wrong')
  def wrong(step):
    return Stage(features=step / 2)

  with refuses("the curriculum 'wrong' returns a Stage with float32[]", 'of integers'):
    validate(_config(name='wrong'))

  @zoo.register_curriculum('number')
  def number(step):
    return 3

  with refuses("the curriculum 'number' returns a number or an array; it must return"):
    validate(_config(name='number'))

  @zoo.register_curriculum('late')
  def late(step):
    return Stage(examples=step - 1)

  with refuses("the curriculum 'late' has -1 examples at step 0; it must have 0 or"):
    config = _config(name='late')
    config.objective.positions = 'every'
    validate(config)
  with refuses(
    "features is 2; it must be None, the default, since the curriculum 'early'"
  ):
    validate(_config(name='early', features=2))
  with refuses(
    "unknown config.curriculum.name 'erly'", "did you mean 'early'? (--import"
  ):
    validate(_config(name='erly'))
  with refuses("is 'growing', which is the one of the library"):
    zoo.register_curriculum('growing')(early)
  zoo.register_curriculum('early')(wrong)
  assert curricula.CURRICULA['early'] is wrong
