"""Deep linear attention: risks, the lowest of a family, and what no weights can do."""

import itertools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import mostly_full, mostly_slow
from tests.settings import general, isotropic
from tests.theory.expectations import second_moments
from zoo.theory import constructions, deep, schedules, wishart
from zoo.theory.deep.trace_moments import trace_moment

_PAPER = isotropic(10, 10)


# The GD++ family.


def test_golden_risks():
  """d = C = 10, by other code."""
  noisy = isotropic(10, 10, prior_mean=2.0, noise_std=0.5**0.5)
  two = deep.gd_plus_plus_risk(noisy, steps=[-0.2, -0.5], preconditions=[-0.1])
  assert two == pytest.approx(4.651652210176, abs=5e-13)
  three = deep.gd_plus_plus_risk(
    _PAPER, steps=[-0.1, -0.3, -0.6], preconditions=[-0.05, -0.2], readout=1.0
  )
  assert three == pytest.approx(21.333310964015, abs=5e-13)
  # The last precondition changes nothing.
  assert two == deep.gd_plus_plus_risk(noisy, [-0.2, -0.5], [-0.1, 7.0])


# What no weights can do.


def test_golden_lower_bounds():
  """d = C = 10, by other code."""
  bounds = [deep.lower_bound(_PAPER, degree) for degree in (1, 2, 3, 4)]
  fractions = Fraction(110, 21), Fraction(6815, 1869), Fraction(1381913, 485317)
  assert bounds[:3] == list(fractions)
  assert float(bounds[3]) == pytest.approx(2.365912847, abs=5.1e-10)


@pytest.mark.parametrize('d', mostly_slow([2], [1, 5]))
def test_the_bound_for_one_example_more_than_features(d):
  bounds = [deep.lower_bound(isotropic(d, d + 1), degree) for degree in (1, 2, 3, 4)]
  assert bounds == [Fraction(d, degree + 1) for degree in (1, 2, 3, 4)]


@pytest.mark.parametrize('seed', mostly_full([1, 3], [0, 2]))
def test_it_is_the_best_of_all_polynomials_in_the_entries_of_the_moment(seed):
  """A least-squares fit by every monomial, over all prompts by Gauss–Hermite."""
  rng = np.random.default_rng(seed)
  d, c, noisy, degree = [
    (1, 1, 0, 3),
    (1, 2, 1, 2),
    (2, 1, 1, 2),
    (2, 2, 0, 2),
  ][seed]
  noise_std = noisy * float(rng.uniform(0.1, 1))
  variance = float(rng.uniform(0.3, 2))
  # Monomials in G of degree k have the degree 2k in each number that is drawn.
  w, moment, mass = second_moments(2 * degree + 1, d, c, variance, noise_std)
  entries = moment[:, *np.triu_indices(d + 1)]
  monomials = np.stack(
    [
      np.prod(entries[:, list(chosen)], axis=1)
      for k in range(degree + 1)
      for chosen in itertools.combinations_with_replacement(range(entries.shape[1]), k)
    ],
    axis=1,
  )
  root = np.sqrt(mass)[:, None]
  monomials = monomials / np.sqrt(mass @ monomials**2)
  fit, *_ = np.linalg.lstsq(root * monomials, root * w, rcond=1e-10)
  risk = np.sum(mass @ (w - monomials @ fit) ** 2)
  prior = variance * np.eye(d)
  task = isotropic(d, c, noise_std=noise_std, prior_covariance=prior)
  bound = deep.lower_bound(task, degree)
  # Least squares of 28 monomials that are far from orthogonal.
  assert risk == pytest.approx(float(bound), rel=1e-7)


def test_moments_of_traces():
  for order in range(1, 9):
    assert trace_moment(3, 5, (order,)) == wishart.moment(3, 5, order)
    # tr W is a chi-squared variable of dC degrees.
    expected = np.prod([15 + 2 * j for j in range(order)], dtype=object)
    assert trace_moment(3, 5, (1,) * order) == expected


# Any weights, from draws of G.


def _perturbed(model, scale):
  rng = np.random.default_rng(0)
  graph, state, rest = nnx.split(model, nnx.Param, ...)
  state = jax.tree.map(
    lambda leaf: jnp.asarray(np.asarray(leaf) + scale * rng.normal(size=leaf.shape)),
    state,
  )
  return nnx.merge(graph, state, rest)


@pytest.mark.slow
@pytest.mark.parametrize('form', mostly_full(['dense'], ['sparse']))
def test_in_the_family_the_estimate_is_exact_and_near_it_almost(float64, form):
  task = isotropic(4, 7, prior_mean=1.0, noise_std=0.6)
  if form == 'dense':
    weights = [-0.2, -0.4], [-0.1], -0.9
    model = constructions.gd_plus_plus(task.prior_mean, *weights)
  else:
    weights = [-0.2, -0.4], [0.0], -1.0
    model = constructions.deep_gradient_descent(task.prior_mean, [0.2, 0.4])
  risk = deep.gd_plus_plus_risk(task, *weights)
  exact = deep.sampled_risk(model, task, 2000)
  assert exact.mean == pytest.approx(risk, rel=1e-12)
  assert exact.stderr < 1e-12 < exact.stderr_without_control
  assert abs(exact.control_score) < 4
  near = deep.sampled_risk(_perturbed(model, 0.005), task, 2000)
  assert near.stderr < near.stderr_without_control / 9


@pytest.mark.slow
@pytest.mark.full
def test_draws_that_miss_rare_contexts_are_told(float64):
  """Four layers whose risk is due to eigenvalues of S that no draw has."""
  model = constructions.gd_plus_plus(np.zeros(3), [-0.5] * 4, [-0.5] * 3)
  estimate = deep.sampled_risk(model, isotropic(3, 4), 2000)
  assert abs(estimate.control_score) > 100


def _on_prompts(model, task, count):
  loss = jax.jit(lambda prompt: (model(prompt) - prompt.y_query) ** 2)
  losses = np.concatenate(
    [np.asarray(loss(task.sample(jax.random.key(i), count // 4))) for i in range(4)]
  )
  return losses.mean(), losses.std() / np.sqrt(losses.size)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('form', 'guess', 'readout', 'c'),
  mostly_full(
    [('dense', 'linear', 'linear', 3)],
    [('gd_plus_plus', 'fixed', 'linear', 12), ('sparse', 'zero', 'last', 3)],
  ),
)
def test_of_any_weights_it_is_the_risk_on_prompts(float64, form, guess, readout, c):
  task = general(3, c, noise_std=0.5)
  model = zoo.create_model(
    'deep_lsa',
    num_features=3,
    num_layers=2,
    num_heads=2,
    form=form,
    guess=guess,
    readout=readout,
    **({'guess_weights': 0.3, 'guess_bias': 0.4} if guess == 'fixed' else {}),
    rngs=nnx.Rngs(0),
  )
  model = _perturbed(model, 0.2)
  estimate = deep.sampled_risk(model, task, 50_000)
  mean, error = _on_prompts(model, task, 400_000)
  assert estimate.stderr <= estimate.stderr_without_control
  # Averaging over the query and both signs is worth more than the number of draws here.
  assert abs(estimate.mean - mean) < 4 * np.hypot(error, estimate.stderr)


# Mistakes.


def test_bad_input_is_named(unchecked):
  task, other = isotropic(2, 3), general(2, 3)
  with refuses('preconditions has 3 numbers; for 2 steps it must have 1'):
    deep.gd_plus_plus_risk(task, [0.1, 0.2], [0.1, 0.2, 0.3])
  with refuses('the model has 6 layers', 'at most 5'):  # It was NaN.
    deep.gd_plus_plus_risk(task, [-0.1] * 6, [0.0] * 5)
  with refuses('the model has 6 layers'):
    deep.gd_plus_plus_optimum(task, 6)
  with refuses('feature_covariance is not a positive multiple'):
    deep.gd_plus_plus_risk(other, [0.1], [])
  with refuses('product of feature_covariance and prior_covariance'):
    deep.lower_bound(other, 2)
  with refuses('the task is of type int'):
    deep.lower_bound(3, 1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
  ('name', 'options', 'said'),
  [
    ('yq_lsa', {}, 'the model is of type YqLSA'),
    ('deep_lsa', {'num_features': 3}, 'the model has 3 features; the task has 2'),
    ('deep_lsa', {'num_outputs': 2}, 'the model has 2 outputs'),
    ('deep_lsa', {'guess': 'network'}, "the guess of the model is 'network'"),
  ],
)
def test_what_has_no_estimate_is_named(unchecked, name, options, said):
  options = {'num_features': 2} | options
  model: Any = nnx.eval_shape(
    lambda: zoo.create_model(name, **options, rngs=nnx.Rngs(0))
  )
  with refuses(said):
    deep.sampled_risk(model, isotropic(2, 3))


@pytest.mark.slow
@pytest.mark.full
def test_the_error_of_few_draws_is_that_of_their_spread(float64):
  task = isotropic(2, 6)
  model = constructions.deep_gradient_descent(np.zeros(2), [0.2, 0.3])
  model = _perturbed(model, 0.05)
  mean = deep.sampled_risk(model, task, 100_000).mean
  found = [deep.sampled_risk(model, task, 100, seed) for seed in range(40)]
  scores = [(each.mean - mean) / each.stderr for each in found]
  # Their mean square is 1, with a standard error of √(2/40) for normal means.
  assert np.mean(np.square(scores)) < 1 + 4 * np.sqrt(2 / 40)


@pytest.mark.slow
def test_too_few_draws_are_refused():
  model = constructions.deep_gradient_descent(np.zeros(2), [0.2, 0.3])
  with refuses('num_draws is 2; it must be an integer ≥ 100'):
    deep.sampled_risk(model, isotropic(2, 6), 2)


def test_without_preconditions_it_is_gradient_descent():
  task = isotropic(4, 6, noise_std=0.5, feature_covariance=2.0 * np.eye(4))
  steps = np.array([0.2, 0.3, 0.1])
  expected = schedules.gradient_descent_risk(task, steps, None)
  risk = deep.gd_plus_plus_risk(task, -steps, np.zeros(2))
  assert risk == pytest.approx(expected, rel=1e-13)
  # The last precondition changes nothing.
  risk = deep.gd_plus_plus_risk(task, -steps, [0.0, 0.0, 5.0])
  assert risk == pytest.approx(expected, rel=1e-13)


def _lowest(num_layers, readout=None, preconditioned=True):
  return deep.gd_plus_plus_optimum(_PAPER, num_layers, readout, preconditioned)


# At d = C = 10, by other code: the lowest found for gradient descent, literally eq. 3
# of arXiv 2512.04268, GD++ with readout 1, with −1, with any; the bound of the family.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_layers', 'descent', 'literal', 'plus', 'minus', 'free', 'lower'),
  mostly_full(
    [(2, 3.673443, 3.673443, 2.769330, 2.466305, 2.434204, 2.434204)],
    [
      (3, 2.902184, 3.329531, 1.453234, 1.200899, 1.200853, 1.180768),
      # That with −1 was found here, below 0.678776 of the other code. The bound is that
      # of exact determinants of moments.
      (4, 2.434204, 3.199164, 0.975105, 0.675527, 0.675470, 0.627216),
    ],
  ),
)
def test_golden_optima(num_layers, descent, literal, plus, minus, free, lower):
  optima = [
    _lowest(num_layers, -1.0, preconditioned=False),
    _lowest(num_layers, 1.0, preconditioned=False),
    _lowest(num_layers, 1.0),
    _lowest(num_layers, -1.0),
    _lowest(num_layers),
  ]
  risks = [optimum.upper for optimum in optima]
  np.testing.assert_allclose(
    risks, [descent, literal, plus, minus, free], rtol=0, atol=5.1e-7
  )
  assert optima[-1].lower == pytest.approx(lower, abs=5.1e-7)
  # Gradient descent attains the bound of its degree, which is the number of steps.
  assert optima[0].lower == pytest.approx(descent, abs=5.1e-7)
  for optimum in optima:
    assert optimum.lower <= optimum.upper * (1 + 1e-12)
    assert deep.gd_plus_plus_risk(_PAPER, *optimum.weights) == optimum.upper


@pytest.mark.slow
def test_two_layers_attain_the_bound_if_the_readout_is_free():
  lower, upper, _ = _lowest(2)
  assert upper == pytest.approx(lower, rel=1e-12)
  assert upper == pytest.approx(2.434204, abs=5.1e-7)


@pytest.mark.slow
@pytest.mark.full
def test_the_bound_of_one_layer_is_the_optimal_rule():
  features = np.diag([0.5, 1.0, 4.0])
  task = isotropic(
    3,
    5,
    noise_std=0.7,
    feature_covariance=features,
    prior_covariance=2.0 * np.linalg.inv(features),
  )
  expected = zoo.theory.exact_risk(zoo.theory.optimal_rule(task), task)
  assert float(deep.lower_bound(task, 1)) == pytest.approx(expected, rel=1e-12)
  # More layers are below it, and above the posterior mean.
  bounds = [deep.lower_bound(task, degree) for degree in (1, 2, 3, 4)]
  assert bounds == sorted(bounds, reverse=True)
  assert zoo.theory.bayes_risk(task).upper < bounds[-1]
