"""ICL Zoo: attention architectures that learn in context, and their exact theory.

model = zoo.create_model('yq_lsa', num_features=10, rngs=nnx.Rngs(0))
task = zoo.create_task('linear_regression', num_features=10, context_length=10)
prediction = model(task.sample(jax.random.key(0), batch_size=2048))
"""

import importlib
from typing import TYPE_CHECKING, Any

import zoo.models
import zoo.tasks  # noqa: F401
from zoo import registry as _registry
from zoo.errors import RunError as RunError
from zoo.errors import UserError as UserError
from zoo.learning_rule import LearningRule as LearningRule
from zoo.prompt import Prompt as Prompt

create_model = _registry.models.create
create_task = _registry.tasks.create
register_model = _registry.models.register
register_task = _registry.tasks.register

if TYPE_CHECKING:  # at run time these are the rooms themselves, which can be called

  def models() -> list[str]: ...
  def tasks() -> list[str]: ...

  from zoo.training.saved_models import load as load
  from zoo.training.saved_models import save as save


# Rooms that cost time to import, or that few need, are imported when first used.
_LAZY = (
  'estimators',
  'evaluation_sets',
  'llm',
  'paper',
  'probing',
  'theory',
  'training',
)


def __getattr__(name: str) -> Any:
  if name in _LAZY:
    return importlib.import_module(f'zoo.{name}')
  if name in ('load', 'save'):
    return getattr(importlib.import_module('zoo.training.saved_models'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
