"""Checks that a predictor predicts the same as its learning rule.

A subclass inherits `learning_rule`, and may override the prediction but not the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from zoo.core.classes import from_zoo
from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor
from zoo.core.values import is_value

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
  elif is_value(subject):
    held = jax.tree.leaves(vars(subject), is_leaf=is_value)
    if not all(is_ours(one) for one in held if is_value(one)):
      return False
  return from_zoo(type(subject)) and all(
    from_zoo(type(part)) or type(part).__module__.startswith('flax.') for part in parts
  )


def check_rule(subject: Predictor | nnx.Module) -> None:
  """Raises UserError unless a predictor predicts the same as its learning rule.

  The two are compared on a few random prompts with randomly changed weights, and so is
  `forward_tokens` if it exists. A predictor without a rule passes, as do the classes of
  this library, which its tests check.
  """
  if not is_ours(subject) and isinstance(subject, FollowsRule):
    compare_rule(subject)


def compare_rule(subject: FollowsRule) -> None:
  """Does what `check_rule` does, for any predictor with a rule."""
  # The caller may be computing in float64, or be traced for it.
  with jax.enable_x64(False), jax.default_matmul_precision('highest'):
    if isinstance(subject, nnx.Module):
      graph, parameters, rest = nnx.split(subject, nnx.Param, ...)
      differences = compiled(_model_differences, graph)(parameters, rest)
    else:
      differences = _differences(
        subject.learning_rule(), lambda p: {'__call__': subject(p)}
      )
    found = jax.device_get(differences)
  for method, difference in found.items():
    if not difference <= TOLERANCE:
      name = type(subject).__name__
      raise UserError(
        f'{name}.learning_rule() does not predict the same as {name}.{method}(): on '
        f'{_NUM_PROMPTS} prompts they differ by {difference:.2g} of the largest '
        'prediction; override it to match, or set learning_rule = None'
      )


def _model_differences(graph: Any, parameters: Any, rest: Any) -> dict[str, Array]:
  model: Any = nnx.merge(graph, changed_weights(parameters), rest)

  def predict(prompt: Prompt) -> Predictions:
    predictions = {'__call__': model(prompt)}
    if isinstance(model, UpdatesTokens):
      tokens = model.forward_tokens(model.embed(prompt))
      predictions['forward_tokens'] = tokens[:, -1, -1]
    return predictions

  return _differences(model.learning_rule(), predict)


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
  rule: LearningRule, predict: Callable[[Prompt], Predictions]
) -> dict[str, Array]:
  """The largest relative difference of each method's predictions from the rule's."""
  b, c, d = _NUM_PROMPTS, _CONTEXT_LENGTH, rule.num_features
  keys = jax.random.split(jax.random.key(0), 4)
  prompt = Prompt(
    x=jax.random.normal(keys[0], (b, c, d)),
    y=jax.random.normal(keys[1], (b, c)),
    x_query=jax.random.normal(keys[2], (b, d)),
    y_query=jax.random.normal(keys[3], (b,)),
  )
  rule_b = rule(prompt)
  return {
    method: jnp.max(jnp.abs(prediction_b - rule_b))
    / jnp.maximum(jnp.max(jnp.abs(prediction_b)), jnp.finfo(rule_b.dtype).tiny)
    for method, prediction_b in predict(prompt).items()
  }
