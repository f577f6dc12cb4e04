"""Metrics and objectives of a user's own, by name.

A config names them, in `eval.metrics` and `objective.name`, and a command imports the
module that enters them by `--import=MODULE`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from zoo.core.errors import UserError
from zoo.core.registry import entering

_Function = TypeVar('_Function', bound=Callable)

# Functions from a model, its task and a key to numbers by name.
METRICS: dict[str, Callable[..., Any]] = {}
# Functions from a model, prompts, their task and a key to a loss for each prompt.
OBJECTIVES: dict[str, Callable[..., Any]] = {}
# The objectives of the library, which are not functions of prompts alone.
OF_THE_LIBRARY = ('sampled', 'nll', 'exact')


def register_metric(name: str) -> Callable[[_Function], _Function]:
  """Returns a decorator that enters a function of a model under a name.

  The function is `metric(model, task, key) -> dict[str, Array]`. It is compiled, and
  called at each evaluation of a run whose `config.eval.metrics` has its name. The model
  is an NNX module with the weights of that step, the task draws held-out prompts, and
  the key is the same at each evaluation. Each number is written into `metrics.jsonl`
  and TensorBoard as `NAME/KEY`, and into the summary at the end.

  Args:
    name: What `config.eval.metrics` calls it. A second function under the same name
      replaces the first.

  Raises:
    UserError: If the name is not text, or if what is entered is not a function.

  Example:
    >>> @zoo.register_metric('norm')
    ... def norm(model, task, key):
    ...   return {'weights': optax.tree.norm(nnx.state(model, nnx.Param))}
  """
  return entering('metric', METRICS, name, function=True)


def register_objective(name: str) -> Callable[[_Function], _Function]:
  """Returns a decorator that enters what a run minimises under a name.

  The function is `objective(model, prompt, task, key) -> Float[Array, ' b']`: a loss
  for each of the prompts, whose mean is trained. It is compiled. The prompts are a part
  of the batch of a step, or all of it, and the key is another one at each step.

  Args:
    name: What `config.objective.name` calls it. A second function under the same name
      replaces the first.

  Raises:
    UserError: If the name is not text or that of an objective of the library, or if
      what is entered is not a function.

  Example:
    >>> @zoo.register_objective('distilled')
    ... def distilled(model, prompt, task, key):
    ...   return jnp.square(model(prompt) - task.baselines()['bayes'](prompt))
  """
  if name in OF_THE_LIBRARY:
    raise UserError(
      f'the name of an objective is {name!r}, which is one of the library; choose '
      'another one'
    )
  return entering('objective', OBJECTIVES, name, function=True)
