"""Training without noise: against closed forms, small steps, and sampled training."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
from flax import nnx

import zoo
from tests.compiled import built
from tests.marks import mostly_full
from zoo import theory
from zoo.models import LSA, LTB, YqLSA
from zoo.theory import dynamics

SPECTRUM = [0.4, 0.3, 0.2, 0.1]
PLATEAUS = [1, 0.6405797101, 0.3773721630, 0.2098045954, 0.1359950716]


def task_of(d, c, mean: Any = 0.0, **other):
  return zoo.create_task(
    'linear_regression', num_features=d, context_length=c, prior_mean=mean, **other
  )


@pytest.fixture(scope='module')
def plane():
  """A task of two features, and the flow of yq-LSA on it."""
  task = task_of(2, 3, [1.0, -0.5], noise_std=0.5)
  model = built(lambda: YqLSA(2, init_scale=0.5, rngs=nnx.Rngs(0)))
  return task, model, theory.gradient_flow(model, task, [0.0, 0.5, 2.0, 300.0])


def test_plateaus_have_the_known_digits():
  np.testing.assert_allclose(theory.plateaus(SPECTRUM, 31), PLATEAUS, atol=5e-11)
  white = [1, 0.7847222222, 0.5694444444, 0.3541666667, 0.1388888889]
  np.testing.assert_allclose(theory.plateaus([0.25] * 4, 31), white, atol=5e-11)


def test_plateaus_are_the_risks_of_the_best_rules_on_the_largest_eigenvalues():
  task = task_of(4, 31, feature_covariance=np.diag(SPECTRUM))
  step = np.diag(zoo.estimators.best_step_matrix(task))

  def risk(m, factor=1.0):
    kept = factor * np.where(np.arange(4) < m, step, 0)
    rule = zoo.LearningRule.gd_beta(np.zeros(4), np.diag(kept))
    return float(theory.exact_risk(rule, task))

  found = [risk(m) for m in range(5)]
  np.testing.assert_allclose(found, theory.plateaus(SPECTRUM[::-1], 31), rtol=1e-13)
  # The best among steps on the same directions: a parabola with its least value at 1.
  np.testing.assert_allclose(risk(2, 0.9), risk(2, 1.1), rtol=1e-12)
  assert risk(2, 1.01) > found[2]
  assert found[4] == pytest.approx(theory.exact_risk(theory.optimal_rule(task), task))


def test_flow_is_the_limit_of_small_steps(plane):
  task, model, flow = plane

  def risks(step):
    found = dynamics.descent(model, task, step, [0, round(0.5 / step), round(2 / step)])
    return found.risks

  coarse, fine = risks(2e-3), risks(1e-3)
  errors = np.abs(coarse - flow.risks[:3]), np.abs(fine - flow.risks[:3])
  # The error of Euler's method is proportional to the step, and so can be removed.
  np.testing.assert_allclose(errors[1][1:] / errors[0][1:], 0.5, atol=0.01)
  np.testing.assert_allclose(2 * fine - coarse, flow.risks[:3], rtol=2e-5)


@pytest.mark.slow
def test_flows_of_several_models_are_those_of_each(plane):
  task, model, flow = plane
  at = [0.0, 0.5, 2.0, 20.0]
  (found,) = dynamics.gradient_flows([model], task, at, 1e-10)
  np.testing.assert_allclose(found.risks[:3], flow.risks[:3], rtol=1e-9)


def test_flow_of_one_feature_agrees_with_separation_of_variables():
  variance, count, start, stop = 0.7, 5, 0.05, 0.9
  best = 1 / (variance * (1 + 2 / count))  # of v k q
  task = task_of(1, count, feature_covariance=[[variance]])
  first, last = (x * best ** (1 / 3) for x in (start, stop))
  # With v = k = q = s: ds/dt = 2 λ² s² (1 − s³/u*), and the integral of dt = ds/(…).
  time, _ = scipy.integrate.quad(
    lambda s: 1 / (2 * variance**2 * s**2 * (1 - s**3 / best)), first, last
  )
  heads = dynamics.Heads(
    np.array([[0, first]]), np.array([[[first]]]), np.array([[[first, 0]]])
  )
  flow = theory.gradient_flow(heads, task, [time])
  np.testing.assert_allclose(flow.end.queries[...], last, rtol=1e-8)
  u = last**3
  wanted = variance * (1 - 2 * u * variance + u**2 * variance / best)
  np.testing.assert_allclose(flow.risks, wanted, rtol=1e-7)


def test_flow_ends_at_the_global_minimum(plane):
  task, model, flow = plane
  assert flow.gradient_norms[-1] < 1e-10
  optimum = theory.exact_risk(theory.optimal_rule(task), task)
  np.testing.assert_allclose(flow.risks[-1], optimum, rtol=1e-12)
  np.testing.assert_allclose(flow.guesses[-1], task.prior_mean, atol=1e-9)
  assert flow.alignments[-1] == pytest.approx(1, abs=1e-12)
  assert np.all(np.diff(flow.risks) < 0)
  np.testing.assert_allclose(flow.risks[0], theory.exact_risk(model, task), rtol=1e-12)
  found = dynamics.curvature(flow.end, task)
  assert found.kind == 'global minimum'
  assert found.gradient_norm < 1e-10
  # 38 weights; the optimum has the 2 of the guess, and b and A up to a factor and to
  # what b cannot see.
  assert np.sum(found.eigenvalues > 1e-9) + found.num_symmetries == 38
  assert dynamics.curvature(model, task).kind == 'not stationary'


def test_alignment_is_the_correlation_with_the_optimum(plane):
  task, _, flow = plane
  draw = np.random.default_rng(0).normal
  x, noise = draw(size=(100_000, 3, 2)), 0.5 * draw(size=(100_000, 3, 1))
  y = np.einsum('bcd,bd->bc', x, task.prior_mean + draw(size=(100_000, 2)))
  z = np.concatenate([x, y[..., None] + noise], axis=2)
  moment = np.einsum('bci,bcj->bij', z, z) / 3

  def predictions(rule):
    weights = rule.init + np.einsum('dij,bij->bd', rule.update, moment)
    return np.einsum('bd,bd->b', weights, query)

  query = draw(size=(100_000, 2))
  first, best = predictions(flow.rules[0]), predictions(theory.optimal_rule(task))
  scale = np.mean(first**2) ** 0.5 * np.mean(best**2) ** 0.5
  error = np.std(first * best) / 100_000**0.5 / scale
  assert abs(np.mean(first * best) / scale - flow.alignments[0]) < 5 * error


def test_kinds_of_stationary_points(plane):
  task, _, _ = plane
  # At weights of 0 LTB is bilinear in W_1 and W_2, and the least eigenvalue is known.
  saddle = dynamics.curvature(
    built(lambda: LTB(2, init_scale=0.0, rngs=nnx.Rngs(0))), task
  )
  assert (saddle.kind, saddle.gradient_norm) == ('saddle', 0)
  length = float(np.linalg.norm(task.prior_mean))
  np.testing.assert_allclose(saddle.eigenvalues[[0, -1]], [-2 * length, 2 * length])


@pytest.mark.slow
def test_other_kinds_of_stationary_points(plane):
  task, _, _ = plane
  # Of weights of 0 LSA has three factors more.
  lsa = built(lambda: LSA(2, init_scale=0.5, rngs=nnx.Rngs(0)))
  zero = nnx.clone(lsa)
  nnx.update(zero, jax.tree.map(lambda leaf: 0 * np.asarray(leaf), nnx.state(zero)))
  flat = dynamics.curvature(zero, task)
  assert flat.kind == 'degenerate'
  # With its fixed guess LSA ends above the best of all rules.
  flow = theory.gradient_flow(lsa, task, [1000.0])
  assert flow.gradient_norms[0] < 1e-10
  end = dynamics.curvature(flow.end, task)
  assert end.kind == 'minimum'
  assert flow.risks[0] >= theory.head_limited_risk(task, 1).lowest_found - 1e-9


@pytest.mark.parametrize('model', mostly_full([YqLSA], [LTB]))
def test_guess_is_learned_at_the_predicted_time(model):
  task = task_of(2, 3, [1.0, -0.5], noise_std=0.5)
  weights = built(lambda: model(2, init_scale=1e-4, rngs=nnx.Rngs(0)))
  share = 0.3
  time = dynamics.guess_time(weights, task, share)
  flow = theory.gradient_flow(weights, task, [time])
  # What W_1 holds in other directions is of the order of the scale, 1e-4.
  np.testing.assert_allclose(flow.guesses[0], share * task.prior_mean, atol=1e-4)


def test_a_clamped_factor_ends_the_plateau():
  # Three equal factors a: da/dt = a² (1 − a³). With one of them held at 1 the others
  # have da/dt = a (1 − a²). The loss is halved where the product is 1 − √½.
  start, half = 0.02, 1 - 0.5**0.5

  def time(slope, power):
    return scipy.integrate.quad(lambda a: 1 / slope(a), start, half ** (1 / power))[0]

  waited = time(lambda a: a**2 * (1 - a**3), 3)
  clamped = time(lambda a: a * (1 - a**2), 2)
  assert clamped < waited / 10
  factors = np.full((3, 1), start)
  found = dynamics.product_flow(factors, [1.0], [0.0, waited])
  np.testing.assert_allclose(found[1], 0.25, rtol=1e-6)
  factors[1] = 1
  found = dynamics.product_flow(factors, [1.0], [0.0, clamped], clamped=1)
  np.testing.assert_allclose(found[1], 0.25, rtol=1e-6)


def test_a_mechanism_with_a_cost_is_transient():
  at = np.geomspace(1, 1e4, 20)
  start = [[0.3] * 3, [0.15] * 3]
  first, second = dynamics.competition_flow(start, [0.2, 0.01], 0.01, at).T
  # It forms first, and is gone when the other has formed, which stays.
  assert first.min() < 0.01
  assert second[np.argmin(first)] > 0.4
  assert first[-1] > 0.49
  assert second[-1] < 0.01
  # Without a cost both stay. The flow is that of the loss: it falls by small steps too.
  free = dynamics.competition_flow(start, [0.2, 0.01], 0.0, [1e4])[0]
  assert free.max() < 0.01
  a, step = np.array(start), 1e-3
  for _ in range(1000):
    gaps = a.prod(axis=1) - 1
    moves = np.zeros((2, 3))
    for i, j in np.ndindex(2, 3):
      other = gaps[1 - i] ** 2 / 2 + (0.01 if i == 0 else 0.2)
      moves[i, j] = other * gaps[i] * a[i].prod() / a[i, j] + 0.01 * a[i, j]
    a = a - step * moves
  found = dynamics.competition_flow(start, [0.2, 0.01], 0.01, [1.0])[0]
  np.testing.assert_allclose(found, (a.prod(axis=1) - 1) ** 2 / 2, rtol=1e-3)


def test_mistakes_are_one_line(plane):
  task, model, _ = plane
  heads, wide = (dynamics.separate_heads(d, 1, 1, 0.1) for d in (2, 3))
  calls = {
    'eigenvalues has 0': lambda: theory.plateaus([1.0, 0.0], 3),
    'num_examples': lambda: theory.plateaus([1.0], 0),
    'times has shape': lambda: theory.gradient_flow(model, task, []),
    'times must be ≥ 0': lambda: theory.gradient_flow(model, task, [1.0, 0.5]),
    'has 3 features': lambda: theory.gradient_flow(wide, task, [1]),
    'no weights that train': lambda: theory.gradient_flow(
      theory.optimal_rule(task), task, [1.0]
    ),
    'no learning rule': lambda: theory.gradient_flow(
      zoo.estimators.ridge(task), task, [1.0]
    ),
    'steps has 0.5': lambda: dynamics.descent(model, task, 0.1, [0.5]),
    'learning_rate has -1': lambda: dynamics.descent(model, task, -1.0, [1]),
    'optimizer': lambda: dynamics.descent(model, task, 0.1, [1], 'adamw'),
    'clamped is 3': lambda: dynamics.product_flow([[1.0]] * 3, [1.0], [1.0], 3),
    'rank': lambda: dynamics.separate_heads(2, 1, 0, 0.1),
    'only YqLSA and LTB': lambda: dynamics.guess_time(heads, task),
    'no guess to learn': lambda: dynamics.guess_time(model, task_of(2, 3)),
    'begins at 0 of the prior mean': lambda: dynamics.guess_time(
      zoo.models.LTB(2, init_scale=0.0, rngs=nnx.Rngs(0)), task
    ),
  }
  for message, call in calls.items():
    with pytest.raises(zoo.UserError, match=message):
      call()


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_sampled_training_with_adam_follows_the_exact_risk(plane):
  task, model, _ = plane
  steps, rate, batch_size = 90, 0.02, 8192
  wanted = dynamics.descent(model, task, rate, [steps // 3, steps], 'adam')
  graph, start = nnx.split(model)
  optimizer = optax.adam(rate)

  def loss(state, key):
    prompt = task.sample(key, batch_size)
    prediction = nnx.merge(graph, state)(prompt)
    return jnp.mean((prediction - prompt.y_query) ** 2)

  def step(carry, key):
    state, memory = carry
    moves, memory = optimizer.update(jax.grad(loss)(state, key), memory)
    state = jax.tree.map(lambda w, move: w + move, state, moves)
    return (state, memory), state

  @jax.jit
  @jax.vmap
  def train(key):
    carry = start, optimizer.init(start)
    _, states = jax.lax.scan(step, carry, jax.random.split(key, steps))
    return jax.tree.map(lambda leaf: leaf[jnp.array([steps // 3, steps]) - 1], states)

  runs = jax.device_get(train(jax.random.split(jax.random.key(0), 8)))
  for at in range(2):
    risks = []
    for run in range(8):
      state = jax.tree.map(lambda leaf, index=(run, at): leaf[index], runs)
      risks.append(theory.exact_risk(nnx.merge(graph, state), task))
    # A run is off by its own noise, whose mean effect is of second order.
    spread = np.std(risks, ddof=1)
    assert np.all(np.abs(risks - wanted.risks[at]) < 4 * spread)
    assert spread < 0.03 * wanted.risks[at]
