"""The intermediate values of a model's prediction."""

from __future__ import annotations

import functools
import inspect

from flax import nnx
from jaxtyping import Array, PyTree

from zoo.errors import UserError
from zoo.models.linear_attention import LinearAttention
from zoo.prompt import Prompt
from zoo.protocols import Predictor


def intermediates(model: Predictor, prompt: Prompt) -> dict[str, PyTree[Array]]:
  """The return value of each method in one forward pass, by the method's name.

  For a linear attention model these are the terms of the paper's equation: `embed`,
  `keys`, `queries`, `values`, `scores`, `update` and `forward_tokens`, whose last entry
  is the prediction. Any other model is simply called. Methods of submodules are named
  by their path, as in `block.attend`. Raises UserError unless the model is an NNX
  module.
  """
  if not isinstance(model, nnx.Module):
    raise UserError(
      f'{type(model).__name__} has no intermediates; it must be an NNX module'
    )
  copy = nnx.clone(model)
  # nnx.capture records the methods that a class itself defines, not inherited ones.
  copy.__class__ = _with_own_methods(type(model))
  record = nnx.capture(_forward, nnx.Intermediate, method_outputs=nnx.Intermediate)
  _, captured = record(copy, prompt)
  return {
    '.'.join(map(str, path)): variable.get_value()[-1]
    for path, variable in nnx.to_flat_state(captured)
  }


def _forward(model: Predictor, prompt: Prompt) -> Array:
  if isinstance(model, LinearAttention):
    return model.forward_tokens(model.embed(prompt))
  return model(prompt)


@functools.cache
def _with_own_methods(cls: type) -> type:
  """A subclass whose own methods are all that `cls` adds to nnx.Module."""
  inherited = set(dir(nnx.Module))
  methods = {
    name: method
    for name, method in inspect.getmembers(cls, inspect.isfunction)
    if name == '__call__' or not (name.startswith('_') or name in inherited)
  }
  return type(cls.__name__, (cls,), methods)
