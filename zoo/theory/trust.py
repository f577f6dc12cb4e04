"""Checks that a model predicts the same as its learning rule.

A subclass inherits `learning_rule`, and may change the prediction without changing it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.errors import UserError
from zoo.prompt import Prompt
from zoo.protocols import FollowsRule, Model, Task

# Relative to the largest prediction. Rounding errors in float32 are about 1e-6.
TOLERANCE = 1e-3
_NUM_PROMPTS = 8


def check_rule(model: Model, task: Task) -> None:
  """Raises UserError unless a model predicts the same as its learning rule.

  Both are compared on a few prompts, at randomly changed weights, and so is
  `forward_tokens` if it exists. A model without a rule passes. The classes of this
  library are not checked, since its tests compare them.
  """
  if not isinstance(model, FollowsRule) or type(model).__module__.startswith('zoo.'):
    return
  prompt = task.sample(jax.random.key(0), _NUM_PROMPTS)
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  keys = jax.random.split(jax.random.key(1), len(jax.tree.leaves(parameters)))
  keys = jax.tree.unflatten(jax.tree.structure(parameters), list(keys))
  parameters = jax.tree.map(_moved, parameters, keys)
  with jax.default_matmul_precision('highest'):
    found = _differences(graph, parameters, rest, prompt)
  for method, difference in jax.device_get(found).items():
    if not difference <= TOLERANCE:
      name = type(model).__name__
      raise UserError(
        f'{name}.learning_rule() does not predict the same as {name}.{method}(): on '
        f'{_NUM_PROMPTS} prompts they differ by {difference:.2g} of the largest '
        'prediction; override it to match, or set learning_rule = None'
      )


def _moved(array: Array, key: Array) -> Array:
  return array + 0.3 * jax.random.normal(key, array.shape, array.dtype)


@functools.partial(jax.jit, static_argnums=0)
def _differences(
  graph: Any, parameters: Any, rest: Any, prompt: Prompt
) -> dict[str, Float[Array, '']]:
  """The largest difference of each method from the rule, relative to predictions."""
  model = nnx.merge(graph, parameters, rest)
  predictions = {'__call__': model(prompt)}
  if hasattr(model, 'forward_tokens') and hasattr(model, 'embed'):
    tokens = model.forward_tokens(model.embed(prompt))
    predictions['forward_tokens'] = tokens[:, -1, -1]
  rule_b = model.learning_rule()(prompt)
  return {
    method: jnp.max(jnp.abs(prediction_b - rule_b))
    / jnp.maximum(jnp.max(jnp.abs(prediction_b)), jnp.finfo(rule_b.dtype).tiny)
    for method, prediction_b in predictions.items()
  }
