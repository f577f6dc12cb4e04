"""A learner of one example at a time: its loop, its exact curve, training on it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import configs
import zoo
from tests.built import task_of
from tests.compare import assert_close, refuses
from tests.compiled import built
from tests.marks import mostly_full
from tests.models import bodies
from tests.models.bodies import C, D
from tests.settings import isotropic
from tests.traced import carried
from tests.training.runs import small_config
from tests.weights import drawn
from zoo import theory
from zoo.models.sequential import RULES, SequentialLearner
from zoo.theory import sequential
from zoo.training import train
from zoo.training.experiment import validate


def _model(rule: str = 'delta', guess: str = 'linear') -> SequentialLearner:
  return SequentialLearner(D, C, rule, guess, rngs=nnx.Rngs(0))


def _numbers(model: Any, rule: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Decay, erase and write of each example, by the names of the rules."""
  write, unit = np.asarray(model.write[...]), np.ones(C)
  decay = np.exp(model.log_decay[...]) if model.decays else unit
  erase = {'linear': 0 * unit, 'retention': 0 * unit, 'delta': write}
  return decay, erase.get(rule, decay * write), write


@pytest.mark.parametrize(
  ('rule', 'guess'),
  mostly_full(
    [('gated_delta', 'linear')],
    RULES,
    SequentialLearner.guesses,
    slow=[('retention', 'zero')],
  ),
)
def test_it_is_the_recurrence_one_example_at_a_time(float64, rule, guess):
  model: Any = drawn(lambda: _model(rule, guess))
  prompt = bodies.prompt()
  decay, erase, write = _numbers(model, rule)
  start = np.asarray(model.start[...]) if guess == 'linear' else np.zeros(D)

  def by_hand(x, y, x_query):
    w = start
    for i in range(len(x)):
      said = x[i] @ w
      w = decay[i] * w - erase[i] * x[i] * said + write[i] * x[i] * y[i, 0]
    return [w @ x_query]

  expected = bodies.every_prediction(prompt, by_hand)[..., 0]
  # Sums of some ten products in float64, in another order.
  everywhere, after_2 = nnx.jit(lambda m, p: (m.predictions(p), m(p.prefix(2))))(
    model, prompt
  )
  assert_close(everywhere, expected, 1e-12)
  assert_close(after_2, expected[:, 2], 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize('rule', mostly_full(['gated_delta'], RULES))
def test_its_curve_is_that_of_theory(float64, rule):
  task = isotropic(D, C, 1.0, 0.4, prior_covariance=np.diag([1.0, 2.0, 0.3]))
  model: Any = drawn(lambda: _model(rule), 0.2)
  curve = theory.exact_curve(model, task)
  expected = sequential.risk_curve(task, *_numbers(model, rule), start=model.start[...])
  np.testing.assert_allclose(curve, expected, rtol=1e-12)
  assert theory.exact_risk(model, task) == pytest.approx(curve[-1], rel=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_trained_on_the_exact_risk_it_is_the_best_delta_rule(tmp_path):
  config = small_config('sequential', optimizer__learning_rate=2e-2)
  config.task.prior_mean, config.task.noise_std = 1.0, 0.5
  config.train.num_steps, config.train.log_every = 3000, 1000
  config.checkpoint.every = config.eval.every = 3000
  summary: Any = train(config, tmp_path)
  task = task_of(config)
  best = sequential.optimal_delta_rule(task)
  # No numbers are better; the rest is what float32 leaves of a gradient.
  assert -1e-6 < summary['exact_risk'] - best.curve[-1] < 1e-4
  model: Any = zoo.load(tmp_path).model
  np.testing.assert_allclose(theory.exact_curve(model, task), best.curve, atol=1e-2)
  np.testing.assert_allclose(model.write[...], best.steps[:, 0, 0], atol=1e-2)
  np.testing.assert_allclose(model.start[...], 1.0, atol=1e-2)


@pytest.mark.slow
@pytest.mark.full
def test_too_many_examples_are_refused():
  model = built(_model)
  with refuses('6 examples', f'for at most {C}'):
    model(bodies.prompt(context=6))
  with refuses('the model has 5 examples; the task has 6'):
    theory.exact_risk(model, isotropic(D, 6))
  with refuses(
    'DeepLSA', 'zoo.curve estimates the curve of any predictor from samples'
  ):
    theory.exact_curve(
      built(lambda: zoo.models.DeepLSA(D, form='scalar', rngs=nnx.Rngs(0))),
      isotropic(D, C),
    )


def test_without_theory_it_is_trained_on_samples():
  config = configs.get_config('sequential', 'task=sinusoid')
  assert config.objective.name == 'sampled'
  validate(config)
  config.objective.name = 'exact'
  with refuses("objective.name is 'exact'", 'Sinusoid'):
    validate(config)


@pytest.mark.slow
@pytest.mark.full
def test_predictions_have_the_more_precise_type_of_weights_and_prompts():
  model: Any = drawn(lambda: _model('gated_delta'), dtype='float32')
  for kind in 'bfloat16', 'float32':
    prompt = jax.tree.map(
      lambda leaf, kind=kind: jnp.asarray(leaf, kind), bodies.prompt()
    )
    with jax.numpy_dtype_promotion('standard'):
      assert model(prompt).dtype == jnp.float32
  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'):
    prompt = jax.tree.map(lambda leaf: jnp.asarray(leaf, 'float64'), bodies.prompt())
    assert model(prompt).dtype == jnp.float64


@pytest.mark.slow
def test_in_bfloat16_it_keeps_its_weights_in_float32():
  """The weights are those that it updates, forward and backward."""
  model: Any = drawn(lambda: _model('gated_delta'), dtype='bfloat16')
  graph, weights, rest = nnx.split(model, nnx.Param, ...)
  prompt = jax.tree.map(lambda leaf: jnp.asarray(leaf, 'bfloat16'), bodies.prompt())

  def loss(weights):
    predictions = nnx.merge(graph, weights, rest).predictions(prompt)
    assert predictions.dtype == jnp.bfloat16
    return jnp.square(predictions).sum()

  program = jax.make_jaxpr(jax.grad(loss))(weights)
  assert {*carried(program.jaxpr)} <= {'float32', 'int32'}
