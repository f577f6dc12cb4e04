"""Checks that a predictor predicts the same as its learning rule or exact form.

A class that a user derives may change the prediction but inherit the rule unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError, check_object
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, HasExactForm, Predictor
from zoo.estimators.linear import GDBeta, GradientDescent

# The largest difference, relative to the largest prediction, that is allowed. Rounding
# errors in float32 are about 1e-6.
TOLERANCE = 1e-3
_NUM_PROMPTS, _CONTEXT_LENGTH = 8, 6

# These options halve the time to compile, which counts where a program runs once. The
# results are the same up to rounding.
QUICK_TO_COMPILE = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}

Scalar = float | Float[Array, '']
Predictions = dict[str, Float[Array, ' b']]  # The keys are names of methods.


@runtime_checkable
class UpdatesTokens(Predictor, Protocol):
  """A predictor that also has the equation of its layer on whole tokens."""

  def embed(self, prompt: Prompt) -> Float[Array, 'b t e']:
    """Returns the tokens of each prompt."""
    ...

  def forward_tokens(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    """Returns the tokens after the layer.

    The last entry of the query's token is the prediction.
    """
    ...


def check_rule(subject: Predictor | nnx.Module) -> None:
  """Checks that a predictor predicts the same as its learning rule and its exact form.

  They are compared on a few random prompts, with changed weights. The predictions of
  `forward_tokens` are compared with the rule, too, if the predictor has this method.

  Args:
    subject: A model, an estimator or a rule. A rule passes, and so does a predictor
      that has neither a learning rule nor an exact form.

  Raises:
    UserError: If the subject is not a predictor, or if predictions differ by more than
      1e-3 of the largest one.

  Example:
    >>> class Doubled(zoo.models.YqLSA):
    ...   def __call__(self, prompt):
    ...     return 2 * super().__call__(prompt)
    >>> try:
    ...   zoo.theory.check_rule(Doubled(num_features=2, rngs=nnx.Rngs(0)))
    ... except zoo.UserError as error:
    ...   print(error)
    Doubled.learning_rule() does not predict the same as Doubled.__call__(): ...
  """
  if isinstance(subject, LearningRule):
    return
  check_object('a predictor', subject, Predictor, 'it must be callable on a prompt')
  if isinstance(subject, FollowsRule) and _has_rule(subject):
    _compare(subject, 'learning_rule', 'set learning_rule = None')
  if isinstance(subject, HasExactForm) and _has_form(subject):
    _compare(subject, 'exact_form', 'raise UserError in it')


def _has_rule(subject: Any) -> bool:
  """Says whether it has a rule."""
  # Several steps of gradient descent have none, and neither has a step without a start.
  if not isinstance(subject, GradientDescent):
    return True
  return subject.step_sizes.size <= 1 and subject.start is not None


def _has_form(subject: Any) -> bool:
  """Says whether the hyper-parameters of a predictor have an exact form."""
  try:
    if isinstance(subject, nnx.Module):
      nnx.eval_shape(lambda model: model.exact_form(), subject)
    else:
      subject.exact_form()
  except UserError:
    return False
  return True


def _compare(subject: Any, method: str, otherwise: str) -> None:
  """Raises UserError unless a subject predicts as the result of its method does."""
  # The caller may be computing in float64, or be traced for it.
  with jax.enable_x64(False), jax.default_matmul_precision('highest'):
    if isinstance(subject, nnx.Module):
      graph, *states = nnx.split(subject, nnx.Param, ...)
      parameters, rest = jax.tree.map(_in_float32, states)
      gaps_of = functools.partial(_model_gaps, graph, method)
      program = compiled(gaps_of, compiler_options=QUICK_TO_COMPILE)
      gaps = program(parameters, rest)
    else:
      follower = subject
      # Tuned steps of gradient descent have one rule for each length.
      if isinstance(subject, GradientDescent | GDBeta):
        follower = subject.at_length(_CONTEXT_LENGTH)
      form = getattr(follower, method)()
      gaps = compiled(
        lambda: _gaps(form, lambda prompt: {'__call__': subject(prompt)}),
        compiler_options=QUICK_TO_COMPILE,
      )()
    gaps = jax.device_get(gaps)
  for other, gap in gaps.items():
    if not gap <= TOLERANCE:
      name = type(subject).__name__
      raise UserError(
        f'{name}.{method}() does not predict the same as {name}.{other}(): on '
        f'{_NUM_PROMPTS} prompts they differ by {gap:.2g} of the largest '
        f'prediction; override it to match, or {otherwise}'
      )


def _in_float32(array: Array) -> Array | np.ndarray:
  """Returns a copy in float32 of a float64 array, and any other as it is."""
  return np.asarray(array, np.float32) if array.dtype == np.float64 else array


def _model_gaps(
  graph: Any, method: str, parameters: Any, rest: Any
) -> dict[str, Array]:
  model: Any = nnx.merge(graph, changed_weights(parameters), rest)

  def predict(prompt: Prompt) -> Predictions:
    predictions = {'__call__': model(prompt)}
    if method == 'learning_rule' and isinstance(model, UpdatesTokens):
      tokens = model.forward_tokens(model.embed(prompt))
      predictions['forward_tokens'] = tokens[:, -1, -1]
    return predictions

  return _gaps(getattr(model, method)(), predict)


def changed_weights(parameters: PyTree, size: Scalar = 0.3) -> PyTree:
  """Returns weights plus waves of a size; integers do not change.

  The waves are the same in every call. They are used since they compile at once, which
  random numbers do not.
  """
  arrays, structure = jax.tree.flatten(parameters)
  for i, array in enumerate(arrays):
    if jnp.issubdtype(array.dtype, jnp.inexact):
      wave = jnp.sin(1.0 + 12.9898 * jnp.arange(array.size, dtype=jnp.float32))
      arrays[i] = array + size * wave.reshape(array.shape).astype(array.dtype)
  return jax.tree.unflatten(structure, arrays)


def without_zeros(parameters: PyTree, others: PyTree) -> PyTree:
  """Returns the weights, with other ones in place of arrays that are all zero.

  The others are scaled to the size of the weights of a kernel.
  """

  def filled(own: Array, other: Array) -> Array:
    inputs = own.shape[-2] if own.ndim > 1 else 1
    return jnp.where(jnp.any(own), own, (other / inputs**0.5).astype(own.dtype))

  return jax.tree.map(filled, parameters, others)


def _gaps(
  form: LearningRule | DeepRule | Recurrence,
  predict: Callable[[Prompt], Predictions],
) -> dict[str, Array]:
  """Returns the largest relative difference of each method from the form."""
  is_rule = isinstance(form, LearningRule)
  d = form.num_features if is_rule else np.size(form.start)
  b, c = _NUM_PROMPTS, _CONTEXT_LENGTH
  if isinstance(form, Recurrence):  # A recurrence has coefficients for each example.
    c = np.size(form.write)
  generator = np.random.default_rng(0)
  shapes = {'x': (b, c, d), 'y': (b, c), 'x_query': (b, d), 'y_query': (b,)}
  prompt = Prompt(
    **{
      name: jnp.asarray(generator.standard_normal(shape, np.float32))
      for name, shape in shapes.items()
    }
  )
  form_b = form_predictions(form, prompt)
  return {
    method: jnp.max(jnp.abs(prediction_b - form_b))
    / jnp.maximum(jnp.max(jnp.abs(prediction_b)), jnp.finfo(form_b.dtype).tiny)
    for method, prediction_b in predict(prompt).items()
  }


def form_predictions(
  form: LearningRule | DeepRule | Recurrence, prompt: Prompt
) -> Float[Array, ' b']:
  """Returns the predictions of a form by its definition, one prompt at a time."""
  if isinstance(form, LearningRule):
    return form(prompt)
  predict = _of_layers if isinstance(form, DeepRule) else _of_recurrence
  return jax.vmap(functools.partial(predict, form))(prompt.x, prompt.y, prompt.x_query)


def _of_layers(
  form: DeepRule,
  x: Float[Array, 'c d'],
  y: Float[Array, ' c'],
  query: Float[Array, ' d'],
) -> Float[Array, '']:
  result, label = query @ form.residual, query @ form.start + form.offset
  y -= x @ form.residual
  for step, precondition in zip(form.steps, form.preconditions, strict=True):
    gram, move = x.T @ x / len(x), x.T @ y / len(x)
    y, label = y + step * x @ move, label + step * query @ move
    x, query = x + precondition * x @ gram, query + precondition * gram @ query
  return result + form.readout * label + query @ form.feature_readout


def _of_recurrence(
  form: Recurrence,
  x: Float[Array, 'c d'],
  y: Float[Array, ' c'],
  query: Float[Array, ' d'],
) -> Float[Array, '']:
  def learn(weights: Array, example: tuple[Array, ...]) -> tuple[Array, None]:
    x, y, decay, erase, write = example
    return decay * weights - erase * x * (x @ weights) + write * x * y, None

  start, *steps = map(jnp.asarray, (form.start, form.decay, form.erase, form.write))
  steps = [step[: len(x)] for step in steps]  # A prompt may have fewer examples.
  return query @ jax.lax.scan(learn, start, (x, y, *steps))[0]
