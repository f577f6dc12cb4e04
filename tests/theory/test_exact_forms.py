"""Exact risks of models outside of the linear family, and training on them."""

import importlib
import inspect
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built
from tests.marks import mostly_full
from tests.settings import isotropic
from tests.theory.deep_rules import predict
from tests.training.runs import small_config
from tests.weights import randomize
from zoo import theory
from zoo.core.exact_forms import Recurrence
from zoo.models import DeepLSA
from zoo.models.sequential import RULES, SequentialLearner
from zoo.theory.deep.deep_rule import deep_rule_risk
from zoo.training.experiment import validate

_D = 3
_risk = jax.jit(deep_rule_risk)


def _task(c: int, noise_std: float, **other):
  mean = [1.0, 0.5, -0.2]
  variance, prior = 0.7 * np.eye(_D), np.diag([2.0, 1.0, 0.2])
  covariances = {'prior_covariance': prior, 'feature_covariance': variance}
  return isotropic(_D, c, mean, noise_std, **covariances | other)


@pytest.mark.parametrize(
  ('guess', 'readout', 'shared'),
  mostly_full(
    [('fixed', 'linear', False)],
    ['zero', 'fixed', 'linear', 'residual'],
    [('last', True), ('linear', False)],
    slow=[('residual', 'last', True)],
  ),
)
def test_the_form_of_a_model_predicts_what_the_model_predicts(
  float64, guess, readout, shared
):
  options: dict[str, Any] = {'readout': readout, 'shared': shared, 'guess': guess}
  if guess == 'fixed':
    options |= {'guess_weights': [0.5, -1.0, 0.3], 'guess_bias': 0.7}
  model = built(
    lambda: DeepLSA(_D, 1, 2, num_heads=2, form='scalar', **options, rngs=nnx.Rngs(0))
  )
  model = randomize(model, 0.3)
  draw = np.random.default_rng(0).normal
  x, y, query = draw(size=(4, 5, _D)), draw(size=(4, 5)), draw(size=(4, _D))
  parts: Any = x, y, query, y[:, 0]
  prompt = zoo.Prompt(*parts)
  predictions, form = nnx.jit(lambda model: (model(prompt), model.exact_form()))(model)
  form = jax.tree.map(np.asarray, form)
  # Sums of some hundred products in float64, in another order.
  assert_close(predictions, predict(form, x, y, query), 1e-12)


def _small(**changes):
  options = {
    'model__num_layers': 2,
    'model__form': 'scalar',
    'model__guess': 'residual',
  }
  return small_config('deep_lsa', **options | changes)


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'model__form': 'dense'}, ["form is 'dense'", "'scalar'"]),
    ({'model__num_layers': 6}, ['6 layers', 'at most 5']),
    (
      {'model__num_layers': 3, 'task__feature_covariance': np.diag([1.0, 2.0, 3.0])},
      ['3 layers', 'multiple of the identity', 'at most 2'],
    ),
    ({'train__num_parts': 2}, ['num_parts is 2', "'exact'"]),
    ({'objective__positions': 'every'}, ["'every'", "'exact'"]),
  ],
)
def test_what_theory_lacks_is_refused_in_one_line(changes, said):
  with refuses(*said):
    validate(_small(**{'objective__name': 'exact'} | changes))


class Held(nnx.Module):
  """A model of one's own that predicts as the one that it holds, or not."""

  factor = 1

  def __init__(self, inner):
    self.inner = inner

  def exact_form(self) -> Any:
    return self.inner.exact_form()

  def __call__(self, prompt):
    return self.factor * self.inner(prompt)


class Doubled(Held):
  factor = 2


class NoModule:
  def exact_form(self):
    numbers = np.ones(4)
    return Recurrence(np.zeros(_D), numbers, 0 * numbers, numbers)

  def __call__(self, prompt):
    return jnp.einsum('bc,bcd,bd->b', prompt.y, prompt.x, prompt.x_query)


class WrongStart(NoModule):
  def __call__(self, prompt):
    return super().__call__(prompt) + prompt.x_query[:, 0]


def _own_models():
  options: dict[str, Any] = {'form': 'scalar', 'guess': 'residual', 'readout': 'linear'}
  yield lambda: DeepLSA(_D, 1, 2, **options, rngs=nnx.Rngs(0))
  for rule in RULES:
    yield lambda rule=rule: SequentialLearner(_D, 4, rule, rngs=nnx.Rngs(0))


_OWN = [*_own_models()]


@pytest.mark.slow
@pytest.mark.parametrize('build', mostly_full(_OWN[1:2], _OWN))
def test_the_form_of_a_class_of_ones_own_is_believed_if_it_predicts_so(build):
  model, task = built(build), _task(4, 0.5)
  expected = theory.exact_risk(model, task)
  assert theory.exact_risk(Held(model), task) == expected
  jax.tree.map(
    np.testing.assert_array_equal,
    theory.exact_form(Held(model)),
    theory.exact_form(model),
  )
  for refused in theory.exact_form, lambda model: theory.exact_risk(model, task):
    with refuses('Doubled.exact_form() does not predict', 'Doubled.__call__()'):
      refused(Doubled(model))


@pytest.mark.slow
def test_so_is_that_of_a_class_that_is_no_module():
  numbers = np.ones(4)
  curve = theory.sequential.risk_curve(
    _task(4, 0.5), numbers, 0 * numbers, numbers, [0] * 3
  )
  assert_close(theory.exact_risk(NoModule(), _task(4, 0.5)), curve[-1], 1e-12)
  with refuses('WrongStart.exact_form() does not predict'):
    theory.exact_risk(WrongStart(), _task(4, 0.5))
  form: Any = theory.exact_form(NoModule())
  np.testing.assert_array_equal(form.write, numbers)
  with refuses('Ridge has no exact form'):
    theory.exact_form(zoo.estimators.ridge(_task(4, 0.5)))


def _own_deep_lsa(folder, monkeypatch, factor=''):
  """The source of DeepLSA in a file of one's own, under another name."""
  source = pathlib.Path(str(inspect.getsourcefile(DeepLSA))).read_text()
  source = source.replace("model('deep_lsa')", "model('own_deep')")
  source = source.replace('class DeepLSA', 'class OwnDeep')
  source = source.replace(
    'return self.sign * query', f'return {factor}self.sign * query'
  )
  (folder / 'own_deep_lsa.py').write_text(source)
  monkeypatch.syspath_prepend(folder)
  monkeypatch.delitem(sys.modules, 'own_deep_lsa', raising=False)
  importlib.import_module('own_deep_lsa')


def _own_config(name='own_deep', **changes) -> Any:
  config = small_config('deep_lsa', model__form='scalar', **changes)
  config.model.name = name
  return config


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('register', 'promotion_that_optax_needs')
def test_a_copy_of_a_class_has_the_risk_of_the_class(tmp_path, monkeypatch):
  _own_deep_lsa(tmp_path, monkeypatch)
  summaries: Any = (
    zoo.train(_own_config(name), tmp_path / name) for name in ('own_deep', 'deep_lsa')
  )
  own, expected = summaries
  assert own['exact_risk'] == expected['exact_risk'] is not None
  validate(_own_config(objective__name='exact'))


@pytest.mark.slow
@pytest.mark.usefixtures('register')
def test_a_form_that_predicts_otherwise_is_refused_before_anything_is_written(
  tmp_path, monkeypatch
):
  _own_deep_lsa(tmp_path, monkeypatch, '1.01 * ')
  said = 'OwnDeep.exact_form() does not predict the same as OwnDeep.__call__()'
  for name in 'exact', 'sampled':
    with refuses(said):
      zoo.train(_own_config(objective__name=name), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  config = _own_config()
  config.model.form = 'sparse'  # which has no exact form, so that none is wrong
  validate(config)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_run_without_an_exact_risk_says_why_once(tmp_path, caplog):
  zoo.train(small_config('deep_lsa'), tmp_path / 'run')
  said = [
    record.getMessage() for record in caplog.records if record.levelname == 'WARNING'
  ]
  assert said == [
    "the run has no exact risk: form is 'dense'; the risk of deep_lsa is known exactly "
    "only with 'scalar'"
  ]
