"""A learning rule is relied on only if the model predicts what it says."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.settings import isotropic
from tests.training.runs import small_config
from zoo import registry, theory
from zoo.models import LTB, MultiHeadLSA, YqLSA
from zoo.theory.trust import check_rule
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


class OptedOut(OtherScores):
  learning_rule = None  # pyright: ignore[reportAssignmentType]

  def __call__(self, prompt):
    return self.forward_tokens(self.embed(prompt))[:, -1, -1]


def _make(cls):
  heads = {'num_heads': 2} if issubclass(cls, MultiHeadLSA) else {}
  return cls(num_features=3, init_scale=0.0, rngs=nnx.Rngs(0), **heads)


@pytest.mark.parametrize(
  ('cls', 'method'),
  [
    (OtherScores, 'forward_tokens'),
    (OtherTokens, 'forward_tokens'),
    (OtherCall, '__call__'),
  ],
)
def test_a_subclass_that_predicts_otherwise_is_named(cls, method):
  with refuses(f'{cls.__name__}.learning_rule()', f'{cls.__name__}.{method}()'):
    check_rule(_make(cls))


@pytest.mark.parametrize('cls', [MultiHeadLSA, YqLSA, LTB, Same, OptedOut])
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
