"""Checks that a predictor predicts the same as its learning rule or exact form.

A class of one's own may change the prediction and not the rule, which it may inherit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from zoo.core.classes import from_zoo
from zoo.core.errors import UserError
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, HasExactForm, Predictor

# Relative to the largest prediction. Rounding errors in float32 are about 1e-6.
TOLERANCE = 1e-3
_NUM_PROMPTS, _CONTEXT_LENGTH = 8, 6

Predictions = dict[str, Float[Array, ' b']]  # by the method that made them


@runtime_checkable
class UpdatesTokens(FollowsRule, Protocol):
  """A predictor with a rule that also has the layer's equation on whole tokens."""

  def embed(self, prompt: Prompt) -> Float[Array, 'b t e']:
    """The tokens of each prompt."""
    ...

  def forward_tokens(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    """The tokens after the layer; the query's last entry is the prediction."""
    ...


def is_ours(subject: object) -> bool:
  """Whether an object and its parts are of this library, whose tests check them.

  A model of the library with a mixer of a user's own is not, nor a mixture with a task
  of a user's own.
  """
  parts = [subject]
  if isinstance(subject, nnx.Module):
    parts += [part for _, part in nnx.iter_modules(subject)]
  elif dataclasses.is_dataclass(subject):
    held = jax.tree.leaves(vars(subject), is_leaf=dataclasses.is_dataclass)
    if not all(is_ours(one) for one in held if dataclasses.is_dataclass(one)):
      return False
  return from_zoo(type(subject)) and all(
    from_zoo(type(part)) or type(part).__module__.startswith('flax.') for part in parts
  )


def check_rule(subject: Predictor | nnx.Module) -> None:
  """Raises UserError unless a predictor predicts the same as its rule and exact form.

  They are compared on a few random prompts with randomly changed weights, and so is
  `forward_tokens` if it exists. A predictor without either passes, as do the classes of
  this library, which its tests check.
  """
  if not is_ours(subject):
    compare_rule(subject)


def compare_rule(subject: Predictor | nnx.Module) -> None:
  """Does what `check_rule` does, for a predictor of any class."""
  if isinstance(subject, FollowsRule):
    _compare(subject, 'learning_rule', 'set learning_rule = None')
  if isinstance(subject, HasExactForm) and _has_form(subject):
    _compare(subject, 'exact_form', 'raise UserError in it')


def _has_form(subject: Any) -> bool:
  """Whether the hyper-parameters of a predictor have an exact form."""
  try:
    if isinstance(subject, nnx.Module):
      nnx.eval_shape(lambda model: model.exact_form(), subject)
    else:
      subject.exact_form()
  except UserError:
    return False
  return True


def _compare(subject: Any, method: str, otherwise: str) -> None:
  """Raises UserError unless predictions are those of what a method of it returns."""
  # The caller may be computing in float64, or be traced for it.
  with jax.enable_x64(False), jax.default_matmul_precision('highest'):
    if isinstance(subject, nnx.Module):
      graph, parameters, rest = nnx.split(subject, nnx.Param, ...)
      differences = compiled(_model_differences, graph, method)(parameters, rest)
    else:
      form = getattr(subject, method)()
      differences = _differences(form, lambda p: {'__call__': subject(p)})
    found = jax.device_get(differences)
  for one, difference in found.items():
    if not difference <= TOLERANCE:
      name = type(subject).__name__
      raise UserError(
        f'{name}.{method}() does not predict the same as {name}.{one}(): on '
        f'{_NUM_PROMPTS} prompts they differ by {difference:.2g} of the largest '
        f'prediction; override it to match, or {otherwise}'
      )


def _model_differences(
  graph: Any, method: str, parameters: Any, rest: Any
) -> dict[str, Array]:
  model: Any = nnx.merge(graph, changed_weights(parameters), rest)

  def predict(prompt: Prompt) -> Predictions:
    predictions = {'__call__': model(prompt)}
    if method == 'learning_rule' and isinstance(model, UpdatesTokens):
      tokens = model.forward_tokens(model.embed(prompt))
      predictions['forward_tokens'] = tokens[:, -1, -1]
    return predictions

  return _differences(getattr(model, method)(), predict)


def compiled(function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
  """A function of its other arguments, as a program that is traced anew.

  What the function and the static arguments call may have changed since the last time.
  """
  return jax.jit(functools.partial(function, *static))


def changed_weights(parameters: PyTree) -> PyTree:
  """Weights plus normal noise, the same in every call; integers do not change."""

  def changed(array: Array, key: Key[Array, '']) -> Array:
    if not jnp.issubdtype(array.dtype, jnp.inexact):
      return array
    return array + 0.3 * jax.random.normal(key, array.shape, array.dtype)

  keys = jax.random.split(jax.random.key(1), len(jax.tree.leaves(parameters)))
  keys = jax.tree.unflatten(jax.tree.structure(parameters), list(keys))
  return jax.tree.map(changed, parameters, keys)


def _differences(
  form: LearningRule | DeepRule | Recurrence,
  predict: Callable[[Prompt], Predictions],
) -> dict[str, Array]:
  """The largest relative difference of each method's predictions from the form's."""
  is_rule = isinstance(form, LearningRule)
  d = form.num_features if is_rule else np.size(form.start)
  b, c = _NUM_PROMPTS, _CONTEXT_LENGTH
  if isinstance(form, Recurrence):  # which has numbers for each example
    c = np.size(form.write)
  keys = jax.random.split(jax.random.key(0), 4)
  prompt = Prompt(
    x=jax.random.normal(keys[0], (b, c, d)),
    y=jax.random.normal(keys[1], (b, c)),
    x_query=jax.random.normal(keys[2], (b, d)),
    y_query=jax.random.normal(keys[3], (b,)),
  )
  form_b = _predicted(form, prompt)
  return {
    method: jnp.max(jnp.abs(prediction_b - form_b))
    / jnp.maximum(jnp.max(jnp.abs(prediction_b)), jnp.finfo(form_b.dtype).tiny)
    for method, prediction_b in predict(prompt).items()
  }


def _predicted(
  form: LearningRule | DeepRule | Recurrence, prompt: Prompt
) -> Float[Array, ' b']:
  """The predictions of a form by its definition, one prompt at a time."""
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
  def learn(weights: Array, given: tuple[Array, ...]) -> tuple[Array, None]:
    x, y, decay, erase, write = given
    return decay * weights - erase * x * (x @ weights) + write * x * y, None

  start, *each = map(jnp.asarray, (form.start, form.decay, form.erase, form.write))
  return query @ jax.lax.scan(learn, start, (x, y, *each))[0]
