"""Likelihood, calibration and consistency of predictive distributions."""

# What is None or of which kind follows from the task.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportCallIssue=false

import math
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from flax import nnx, struct

import zoo
from tests.compare import refuses
from tests.marks import FULL, SLOW, mostly_full, mostly_slow
from zoo.core.distributions import Bars, Classes, Gaussian, GaussianMixture, Mixture
from zoo.core.trees import Tree
from zoo.measure.calibrate import PitHistogram, Reliability, _reliability
from zoo.measure.likelihood import kl_divergence
from zoo.measure.predict import sample_batches
from zoo.reports.calibration_plots import plot_calibration

_D, _C, _NOISE = 2, 4, 0.5
_kl = jax.jit(kl_divergence)


def _task():
  return zoo.create_task(
    'linear_regression', num_features=_D, context_length=_C, noise_std=_NOISE
  )


def _signs():
  return zoo.create_task('logistic_regression', num_features=_D, context_length=_C)


def _bayes():
  return _task().baselines()['bayes']


@struct.dataclass(eq=False, repr=False)
class _Changed(Tree):
  """The posterior, moved by a share of its width, whose width is multiplied."""

  posterior: object
  width: float = 1.0
  moved: float = 0.0

  def __call__(self, prompt):
    return self.distribution(prompt).mean

  def distribution(self, prompt):
    of = self.posterior.distribution(prompt)
    return Gaussian(of.mean + self.moved * of.std, self.width * of.std)


# Divergences.


_NORMAL = Gaussian(jnp.array([0.3]), jnp.array([0.8]))
_OTHER = Gaussian(jnp.array([1.0]), jnp.array([1.5]))
_MIXTURE = GaussianMixture(
  jnp.array([[0.2, -1.0, 0.5]]), jnp.array([[0.0, 2.0, -1.0]]), jnp.array([[0.5, 1, 2]])
)
_BARS = Bars(jnp.array([[0.1, 1.0, 0.5, -0.3]]), jnp.array([-2.0, -1, 0.5, 1, 3]))


@pytest.mark.parametrize(
  ('first', 'second'),
  [
    (_NORMAL, _OTHER),
    (_MIXTURE, _NORMAL),
    (_BARS, _OTHER),
    pytest.param(_NORMAL, _MIXTURE, marks=SLOW),
    pytest.param(_NORMAL, _BARS, marks=SLOW),
    pytest.param(_BARS, _MIXTURE, marks=SLOW),
  ],
)
def test_divergences_are_their_integrals(first, second):
  grid = np.linspace(-25, 25, 20_001)

  @jax.jit
  def compute(first, second, y):
    densities = jax.vmap(lambda y: (first.log_prob(y), second.log_prob(y)))
    return *densities(y[:, None]), kl_divergence(first, second)

  computed = compute(first, second, jnp.asarray(grid, jnp.float32))
  p, q = (np.asarray(column, np.float64)[:, 0] for column in computed[:2])
  expected = scipy.integrate.trapezoid(np.exp(p) * (p - q), grid)
  # With bars the weighted log p − log q varies by less than 12.5 in total, of which
  # the error is at most 1/4096. Without them it is smooth, and the error is smaller.
  assert float(computed[2][0]) == pytest.approx(expected, abs=4e-3)


def test_the_divergence_of_classes_is_a_sum():
  logits = np.random.default_rng(0).normal(size=(2, 5, 3)).astype('f')
  p, q = scipy.special.softmax(logits, axis=-1)
  found = _kl(*(Classes(jnp.asarray(each)) for each in logits))
  np.testing.assert_allclose(found, (p * np.log(p / q)).sum(-1), rtol=1e-4)


@pytest.mark.parametrize('count', mostly_slow([64], [16, 2048, 8192]))
def test_a_mixture_of_many_components_has_the_divergence_of_the_whole(count):
  """A component gets 128 of the values, 32, one, or a quarter of one.

  All components have the width √¾, and their means are quantiles of N(0, ¼), so that
  the mixture is nearly N(0, 1).
  """
  means = 0.5 * scipy.special.ndtri((np.arange(count) + 0.5) / count)
  means = np.random.default_rng(0).permutation(means)
  zeros = jnp.zeros((1, count))
  stds = jnp.full((1, count), np.sqrt(1 - np.mean(np.square(means))))
  mixture = GaussianMixture(zeros, jnp.asarray(means[None], jnp.float32), stds)
  other = Gaussian(jnp.zeros(1), jnp.full(1, 2.0))
  # The trapezoidal rule converges exponentially once the width √¾ has several points.
  grid = np.linspace(-8, 8, 161)
  p = scipy.stats.norm.pdf(grid[:, None], means, stds[0, 0]).mean(axis=1)
  q = scipy.stats.norm.pdf(grid, 0, 2)
  expected = scipy.integrate.trapezoid(p * np.log(p / q), grid)
  assert expected == pytest.approx(_scaled(2), rel=0.01)
  # The rule has 2,048 values of a function that varies by some units.
  assert float(_kl(mixture, other)[0]) == pytest.approx(expected, abs=4e-3)


def _scaled(by):
  """The divergence of a normal distribution from itself with the width times `by`."""
  return np.log(by) + 1 / (2 * by**2) - 1 / 2


def test_a_narrow_component_has_its_part_in_the_divergence():
  """Components are 40 standard deviations apart, so that their divergences add up."""
  log_weights, means = jnp.log(jnp.array([[0.7, 0.3]])), jnp.array([[40.0, 0]])
  stds = jnp.array([[1.0, 1e-4]])
  first = GaussianMixture(log_weights, means, stds)
  for wide, narrow in (1.0, 2.0), (1.0, 0.5), (2.0, 0.5), (0.5, 0.5):
    other = GaussianMixture(log_weights, means, stds * jnp.array([[wide, narrow]]))
    expected = 0.7 * _scaled(wide) + 0.3 * _scaled(narrow)
    # In each component (log p − log q) · 6v (1 − v) varies by less than 12.5.
    found = float(_kl(first, other)[0])
    assert found == pytest.approx(expected, abs=2 * 12.5 / 4096)
  parts = [Gaussian(means[:, i], stds[:, i]) for i in range(2)]
  others = [parts[0], Gaussian(parts[1].mean, parts[1].std / 2)]
  found = float(_kl(Mixture(tuple(parts)), Mixture(tuple(others)))[0])
  assert found == pytest.approx(_scaled(0.5) / 2, abs=2 * 12.5 / 4096)


@pytest.mark.slow
def test_a_narrow_bar_has_its_part_in_the_divergence():
  edges = np.array([-2.0, -1, 0, 1e-4, 1, 2])
  p = np.array([0.1, 0.2, 0.4, 0.1, 0.2])
  bars = Bars(jnp.log(jnp.array([p])), jnp.asarray(edges))
  normal = Gaussian(jnp.array([0.3]), jnp.array([0.8]))
  widths = np.diff(edges)
  tails = widths / scipy.stats.norm.ppf(0.75)  # whose half lies within the width
  of_tails = np.log(2 / tails) - np.log(2 * np.pi * np.e) / 2
  log_densities = np.where([1, 0, 0, 0, 1], of_tails, -np.log(widths))
  squares = (bars.mean[0] - 0.3) ** 2 + bars.std[0] ** 2
  log_q = -np.log(2 * np.pi * 0.8**2) / 2 - squares / (2 * 0.8**2)
  expected = p @ (np.log(p) + log_densities) - float(log_q)
  # The log density jumps by 10 and back at the narrow bar, and by at most 2 elsewhere;
  # the weight is at most 1.5.
  found = float(_kl(bars, normal)[0])
  assert found == pytest.approx(expected, abs=1.5 * 2 * (10 + 4 * 2) / 4096)


@pytest.mark.slow
def test_the_divergence_of_bars_with_the_same_edges_is_a_sum():
  edges = jnp.array([-2.0, -1, 0, 1e-4, 1, 2])
  logits = np.random.default_rng(0).normal(size=(2, 3, 5)).astype('f')
  p, q = scipy.special.softmax(logits.astype(float), axis=-1)
  found = _kl(*(Bars(jnp.asarray(each), edges) for each in logits))
  np.testing.assert_allclose(found, (p * np.log(p / q)).sum(-1), rtol=1e-5)


def test_divergences_of_equal_distributions_are_zero():
  normal = Gaussian(jnp.array([0.3, -40.0]), jnp.array([0.8, 1e-3]))
  np.testing.assert_array_equal(_kl(normal, normal), 0)
  mixture = GaussianMixture(jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.ones((1, 2)))
  np.testing.assert_array_equal(_kl(mixture, mixture), 0)


# Likelihood.


def test_the_likelihood_of_the_posterior_is_its_entropy():
  """½ log(2πe s²), s² = σ² + x_qᵀ(XᵀX/σ² + I)⁻¹x_q, on the same prompts."""
  row, last = zoo.likelihood(_bayes(), _task(), num_prompts=2048)
  batches = sample_batches(_task(), 0, 2048, 512)
  entropies = []
  for prompt in batches:
    x, query = (np.asarray(array, np.float64) for array in (prompt.x, prompt.x_query))
    precision = np.einsum('bci,bcj->bij', x, x) / _NOISE**2 + np.eye(_D)[None]
    spread = np.einsum('bi,bij,bj->b', query, np.linalg.inv(precision), query)
    entropies.append(np.log(2 * np.pi * np.e * (_NOISE**2 + spread)) / 2)
  gap = row.nll.mean - np.concatenate(entropies).mean()
  assert abs(gap) < 4 * row.nll.stderr
  assert row.kl is not None
  assert row.excess is not None
  assert (row.kl.mean, row.excess.mean) == (0, 0)
  assert (last.predictor, last.nll) == ('bayes', row.nll)


def test_a_wrong_width_and_a_wrong_mean_have_their_divergence():
  """KL(N(m, s²) ‖ N(m + a s, b² s²)) = log b + (1 + a²) / (2 b²) − ½."""
  predictors = {
    'narrow': _Changed(_bayes(), width=0.5),
    'moved': _Changed(_bayes(), moved=1.0),
  }
  rows = zoo.likelihood(predictors, _task(), num_prompts=2048)
  assert [row.predictor for row in rows] == ['narrow', 'moved', 'bayes']
  for row, expected in zip(rows, (np.log(0.5) + 2 - 0.5, 0.5), strict=False):
    assert row.kl.mean == pytest.approx(expected, rel=1e-4)
    assert abs(row.excess.mean - expected) < 4 * row.excess.stderr
  assert 'narrow' in str(rows)
  assert 'kl_stderr' in rows.records()[0]


@pytest.mark.slow
def test_classes_are_measured_by_their_logits():
  task = _signs()
  map_row, row = zoo.likelihood({'map': task.baselines()['map']}, task, 512)
  assert row.predictor == 'bayes'
  assert map_row.kl.mean > 0
  assert abs(map_row.excess.mean - map_row.kl.mean) < 4 * map_row.excess.stderr


def test_what_has_no_likelihood_is_refused():
  with refuses('Zero has no distribution of labels that are numbers'):
    zoo.likelihood(_task().baselines()['zero'], _task(), 4)
  with refuses('num_prompts is 1'):
    zoo.likelihood(_bayes(), _task(), 1)
  with refuses("a predictor is named 'bayes'", 'give it another name'):
    zoo.likelihood({'bayes': _bayes()}, _task(), 4)


_MEASURES = 'likelihood', 'calibration', 'exchangeability'


@pytest.mark.parametrize('measure', mostly_slow(['likelihood'], _MEASURES))
def test_known_labels_are_refused(measure):
  noiseless = zoo.create_task('linear_regression', num_features=2, context_length=4)
  with refuses('the standard deviation 0', 'where labels have no noise'):
    getattr(zoo, measure)(noiseless.baselines()['bayes'], noiseless, 128)


@pytest.mark.slow
def test_a_divergence_from_known_labels_is_refused():
  noiseless = zoo.create_task('linear_regression', num_features=2, context_length=4)
  with refuses(
    'bayes gives 64 of 64 labels of LinearRegression the standard deviation'
  ):
    zoo.likelihood(_LastLabel(), noiseless, 64)


@pytest.mark.slow
def test_a_component_that_is_known_is_enough():
  """Labels that have its value have no density."""
  with refuses('model gives 64 of 64 labels of LinearRegression the standard deviatio'):
    zoo.calibration(_HasKnown(), _task(), 64)


@struct.dataclass(eq=False, repr=False)
class _HasKnown(Tree):
  """A mixture of N(0, 1) and of the number 0."""

  def __call__(self, prompt):
    return jnp.zeros(len(prompt.x))

  def distribution(self, prompt):
    zeros = jnp.zeros((len(prompt.x), 2))
    return GaussianMixture(zeros, zeros, zeros.at[:, 0].set(1))


@struct.dataclass(eq=False, repr=False)
class _Logits(Tree):
  """The logit of +1 is the same for every prompt."""

  logit: float

  def __call__(self, prompt):
    return jnp.full(len(prompt.x), self.logit)


@pytest.mark.parametrize('measure', mostly_full(['calibration'], _MEASURES))
def test_what_is_nan_is_refused(measure):
  nan = _Changed(_bayes(), width=jnp.nan)
  with refuses('model gives 64 of 64 labels of LinearRegression a distribution that'):
    getattr(zoo, measure)(nan, _task(), 64)
  with refuses('64 of 64 labels of LogisticRegression a distribution that is NaN'):
    getattr(zoo, measure)(_Logits(jnp.nan), _signs(), 64)


@pytest.mark.slow
def test_what_is_impossible_is_refused():
  # The square of the distance in units of 1e-30 is beyond float32.
  with refuses('512 of 512 labels of LinearRegression an infinite log density'):
    zoo.likelihood(_Changed(_bayes(), width=1e-30), _task(), 512)


@pytest.mark.slow
def test_a_class_of_the_probability_0_is_refused():
  with refuses('labels of LogisticRegression the probability 0, whose logarithm is −∞'):
    zoo.likelihood(_Logits(-jnp.inf), _signs(), 64)


@pytest.mark.slow
@pytest.mark.full
def test_labels_of_both_kinds_are_refused():
  task = zoo.create_task('tabular', num_features=2, context_length=4, num_classes=2)
  model = zoo.create_model(
    'tabular',
    num_features=2,
    num_outputs=3,
    num_classes=2,
    num_layers=1,
    num_loops=1,
    num_heads=1,
    width=8,
    num_bars=4,
    rngs=nnx.Rngs(0),
  )
  for measure in zoo.calibration, zoo.exchangeability:
    with refuses('Tabular a NumberOrClass', "kind='numbers' or kind='classes'"):
      measure(model, task, 64)


# Calibration.


def test_the_posterior_is_calibrated():
  result = zoo.calibration(_bayes(), _task(), num_prompts=4096)
  assert isinstance(result, PitHistogram)
  assert result.p_value > 1e-3
  assert [row.low for row in result.rows] == [i / 10 for i in range(10)]
  assert sum(row.share.mean for row in result.rows) == pytest.approx(1)
  with refuses('num_prompts is 49', 'at least 50, which is 5 for each bin'):
    zoo.calibration(_bayes(), _task(), num_prompts=49)


def test_a_distribution_that_is_too_narrow_has_labels_in_the_outer_bins():
  """With half the width, u = Φ(2z): P(u < 0.1) = Φ(Φ⁻¹(0.1) / 2) = 0.261."""
  narrow = _Changed(_bayes(), width=0.5)
  result = zoo.calibration(narrow, _task(), num_prompts=4096)
  expected = scipy.stats.norm.cdf(scipy.stats.norm.ppf(0.1) / 2)
  for row in result.rows[0], result.rows[-1]:
    assert abs(row.share.mean - expected) < 2 * row.share.half
  assert result.p_value < 1e-6


@struct.dataclass(eq=False, repr=False)
class _Sharper(Tree):
  """A predictor whose logits are multiplied."""

  predictor: object
  factor: float = 2.0

  def __call__(self, prompt):
    return self.factor * self.predictor(prompt)


def test_the_calibration_error_of_a_constant_is_its_gap():
  """Each sign has the probability ½, and the logit 1 says σ(1)."""
  result = zoo.calibration(_Logits(1.0), _signs(), num_prompts=4096)
  assert isinstance(result, Reliability)
  # The share of right labels among 4096 has a standard error of at most 0.5 / 64.
  assert abs(result.ece - (scipy.special.expit(1) - 0.5)) < 4 * 0.5 / 64
  assert result.ece > 2 * result.null
  (row,) = (row for row in result.rows if row.num_prompts)
  assert row.num_prompts == 4096
  assert row.low < row.confidence < row.high
  drawn = plot_calibration(result, 'title')
  assert drawn.get_title() == 'title'
  assert drawn.get_ylabel() == 'share of labels of that class'
  assert {line.get_label() for line in drawn.lines} >= {'calibrated'}


@pytest.mark.slow
@pytest.mark.full
def test_the_calibration_error_of_classes_is_the_gap_of_the_probabilities():
  """With twice the logit z the error is E[σ(2|z|) − σ(|z|)], as all gaps are ≥ 0."""
  task = zoo.create_task('logistic_regression', num_features=2, context_length=8)
  bayes = task.baselines()['bayes']
  result = zoo.calibration(bayes, task, num_prompts=4096)
  assert isinstance(result, Reliability)
  assert result.ece < result.null
  sharper = zoo.calibration(_Sharper(bayes), task, num_prompts=4096)
  assert isinstance(sharper, Reliability)
  logits = np.concatenate(
    [zoo.predict(bayes, prompt) for prompt in sample_batches(task, 0, 4096, 512)]
  )
  gaps = scipy.special.expit(2 * abs(logits)) - scipy.special.expit(abs(logits))
  # The share of right labels among 4096 has a standard error of at most 0.5 / 64.
  assert abs(sharper.ece - gaps.mean()) < 4 * 0.5 / 64
  assert sharper.ece > 2 * sharper.null
  assert sum(row.num_prompts for row in sharper.rows) == 4096
  assert all(row.low <= row.confidence <= row.high for row in sharper.rows)


def test_shares_of_0_and_1_have_an_error():
  """Wilson's interval of no hits in n is from 0 to 1.96² / (n + 1.96²)."""
  result = zoo.calibration(_Changed(_bayes(), width=1e3), _task(), num_prompts=512)
  assert isinstance(result, PitHistogram)
  assert result.bins[0].share.mean == 0
  assert result.bins[0].share.half == pytest.approx(3.84 / 515.84, rel=1e-3)
  confidence, correct = np.array([0.55, 0.95, 0.95]), np.ones(3)
  alone, pair = _reliability(confidence, correct, 10, 0).rows
  assert alone.accuracy.half == pytest.approx(3.84 / 4.84, rel=1e-3)
  assert pair.accuracy.half == pytest.approx(3.84 / 5.84, rel=1e-3)


def test_the_bootstrap_of_many_prompts_takes_little_memory():
  """All 500 draws of 20,000 prompts together would be 80 MB."""
  confidence = np.random.default_rng(0).uniform(0.5, 1, 20_000)
  tracemalloc.start()
  _reliability(confidence, (confidence > 0.7).astype(float), 10, 0)
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert most < 80e6


def test_a_result_is_printed_below_its_table_and_drawn():
  import matplotlib.pyplot as plt

  found = zoo.calibration(_bayes(), _task(), num_prompts=512)
  assert str(found).endswith(f'shares are equal: p = {found.p_value:.3g}')
  assert repr(found) == str(found)
  # Of a share, half of the interval is exported: it has no standard error.
  share = found.bins[0].share
  record = found.records()[0]
  assert (record['share'], record['share_half']) == (share.mean, share.half)
  assert record['share_confidence'] == 0.95
  assert 'share_stderr' not in record
  _, axes = plt.subplots()
  assert plot_calibration(found, ax=axes) is axes
  assert axes.get_xlabel() == 'probability of a smaller label'
  assert axes.get_ylabel() == 'share of labels in a bin'
  plt.close('all')


# Consistency.


@struct.dataclass(eq=False, repr=False)
class _LastLabel(Tree):
  """Says that the label is that of the last example, with the std 1."""

  def __call__(self, prompt):
    return prompt.y[:, -1]

  def distribution(self, prompt):
    return Gaussian(prompt.y[:, -1], jnp.ones(len(prompt.y)))


@pytest.mark.slow
def test_the_posterior_does_not_depend_on_the_order():
  (row,) = zoo.exchangeability(_bayes(), _task(), 128)
  assert row.num_examples == _C
  # Rounding of means to 1e-6 of the width gives 1e-12; of a width to 1e-6, 1e-6.
  assert abs(row.kl.mean) < 1e-5


def test_a_task_whose_order_matters_is_refused():
  chain = zoo.create_task('markov_chain', order=2, num_symbols=3, context_length=8)
  with refuses('MarkovChain does not say that its examples may be in any order'):
    zoo.exchangeability(chain.baselines()['bayes'], chain, 128)


def test_a_predictor_that_depends_on_the_order_has_its_divergence():
  """KL = (y_i − y_j)²/2: on average (1 − 1/C) (d + σ²), as i = j with 1/C."""
  pair, row = zoo.exchangeability(_LastLabel(), _task(), 2048, lengths=[2, _C])
  assert [pair.num_examples, row.num_examples] == [2, _C]
  expected = (1 - 1 / _C) * (_D + _NOISE**2)
  assert abs(row.kl.mean - expected) < 4 * row.kl.stderr
  # Two examples have one other order: the whole of (y_0 − y_1)²/2.
  assert abs(pair.kl.mean - (_D + _NOISE**2)) < 4 * pair.kl.stderr


@pytest.mark.slow
def test_a_transformer_depends_on_the_order():
  model = zoo.create_model(
    'transformer',
    num_features=_D,
    context_length=_C,
    num_layers=1,
    width=8,
    head='gaussian',
    rngs=nnx.Rngs(0),
  )
  (row,) = zoo.exchangeability(model, _task(), 256)
  assert row.kl.mean > 4 * row.kl.stderr


@pytest.mark.parametrize(
  ('lengths', 'said'), [([1], 'a length is 1'), (2, 'lengths is 2'), ([], 'lengths is')]
)
def test_lengths_without_another_order_are_refused(lengths, said, unchecked):
  with refuses(said):
    zoo.exchangeability(_bayes(), _task(), 128, lengths=lengths)


@struct.dataclass(eq=False, repr=False)
class _Drifts(Tree):
  """N(step · k, 1) after k examples, whatever they are."""

  step: float = 0.1

  def __call__(self, prompt):
    return self.distribution(prompt).mean

  def distribution(self, prompt):
    b, k = prompt.y.shape
    return Gaussian(jnp.full(b, k * self.step), jnp.ones(b))


@struct.dataclass(eq=False, repr=False)
class _Shrinks(Tree):
  """N(y_1 / 2^k, 1) after k examples."""

  def __call__(self, prompt):
    return self.distribution(prompt).mean

  def distribution(self, prompt):
    b, k = prompt.y.shape
    return Gaussian(prompt.y[:, 0] * 0.5**k, jnp.ones(b))


@pytest.mark.parametrize('make', [_task, pytest.param(_signs, marks=FULL)])
def test_the_posterior_is_a_martingale(make):
  task = make()
  rows = zoo.martingale(task.baselines()['bayes'], task, 2048, num_steps=3)
  assert [row.num_drawn for row in rows] == [1, 2, 3]
  for row in rows:
    assert abs(row.drift.mean) < 4 * row.drift.stderr
    assert abs(row.slope.mean) < 4 * row.slope.stderr
    assert row.drift.stderr > 0


def test_predictions_that_drift_are_no_martingale():
  for row in zoo.martingale(_Drifts(), _task(), 64, num_steps=3):
    assert row.drift.mean == pytest.approx(0.1 * row.num_drawn, rel=1e-5)
    assert row.slope is None  # the first predictions are equal


@pytest.mark.slow
def test_predictions_that_shrink_are_no_martingale():
  for row in zoo.martingale(_Shrinks(), _task(), 512, num_steps=3):
    # The mean of y_1 is 0, so that the mean does not move, but each prediction does.
    assert abs(row.drift.mean) < 4 * row.drift.stderr
    assert row.slope.mean == pytest.approx(0.5**row.num_drawn - 1, rel=1e-4)


@pytest.mark.slow
def test_a_wrong_width_alone_is_a_martingale():
  """The mean is linear in each label."""
  wide = zoo.martingale(_Changed(_bayes(), width=2.0), _task(), 2048, num_steps=3)
  assert abs(wide[-1].drift.mean) < 4 * wide[-1].drift.stderr


@pytest.mark.slow
def test_a_prediction_that_is_nan_is_no_drift():
  with refuses('the predictor gives', 'a mean that is NaN'):
    zoo.martingale(_Drifts(math.nan), _task(), 64, num_steps=3)


def test_a_martingale_needs_features_that_do_not_depend_on_labels():
  chain = zoo.create_task('markov_chain', num_symbols=2)
  with refuses('MarkovChain is no zoo.tasks.FunctionClass'):
    zoo.martingale(chain.baselines()['bayes'], chain)
  with refuses('num_steps is 5'):
    zoo.martingale(_bayes(), _task(), num_steps=5)
  with refuses('there are no predictors'):
    zoo.likelihood({}, _task())


def test_too_few_prompts_for_an_interval_are_refused(unchecked):
  with refuses('num_prompts is 127'):
    zoo.exchangeability(_bayes(), _task(), 127)
  with refuses('num_prompts is 63'):
    zoo.martingale(_bayes(), _task(), 63)
  with refuses('num_prompts is 9'):
    zoo.calibration(_bayes(), _task(), 9)
