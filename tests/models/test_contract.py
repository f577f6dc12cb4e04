"""What every registered model must do; a new one is covered by being registered."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

import zoo
from tests.compare import refuses
from tests.compiled import built
from tests.marks import mostly_full, mostly_slow
from tests.models import bodies
from tests.settings import isotropic
from zoo.core.registry import MODELS, parameters
from zoo.models.initial_guess import GUESSES

_D, _C, _B = bodies.D, bodies.C, 8

# Hyper-parameters, beyond the number of features, for the models that need some. With
# a large scale the softmax is one-hot, and its rounding errors are amplified.
_NEEDED: dict[str, dict[str, Any]] = {'transformer': {'init_scale': None}}
# Given to every model that takes them: more than one head, and matrices so large that
# attention is not lost beside the rest of the prediction. The context is the longest.
# A narrow layer has all that more and wider ones have, and compiles sooner.
_WHERE_TAKEN = {
  'num_heads': 2,
  'init_scale': 0.6,
  'context_length': 2 * _D + 3,
  'num_layers': 1,
  'width': 8,
}

# One has several outputs, and a guess that is trained; of the others each task is there
# once, and each guess.
_TASKS = {
  'linear_regression': {'noise_std': 0.5},
  'logistic_regression': {},
  'gaussian_clusters': {'num_classes': 3},
}
_TASKS_AND_GUESSES = [
  ('gaussian_clusters', 'network'),
  *((task, 'zero') for task in _TASKS),
  *(('logistic_regression', guess) for guess in GUESSES if guess != 'zero'),
]

_TAKEN = {name: parameters(cls) for name, cls in MODELS.items()}
_WITH_HEADS = [name for name, taken in _TAKEN.items() if 'num_heads' in taken]
_WITH_GUESSES = [
  name for name, taken in _TAKEN.items() if {'guess', 'num_outputs'} <= taken.keys()
]


def _create(name: str, key: Any = 0, **more: Any) -> Any:
  arguments = {k: v for k, v in _WHERE_TAKEN.items() if k in _TAKEN[name]}
  arguments |= _NEEDED.get(name, {}) | more
  return zoo.create_model(name, num_features=_D, rngs=nnx.Rngs(key), **arguments)


def _drawing(name: str) -> Callable[[Any], nnx.State]:
  """The state of a model from a key, as one program."""
  return jax.jit(lambda key: nnx.state(_create(name, key)))


_drawing_once = functools.cache(_drawing)


@functools.cache
def _abstract(name: str) -> Any:
  """A model without any numbers."""
  return nnx.eval_shape(lambda: _create(name))


@functools.cache
def _build(name: str) -> Any:
  graph = nnx.graphdef(_abstract(name))
  return nnx.merge(graph, _drawing_once(name)(jax.random.key(0)))


# A set, a table and tokens. The equations of all are tested where the models are.
_OF_EACH_FORM = ['deep_set', 'tabular', 'transformer']
# Linear, and of tokens. The equations of all are tested where the models are.
_KINDS = ['yq_lsa', 'transformer']
_most_are_slow = pytest.mark.parametrize('name', mostly_slow(_KINDS, sorted(MODELS)))


@pytest.mark.parametrize(
  'name', mostly_full(_KINDS[:1], zoo.list_models(), slow=_OF_EACH_FORM)
)
def test_it_keeps_its_contract(name):
  # Of two examples there are fewer in two ways: one, and none.
  zoo.check_model(_build(name), isotropic(_D, 2, prior_mean=1.0, noise_std=0.5))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
  ('name', 'task', 'guess'),
  mostly_full(
    [], _WITH_GUESSES, _TASKS_AND_GUESSES, slow=[('deep_set', *_TASKS_AND_GUESSES[0])]
  ),
)
def test_it_keeps_its_contract_on_other_tasks(name, task, guess):
  made = zoo.create_task(task, num_features=_D, context_length=_C, **_TASKS[task])
  arguments: dict[str, Any] = {'num_outputs': made.num_outputs, 'guess': guess}
  if guess == 'fixed':
    arguments |= {'guess_weights': [0.5, -1.0, 0.3], 'guess_bias': 0.2}
  zoo.check_model(built(lambda: _create(name, **arguments)), made)


@_most_are_slow
@pytest.mark.parametrize(('batch', 'context'), mostly_slow([(2, 2 * _D + 3)], [(1, 1)]))
def test_one_prediction_for_each_prompt(name, batch, context):
  prompt = bodies.prompt(context=context, batch=batch)
  prediction = nnx.eval_shape(lambda model: model(prompt), _abstract(name))
  assert prediction.shape == (batch,)
  assert prediction.dtype == jnp.float32


@pytest.mark.parametrize(
  'name', mostly_full(_KINDS[:1], zoo.list_models(), slow=_KINDS[1:])
)
def test_parameters_are_a_function_of_the_seed(name):
  first, second = (_drawing_once(name)(jax.random.key(seed)) for seed in (0, 1))
  again = _drawing(name)(jax.random.key(0))  # by a constructor that is called again
  jax.tree.map(np.testing.assert_array_equal, first, again)
  pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
  assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in pairs)


@pytest.mark.parametrize('name', _WITH_HEADS)
def test_heads_are_split_over_the_model_axis(name):
  mesh = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
  with jax.set_mesh(mesh):
    _, abstract = nnx.get_abstract_model(lambda: _create(name), mesh)
  specs = [leaf.sharding.spec for leaf in jax.tree.leaves(abstract)]
  assert any('model' in spec for spec in specs)


@_most_are_slow
def test_a_prompt_of_another_number_of_features_is_refused(name):
  prompt = jax.eval_shape(lambda: isotropic(_D + 1, _C).sample(jax.random.key(0), _B))
  for method in ('__call__', *(['embed'] if hasattr(MODELS[name], 'embed') else [])):
    with refuses(f'the model is for {_D} features; the prompt has {_D + 1}'):
      nnx.eval_shape(
        lambda model, prompt, method=method: getattr(model, method)(prompt),
        *(_abstract(name), prompt),
      )
