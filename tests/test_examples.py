"""The examples in docstrings run, and print what they say."""

import doctest
import importlib
import pkgutil
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import studies
import zoo

# What needs an extra.
_NEED_EXTRAS = {
  'studies.llm',
  'studies.llm.language_model',
  'zoo.training.wandb_writer.WandbWriter',
}
# They run the circuits of a trained model, compile a risk in float64, and train.
_SLOW = {
  'zoo.probing.inside.circuits.circuit',
  'zoo.theory.deep.sampled.sampled_risk',
  'zoo.training.run_plots.plot_examples',
  'zoo.training.run_plots.plot_sweep',
  'zoo.training.sweeps.run.sweep',
}
_MARKS = pytest.mark.slow, pytest.mark.timeout(900)


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
    pytest.param(test, id=test.name, marks=_MARKS if test.name in _SLOW else [])
    for test in found
    if test.examples and test.name not in _NEED_EXTRAS
  ]


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
  runner.run(example, out=printed.append)
  assert not runner.failures, ''.join(printed)
