"""Every mistake in a class of one's own is one line that names what is wrong."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array

import zoo
from tests.compare import refuses
from zoo.estimators.baseline import Baseline
from zoo.estimators.regression import LeastSquares, Zero
from zoo.learning_rule import LearningRule
from zoo.models import YqLSA
from zoo.registry import arguments_of
from zoo.tasks.base import dot

# Annotations are not enforced, as for a user: zoo's own checks must answer.
pytestmark = pytest.mark.usefixtures('unchecked')

_D, _C = 3, 4


class Good(zoo.tasks.FunctionClass):
  """Linear regression; the mistakes below are subclasses."""

  num_features, context_length = _D, _C

  def sample_function(self, key):
    return jax.random.normal(key, (_D,))

  def evaluate(self, function, x):
    return dot(x, function[None])

  def baselines(self) -> dict[str, Any]:
    return {'bayes': LeastSquares(), 'zero': Zero()}

  def shifts(self) -> dict[str, Any]:
    return {'longer': zoo.create_task('linear_regression', num_features=_D, **_LONG)}


_LONG: dict[str, Any] = {'context_length': 2 * _C}


def _changed(prompt: zoo.Prompt, **parts: Any) -> zoo.Prompt:
  return dataclasses.replace(prompt, **parts)


class _Sampled(Good):
  """Changes whole prompts by `change`, of the clean prompt, the key and the size."""

  def sample(self, key, batch_size):
    return self.change(super().sample(key, batch_size), key, batch_size)

  def change(self, prompt, key, batch_size) -> Any:
    return prompt


def _sampled(change) -> type[Good]:
  return type('Own', (_Sampled,), {'change': staticmethod(change)})


def _with(**attributes: Any) -> type[Good]:
  return type('Own', (Good,), attributes)


def _with_baseline(name: str, predict: Any) -> type[Good]:
  return _with(baselines=lambda self: {name: predict, 'zero': Zero()})


class _NoSample:
  num_features = _D


class _ByIdentity(Good):
  __eq__ = object.__eq__  # pyright: ignore[reportAssignmentType]
  __hash__ = object.__hash__


class _Counts(Good):
  calls = 0

  def sample(self, key, batch_size):
    type(self).calls += 1
    return super().sample(jax.random.fold_in(key, self.calls), batch_size)


class _Unhashable(Good):
  def __init__(self):
    self.scales = [1.0, 2.0]


class _TracedOnce(Good):
  """Reads a global when it is compiled, so only other sizes show it."""

  def sample_function(self, key):
    return super().sample_function(key) * np.random.default_rng().uniform(1, 2)


@dataclasses.dataclass(frozen=True)
class _LooksAhead(Baseline):
  def predict(self, x, y, seen, x_query):
    return jnp.sum(y)


@dataclasses.dataclass(frozen=True)
class _Disagrees(LeastSquares):
  def predictions(self, prompt):
    return super().predictions(prompt) + 1


def _shifted(task: Any) -> type[Good]:
  return _with(shifts=lambda self: {'other': task})


def _mean_over_batch(prediction, target):
  return jnp.mean(jnp.square(prediction - target))


def _rough(prediction, target):
  return jnp.sqrt(jnp.abs(prediction - target) - 100)


TASKS: dict[str, tuple[Any, list[str]]] = {
  'no sample': (_NoSample, ['_NoSample is not a task', 'no sample']),
  'no num_features': (
    type('Own', (), {'sample': None}),
    ['Own is not a task', 'no num_features'],
  ),
  'a text as num_features': (_with(num_features='3'), ["num_features is '3'"]),
  'no outputs': (_with(num_outputs=0), ['num_outputs is 0']),
  'other num_features': (
    _sampled(lambda prompt, key, b: _changed(prompt, x=prompt.x[..., 1:])),
    ['x of the prompts of Own has the shape (8, 4, 2); it must be (8, 4, 3)'],
  ),
  'a function of other features': (
    _with(num_features=_D + 1),
    ['vectors of 4 and 3 entries have no dot product'],
  ),
  'other context_length': (
    _sampled(lambda prompt, key, b: prompt.prefix(_C - 1)),
    ['x of the prompts of Own', f'({8}, {_C}, {_D})'],
  ),
  'other num_outputs': (
    _with(num_outputs=2),
    ['y of the prompts of Own has the shape (8, 4); it must be (8, 4, 2)'],
  ),
  'no batch axis': (
    _sampled(lambda prompt, key, b: jax.tree.map(lambda a: a[0], prompt)),
    ['x of the prompts of Own has the shape (4, 3)'],
  ),
  'another batch size': (
    _sampled(lambda prompt, key, b: jax.tree.map(lambda a: a[:4], prompt)),
    ['x of the prompts of Own has the shape (4, 4, 3); it must be (8, 4, 3)'],
  ),
  'a tuple': (
    _sampled(lambda prompt, key, b: (prompt.x, prompt.y)),
    ['Own.sample() gives a tuple'],
  ),
  'no labels': (
    _sampled(lambda prompt, key, b: _changed(prompt, y=None)),
    ['y of the prompts of Own'],
  ),
  'no features': (
    _sampled(lambda prompt, key, b: _changed(prompt, x=None)),
    ['x of the prompts of Own'],
  ),
  'labels NaN': (
    _sampled(lambda prompt, key, b: _changed(prompt, y=prompt.y * jnp.nan)),
    ['y of the prompts of Own is not finite'],
  ),
  'integer labels': (
    _sampled(lambda prompt, key, b: _changed(prompt, y=prompt.y.astype(int))),
    ['y of the prompts of Own is of type int32'],
  ),
  'a target of another shape': (
    _sampled(lambda prompt, key, b: _changed(prompt, y_query=prompt.y_query[:, None])),
    ['y_query of the prompts of Own has the shape (8, 1)'],
  ),
  'context_targets of another shape': (
    _sampled(lambda prompt, key, b: _changed(prompt, context_targets=prompt.y[:, 1:])),
    ['context_targets of the prompts of Own has the shape (8, 3)'],
  ),
  'depends on the batch': (
    _sampled(lambda prompt, key, b: _changed(prompt, y=prompt.y * b)),
    ['depends on the length of the batch'],
  ),
  'depends on the other prompts': (
    _sampled(lambda prompt, key, b: _changed(prompt, y=prompt.y - prompt.y.mean())),
    ['depends on the length of the batch'],
  ),
  'another form in longer batches': (
    _sampled(
      lambda prompt, key, b: _changed(
        prompt, context_targets=prompt.y if b > 8 else None
      )
    ),
    ['depends on the length of the batch'],
  ),
  'depends on nothing': (
    _sampled(lambda prompt, key, b: jax.tree.map(jnp.ones_like, prompt)),
    ['the same prompts from every key'],
  ),
  'depends on a counter': (_Counts, ['other prompts at each call from one key']),
  'depends on random numbers of NumPy': (_TracedOnce, ['_TracedOnce.sample()']),
  'an exception': (
    _sampled(lambda prompt, key, b: {}['a\nb']),
    ['Own.sample(key, 8) failed: KeyError'],
  ),
  'equal by identity': (_ByIdentity, ['_ByIdentity are not == with the same hash']),
  'unhashable attributes': (_Unhashable, ['_Unhashable.sample(key, 8) failed']),
  'one loss for all': (
    _with(loss=staticmethod(_mean_over_batch)),
    ['Own.loss has the shape (); it must be (8,)'],
  ),
  'a loss that is NaN': (
    _with(loss=staticmethod(_rough)),
    ['Own.loss is not finite'],
  ),
  'a loss without a derivative': (
    _with(loss=staticmethod(lambda p, t: jnp.sqrt(jnp.abs(p - 0.5)) + 0 * t)),
    ['the derivative of Own.loss is not finite'],
  ),
  'a loss that fails': (
    _with(loss=staticmethod(lambda p: p)),
    ['Own.loss failed: TypeError'],
  ),
  'baselines that are a list': (
    _with(baselines=lambda self: [Zero()]),
    ['Own.baselines() failed: TypeError'],
  ),
  'baselines that fail': (
    _with(baselines=lambda self: 1 / 0),
    ['Own.baselines() failed: ZeroDivisionError'],
  ),
  'a baseline that is a number': (
    _with_baseline('mean', 3.0),
    ['the baseline mean of Own is a float; it must be a predictor'],
  ),
  'a baseline named model': (_with_baseline('model', Zero()), ['named model']),
  'a baseline that reads the target': (
    _with_baseline('oracle', lambda prompt: prompt.y_query),
    ['the baseline oracle of Own reads the target'],
  ),
  'a baseline that reads the targets of the context': (
    type(
      'Own',
      (_Sampled,),
      {
        'change': lambda self, prompt, key, b: _changed(
          prompt, context_targets=prompt.y
        ),
        'baselines': lambda self: {
          'oracle': lambda prompt: prompt.context_targets[:, -1]
        },
      },
    ),
    ['the baseline oracle of Own reads the target'],
  ),
  'a baseline of another shape': (
    _with_baseline('all', lambda prompt: prompt.y),
    ['the baseline all of Own has the shape (8, 4); it must be (8,)'],
  ),
  'a baseline that is not finite': (
    _with_baseline('nan', lambda prompt: prompt.x_query[:, 0] * jnp.inf),
    ['the baseline nan of Own is not finite'],
  ),
  'a baseline that fails': (
    _with_baseline('broken', lambda prompt: prompt.z),
    ['the baseline broken of Own failed: AttributeError'],
  ),
  'a baseline that looks ahead': (
    _with_baseline('ahead', _LooksAhead()),
    ['the baseline ahead of Own.predictions(prompt)', 'example'],
  ),
  'a baseline of two minds': (
    _with_baseline('two', _Disagrees()),
    ['the baseline two of Own.predictions(prompt) at the query is not'],
  ),
  'a bayes that is worse': (
    _with(baselines=lambda self: {'bayes': Zero(), 'ols': LeastSquares()}),
    ['bayes of Own is worse than ols after 2 examples'],
  ),
  'shifts that are a list': (
    _with(shifts=lambda self: [Good()]),
    ['Own.shifts() failed'],
  ),
  'a shift that is no task': (_shifted(3), ['the shift other of Own failed']),
  'a shift with other features': (
    _shifted(zoo.create_task('quadratic_regression', num_features=5, context_length=4)),
    ['x_query of the shift other of Own has the shape (2, 5); it must be (2, 3)'],
  ),
  'a shift with other outputs': (
    _shifted(zoo.create_task('gaussian_clusters', num_features=_D, context_length=4)),
    ['y_query of the shift other of Own has the shape (2, 2); it must be (2,)'],
  ),
}


@pytest.mark.parametrize('mistake', TASKS)
def test_a_mistake_in_a_task_is_named_in_one_line(mistake):
  make, said = TASKS[mistake]
  with refuses(*said):
    zoo.check_task(make())


def test_a_right_task_passes_and_so_does_the_least_that_a_task_needs():
  class Least:
    """No subclass, and nothing but what is needed."""

    num_features = _D

    def sample(self, key, batch_size):
      x_key, w_key = jax.random.split(key)
      keys = jax.vmap(jax.random.fold_in, (None, 0))(x_key, jnp.arange(batch_size))
      x = jax.vmap(lambda key: jax.random.normal(key, (6, _D)))(keys)
      del w_key
      return zoo.Prompt(x[:, :-1], x[:, :-1, 0], x[:, -1], x[:, -1, 0])

    def __eq__(self, other):
      return type(self) is type(other)

    def __hash__(self):
      return 0

  zoo.check_task(Good())
  zoo.check_task(Least())
  zoo.check_model(_good(), Least())


class Linear(nnx.Module):
  """f = w·x_q + a·mean(y); the mistakes below are subclasses."""

  def __init__(self, num_features=_D, *, rngs):
    self.w = nnx.Param(jax.random.normal(rngs.params(), (num_features,)))
    self.a = nnx.Param(jnp.ones(()))

  def __call__(self, prompt) -> Any:
    mean = jnp.sum(prompt.y, axis=1) / max(prompt.y.shape[1], 1)
    return prompt.x_query @ self.w[...] + self.a[...] * mean


def _good() -> Linear:
  return Linear(rngs=nnx.Rngs(0))


def _model(call=None, **attributes: Any) -> Any:
  """A subclass whose prediction is `call(model, prompt, prediction)`."""
  if call is not None:
    attributes['__call__'] = lambda self, prompt: call(
      self, prompt, Linear.__call__(self, prompt)
    )
  return type('Own', (Linear,), attributes)(rngs=nnx.Rngs(0))


def _every(self, prompt, ahead=False):
  """The predictions from examples before each one, or with the one itself."""
  x = prompt.features
  sums = jnp.cumsum(jnp.pad(prompt.y, ((0, 0), (0 if ahead else 1, 0))), axis=1)
  if ahead:
    sums = jnp.concatenate([sums, sums[:, -1:]], axis=1)
  counts = jnp.maximum(jnp.arange(x.shape[1]), 1).astype(x.dtype)
  return x @ self.w[...] + self.a[...] * sums / counts[None]


_LOST: dict[int, Array] = {}


class _Lost(Linear):
  """Keeps its weights by the identity of the object."""

  def __call__(self, prompt):
    return super().__call__(prompt) * _LOST.get(id(self), 0.0)


def _lost() -> _Lost:
  model = _Lost(rngs=nnx.Rngs(0))
  _LOST[id(model)] = jnp.asarray(2.0)
  return model


class _Random(Linear):
  """Dropout that cannot be switched off."""

  def __init__(self, *, rngs):
    super().__init__(rngs=rngs)
    self.rngs = rngs

  def __call__(self, prompt):
    keep = jax.random.bernoulli(self.rngs.params(), 0.5, prompt.y_query.shape)
    return jnp.where(keep, super().__call__(prompt), 0)


class _OtherRule(YqLSA):
  def learning_rule(self):
    return LearningRule.gradient_descent(jnp.ones(_D), 0.5)


class _Heads(Linear):
  nested_heads = True

  def __init__(self, num_features=_D, num_heads=2, *, rngs):
    super().__init__(num_features, rngs=rngs)
    self.heads = nnx.Param(jax.random.normal(rngs.params(), (num_heads, num_features)))


def _registered_heads(register) -> Any:
  register('own_heads')(_Heads)
  model = _Heads(rngs=nnx.Rngs(0))
  assert arguments_of(model) is not None
  return model


MODELS: dict[str, tuple[Any, list[str]]] = {
  'not callable': (object, ['object is not a model: it has no __call__']),
  'another shape': (
    lambda: _model(lambda self, prompt, f: f[:, None]),
    ['Own(prompt) has the shape (8, 1); it must be (8,)'],
  ),
  'no array': (
    lambda: _model(lambda self, prompt, f: [0.0] * 8),
    ['Own(prompt) has the shape list'],
  ),
  'integers': (
    lambda: _model(lambda self, prompt, f: f.astype(int)),
    ['Own(prompt) is of type int32'],
  ),
  'not finite': (
    lambda: _model(lambda self, prompt, f: f / 0),
    ['Own(prompt) is not finite'],
  ),
  'reads the target': (
    lambda: _model(lambda self, prompt, f: f + prompt.y_query),
    ['Own(prompt) reads the target'],
  ),
  'mixes the prompts of a batch': (
    lambda: _model(lambda self, prompt, f: f - f.mean()),
    ['Own(prompt) depends on the other prompts of the batch'],
  ),
  'not deterministic': (
    lambda: _Random(rngs=nnx.Rngs(0)),
    ['_Random(prompt) is another one at each call'],
  ),
  'cannot be compiled': (
    lambda: _model(lambda self, prompt, f: f if f[0] > -1e9 else -f),
    ['compiling Own failed: TracerBoolConversionError'],
  ),
  'other values where compiled': (
    lambda: _model(lambda self, prompt, f: f + isinstance(prompt.x, Tracer) * 1.0),
    ['Own(prompt) is another one if compiled'],
  ),
  'an exception': (
    lambda: _model(lambda self, prompt, f: {}['a\nb']),
    ['Own(prompt) failed: KeyError'],
  ),
  'no gradient': (
    lambda: _model(lambda self, prompt, f: jax.lax.stop_gradient(f)),
    ['the gradient of Own is 0 for all parameters'],
  ),
  'a gradient that is NaN': (
    lambda: _model(lambda self, prompt, f: f + jnp.sqrt(0 * self.a[...])),
    ['the gradient of Own is not finite'],
  ),
  'nothing to train': (
    lambda: type(
      'Own', (nnx.Module,), {'__call__': lambda self, prompt: prompt.x_query[:, 0]}
    )(),
    ['Own has no nnx.Param'],
  ),
  'state that is lost': (_lost, ['_Lost(prompt) is another one after nnx.split']),
  'a wrong rule': (
    lambda: _OtherRule(num_features=_D, rngs=nnx.Rngs(0)),
    ['_OtherRule.learning_rule() does not predict the same'],
  ),
  'a rule that fails': (
    lambda: _model(learning_rule=lambda self: 1 / 0),
    ['Own.learning_rule() failed: ZeroDivisionError'],
  ),
  'predictions that look ahead': (
    lambda: _model(predictions=lambda self, prompt: _every(self, prompt, ahead=True)),
    ['Own.predictions(prompt)', 'example'],
  ),
  'predictions of the context that see their own label': (
    lambda: _model(
      predictions=lambda self, prompt: (
        _every(self, prompt) + jnp.pad(prompt.y, ((0, 0), (0, 1)))
      )
    ),
    ['Own.predictions(prompt) looks ahead of example'],
  ),
  'predictions that read targets': (
    lambda: _model(
      predictions=lambda self, prompt: (
        (_every(self, prompt) + 0 * _every(self, prompt).at[:, 0].add(1))
        .at[:, 0]
        .add(prompt.y_query)
      )
    ),
    ['Own.predictions(prompt) reads the target'],
  ),
  'predictions of another shape': (
    lambda: _model(predictions=lambda self, prompt: _every(self, prompt)[:, :-1]),
    ['Own.predictions(prompt) has the shape (8, 4); it must be (8, 5)'],
  ),
  'predictions that are not those of __call__': (
    lambda: _model(predictions=lambda self, prompt: 2 * _every(self, prompt)),
    ['Own.predictions(prompt) at the query is not Own(prompt)'],
  ),
  'predictions that are not those of prefixes': (
    lambda: _model(
      predictions=lambda self, prompt: _every(self, prompt).at[:, 1:-1].add(1)
    ),
    ['Own.predictions(prompt) at example 1 is not the prediction from'],
  ),
  'the order matters': (
    lambda: _model(lambda self, prompt, f: f + prompt.y[:, 0], order_invariant=True),
    ['Own declares order_invariant'],
  ),
}


@pytest.mark.parametrize('mistake', MODELS)
def test_a_mistake_in_a_model_is_named_in_one_line(mistake):
  make, said = MODELS[mistake]
  with refuses(*said):
    zoo.check_model(make(), Good())


def test_a_model_for_another_number_of_outputs_is_refused():
  task = zoo.create_task('gaussian_clusters', num_features=_D, context_length=_C)
  with refuses('Linear(prompt)'):
    zoo.check_model(_good(), task)
  with refuses('Own(prompt) has the shape (8,); it must be (8, 2)'):
    zoo.check_model(
      _model(__call__=lambda self, prompt: prompt.x_query @ self.w[...]), task
    )


def test_heads_that_are_not_nested_are_named(register):
  with refuses('_OtherHeads declares nested_heads, but heads of 2 heads'):
    zoo.check_model(_other_heads(register), Good())
  zoo.check_model(_registered_heads(register), Good())


class _OtherHeads(_Heads):
  def __init__(self, num_features=_D, num_heads=2, *, rngs):
    super().__init__(num_features, num_heads, rngs=rngs)
    self.heads = nnx.Param(self.heads[...] * num_heads)


def _other_heads(register) -> Any:
  register('other_heads')(_OtherHeads)
  return _OtherHeads(rngs=nnx.Rngs(0))


def test_right_models_pass():
  zoo.check_model(_good(), Good())
  model = _model(predictions=_every, order_invariant=True, learning_rule=None)
  zoo.check_model(model, Good())
  zoo.check_model(LeastSquares(), Good())
  zoo.check_model(LearningRule.gradient_descent(np.ones(_D), 0.5), Good())


def test_a_message_is_short_even_if_the_error_is_long():
  def call(self, prompt, f):
    raise ValueError('x' * 1000 + '\n' * 50)

  with refuses('Own(prompt) failed: ValueError: xxx') as info:
    zoo.check_model(_model(call), Good())
  assert len(re.findall('x', str(info.value))) <= 300
