import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, struct
from jax.sharding import AxisType, Mesh

import zoo
from tests.compare import refuses
from tests.marks import SLOW, mostly_full
from tests.settings import isotropic, random_rule
from tests.theory.expectations import KINDS, cubature, make_task
from tests.wrapped import Wrapped
from zoo import theory
from zoo.estimators import GDBeta, GradientDescent, Ridge
from zoo.theory.exact import rule_of
from zoo.theory.risk import float64_risk

_predict = jax.jit(zoo.LearningRule.__call__)
_weights = jax.jit(zoo.LearningRule.weights)


@pytest.mark.slow
@pytest.mark.parametrize('sizes', [[0.2], pytest.param([0.1, 0.1], marks=SLOW)])
def test_gradient_descent_without_a_start_begins_at_zero(sizes):
  """And not at the prior mean, at which theory begins by default."""
  task, sizes = isotropic(2, 3, prior_mean=2.0), np.array(sizes)
  at_zero, without = (GradientDescent(start, sizes) for start in (np.zeros(2), None))
  risk = theory.exact_risk(without, task)
  assert risk == theory.exact_risk(at_zero, task)
  found = zoo.curve(without, task, num_prompts=2048, lengths=[3])
  assert abs(found.mean[0] - risk) < 4 * found.stderr[0]
  if len(sizes) == 1:
    matrix = 0.2 * np.eye(2)
    assert theory.exact_risk(GDBeta(None, matrix), task) == pytest.approx(risk)
    with refuses('start is None', 'start=np.zeros(d)'):
      without.learning_rule()


@struct.dataclass(eq=False, repr=False)
class _Half(Ridge):
  def predict(self, examples):
    return super().predict(examples) / 2


@struct.dataclass(eq=False, repr=False)
class _HalfSteps(GradientDescent):
  def predict(self, examples):
    return super().predict(examples) / 2


def test_the_risk_of_an_estimator_is_not_that_of_its_subclass():
  task = isotropic(2, 3)
  assert theory.exact_risk(Ridge(), task) == 0
  for subject in _Half(), _HalfSteps(np.zeros(2), np.array([0.1, 0.1])):
    with refuses('no learning rule'):
      theory.exact_risk(subject, task)


# What predicts as a rule of its own has the risk of the rule (test_trust.py).
@pytest.mark.parametrize(
  ('kind', 'd', 'c'), mostly_full([('general', 2, 2)], KINDS, [(1, 3), (2, 2)])
)
def test_exact_risk_is_the_expectation_over_all_prompts(kind, d, c):
  task, rule = make_task(kind, d, c), random_rule(d)
  prompt, weights = cubature(task)
  with jax.enable_x64(True):
    error = np.asarray(_predict(rule, prompt)) - np.asarray(prompt.y_query)
  # Rounding of sums of at most 26,000 terms of one sign.
  assert theory.exact_risk(rule, task) == pytest.approx(weights @ error**2, rel=1e-11)


@pytest.mark.parametrize('kind', mostly_full(['general'], KINDS))
def test_squared_difference_is_the_expectation_over_all_prompts(kind):
  task = make_task(kind, 2, 2)
  prompt, weights = cubature(task)
  both = rule, other = random_rule(2, seed=1), random_rule(2, seed=2)
  with jax.enable_x64(True):
    prediction = weights @ np.square(np.subtract(*(_predict(r, prompt) for r in both)))
    gap = np.square(np.subtract(*(_weights(r, prompt) for r in both)))
  difference = theory.squared_difference(rule, other, task)
  assert difference.prediction == pytest.approx(prediction, rel=1e-11)
  assert difference.gradient == pytest.approx(weights @ gap.sum(1), rel=1e-11)


@pytest.mark.parametrize('kind', mostly_full(['general'], KINDS))
def test_excess_risk_is_split_into_even_and_odd_parts(kind):
  """The parts by their definition: under a change of the sign of ŵ − w* and noise."""
  task = make_task(kind, 2, 2)
  rule, best = random_rule(2), theory.optimal_rule(task)
  prompt, weights = cubature(task)
  with jax.enable_x64(True):
    mean_label = np.asarray(prompt.x) @ task.prior_mean
    mirrored = dataclasses.replace(prompt, y=2 * mean_label - np.asarray(prompt.y))
    gap, mirrored_gap = (
      np.subtract(_predict(rule, p), _predict(best, p)) for p in (prompt, mirrored)
    )
  excess = theory.excess_risk(rule, task)
  even = weights @ np.square((gap + mirrored_gap) / 2)
  odd = weights @ np.square((gap - mirrored_gap) / 2)
  assert excess.initial_guess == pytest.approx(even, rel=1e-10)
  assert excess.update == pytest.approx(odd, rel=1e-10)
  total = theory.exact_risk(rule, task) - theory.exact_risk(best, task)
  assert sum(excess) == pytest.approx(total, rel=1e-10)


@pytest.mark.slow
def test_taken_a_few_coordinates_at_a_time_the_risk_is_the_same(monkeypatch):
  task = make_task('noise', 3, 7)
  rule, moments = random_rule(3), theory.task_moments(task)
  together = theory.exact_risk(rule, task)
  with jax.enable_x64(True):
    # 3 coordinates: two at a time, and one that is left.
    monkeypatch.setattr('zoo.theory.risk._FEW_FEATURES', 2)
    monkeypatch.setattr('zoo.theory.risk._COORDINATES_AT_A_TIME', 2)
    by_parts = jax.jit(lambda *arguments: float64_risk(*arguments))(rule, moments)
  assert float(by_parts) == pytest.approx(together, rel=1e-12)


def test_float64_without_switching_the_process():
  task = isotropic(10, 10, prior_mean=1 / 3)
  rule = zoo.LearningRule.gradient_descent(task.prior_mean, 1 / 21)
  risk = theory.exact_risk(rule, task)
  assert isinstance(risk, float)
  # (1 − 2η + η²(C + d + 1)/C) d at η = 1/21. Nothing is rounded to float32.
  assert risk == pytest.approx(191 / 21, rel=1e-14)
  assert jnp.zeros(1).dtype == jnp.float32


@pytest.mark.slow
def test_the_precision_of_the_caller_does_not_matter():
  """A float64 product in bfloat16 is off by a percent, on a CPU too."""
  # In the sizes of other tests, which have compiled most of it.
  task, rule = make_task('general', 2, 2), random_rule(2)
  model = zoo.create_model('lsa', num_features=2, init_scale=0.6, rngs=nnx.Rngs(0))
  moments = jax.tree.map(np.asarray, theory.task_moments(task))
  stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (rule, moments))

  def everything():
    return (
      theory.exact_risk(model, task),
      *theory.exact_risks(*stacked),
      *theory.squared_difference(model, rule, task),
      *jax.tree.leaves(rule_of(model)),
    )

  expected = everything()
  with jax.default_matmul_precision('BF16_BF16_F32'):
    again = everything()
  jax.tree.map(np.testing.assert_array_equal, again, expected)


@pytest.mark.slow
def test_the_host_computes_in_float64_whatever_the_devices(monkeypatch):
  task, rule = make_task('general', 2, 2), random_rule(2)
  moments = jax.tree.map(np.asarray, theory.task_moments(task))
  stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (rule, moments))
  expected = np.asarray(theory.exact_risks(*stacked))
  devices = np.reshape(jax.devices()[2:4], (2, 1))  # stand for those of another kind
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  with jax.set_mesh(Mesh(devices, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)):
    risks = theory.exact_risks(*stacked)
    assert theory.exact_risk(rule, task) == expected
  assert risks.devices() == {jax.devices('cpu')[0]}
  np.testing.assert_array_equal(risks, expected)


@pytest.mark.slow
def test_gradient_and_map():
  """The traced exact risk, against finite differences of the concrete one."""

  def risk(scale):
    # Made anew in each program, since JAX keeps a copy of an array in its precision.
    task = isotropic(2, 3, prior_mean=1.0)
    return theory.exact_risk(random_rule(2) + scale * random_rule(2, seed=1), task)

  scales = np.array([-1.0, 0.1, 1.0])
  with jax.enable_x64(True):
    mapped, slopes = jax.jit(jax.vmap(jax.value_and_grad(risk)))(scales)
    values = [float(risk(scale)) for scale in scales]
    # The risk is quadratic, so that a central difference is exact.
    differences = [float(risk(scale + 1) - risk(scale - 1)) / 2 for scale in scales]
  np.testing.assert_allclose(slopes, differences, rtol=1e-10)
  np.testing.assert_allclose(mapped, values, rtol=1e-12)
  # Without x64 the caller's float32 is kept.
  traced = jax.jit(risk)(0.1)
  assert traced.dtype == jnp.float32
  assert float(traced) == pytest.approx(float(risk(0.1)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.full
def test_memory_at_200_features_stays_under_a_gibibyte():
  """By the compiler's own account, which no other work on the machine can change."""
  d = 200
  numbers = theory.task_moments(make_task('general', d, 2 * d))
  e = d + 1
  with jax.enable_x64(True):
    shapes = (d,), (d, e, e), (), (e, e)
    leaves = [jax.ShapeDtypeStruct(shape, np.dtype(float)) for shape in shapes]
    risk = jax.jit(
      lambda *rule: theory.population_risk(zoo.LearningRule(*rule), numbers)
    )
    memory = risk.lower(*leaves).compile().memory_analysis()
  assert memory is not None
  update = 8 * d * e**2
  # The rule itself, and up to five arrays of its size on the way.
  assert memory.argument_size_in_bytes + memory.temp_size_in_bytes < 6 * update
  assert 6 * update < 2**30


def test_what_has_no_exact_theory_says_which_part(unchecked):
  task = isotropic(2, 2)
  assert theory.covers(task)
  for other, name in ((3, 'int'), (Wrapped(task), 'Wrapped')):
    assert not theory.covers(other)
    with refuses(f'the task is of type {name}', 'covers LinearRegression'):
      theory.exact_risk(random_rule(2), other)  # pyright: ignore[reportArgumentType]
  with pytest.raises(zoo.UserError, match='function has no learning rule'):
    theory.exact_risk(lambda prompt: prompt.y_query, task)
  with pytest.raises(zoo.UserError, match='3 features; the task has 2'):
    theory.exact_risk(random_rule(3), task)
