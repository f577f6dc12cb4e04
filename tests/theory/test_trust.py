"""A learning rule is relied on only if the model predicts what it says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built, predict
from tests.marks import mostly_full
from tests.settings import curve_key, isotropic
from tests.training.runs import small_config
from zoo import theory
from zoo.config import schema
from zoo.core import registry
from zoo.measure.comparison import compare
from zoo.measure.curves import sample_losses
from zoo.models import LTB, MultiHeadLSA, YqLSA
from zoo.tasks import QuadraticRegression
from zoo.theory.trust import changed_weights, check_rule
from zoo.training import train, validate


class OtherScores(MultiHeadLSA):
  """Changes the paper's equation alone; `__call__` still follows the inherited rule."""

  def scores(self, tokens):
    return jnp.tanh(super().scores(tokens))


class OtherTokens(YqLSA):
  def forward_tokens(self, tokens):
    return 2 * super().forward_tokens(tokens)


class OtherCall(LTB):
  def __call__(self, prompt):
    return super().__call__(prompt) + 0.1


class Same(MultiHeadLSA):
  """A subclass that changes nothing that is predicted."""

  def update(self, tokens):
    return super().update(tokens)


class OtherUpdate(MultiHeadLSA):
  def update(self, tokens):
    return jnp.tanh(super().update(tokens))


class OtherGuess(MultiHeadLSA):
  """Both paths and the rule follow."""

  def initial_guess(self):
    return jnp.full(self.num_features, 0.7), jnp.asarray(0.3)


class OtherReadout(MultiHeadLSA):
  """The rule and `__call__` follow, and the token's last entry does not."""

  def readout(self):
    return 2 * super().readout()


class OtherPredictions(YqLSA):
  def predictions(self, prompt):
    return 2 * self.learning_rule().predictions(prompt)


class OptedOut(OtherScores):
  learning_rule = None  # pyright: ignore[reportAssignmentType]

  def __call__(self, prompt):
    return self.forward_tokens(self.embed(prompt))[:, -1, -1]


@functools.cache
def _make(cls):
  heads = {'num_heads': 2} if issubclass(cls, MultiHeadLSA) else {}
  return built(lambda: cls(num_features=3, init_scale=0.0, rngs=nnx.Rngs(0), **heads))


@pytest.mark.parametrize(
  ('cls', 'method'),
  [
    (OtherScores, 'forward_tokens'),
    (OtherTokens, 'forward_tokens'),
    (OtherUpdate, 'forward_tokens'),
    (OtherReadout, 'forward_tokens'),
    (OtherCall, '__call__'),
  ],
)
def test_a_subclass_that_predicts_otherwise_is_named(cls, method):
  with refuses(f'{cls.__name__}.learning_rule()', f'{cls.__name__}.{method}()'):
    check_rule(_make(cls))


@pytest.mark.parametrize('cls', [MultiHeadLSA, YqLSA, LTB, Same, OtherGuess, OptedOut])
def test_what_predicts_as_its_rule_passes_and_so_does_what_has_none(cls):
  check_rule(_make(cls))


class Halved:
  """No NNX module."""

  def learning_rule(self):
    return zoo.LearningRule.gradient_descent(np.ones(3), 0.5)

  def __call__(self, prompt):
    return self.learning_rule()(prompt) / 2


@pytest.mark.parametrize(
  'ask',
  [
    theory.exact_risk,
    theory.excess_risk,
    theory.certificate,
    theory.is_global_optimum,
    lambda subject, task: theory.squared_difference(subject, subject, task),
    zoo.probing.implicit_algorithm,
  ],
)
@pytest.mark.parametrize(
  'subject', [_make(OtherCall), Halved()], ids=['model', 'other']
)
def test_no_exact_number_trusts_it(ask, subject):
  with refuses(f'{type(subject).__name__}.learning_rule()'):
    ask(subject, isotropic(3, 4))


def test_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
  monkeypatch.setitem(registry.models._classes, 'other_scores', OtherScores)
  config = small_config('multi_head_lsa')
  config.model.name = 'other_scores'
  with refuses('OtherScores.learning_rule()'):
    validate(config)
  with refuses('OtherScores.learning_rule()'):
    train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_model_without_its_inherited_rule_is_measured_by_sampling(
  tmp_path, monkeypatch
):
  monkeypatch.setitem(registry.models._classes, 'opted_out', OptedOut)
  config = small_config('multi_head_lsa', train__num_steps=4, eval__every=4)
  config.model.name = 'opted_out'
  summary = train(config, tmp_path)
  assert summary is not None
  assert summary['exact_risk'] is None
  assert summary['eval_risk'] is not None
  assert isinstance(zoo.load(tmp_path).model, OptedOut)


@pytest.mark.parametrize(
  'subject', [_make(OtherScores), _make(OtherReadout), _make(OtherCall), Halved()]
)
@pytest.mark.parametrize('measure', [zoo.curve, compare])
def test_no_curve_trusts_it(measure, subject):
  # Also on a task that exact theory does not cover.
  for task in (isotropic(3, 4), QuadraticRegression(3, 4)):
    with refuses(f'{type(subject).__name__}.learning_rule()'):
      measure(subject, task, 4)


def test_a_curve_does_not_trust_predictions_that_are_not_those_of_call():
  with refuses('OtherPredictions.predictions() at the query is not'):
    zoo.curve(_randomized(OtherPredictions), isotropic(3, 4, 1.0), 4)


@pytest.mark.parametrize('cls', mostly_full([OtherGuess], [OptedOut]))
def test_the_curve_of_a_subclass_is_that_of_its_prediction(cls):
  model, task = _randomized(cls), isotropic(3, 4, 1.0)
  losses = sample_losses({'': model}, task, 20)['']
  prompt = jax.device_get(task.sample(curve_key(), 20))  # its prefixes compile nothing
  for k in range(1, 5):
    prefix = prompt.prefix(k)
    expected = np.square(np.asarray(predict(model, prefix)) - prefix.y_query)
    assert_close(losses[:, k], expected, 1e-3)  # float32, in another order


def _randomized(cls):
  model = _make(cls)
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  return nnx.merge(graph, changed_weights(parameters), rest)


@pytest.mark.parametrize('positions', mostly_full(['every'], ['query']))
def test_it_is_refused_on_a_task_that_theory_does_not_cover(positions, monkeypatch):
  monkeypatch.setitem(registry.models._classes, 'other_scores', OtherScores)
  config = small_config('multi_head_lsa', objective__positions=positions)
  config.model.name = 'other_scores'
  with config.unlocked():
    config.task = schema.section('task', 'quadratic_regression')
  with refuses('OtherScores.learning_rule()'):
    validate(config)
