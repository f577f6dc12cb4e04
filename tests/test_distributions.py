"""Predictive distributions against SciPy and numerical integration."""

# The types of SciPy's frozen distributions are incomplete.
# pyright: reportAttributeAccessIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.compare import refuses
from tests.marks import mostly_slow
from zoo.core import distributions
from zoo.core.distributions import Bars, Classes, Gaussian, GaussianMixture, Mixture

B = 3


def _normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _distributions():
  means, stds = _normal(0, B), np.exp(_normal(1, B))
  many = _normal(2, B, 4), 3 * _normal(3, B, 4), np.exp(_normal(4, B, 4))
  edges = np.array([-3.0, -1.0, -0.5, 0.5, 2.0, 5.0], np.float32)
  own_edges = edges[None] + _normal(6, B, 1)
  gaussian = Gaussian(*map(jnp.asarray, (means, stds)))
  bars = Bars(jnp.asarray(_normal(5, B, 5)), jnp.asarray(edges))
  return {
    'gaussian': gaussian,
    'of both': Mixture((gaussian, bars)),
    'mixture': GaussianMixture(*map(jnp.asarray, many)),
    'bars': bars,
    'bars of each': Bars(jnp.asarray(_normal(5, B, 5)), jnp.asarray(own_edges)),
    'two bars': Bars(jnp.asarray(_normal(5, B, 2)), jnp.asarray(edges[1:4])),
  }


KINDS = mostly_slow(['mixture', 'bars'], _distributions())


@pytest.mark.parametrize('kind', KINDS)
def test_the_parts_of_a_distribution_agree(kind):
  """The density integrates to 1, to the cdf, to the mean and to the std."""
  distribution = _distributions()[kind]
  # A cell of 5e-4 that holds a jump of the density, at most 1 for these bars, is wrong
  # by 5e-4 in probability, and by at most three such in the sum; moments weigh them by
  # y and y², which are at most 4 at the jumps.
  grid = np.linspace(-60, 60, 240_001)
  middles = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
  width = grid[1] - grid[0]
  on_grid = np.broadcast_to(middles[:, None], (len(middles), B))

  @jax.jit
  def computed(label, on_grid):
    values = jax.vmap(label.log_prob)(on_grid), jax.vmap(label.cdf)(on_grid)
    return *values, label.mean, label.std

  log_density, below, own_mean, own_std = computed(distribution, on_grid)
  density = np.exp(np.asarray(log_density, np.float64))
  y = np.asarray(middles, np.float64)[:, None]
  np.testing.assert_allclose(density.sum(0) * width, 1, atol=2e-3)
  mass_below = np.cumsum(density, axis=0) * width - density * width / 2
  np.testing.assert_allclose(below, mass_below, atol=2e-3)
  mean = (y * density).sum(0) * width
  variance = (np.square(y - mean) * density).sum(0) * width
  np.testing.assert_allclose(own_mean, mean, atol=5e-3)
  np.testing.assert_allclose(own_std, np.sqrt(variance), atol=5e-3)


@pytest.mark.parametrize('kind', mostly_slow(['gaussian'], _distributions()))
def test_numbers_are_one_for_each_prompt_or_one_for_all(kind, unchecked):
  label = _distributions()[kind]
  number = label.mean.shape[0]
  numbers = np.linspace(-1, 1, number)
  for method in label.log_prob, label.cdf:
    whole = np.asarray(method(jnp.asarray(numbers, label.mean.dtype)))
    for given in numbers, numbers.tolist():
      np.testing.assert_allclose(method(given), whole, rtol=1e-6)
    of_one = method(0.25)
    np.testing.assert_array_equal(of_one, method(np.full(number, 0.25)))
    with refuses('y has the shape', f'it must be ({number},)'):
      method(numbers[:, None])
  with refuses('p has the shape'):
    label.quantile([0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6])
  with refuses('p has numbers outside [0, 1]'):
    label.quantile(90)


@pytest.mark.parametrize('kind', KINDS)
def test_quantiles_invert_the_cdf(kind):
  distribution = _distributions()[kind]
  some = np.array([1e-4, 0.02, 0.31, 0.5, 0.77, 0.9999, 0.1, 0.9], np.float32)
  of_each = np.array([0.1, 0.5, 0.9], np.float32)

  @jax.jit
  def computed(label, some, of_each):
    quantiles = jax.vmap(label.quantile)(some)
    return jax.vmap(label.cdf)(quantiles), quantiles, label.quantile(of_each)

  below, quantiles, found = computed(distribution, some, of_each)
  # Near 1 float32 tells probabilities apart to 6e-8, which p = 1e-4 has to spare.
  expected = np.broadcast_to(some[:, None], below.shape)
  np.testing.assert_allclose(below, expected, rtol=1e-4, atol=3e-7)
  alone = quantiles[np.array([6, 3, 7]), np.arange(3)]
  np.testing.assert_allclose(found, alone, rtol=1e-6)


@pytest.mark.parametrize('kind', mostly_slow(['bars'], _distributions()))
def test_draws_have_the_distribution(kind):
  """A Kolmogorov-Smirnov test of 4,000 draws for each prompt."""

  @jax.jit
  def shares(label):
    keys = jax.random.split(jax.random.key(0), 4000)
    return jax.vmap(label.cdf)(jax.vmap(label.sample)(keys))

  for column in np.asarray(shares(_distributions()[kind])).T:
    assert scipy.stats.kstest(column, 'uniform').pvalue > 1e-3


def test_a_gaussian_and_a_mixture_agree_with_scipy():
  y = jnp.array([0.3, -4.0, 7.0])
  gaussian, mixture = (_distributions()[kind] for kind in ('gaussian', 'mixture'))
  expected = scipy.stats.norm(gaussian.mean, gaussian.std)
  np.testing.assert_allclose(gaussian.log_prob(y), expected.logpdf(y), rtol=1e-5)
  np.testing.assert_allclose(gaussian.cdf(y), expected.cdf(y), rtol=1e-5)
  np.testing.assert_allclose(gaussian.quantile(0.9), expected.ppf(0.9), rtol=1e-5)
  of_components = scipy.stats.norm(mixture.means, mixture.stds)
  weights = scipy.special.softmax(np.asarray(mixture.log_weights), axis=-1)
  density = (weights * of_components.pdf(y[:, None])).sum(-1)
  np.testing.assert_allclose(mixture.log_prob(y), np.log(density), rtol=1e-5)
  share = (weights * of_components.cdf(y[:, None])).sum(-1)
  np.testing.assert_allclose(mixture.cdf(y), share, rtol=1e-5, atol=1e-7)


def test_bars_are_a_histogram_with_half_normal_tails():
  bars = _distributions()['bars']
  p = scipy.special.softmax(np.asarray(bars.logits), axis=-1)
  inner = bars.log_prob(jnp.asarray([-0.7, 0.4, 1.9]))
  height = p[[0, 1, 2], [1, 2, 3]] / [0.5, 1.0, 1.5]
  np.testing.assert_allclose(inner, np.log(height), rtol=1e-5)
  # The first bar is from -3 to -1; half of its probability lies there.
  np.testing.assert_allclose(bars.cdf(jnp.full(B, -3.0)), p[:, 0] / 2, rtol=1e-5)
  scale = 3.0 / scipy.stats.halfnorm.median()
  tail = scipy.stats.halfnorm(loc=2.0, scale=scale).logpdf(9.0) + np.log(p[:, 4])
  np.testing.assert_allclose(bars.log_prob(jnp.full(B, 9.0)), tail, rtol=1e-5)


def test_a_known_label_has_the_standard_deviation_zero():
  for known in (
    Gaussian(jnp.array([1.0]), jnp.array([0.0])),
    GaussianMixture(jnp.array([[0.0]]), jnp.array([[1.0]]), jnp.array([[0.0]])),
  ):

    @jax.jit
    def computed(label, y):
      return label.log_prob(y), label.cdf(y), label.quantile(0.2)

    found = [computed(known, jnp.array([y])) for y in (0.9, 1.0, 1.1)]
    assert [float(density[0]) for density, *_ in found] == [-np.inf, np.inf, -np.inf]
    assert [float(below[0]) for _, below, _ in found] == [0.0, 1.0, 1.0]
    assert found[0][2].tolist() == [1.0]


def test_a_component_that_is_left_out_has_no_part_in_the_density():
  label = GaussianMixture(
    jnp.array([[0.0, -jnp.inf]]), jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 0.0]])
  )
  found = jax.jit(lambda label, y: label.log_prob(y))(label, jnp.array([1.0]))
  np.testing.assert_allclose(found, -np.log(2 * np.pi) / 2, rtol=1e-6)


def test_a_standard_deviation_that_is_nan_is_not_taken_for_zero():
  unknown = Gaussian(jnp.array([1.0]), jnp.array([jnp.nan]))
  assert np.isnan([unknown.log_prob(jnp.ones(1)), unknown.cdf(jnp.ones(1))]).all()


def test_gradients_of_the_log_density_are_finite():
  """They are checked at labels in each bar, against differences."""
  logits, edges = jnp.asarray(_normal(5, 1, 5)), jnp.array([-3.0, -1, -0.5, 0.5, 2, 5])
  gradient_of = jax.jit(
    jax.grad(lambda logits, y: Bars(logits, edges).log_prob(y[None])[0])
  )
  p = scipy.special.softmax(logits, axis=-1)
  for y in -40.0, -2.0, -0.7, 0.0, 1.0, 4.0, 60.0:
    gradient = gradient_of(logits, np.float32(y))
    # ∂ log p_i / ∂ logit_j is 1[i = j] − p_j, wherever y lies within the bar.
    i = int(np.searchsorted([-1.0, -0.5, 0.5, 2.0], y, side='right'))
    np.testing.assert_allclose(gradient, np.eye(5)[i][None] - p, atol=1e-6)


def test_classes_have_the_log_probability_of_labels_and_of_probabilities():
  logits = _normal(7, B, 4)
  classes, log_p = Classes(jnp.asarray(logits)), scipy.special.log_softmax(logits, -1)
  labels = jnp.eye(4)[jnp.array([0, 3, 1])]
  np.testing.assert_allclose(
    classes.log_prob(labels), log_p[[0, 1, 2], [0, 3, 1]], 1e-5
  )
  soft = scipy.special.softmax(_normal(8, B, 4), -1)
  np.testing.assert_allclose(
    classes.log_prob(jnp.asarray(soft)), (soft * log_p).sum(-1), rtol=1e-5
  )
  keys = jax.random.split(jax.random.key(0), 20_000)
  shares = jnp.mean(jax.vmap(classes.sample)(keys), axis=0)
  # Five standard errors of a share are at most 5 · ½ / √20,000 = 0.018.
  np.testing.assert_allclose(shares, np.exp(log_p), atol=0.018)
  certain = Classes(jnp.array([[0.0, -jnp.inf]]))
  assert certain.log_prob(jnp.array([[1.0, 0.0]])).tolist() == [0.0]


def test_signs_are_two_classes():
  signs = Classes.of_signs(jnp.array([0.0, 2.0]))
  np.testing.assert_allclose(
    signs.probabilities[:, 1], jax.nn.sigmoid(jnp.array([0.0, 2.0])), rtol=1e-6
  )


def test_a_distribution_is_a_pytree_that_programs_return():
  for kind in 'of both', 'mixture':
    distribution = _distributions()[kind]
    returned = jax.jit(lambda it: it)(distribution)
    assert returned == distribution, kind


@pytest.mark.parametrize('kind', mostly_slow(['mixture'], _distributions()))
def test_an_index_takes_some_of_the_prompts(kind):
  distribution = _distributions()[kind]
  computed = jax.jit(
    lambda label: (
      label[1:].mean,
      label.mean,
      label[0].quantile(0.3),
      label.quantile(0.3),
    )
  )
  some_means, means, first, quantiles = computed(distribution)
  np.testing.assert_array_equal(some_means, means[1:])
  np.testing.assert_array_equal(first, quantiles[0])


def test_who_has_a_distribution():
  class With:
    def __call__(self, prompt):
      raise NotImplementedError

    def distribution(self, prompt):
      raise NotImplementedError

  class Sometimes(With):
    has_distribution = False

  assert distributions.has_distribution(With())
  assert not distributions.has_distribution(Sometimes())
  assert not distributions.has_distribution(object())


def test_quantiles_near_0_and_1_lie_where_there_is_probability():
  """Sums of probabilities in float32 end above or below 1."""
  edges = np.linspace(-8, 8, 65)
  shares = np.array([0.0, 1e-30, 1e-9, 0.3, 0.9, 1 - 6e-8, 1.0], np.float32)
  p = np.exp(_normal(0, 30, 1, 64))
  p *= (edges[:-1] >= -3) & (edges[1:] <= 3)
  log_p = jnp.log(jnp.broadcast_to(p, (30, 7, 64)))
  # SciPy's histogram has no half-normal tails, and here both are empty.
  exact = [scipy.stats.rv_histogram((row[0], edges)).ppf(shares[1:-1]) for row in p]
  bars = Bars(log_p, jnp.asarray(edges, jnp.float32))
  quantiles = jax.jit(lambda labels, p: [label.quantile(p) for label in labels])
  # A component of the probability 1e-26 lies far away.
  far = GaussianMixture(
    jnp.where(jnp.arange(64) == 63, -60.0, log_p),
    jnp.where(jnp.arange(64) == 63, 1e6, jnp.zeros_like(log_p)),
    jnp.ones_like(log_p),
  )
  labels = bars, Mixture((bars, bars)), far
  *both, of_far = quantiles(labels, np.broadcast_to(shares, (30, 7)))
  for found in both:
    np.testing.assert_allclose(found[:, 1:-1], exact, atol=1e-5)
    np.testing.assert_array_equal(found[:, [0, -1]], np.tile([-3, 3], (30, 1)))
  expected = np.append(scipy.stats.norm.ppf(shares[:-1]), np.inf)
  np.testing.assert_allclose(of_far, np.tile(expected, (30, 1)), rtol=1e-5)


def test_known_numbers_are_their_own_ends():
  known, other = jnp.zeros(2), jnp.ones(2)
  both = Mixture((Gaussian(known, known), Gaussian(known, other)))
  means = jnp.tile(jnp.array([0.0, 3.0]), (2, 1))
  some = GaussianMixture(jnp.zeros((2, 2)), means, jnp.zeros((2, 2)))
  labels = both, Gaussian(known, known), some
  ends = jax.jit(lambda labels, p: [label.quantile(p) for label in labels])
  found = ends(labels, np.array([0, 1], np.float32))
  assert np.array(found).tolist() == [[-np.inf, np.inf], [0, 0], [0, 3]]
