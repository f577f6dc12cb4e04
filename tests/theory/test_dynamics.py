"""Training without noise: against closed forms, small steps, and sampled training."""

import jax
import numpy as np
import optax
import pytest
import scipy.integrate
from flax import nnx

import zoo
from docs.programs import toys
from tests.compiled import built
from tests.marks import mostly_full, mostly_slow
from tests.settings import isotropic
from tests.weights import drawn
from zoo import theory
from zoo.models import LTB, YqLSA
from zoo.theory import constructions, dynamics

SPECTRUM = [0.4, 0.3, 0.2, 0.1]


@pytest.fixture(scope='module')
def plane():
  """A task of two features, and the flow of an LTB on it."""
  task = isotropic(2, 3, [1.0, -0.5], noise_std=0.5)
  model = built(lambda: LTB(2, init_scale=0.5, rngs=nnx.Rngs(0)))
  return task, model, theory.gradient_flow(model, task, [0.0, 0.5, 2.0, 100.0], 1e-8)


def test_plateaus_are_the_risks_of_the_best_rules_on_the_largest_eigenvalues():
  task = isotropic(4, 31, feature_covariance=np.diag(SPECTRUM))
  step = np.diag(zoo.estimators.best_step_matrix(task))

  def risk(m, factor=1.0):
    kept = factor * np.where(np.arange(4) < m, step, 0)
    rule = zoo.LearningRule.gd_beta(np.zeros(4), np.diag(kept))
    return float(theory.exact_risk(rule, task))

  risks = [risk(m) for m in range(5)]
  np.testing.assert_allclose(risks, theory.plateaus(SPECTRUM[::-1], 31), rtol=1e-13)
  # The best among steps on the same directions: a parabola with its least value at 1.
  np.testing.assert_allclose(risk(2, 0.9), risk(2, 1.1), rtol=1e-12)
  assert risk(2, 1.01) > risks[2]
  assert risks[4] == pytest.approx(theory.exact_risk(theory.optimal_rule(task), task))


@pytest.mark.slow
@pytest.mark.full
def test_flow_is_the_limit_of_small_steps(plane):
  task, model, flow = plane

  def risks(step):
    path = dynamics.descent(model, task, step, [0, round(0.5 / step), round(2 / step)])
    return path.risks

  coarse, fine = risks(2e-3), risks(1e-3)
  errors = np.abs(coarse - flow.risks[:3]), np.abs(fine - flow.risks[:3])
  # The error of Euler's method is proportional to the step, and so can be removed.
  np.testing.assert_allclose(errors[1][1:] / errors[0][1:], 0.5, atol=0.01)
  np.testing.assert_allclose(2 * fine - coarse, flow.risks[:3], rtol=2e-5)


@pytest.mark.slow
def test_flow_of_one_feature_agrees_with_separation_of_variables():
  variance, count, start, stop = 0.7, 5, 0.05, 0.9
  best = 1 / (variance * (1 + 2 / count))  # of v k q
  task = isotropic(1, count, feature_covariance=[[variance]])
  first, last = (x * best ** (1 / 3) for x in (start, stop))
  # With v = k = q = s: ds/dt = 2 λ² s² (1 − s³/u*), and the integral of dt = ds/(…).
  time, _ = scipy.integrate.quad(
    lambda s: 1 / (2 * variance**2 * s**2 * (1 - s**3 / best)), first, last
  )
  heads = dynamics.LinearHeads(
    np.array([[0, first]]), np.array([[[first]]]), np.array([[[first, 0]]])
  )
  flow = theory.gradient_flow(heads, task, [time])
  np.testing.assert_allclose(flow.end.queries[...], last, rtol=1e-8)
  u = last**3
  wanted = variance * (1 - 2 * u * variance + u**2 * variance / best)
  np.testing.assert_allclose(flow.risks, wanted, rtol=1e-7)


@pytest.mark.slow
def test_flow_ends_at_the_global_minimum(plane):
  task, model, flow = plane
  assert flow.gradient_norms[-1] < 1e-10
  optimum = theory.exact_risk(theory.optimal_rule(task), task)
  np.testing.assert_allclose(flow.risks[-1], optimum, rtol=1e-12)
  np.testing.assert_allclose(flow.guesses[-1], task.prior_mean, atol=1e-9)
  assert flow.alignments[-1] == pytest.approx(1, abs=1e-12)
  assert np.all(np.diff(flow.risks) < 0)
  np.testing.assert_allclose(flow.risks[0], theory.exact_risk(model, task), rtol=1e-12)
  point = dynamics.curvature(flow.end, task)
  assert point.kind == 'global minimum'
  assert point.gradient_norm < 1e-10
  # Of 54 weights: the risk rises along a direction, or does not change.
  assert np.sum(point.eigenvalues > 1e-9) + point.num_symmetries == 54
  assert dynamics.curvature(model, task).kind == 'not stationary'


@pytest.mark.slow
def test_alignment_is_the_correlation_with_the_optimum(plane):
  task, _, flow = plane
  start, best = flow.rules[0], theory.optimal_rule(task)

  def square(rule, other):
    return float(theory.squared_difference(rule, other, task).prediction)

  start_square, best_square = square(start, 0 * best), square(best, 0 * best)
  product = (start_square + best_square - square(start, best)) / 2
  assert flow.alignments[0] == pytest.approx(
    product / np.sqrt(start_square * best_square)
  )


@pytest.mark.slow
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
@pytest.mark.full
@pytest.mark.parametrize(
  ('d', 'c', 'noise'), mostly_full([(1, 3, 0.5)], [(3, 10, 0.0)])
)
def test_weights_in_float32_have_the_condition_of_those_in_float64(d, c, noise):
  """Their rounding makes a gradient and eigenvalues that are not 0."""
  task = isotropic(d, c, noise_std=noise)

  def point(dtype):
    model = constructions.gd_transformer(np.zeros(d), theory.best_step_size(task))
    graph, weights = nnx.split(model)
    weights = jax.tree.map(lambda leaf: leaf.astype(dtype), weights)
    return dynamics.curvature(nnx.merge(graph, weights), task)

  with jax.enable_x64(True):
    exact = point(np.float64)
  rounded = point(np.float32)
  assert exact.kind == rounded.kind == 'global minimum'
  np.testing.assert_allclose(
    rounded.condition_number, exact.condition_number, rtol=1e-4
  )


@pytest.mark.slow
@pytest.mark.full
def test_a_flow_may_be_asked_for_its_start_and_for_equal_times(plane):
  task, model, _ = plane
  start = theory.gradient_flow(model, task, [0.0, 0.0])
  np.testing.assert_array_equal(start.risks[0], start.risks[1])
  np.testing.assert_allclose(start.risks[0], theory.exact_risk(model, task), rtol=1e-12)
  once, twice = (
    theory.gradient_flow(model, task, times) for times in ([0, 1], [0, 1, 1])
  )
  np.testing.assert_array_equal(twice.risks, once.risks[[0, 1, 1]])


@pytest.mark.slow
@pytest.mark.parametrize('unit', mostly_full([1.0, 1e-5], [1e5]))
def test_the_kind_of_a_point_does_not_depend_on_the_unit_of_features(unit, unchecked):
  task = zoo.tasks.LinearRegression(1, 2, feature_covariance=[[unit**2]])
  kinds = []
  for step in (0.5, 0.45):
    matrix = np.array([[[step / unit**2], [0.0]]])
    heads = dynamics.LinearHeads(np.array([[0.0, 1.0]]), matrix)
    kinds.append(dynamics.curvature(heads, task))
  assert [each.kind for each in kinds] == ['global minimum', 'not stationary']


@pytest.mark.parametrize('model', mostly_slow([LTB], [YqLSA]))
def test_guess_is_learned_at_the_predicted_time(model):
  task = isotropic(2, 3, [1.0, -0.5], noise_std=0.5)
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
  losses = toys.product_flow(factors, [1.0], [0.0, waited])
  np.testing.assert_allclose(losses[1], 0.25, rtol=1e-6)
  factors[1] = 1
  losses = toys.product_flow(factors, [1.0], [0.0, clamped], clamped=1)
  np.testing.assert_allclose(losses[1], 0.25, rtol=1e-6)


def test_a_mechanism_with_a_cost_is_transient():
  at = np.geomspace(1, 1e4, 20)
  start = [[0.3] * 3, [0.15] * 3]
  first, second = toys.competition_flow(start, [0.2, 0.01], 0.01, at).T
  # It forms first, and is gone when the other has formed, which stays.
  assert first.min() < 0.01
  assert second[np.argmin(first)] > 0.4
  assert first[-1] > 0.49
  assert second[-1] < 0.01
  # Without a cost both stay. The flow is that of the loss: it falls by small steps too.
  free = toys.competition_flow(start, [0.2, 0.01], 0.0, [1e4])[0]
  assert free.max() < 0.01
  a, step = np.array(start), 1e-3
  for _ in range(1000):
    gaps = a.prod(axis=1) - 1
    moves = np.zeros((2, 3))
    for i, j in np.ndindex(2, 3):
      other = gaps[1 - i] ** 2 / 2 + (0.01 if i == 0 else 0.2)
      moves[i, j] = other * gaps[i] * a[i].prod() / a[i, j] + 0.01 * a[i, j]
    a = a - step * moves
  losses = toys.competition_flow(start, [0.2, 0.01], 0.01, [1.0])[0]
  np.testing.assert_allclose(losses, (a.prod(axis=1) - 1) ** 2 / 2, rtol=1e-3)


def test_mistakes_are_one_line(unchecked):
  task = isotropic(2, 3, [1.0, -0.5], noise_std=0.5)
  model, zero = (
    drawn(lambda: LTB(2, rngs=nnx.Rngs(0)), scale, 'float32') for scale in (0.5, 0.0)
  )
  heads, wide = (dynamics.separate_heads(d, 1, 1, 0.1) for d in (2, 3))
  calls = {
    'eigenvalues has 0': lambda: theory.plateaus([1.0, 0.0], 3),
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
    'clamped is 3': lambda: toys.product_flow([[1.0]] * 3, [1.0], [1.0], 3),
    'only YqLSA and LTB': lambda: dynamics.guess_time(heads, task),
    'no guess to learn': lambda: dynamics.guess_time(model, isotropic(2, 3)),
    'begins at 1 of the prior mean; it must begin below': lambda: dynamics.guess_time(
      constructions.gd_transformer(task.prior_mean, 0.5), task
    ),
    'without keys, queries must be': lambda: dynamics.LinearHeads(
      np.array([[0.0, 1.0]]), np.array([[[0.5]]])
    ),
    'seed is -1': lambda: dynamics.merged_heads(2, 1, 0.1, seed=-1),
    'begins at 0 of the prior mean': lambda: dynamics.guess_time(zero, task),
  }
  for message, call in calls.items():
    with pytest.raises(zoo.UserError, match=message):
      call()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('float64', 'promotion_that_optax_needs')
def test_adam_descends_the_exact_risk(plane):
  task, model, _ = plane
  graph, state = nnx.split(model)
  state, optimizer = jax.tree.map(lambda w: w.astype(float), state), optax.adam(0.02)

  def risk(state):
    return theory.exact_risk(nnx.merge(graph, state), task)

  @jax.jit
  def run(state):
    def step(carry, _):
      state, memory = carry
      value, slope = jax.value_and_grad(risk)(state)
      moves, memory = optimizer.update(slope, memory)
      return (optax.apply_updates(state, moves), memory), value

    return jax.lax.scan(step, (state, optimizer.init(state)), length=31)[1]

  path = dynamics.descent(model, task, 0.02, [0, 10, 30], 'adam')
  np.testing.assert_allclose(path.risks, run(state)[np.array([0, 10, 30])], rtol=1e-9)
