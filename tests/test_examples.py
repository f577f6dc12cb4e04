"""The examples in docstrings run, and print what they say."""

import doctest
import importlib
import pkgutil
import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import studies
import zoo
from tests.marks import FULL, SLOW

# What needs an extra.
_NEED_EXTRAS = {
  'studies.llm',
  'studies.llm.language_model',
  'zoo.training.wandb_writer.WandbWriter',
}
# Examples of these packages sample tasks, and build, run or train models.
_SLOW_PACKAGES = (
  *('zoo.measure.', 'zoo.mixers.', 'zoo.models.', 'zoo.probing.', 'zoo.sklearn.'),
  *('zoo.tasks.', 'zoo.training.'),
)
# Of the others, these took 0.2 s or more with an empty cache of programs.
_SLOW = {
  'studies.runner.load',
  'zoo',
  'zoo.contracts.models.check_model',
  'zoo.core.beliefs.Belief',
  'zoo.core.distributions.Bars',
  'zoo.core.distributions.Gaussian',
  'zoo.core.distributions.NumberOrClass',
  'zoo.core.learning_rule.LearningRule',
  'zoo.core.losses.cross_entropy',
  'zoo.core.protocols.BaseTask',
  'zoo.core.protocols.BaseTask.belief',
  'zoo.core.protocols.BaseTask.redraw',
  'zoo.core.protocols.BaseTask.sample',
  'zoo.core.protocols.Model',
  'zoo.create_model',
  'zoo.create_task',
  'zoo.estimators.baselines.Averaging',
  'zoo.estimators.baselines.Baseline',
  'zoo.estimators.baselines.Describing',
  'zoo.estimators.baselines.NearestNeighbours',
  'zoo.estimators.baselines.OfClasses',
  'zoo.estimators.baselines.OfSigns',
  'zoo.estimators.linear.Estimator',
  'zoo.estimators.linear.GDBeta',
  'zoo.estimators.linear.GradientDescent',
  'zoo.estimators.linear.Ridge',
  'zoo.estimators.linear.bayes',
  'zoo.estimators.linear.ols',
  'zoo.reports.probe.algorithm_words.name_layer_algorithms',
  'zoo.reports.probe.summaries.summary',
  'zoo.storage.loading.SavedModel.untrained',
  'zoo.storage.loading.load',
  'zoo.storage.saving.export',
  'zoo.storage.saving.save',
  'zoo.theory.certificates.certificate',
  'zoo.theory.constructions.deep_gradient_descent',
  'zoo.theory.constructions.gd_plus_plus',
  'zoo.theory.constructions.gd_transformer',
  'zoo.theory.constructions.ltb_from_yq_lsa',
  'zoo.theory.constructions.multi_head_lsa',
  'zoo.theory.constructions.multi_head_lsa_for_signs',
  'zoo.theory.constructions.yq_lsa_from_ltb',
  'zoo.theory.deep.gd_plus_plus.gd_plus_plus_optimum',
  'zoo.theory.deep.sampled.sample_contexts',
  'zoo.theory.deep.sampled.sampled_risk',
  'zoo.theory.dynamics.curvature.curvature',
  'zoo.theory.dynamics.flow.descent',
  'zoo.theory.dynamics.flow.gradient_flow',
  'zoo.theory.dynamics.flow.gradient_flows',
  'zoo.theory.exact._form_risks',
  'zoo.theory.exact.exact_curve',
  'zoo.theory.exact.exact_form',
  'zoo.theory.exact.exact_form_risks',
  'zoo.theory.exact.exact_risk',
  'zoo.theory.exact.exact_risks',
  'zoo.theory.exact.excess_risk',
  'zoo.theory.exact.form_risk',
  'studies.paper.asymptotic.softmax_pair',
  'zoo.theory.exact.squared_difference',
  'zoo.theory.risk.population_risk',
  'zoo.theory.sequential._curve',
  'zoo.theory.sequential.recurrence_curve',
  'zoo.theory.trust.check_rule',
}
# The dearest of all, and those of probing, which load and run trained models.
_FULL_PACKAGES = ('zoo.probing.',)
_FULL = {
  'studies.runner.load',
  'zoo.contracts.tasks.check_task',
  'zoo.models.tabular.Tabular',
  'zoo.tasks.tabular.Tabular',
  'zoo.training.hooks.Hook',
  'zoo.training.run_plots.plot_examples',
  'zoo.training.run_plots.plot_sweep',
  'zoo.training.sweeps.run.sweep',
}


def _modules() -> list[types.ModuleType]:
  names = [
    module.name
    for package in (zoo, studies)
    for module in pkgutil.walk_packages(package.__path__, f'{package.__name__}.')
    if module.name not in _NEED_EXTRAS
  ]
  return [zoo, studies, *map(importlib.import_module, names)]


def _examples() -> list[Any]:
  finder = doctest.DocTestFinder()
  found = [test for module in _modules() for test in finder.find(module)]
  return [
    pytest.param(test, id=test.name, marks=_marks(test.name))
    for test in found
    if test.examples and test.name not in _NEED_EXTRAS
  ]


def _marks(name: str) -> Sequence[pytest.MarkDecorator]:
  if name.startswith(_FULL_PACKAGES) or name in _FULL:
    return *FULL, pytest.mark.timeout(900)
  return [SLOW] if name.startswith(_SLOW_PACKAGES) or name in _SLOW else []


@pytest.mark.parametrize('example', _examples())
def test_the_example_of_a_docstring_runs_as_it_stands(
  example, tmp_path, monkeypatch, register, unchecked, promotion_that_optax_needs
):
  monkeypatch.chdir(tmp_path)
  rooms = {'zoo': zoo, 'studies': studies}
  libraries = {'jax': jax, 'jnp': jnp, 'np': np, 'nnx': nnx, 'optax': optax}
  example.globs.update(rooms | libraries)
  flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
  printed: list[str] = []
  runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
  # Compilers divide in different ways: np.round of a float32 is 0.2 or 0.19999999.
  with np.printoptions(precision=6):
    runner.run(example, out=printed.append)
  assert not runner.failures, ''.join(printed)
