"""A task and a model that keep their contracts."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

import zoo
from zoo.estimators.baselines import Zero
from zoo.estimators.linear import Ridge
from zoo.tasks.base import dot

D, C = 3, 4


class _Parts:
  """The methods of a right task, linear regression."""

  def sample_function(self, key):
    return jax.random.normal(key, (D,))

  def evaluate(self, function, x):
    return dot(x, function[None])

  def baselines(self) -> dict[str, Any]:
    return {'bayes': Ridge(), 'zero': Zero()}

  def shifts(self) -> dict[str, Any]:
    return {'longer': zoo.create_task('linear_regression', num_features=D, **_LONG)}


_LONG: dict[str, Any] = {'context_length': 2 * C}


def make_class(name: str = 'Own', **changes: Any) -> Any:
  """The class of a right task, or with a mistake: with some attributes changed."""
  parts = {
    part: value for part, value in vars(_Parts).items() if not part.startswith('__')
  }
  parts |= {'num_features': D, 'context_length': C}
  return struct.dataclass(type(name, (zoo.tasks.FunctionClass,), parts | changes))


Good = make_class('Good')


@struct.dataclass
class Least(zoo.tasks.BaseTask):
  """The least that a task needs, whose prompts are quickly compiled."""

  num_features: int = struct.field(pytree_node=False, default=D)
  context_length: int = struct.field(pytree_node=False, default=C)

  def sample_one(self, key):
    x = jax.random.normal(key, (self.context_length + 1, self.num_features))
    return zoo.Prompt(x[:-1], x[:-1, 0], x[-1], x[-1, 0])


class Linear(nnx.Module):
  """f = w·x_q + a·mean(y); mistakes are subclasses."""

  def __init__(self, num_features=D, *, rngs):
    self.w = nnx.Param(jax.random.normal(rngs.params(), (num_features,)))
    self.a = nnx.Param(jnp.ones(()))

  def __call__(self, prompt) -> Any:
    mean = jnp.sum(prompt.y, axis=1) / max(prompt.y.shape[1], 1)
    return prompt.x_query @ self.w[...] + self.a[...] * mean
