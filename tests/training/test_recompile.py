"""Programs of a run, which are those of the code as it is when the run starts."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx, struct

import zoo
from tests.marks import mostly_slow
from tests.training.runs import lines_of, small_config
from zoo import training
from zoo.measure.comparison import compare

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.fixture
def compiled():
  """The programs that JAX's cache lacks while a test runs: a list that grows."""
  misses = []

  def listen(event: str, **kwargs: str | int) -> None:
    if event == '/jax/compilation_cache/cache_misses':
      misses.append(event)

  jax.monitoring.register_event_listener(listen)
  yield misses
  jax.monitoring.unregister_event_listener(listen)


@pytest.mark.slow
def test_the_same_config_trained_again_finds_its_programs_in_the_cache_of_jax(
  tmp_path, compiled
):
  first = training.train(small_config(), tmp_path / 'first')
  del compiled[:]
  second = training.train(small_config(), tmp_path / 'second')
  assert compiled == []
  assert first is not None
  assert second is not None
  assert first['exact_risk'] == second['exact_risk']


# What the classes below call, as a helper in a cell of a notebook that is changed.
factor = 1.0


def scaled(values):
  return factor * values


def zero(prompt):
  return scaled(jnp.ones(len(prompt.x)))


@pytest.mark.parametrize('trains', mostly_slow([False], [True]))
def test_what_a_model_and_a_task_call_may_change_between_runs(
  trains, tmp_path, register, monkeypatch
):
  @register('own')
  class Own(nnx.Module):
    def __init__(self, num_features, *, rngs):
      self.w = nnx.Param(jnp.ones(num_features))

    def __call__(self, prompt):
      return scaled(prompt.x_query @ self.w[...])

  @zoo.register_task('own')
  @struct.dataclass
  class Task(zoo.tasks.BaseTask):
    num_features: int = struct.field(pytree_node=False, default=3)
    context_length: int = struct.field(pytree_node=False, default=1)

    def sample_one(self, key):
      x = scaled(jax.random.normal(key, (2, 3)))
      return zoo.Prompt(x[:-1], x[:-1, 0], x[-1], x[-1, 0])

    def loss(self, prediction, target):
      return scaled(jnp.square(prediction - target))

    def baselines(self):
      return {'zero': zero}

  changes = {'model': {'name': 'own'}, 'task': {'name': 'own'}, 'train__num_steps': 1}
  config, task = small_config(**changes), zoo.create_task('own')

  def measured(folder) -> list[Any]:
    if trains:
      zoo.train(config, tmp_path / folder)
      (line,) = lines_of(tmp_path / folder)
      return [line['loss'], line['eval_risk']]
    model = zoo.create_model('own', num_features=3, rngs=nnx.Rngs(0))
    comparison = compare(model, task, 16)
    assert comparison is not None
    curve = zoo.curve(model, task, 16)
    at_query: list[Any] = [comparison[name]['mean'][-1] for name in ('model', 'zero')]
    return [curve.mean[-1], *at_query]

  before = measured('before')
  monkeypatch.setitem(globals(), 'factor', 2.0)
  after = measured('after')
  # The loss (Σ x − x_1)² has become 2 (4 Σ x − 2 x_1)², and (1 − x_1)² of the baseline
  # 2 (2 − 2 x_1)².
  assert all(new > 4 * old for old, new in zip(before, after, strict=True))


@pytest.mark.slow
def test_a_config_that_is_changed_during_a_run_does_not_change_it(tmp_path):
  config = small_config()
  steps = []
  for event in zoo.training_run(config, tmp_path):
    steps.append(event.step)
    config.train.num_steps = 100
  assert steps == [4, 6, 8, 12]
