"""The loss by number of examples, in one pass and prefix by prefix."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built
from tests.marks import mostly_slow
from tests.settings import curve_key, isotropic
from zoo.core import losses
from zoo.core.distributions import Bars
from zoo.core.draws import EVAL_STREAM, INIT_STREAM, TRAIN_STREAM, stream_of
from zoo.core.learning_rule import LearningRule
from zoo.estimators.baselines import Averaging, HostBaseline, Zero
from zoo.estimators.linear import Ridge
from zoo.measure.comparison import compare
from zoo.measure.curve import Curve, sample_losses, summarise
from zoo.measure.intervals import estimate
from zoo.measure.predict import Programs, sample_batches

_D, _C, _N = 3, 4, 40
# A moment of float32 sums in another order, of predictions that cancel.
_REORDERED = 1e-4
_PROGRAMS = Programs()  # that all tests share, which change nothing that they call


@functools.cache
def _task() -> zoo.tasks.LinearRegression:
  return isotropic(_D, _C, prior_mean=1.0, noise_std=0.5)


@functools.cache
def _model() -> Any:
  sizes = {'num_features': _D, 'init_scale': 0.6}
  return built(lambda: zoo.create_model('yq_lsa', **sizes, rngs=nnx.Rngs(0)))


@functools.cache
def _losses() -> dict[str, Any]:
  """The losses of three predictors on the prompts of a curve."""
  predictors = {'a': Zero(), 'b': Averaging(), 'c': Zero()}
  return sample_losses(predictors, _task(), _N, programs=_PROGRAMS)


class ByPrefix:
  """Hides all but the prediction of the query, so that prefixes are predicted."""

  def __init__(self, predictor):
    self.predictor = predictor

  def __call__(self, prompt):
    return self.predictor(prompt)


def _prompts(count=_N, seed=0) -> zoo.Prompt:
  """The prompts of a curve of up to 512 prompts."""
  prompt = _task().sample(curve_key(seed), count)
  return jax.device_get(prompt)  # whose parts compile nothing


@pytest.mark.parametrize('kind', mostly_slow(['model'], ['model', 'baseline', 'rule']))
def test_one_pass_is_the_same_as_prefix_by_prefix(kind):
  predictor: Any = {
    'model': _model,
    'baseline': Ridge,
    'rule': lambda: LearningRule.gradient_descent(np.ones(_D), 0.7),
  }[kind]()
  lengths = 1, 3, _C
  predictors = {'one': predictor, 'each': ByPrefix(predictor)}
  sampled = sample_losses(predictors, _task(), _N, lengths=lengths, programs=_PROGRAMS)
  prompt = _prompts()
  if kind == 'rule':  # before the first example it predicts from its start
    at_start = np.square(prompt.x[:, 0].sum(axis=1) - prompt.targets[:, 0])
    first = sample_losses({'': predictor}, _task(), _N, lengths=[0])[''][:, 0]
    assert_close(first, at_start, _REORDERED)
  calls = jax.jit(lambda prompt: [predictor(prompt.prefix(k)) for k in lengths])(prompt)
  for i, (k, predicted) in enumerate(zip(lengths, calls, strict=True)):
    expected = np.square(np.asarray(predicted) - prompt.prefix(k).y_query)
    # Least squares magnifies rounding by the condition number, up to a few hundred.
    tolerance = 1e-2 if kind == 'baseline' else _REORDERED
    assert_close(sampled['one'][:, i], expected, tolerance)
    assert_close(sampled['each'][:, i], expected, tolerance)


def test_all_predictors_see_the_same_prompts_which_depend_on_the_seed_alone():
  together = _losses()
  np.testing.assert_array_equal(together['a'], together['c'])
  alone = sample_losses({'': Averaging()}, _task(), _N, programs=_PROGRAMS)['']
  np.testing.assert_array_equal(together['b'], alone)
  count = 512 + _N  # in two batches
  options = {'lengths': [_C], 'programs': _PROGRAMS}
  more = sample_losses({'': Zero()}, _task(), count, **options)['']
  np.testing.assert_array_equal(more[:_N], together['a'][:, [_C]])
  assert len(np.unique(more)) == count  # also those of the second batch
  other = sample_losses({'': Averaging()}, _task(), _N, 1, programs=_PROGRAMS)['']
  assert not np.any(other == together['b'])


def test_prompts_share_no_key_with_training():
  """Otherwise a task may get the numbers of the weights as features of its prompts."""
  streams = [stream_of(5, i) for i in (INIT_STREAM, TRAIN_STREAM, EVAL_STREAM)]
  keys: list[Any] = []
  programs: Any = Programs()
  programs.sample = lambda task, key, batch_size: keys.append(key)
  for _ in sample_batches(_task(), 5, 3, 1, programs):
    pass

  def words(keys):
    return {tuple(jax.random.key_data(key).tolist()) for key in keys}

  def with_children(keys):
    return words(
      [*keys, *(jax.random.fold_in(key, i) for key in keys for i in range(3))]
    )

  # The first weight has a key of the same form as the first prompt of a batch.
  assert words([nnx.Rngs(params=streams[0]).params()]) <= with_children(streams)
  assert len(with_children(keys)) == 12
  assert not with_children(keys) & with_children(streams)


def test_a_curve_has_means_medians_and_standard_errors():
  values = _losses()['a'][:, [0, 3]]
  curve = zoo.curve(Zero(), _task(), _N, lengths=[0, 3])
  assert isinstance(curve, Curve)
  np.testing.assert_array_equal(curve.num_examples, [0, 3])
  of_iterator: Any = zoo.curve(Zero(), _task(), _N, lengths=range(0, 4, 3))
  np.testing.assert_array_equal(of_iterator.num_examples, [0, 3])
  np.testing.assert_allclose(curve.mean, values.mean(0))
  np.testing.assert_allclose(curve.median, np.median(values, axis=0))
  deviation = np.sqrt(np.sum((values - values.mean(0)) ** 2, axis=0) / (_N - 1))
  np.testing.assert_allclose(curve.stderr, deviation / np.sqrt(_N))
  halves = [estimate(column).half for column in values.T]
  np.testing.assert_allclose(curve.half, halves)
  every = summarise(np.ones((3, 5)))
  np.testing.assert_array_equal(every.num_examples, range(5))
  # The targets are those without noise.
  targets = np.asarray(_prompts().targets)
  np.testing.assert_allclose(values, np.square(targets[:, [0, 3]]), rtol=1e-6)


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'lengths': [_C + 1]}, f'a length is {_C + 1}; it must be an integer from 0 to'),
    ({'lengths': [-1]}, 'a length is -1; it must be an integer from 0 to'),
    ({'lengths': [1.5]}, 'a length is 1.5'),
    ({'lengths': [True]}, 'a length is True'),
    ({'lengths': 3}, 'lengths is 3; it must be a list of integers'),
    ({'lengths': '12'}, "lengths is '12'"),
    ({'lengths': []}, 'lengths is empty'),
    ({'num_prompts': 1}, 'num_prompts is 1'),
    ({'num_prompts': 2.5}, 'num_prompts is 2.5'),
    ({'seed': -1}, 'seed is -1'),
  ],
  ids=str,
)
def test_what_is_out_of_range_is_refused(unchecked, changes, said):
  with refuses(said):
    zoo.curve(Zero(), _task(), **{'num_prompts': 2} | changes)


def test_what_cannot_predict_is_refused(unchecked):
  nothing: Any
  for nothing, said in (
    (3, 'int is not a predictor: it must be a model, an estimator'),
    (_task(), 'LinearRegression is not a predictor'),
    (Zero, 'Zero is a class, not a predictor; create an object of it'),
    (zoo.models.MultiHeadLSA, 'MultiHeadLSA is a class'),
  ):
    with refuses(said):
      zoo.curve(nothing, _task(), 2)
  with refuses('is for 3 features; the prompt has 5'):
    zoo.curve(_model(), isotropic(5, 4), 2)


def test_what_is_no_task_or_has_wrong_fields_is_refused(unchecked):
  name: Any = 'linear_regression'
  model: Any = _model()
  wrong = zoo.tasks.LinearRegression(3, 4, noise_std=-1.0)
  prompt = _task().sample(jax.random.key(0), 2)
  measures = {
    'curve': zoo.curve,
    'compare': compare,
    'likelihood': zoo.likelihood,
    'calibration': zoo.calibration,
    'distribution': lambda model, task: zoo.distribution(model, prompt, task),
  }
  for measure in measures.values():
    with refuses('str is not a task: it must be an object of a subclass of zoo.Task'):
      measure(model, name)
    with refuses('noise_std is -1'):
      measure(model, wrong)
  with refuses('is not a task'):
    zoo.curve(_task().baselines()['bayes'], model, 2)
  with refuses('noise_std is -1'):
    zoo.theory.exact_risk(model, wrong)


class _Host(HostBaseline):
  def __init__(self):
    self.lengths: list[int] = []

  def fit_and_predict(self, x, y, x_query):
    self.lengths.append(len(x))
    return float(y.sum())


def test_a_baseline_on_the_host_fits_each_prompt_at_each_length():
  host = _Host()
  options = {'lengths': [0, 2], 'programs': _PROGRAMS}
  sampled = sample_losses({'': host}, _task(), _N, **options)['']
  assert host.lengths == [0] * _N + [2] * _N
  prompt = _prompts()
  targets = np.asarray(prompt.targets)
  expected = np.square(np.sum(prompt.y[:, :2], axis=1) - targets[:, 2])
  np.testing.assert_allclose(sampled[:, 1], expected, rtol=1e-5)


def test_several_steps_of_gradient_descent_have_no_rule_and_can_be_measured():
  """The losses are those of a loop over the steps."""
  task = _task()
  descent = zoo.estimators.gradient_descent(task, 0.4, num_steps=3)
  prompts = _prompts()
  weights = np.ones((_N, _D))  # the prior mean
  for _ in range(3):
    residual = np.einsum('bcd,bd->bc', prompts.x, weights) - prompts.y
    weights -= 0.4 * np.einsum('bcd,bc->bd', prompts.x, residual) / _C
  errors = np.einsum('bd,bd->b', prompts.x_query, weights) - prompts.y_query
  curve = zoo.curve(descent, task, num_prompts=_N, seed=0, lengths=[_C])
  assert_close(curve.mean[0], np.mean(errors**2), 1e-4)
  with refuses('3 steps of gradient descent are no learning rule'):
    descent.learning_rule()


# Losses, against NumPy.


def _logits(*shape):
  logits = np.random.default_rng(0).normal(scale=3, size=shape)
  return logits, _float32(logits)


def _float32(numbers):
  return np.asarray(numbers, np.float32)


def test_log_loss():
  f, logits = _logits(50)
  p = np.random.default_rng(1).uniform(size=50)
  q = 1 / (1 + np.exp(-f))
  expected = -p * np.log(q) - (1 - p) * np.log(1 - q)
  # And of huge logits, whose exponentials overflow.
  logits, targets = _float32([*logits, 1e4, -1e4]), _float32([*p, 1, 0])
  # And of certainty: right, and wrong, or certain of what is not.
  infinite = [np.inf, -np.inf, np.inf, -np.inf, np.inf, -np.inf]
  logits = _float32([*logits, *infinite])
  targets = _float32([*targets, 1, 0, 0, 1, 0.5, 0.5])
  # Logits up to 9 in float32.
  values = jax.jit(losses.log_loss)(logits, targets)
  np.testing.assert_allclose(values, [*expected, 0, 0, 0, 0, *[np.inf] * 4], 1e-4)


def test_cross_entropy():
  f, logits = _logits(50, 3)
  p = np.random.default_rng(1).dirichlet(np.ones(3), size=50)
  q = np.exp(f) / np.exp(f).sum(1, keepdims=True)
  expected = -np.sum(p * np.log(q), axis=1)
  values = jax.jit(losses.cross_entropy)(logits, p.astype(np.float32))
  np.testing.assert_allclose(values, expected, rtol=1e-4)


def test_losses_of_right_predictions_keep_their_digits():
  """The loss of a logit x is log(1 + e⁻ˣ), and its slope is −1/(1 + eˣ)."""
  x = _float32([0.5, 3, 8, 15, 16.5, 30, 80])

  def logits(x):  # The two other classes together have the logit 0.
    return jnp.stack([-np.log(2), x, -np.log(2)])

  found = {
    'plus': lambda x: losses.log_loss(x, jnp.ones(())),
    'minus': lambda x: losses.log_loss(-x, jnp.zeros(())),
    'class': lambda x: losses.cross_entropy(logits(x), jnp.array([0.0, 1.0, 0.0])),
    'bar': lambda x: -Bars(logits(x), jnp.array([-1.0, 0, 1, 2])).log_prob(0.5),
  }
  exact = np.log1p(np.exp(-np.float64(x)))
  slopes = -1 / (1 + np.exp(np.float64(x)))
  for name, loss in found.items():
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss)))(x)
    np.testing.assert_allclose(values, exact, 1e-5, err_msg=name)
    np.testing.assert_allclose(gradients, slopes, 1e-5, err_msg=name)
  # A probability near 1 that float32 has.
  soft = jnp.full(len(x), 1 - 2**-20)
  exact = exact + 2**-20 * x
  np.testing.assert_allclose(losses.log_loss(jnp.asarray(x), soft), exact, 1e-5)


def test_cross_entropy_of_an_impossible_class():
  logits = _float32([[-np.inf, 0, 0], [-np.inf, 0, 0]])
  target = jnp.asarray(_float32([[0, 1, 0], [1, 0, 0]]))
  found, slopes = jax.jit(
    lambda logits: (
      losses.cross_entropy(logits, target),
      jax.grad(lambda logits: losses.cross_entropy(logits, target)[0])(logits),
    )
  )(logits)
  np.testing.assert_allclose(found, [np.log(2), np.inf], 1e-6)
  np.testing.assert_allclose(slopes[0], [0, -0.5, 0.5], 1e-6)


def test_error_rates():
  logits, target = _float32([2, -2, 0]), _float32([0.9, 0.9, 0.9])
  rates = jax.jit(losses.error_rate)(logits, target)
  np.testing.assert_allclose(rates, [0.1, 0.9, 0.5], 1e-6)
  logits = _float32([[1, 3, 2], [1, 1, 0], [0, 0, 0]])
  target = _float32([[0.2, 0.5, 0.3]] * 3)
  expected = [0.5, 1 - 0.35, 1 - 1 / 3]
  rates = jax.jit(losses.class_error_rate)(logits, target)
  np.testing.assert_allclose(rates, expected, 1e-6)


def test_logits_of_probabilities_are_finite():
  p = _float32([0.0, 0.2, 0.5, 1.0])

  @jax.jit
  def compute(p):
    logits = losses.logit(p)
    return logits, losses.log_loss(logits, p), losses.log_probability(p)

  logits, least, log_p = jax.device_get(compute(p))
  assert np.isfinite(logits).all()
  np.testing.assert_allclose(logits[1:3], [np.log(0.2 / 0.8), 0], atol=1e-6)
  # The logits of 0 and of 1 differ by their sign, and lose 1e-6 if they are right.
  np.testing.assert_array_equal(logits[3], -logits[0])
  np.testing.assert_allclose(least[[0, 3]], 1e-6, rtol=1e-5)
  assert np.isfinite(log_p).all()
  np.testing.assert_allclose(log_p[1:], np.log([0.2, 0.5, 1.0]), atol=1e-6)


def test_a_prediction_with_an_axis_too_many_is_refused(unchecked):
  """Broadcasting would pair each prediction with the targets of all prompts."""
  task = _task()
  prompt = task.sample(jax.random.key(0), 8)

  def column(prompt):
    return prompt.y.mean(axis=1, keepdims=True)

  with refuses('the prediction has the shape (8, 1); it must be (8,)'):
    task.loss(column(prompt), prompt.y_query)
  with refuses('has the shape', 'it must be'):
    zoo.curve(column, task, num_prompts=16)
  kinds = zoo.create_task('gaussian_clusters', num_features=2, context_length=3)
  with refuses('the prediction has the shape (8,)'):
    kinds.loss(jnp.zeros(8), jnp.zeros((8, kinds.num_outputs)))
