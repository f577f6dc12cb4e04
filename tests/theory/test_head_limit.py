import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import zoo
from tests.settings import isotropic
from zoo import theory
from zoo.learning_rule import symmetric

GOLDEN = (
  *(14.430617330724, 9.773785699134, 8.189708336209, 7.417058776229, 6.958766544359),
  *(6.654441092557, 6.436444865496, 6.270865675466, 6.137873828095, 6.022408963585),
  6.022408963585,
)


def formula(d, c, num_heads, square):
  """The conjectured closed form for `H < d`: equal to the search, not proved."""
  m, h, e = 1 + (d + 1) / c, num_heads - 1, d + 2 / c
  delta = np.sqrt(square)
  quadratic = np.array(
    [
      [1 + 2 / c, h, 0, e],
      [h, h * h + 2 * h / c, 0, h * e],
      [0, 0, 4 * m, 0],
      [e, h * e, 0, (1 + 2 / c) * d * (d + 2)],
    ]
  )
  linear = np.array([delta, delta * h, 2, delta * d])
  kept = [0, 2, 3] if num_heads == 1 else [0, 1, 2, 3]
  quadratic, linear = quadratic[np.ix_(kept, kept)], linear[kept]

  def risk(theta):
    sin, cos = np.sin(theta), np.cos(theta)
    condition = np.array([sin**2, 0, -2 * sin * cos, cos**2])[kept]
    system = np.block([[quadratic, condition[:, None]], [condition, 0]])
    solution = np.linalg.solve(system, np.append(linear, 0))[:-1]
    first = square + 1 - linear @ solution
    last = (d - num_heads) * (1 - sin**2 / (m * sin**2 + cos**2 / c))
    return h * (1 - 1 / m) + last + first

  thetas = np.linspace(0, np.pi, 401)
  start = thetas[np.argmin([risk(theta) for theta in thetas])]
  # The last grid is 5e-7 apart: its square, in the risk, is far below the tolerance.
  for width in (1e-2, 1e-4):
    thetas = np.linspace(start - width, start + width, 401)
    start = thetas[np.argmin([risk(theta) for theta in thetas])]
  return risk(start)


@pytest.mark.slow
def test_golden_infima_for_1_to_11_heads():
  """d = C = 10, |w*|² = 40: what Figure 2 should converge to."""
  task = isotropic(10, 10, 2.0)
  limits = [theory.head_limited_risk(task, h, num_starts=2) for h in range(1, 12)]
  np.testing.assert_allclose([limit.risk for limit in limits], GOLDEN, atol=1e-9)
  # Every start found the same value: the line search stops at 1e-15 of the risk.
  assert max(limit.spread for limit in limits) < 1e-9
  # d heads are enough, and d − 1 are not.
  assert limits[9].risk == pytest.approx(limits[10].risk, abs=1e-12)
  assert limits[8].risk > limits[9].risk + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(('d', 'c', 'mean'), [(3, 5, 1.0), (4, 2, 0.5), (3, 3, 0.0)])
def test_agrees_with_the_conjectured_formula(d, c, mean):
  task = isotropic(d, c, mean)
  for num_heads in range(1, d):
    found = theory.head_limited_risk(task, num_heads, num_starts=3)
    expected = formula(d, c, num_heads, d * mean**2)
    assert found.risk == pytest.approx(expected, rel=1e-9)


def best_of_direct_searches(task, num_heads, guess, bias):
  """Minimises the exact risk over all weights of a model, with no theory of it."""
  d = task.num_features
  e = d + 1
  with jax.enable_x64(True):
    guess = jnp.full(d, guess)

    @jax.jit
    @jax.value_and_grad
    def risk(weights):
      b_he = weights[: num_heads * e].reshape(num_heads, e)
      a_hee = weights[num_heads * e :].reshape(num_heads, e, e)
      moves = symmetric(jnp.einsum('hi,hkj->jik', b_he, a_hee))
      rule = zoo.LearningRule(
        init=guess,
        update=moves[:-1] + guess[:, None, None] * moves[-1:],
        bias=jnp.asarray(bias),
        bias_update=bias * moves[-1],
      )
      return theory.population_risk(rule, theory.task_moments(task))

    return min(
      scipy.optimize.minimize(
        lambda weights: [np.asarray(part, float) for part in risk(weights)],
        np.random.default_rng(seed).normal(size=num_heads * e * (e + 1)),
        jac=True,
        method='L-BFGS-B',
        options={'ftol': 1e-13, 'gtol': 1e-7, 'maxfun': 2000},
      ).fun
      for seed in range(2)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'd', 'num_heads', 'guess', 'bias'),
  [
    ('mean', 2, 1, 0.0, 0.0),
    ('general', 2, 1, 0.3, 0.4),
    ('noise', 3, 2, 0.3, 0.7),
    ('singular', 3, 1, -0.5, 0.5),
  ],
)
def test_agrees_with_a_search_over_all_weights(
  make_task, kind, d, num_heads, guess, bias
):
  task = make_task(kind, d, 3)
  limit = theory.head_limited_risk(task, num_heads, guess, bias)
  direct = best_of_direct_searches(task, num_heads, guess, bias)
  # What a quasi-Newton search over bilinear weights reaches.
  assert limit.risk == pytest.approx(direct, rel=1e-6)
  unlimited = theory.exact_risk(theory.optimal_rule(task, guess, bias), task)
  assert limit.risk >= unlimited - 1e-12
  enough = theory.head_limited_risk(task, d + 1, guess, bias)
  assert enough.risk == pytest.approx(unlimited, rel=1e-12)
  assert enough.spread == 0


def test_bad_arguments():
  task = isotropic(3, 4)
  for num_heads in (0, -1):
    with pytest.raises(zoo.UserError, match=f'num_heads is {num_heads}'):
      theory.head_limited_risk(task, num_heads)
  with pytest.raises(zoo.UserError, match='num_starts is 0'):
    theory.head_limited_risk(task, 1, num_starts=0)
  certain = zoo.create_task(
    'linear_regression',
    num_features=2,
    context_length=2,
    prior_covariance=np.zeros((2, 2)),
  )
  with pytest.raises(zoo.UserError, match='prior_covariance is 0'):
    theory.head_limited_risk(certain, 1)


def test_local_minima_show_in_the_spread():
  """A task on which six random starts agreed on 1.182670, which is not the infimum."""
  random = np.random.default_rng(1)
  prior_root, feature_root = random.normal(size=(3, 2)), random.normal(size=(3, 3))
  task = zoo.create_task(
    'linear_regression',
    num_features=3,
    context_length=4,
    prior_mean=random.normal(size=3),
    prior_covariance=prior_root @ prior_root.T,
    feature_covariance=feature_root @ feature_root.T,
    noise_std=0.7,
  )
  found = theory.head_limited_risk(task, 1, 0.3, 0.5)
  # Where a search over all weights of a one-head model ended.
  assert found.risk == pytest.approx(1.057818, abs=1e-6)
  assert found.spread > 0.1
