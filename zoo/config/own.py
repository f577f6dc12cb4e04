"""Metrics and objectives that are registered by name.

Users register functions; the library registers the classes of zoo/objectives. A config
names them in `eval.metrics` and `objective.name`. On the command line `--import=MODULE`
imports the module that registers them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from zoo.core.errors import UserError
from zoo.core.registry import entering

_Function = TypeVar('_Function', bound=Callable)

# Each metric maps a model, its task and a key to numbers by name.
METRICS: dict[str, Callable[..., Any]] = {}
# Each objective is a class of `zoo.objectives`, or a function that maps a model,
# prompts, their task and a key to a loss for each prompt.
OBJECTIVES: dict[str, Callable[..., Any]] = {}


def register_metric(name: str) -> Callable[[_Function], _Function]:
  """Returns a decorator that registers a function of the model as a metric.

  The function is `metric(model, task, key) -> dict[str, Array]`. It is compiled, and is
  called at each evaluation of a run whose `config.eval.metrics` has its name. Its
  arguments are the model, an NNX module with the weights of that step; the task, which
  draws held-out prompts; and a key, which is the same at each evaluation, whatever
  other metrics there are. Each number is written into `metrics.jsonl` and TensorBoard
  as `NAME/KEY`, and into the summary at the end. Points of a sweep that are trained
  side by side write nothing for TensorBoard.

  A second function under the same name replaces the first without a warning.

  Args:
    name: The name of the metric in `config.eval.metrics`.

  Returns:
    A decorator, which returns the function unchanged.

  Raises:
    UserError: If the name is not a string, has a slash or is 'curve', or if the
      decorated object is not a function of these three arguments.

  Example:
    >>> @zoo.register_metric('norm')
    ... def norm(model, task, key):
    ...   return {'weights': optax.tree.norm(nnx.state(model, nnx.Param))}
    >>> config = zoo.default_config('yq_lsa')
    >>> config.eval.metrics = ('norm',)
  """
  if isinstance(name, str) and '/' in name:
    raise UserError(
      f'the name of a metric is {name!r}; it must have no slash, since its numbers are '
      'called NAME/KEY'
    )
  if name == 'curve':
    raise UserError(
      "the name of a metric is 'curve'; choose another one, since TensorBoard has the "
      'losses by number of examples as curve/0000, curve/0001, …'
    )
  arguments = 'model', 'task', 'key'
  return entering('metric', METRICS, name, function=True, arguments=arguments)


def register_objective(name: str) -> Callable[[_Function], _Function]:
  """Returns a decorator that registers a function as an objective that a run minimises.

  The function is `objective(model, prompt, task, key) -> Float[Array, ' b']`. It
  returns a loss for each of the b prompts, and the run minimises their mean. It is
  compiled. The prompts are the batch of a step or a part of it, and the key is new at
  each step and for each part. So what an objective draws by its key depends on
  `train.num_parts` and on the devices, which decide into how many parts a batch is
  split. The prompts do not depend on them. A step changes the weights by their
  gradient, and nothing else: a run refuses an objective that changes variables of the
  model.

  A second function under the same name replaces the first without a warning. The names
  of the library's own objectives are the exception: they are refused.

  Args:
    name: The name of the objective in `config.objective.name`.

  Returns:
    A decorator, which returns the function unchanged.

  Raises:
    UserError: If the name is not a string, if it is `sampled`, `nll`, `rows` or
      `exact`, which are objectives of the library, or if the decorated object is not a
      function of these four arguments.

  Example:
    >>> @zoo.register_objective('distilled')
    ... def distilled(model, prompt, task, key):
    ...   return jnp.square(model(prompt) - task.baselines()['bayes'](prompt))
    >>> config = zoo.default_config('yq_lsa')
    >>> config.objective.name = 'distilled'
  """
  arguments = 'model', 'prompt', 'task', 'key'
  return entering('objective', OBJECTIVES, name, function=True, arguments=arguments)
