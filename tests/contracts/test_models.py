"""Every mistake in a model of one's own is one line that names what is wrong."""

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
from tests.contracts.classes import C, D, Good, Linear
from zoo.core.learning_rule import LearningRule

# Annotations are not enforced, as for a user: zoo's own checks must answer.
pytestmark = pytest.mark.usefixtures('unchecked')


def _good() -> Linear:
  return Linear(rngs=nnx.Rngs(0))


def _model(call=None, **attributes: Any) -> Any:
  """A subclass whose prediction is `call(model, prompt, prediction)`."""
  if call is not None:
    attributes['__call__'] = lambda self, prompt: call(
      self, prompt, Linear.__call__(self, prompt)
    )
  return type('Own', (Linear,), attributes)(rngs=nnx.Rngs(0))


def _every(self, prompt):
  """The predictions from examples before each one."""
  x = prompt.features
  sums = jnp.cumsum(jnp.pad(prompt.y, ((0, 0), (1, 0))), axis=1)
  counts = jnp.maximum(jnp.arange(x.shape[1]), 1).astype(x.dtype)
  return x @ self.w[...] + self.a[...] * sums / counts[None]


def _with_array(array, call=None, **attributes: Any) -> Any:
  """A model with one more array, `extra`, which is an attribute of the model."""
  model = _model(call, **attributes)
  model.extra = nnx.Param(array)
  return model


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


class _OtherRule(Linear):
  def learning_rule(self):
    return LearningRule.gradient_descent(jnp.ones(D), 0.5)


MODELS: dict[str, tuple[Any, list[str]]] = {
  'not callable': (object, ['object is not a predictor: it must be a model']),
  'a class': (lambda: Linear, ['Linear is a class, not a predictor']),
  'half precision': (
    lambda: _model(lambda self, prompt, f: f.astype('float16')),
    ['Own(prompt) is of type float16; it must be float32'],
  ),
  'another shape': (
    lambda: _model(lambda self, prompt, f: f[:, None]),
    ['Own(prompt) has the shape (8, 1); it must be (8,)'],
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
    ['_Random(prompt) changes its variable rngs.default.count, so that calls may'],
  ),
  'other values where compiled': (
    lambda: _model(lambda self, prompt, f: f + isinstance(prompt.x, Tracer) * 1.0),
    ['Own(prompt) changes if compiled'],
  ),
  'no gradient': (
    lambda: _model(lambda self, prompt, f: jax.lax.stop_gradient(f)),
    ['the gradient of Own is 0 for all parameters'],
  ),
  'NaN for a shorter context': (
    lambda: _model(
      lambda self, prompt, f: f * (1 if prompt.x.shape[1] == C else jnp.nan)
    ),
    ['Own(prompt) of 0 examples is not finite', 'any shorter context'],
  ),
  'outputs of another shape': (
    lambda: type(
      'Own', (zoo.models.TokenModel,), {'body': lambda self, tokens, at: tokens}
    )(D, rngs=nnx.Rngs(0)),
    ['Own.body(tokens, slice(-1, None, None)) has shape (8, 9, 4); it must be'],
  ),
  'nothing to train': (
    lambda: type(
      'Own', (nnx.Module,), {'__call__': lambda self, prompt: prompt.x_query[:, 0]}
    )(),
    ['Own has no nnx.Param'],
  ),
  'an array without entries': (
    lambda: _with_array(jnp.zeros((0, 3))),
    ['the array extra has the shape (0, 3) and cannot be saved'],
  ),
  'an array of four bits': (
    lambda: _with_array(jnp.zeros(3, 'int4')),
    ['the array extra is of type int4 and cannot be saved'],
  ),
  'predictions without a weight that is 0 at first': (
    lambda: _with_array(
      jnp.zeros(()), lambda self, prompt, f: f + self.extra[...], predictions=_every
    ),
    ['Own.predictions(prompt) at the query is not Own(prompt)'],
  ),
  'state that is lost': (_lost, ['_Lost(prompt) changes after nnx.split']),
  'a wrong rule': (
    lambda: _OtherRule(rngs=nnx.Rngs(0)),
    ['_OtherRule.learning_rule() does not predict the same'],
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
    lambda: _model(
      lambda self, prompt, f: f + prompt.y[:, :1].sum(axis=1), order_invariant=True
    ),
    ['Own declares order_invariant'],
  ),
  'the last example has its own meaning': (
    lambda: _model(
      lambda self, prompt, f: f + prompt.y[:, -1:].sum(axis=1), order_invariant=True
    ),
    ['Own declares order_invariant'],
  ),
}


@pytest.mark.parametrize('mistake', MODELS)
def test_a_mistake_in_a_model_is_named_in_one_line(mistake):
  make, said = MODELS[mistake]
  with refuses(*said):
    zoo.check_model(make(), Good())


def test_a_model_for_another_number_of_outputs_is_refused():
  task = zoo.create_task('gaussian_clusters', num_features=D, context_length=C)
  with pytest.raises(ValueError, match='broadcast') as info:
    zoo.check_model(_good(), task)
  assert 'Linear(prompt) failed' in info.value.__notes__
  with refuses('Own(prompt) has the shape (8,); it must be (8, 2)'):
    zoo.check_model(
      _model(__call__=lambda self, prompt: prompt.x_query @ self.w[...]), task
    )


def test_right_models_pass():
  zoo.check_model(_good(), Good())
  model = _model(predictions=_every, order_invariant=True, learning_rule=None)
  zoo.check_model(model, Good())
  zoo.check_model(LearningRule.gradient_descent(np.ones(D), 0.5), Good())


_WITHOUT_EXAMPLES = (
  'Own(prompt) failed on a prompt with 0 examples; a model must accept any shorter '
  'context'
)


def _fails(self, prompt, f):
  raise ValueError('a bug')


@pytest.mark.parametrize(
  ('call', 'kind', 'note'),
  [
    (_fails, ValueError, 'Own(prompt) failed'),
    (
      lambda self, prompt, f: f if f[0] > -1e9 else -f,
      jax.errors.TracerBoolConversionError,
      'Own(prompt) failed',
    ),
    (
      lambda self, prompt, f: f + prompt.y[:, C - 1],
      IndexError,
      _WITHOUT_EXAMPLES,
    ),
    (
      lambda self, prompt, f: f * (1 / prompt.x.shape[1]),
      ZeroDivisionError,
      _WITHOUT_EXAMPLES,
    ),
  ],
)
def test_an_error_of_the_model_passes_with_a_note_of_what_was_called(call, kind, note):
  with pytest.raises(kind) as info:
    zoo.check_model(_model(call), Good())
  assert note in info.value.__notes__
  assert call.__code__ in [entry.frame.code.raw for entry in info.traceback]
