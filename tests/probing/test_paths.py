"""The way between two models, and the constructed optimum."""

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.compiled import built
from tests.marks import mostly_full
from tests.probing.models import Softmax, biased
from tests.settings import general, isotropic
from zoo import theory
from zoo.probing import constructed_optimum, interpolation
from zoo.theory import constructions
from zoo.theory.exact import float64_rule


def random_model(name, **other):
  return built(
    lambda: zoo.create_model(
      name, num_features=3, init_scale=0.5, rngs=nnx.Rngs(2), **other
    )
  )


def test_risks_along_both_lines_are_those_of_the_models_there():
  task = general(noise_std=0.7)
  one, two = biased(), biased()
  two.w_p[...] = -2 * two.w_p[...]
  found = interpolation(one, two, task, num_points=4)
  assert found.weight_risk is not None
  for count, part in enumerate(found.fraction):
    with jax.enable_x64(True):
      rule = float64_rule(one) * (1 - part)
      rule = rule + float64_rule(two) * part
      risk = theory.exact_risk(rule, task)
    assert found.rule_risk[count] == pytest.approx(risk, rel=1e-9)
    between = biased()
    between.w_p[...] = (1 - 3 * part) * between.w_p[...]
    # These weights are rounded to float32.
    risk = theory.exact_risk(between, task)
    assert found.weight_risk[count] == pytest.approx(risk, rel=1e-5)


_MODELS = {
  'yq_lsa': lambda: random_model('yq_lsa', num_heads=2),
  'ltb': lambda: random_model('ltb', num_heads=2, hidden_features=6),
  'multi_head_lsa': lambda: biased(num_heads=5),
}


@pytest.mark.parametrize(
  ('name', 'task'),
  mostly_full(
    [('yq_lsa', 'isotropic'), ('ltb', 'general'), ('multi_head_lsa', 'general')],
    _MODELS,
    ['isotropic', 'general'],
  ),
)
def test_the_constructed_optimum_is_the_infimum_of_its_class(name, task):
  model = _MODELS[name]()
  task = general() if task == 'general' else isotropic(3, 4, prior_mean=0.5)
  optimum = constructed_optimum(model, task)
  assert optimum is not None
  assert type(optimum) is type(model)
  guess, bias = None, 0.0
  if name == 'multi_head_lsa':  # its guess is not trained
    guess, bias = np.asarray(model.guess[...]), float(model.bias[...])
  infimum = theory.exact_risk(theory.optimal_rule(task, guess, bias), task)
  # Weights in float32 are off by 6e-8, which a minimum feels squared.
  assert theory.exact_risk(optimum, task) == pytest.approx(infimum, rel=1e-9)
  found = interpolation(model, optimum, task, num_points=2)
  assert found.weight_risk is not None
  assert found.weight_risk[-1] == pytest.approx(infimum, rel=1e-9)


def test_there_is_none_for_too_few_heads_or_another_class():
  task = isotropic(3, 4, prior_mean=0.5)
  assert constructed_optimum(random_model('lsa'), task) is None
  assert constructed_optimum(Softmax(3), task) is None


def test_models_of_different_shapes_have_the_line_of_rules_alone():
  task = isotropic(3, 4, prior_mean=0.5)
  gd = constructions.gd_transformer(np.full(3, 0.5), 0.3)
  for other in biased(), zoo.estimators.gradient_descent(task):
    assert interpolation(gd, other, task).weight_risk is None
  assert interpolation(biased(2), biased(3), task).weight_risk is None
  with refuses('no learning rule'):
    interpolation(gd, Softmax(3), task)
