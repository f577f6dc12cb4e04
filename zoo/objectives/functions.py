"""Objectives that are a loss for each prompt, such as functions of users."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from zoo.config.run import Run
from zoo.contracts.checks import check_sampled, with_changes
from zoo.core.errors import UserError, noted, shown
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model, Predictor, Task
from zoo.core.registry import entering
from zoo.measure.predictive import with_drawn_labels
from zoo.objectives.base import Objective, StepInputs, in_type, sample_prompts
from zoo.sharding import split_first_axis
from zoo.theory.trust import QUICK_TO_COMPILE

_Function = TypeVar('_Function', bound=Callable)

_NUM_CHECKED = 16  # A function is checked on this number of prompts.

# A function of a user maps a model, prompts, their task and a key to a loss for each
# prompt.
Function: TypeAlias = Callable[[Predictor, Prompt, Task, Key[Array, '']], Array]
OBJECTIVES: dict[str, type[Objective] | Function] = {}


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


class PerPrompt(Objective):
  """The mean over fresh prompts of a loss for each prompt.

  The losses get `self.task`, whose numbers are concrete, since baselines need them on
  the host.
  """

  needs_prompts = True
  gets_task_and_key = True

  @abc.abstractmethod
  def losses(
    self, model: Predictor, prompt: Prompt, key: Key[Array, '']
  ) -> Float[Array, ' b']:
    """Returns a loss for each prompt.

    Args:
      model: The model.
      prompt: Prompts `[b]`: the batch of a step, or a part of it.
      key: A key that is new at each step and for each part.
    """

  def draw(self, key: Key[Array, ''], inputs: StepInputs, statistics: bool) -> Prompt:
    """Returns prompts. Such an objective asks for no statistics."""
    prompt = sample_prompts(inputs.task, key, self.train.batch_size)
    if self.observes_labels:
      prompt = split_first_axis(with_drawn_labels(self.task, key, prompt))
    return prompt

  def loss(
    self, model: Predictor, batch: Prompt, key: Key[Array, ''], inputs: StepInputs
  ) -> Float[Array, '']:
    model, prompt = in_type(model, batch, self.train.compute_dtype)
    losses = self.losses(model, prompt, key)
    return jnp.mean(losses.astype(jnp.promote_types(losses.dtype, jnp.float32)))


class OfFunction(PerPrompt):
  """The mean of what a function that a user has registered returns for prompts."""

  def __init__(self, config: Run, task: Task, model: Model, function: Function):
    super().__init__(config, task, model)
    self.name, self.function = config.objective.name, function

  def losses(
    self, model: Predictor, prompt: Prompt, key: Key[Array, '']
  ) -> Float[Array, ' b']:
    """Returns what the function returns.

    Raises:
      UserError: If it is anything but a loss for each prompt.
    """
    losses: Any = self.function(model, prompt, self.task, key)
    size = len(prompt.x)
    shape = getattr(losses, 'shape', type(losses).__name__)
    if shape != (size,):
      raise UserError(
        f'the objective {self.name!r} returns the shape {shape} for {size} prompts; it '
        f'must be {(size,)}, a loss for each prompt'
      )
    if not jnp.issubdtype(losses.dtype, jnp.floating):
      raise UserError(
        f'the objective {self.name!r} returns numbers of the type '
        f'{losses.dtype}; they must be real floats, which have a gradient'
      )
    return losses

  def check_variables(self, model: Model) -> None:
    """Checks that the function changes no variable of the model.

    A step changes weights by their gradient, and nothing else. Of a function that
    changes a variable itself, such as the running mean of `nnx.BatchNorm`, a step would
    keep the change or lose it, depending on other fields of the config.

    Raises:
      UserError: If the function changes a variable, or returns anything but a loss for
        each prompt.
    """
    graph, state = nnx.split(model)

    @functools.partial(compiled, compiler_options=QUICK_TO_COMPILE)
    def changes(state: PyTree, prompt: Prompt, key: Key[Array, '']) -> dict[str, Array]:
      own = nnx.merge(graph, state, copy=True)
      if self.observes_labels:
        prompt = with_drawn_labels(self.task, key, prompt)
      with noted(f'the objective {self.name!r}', f' on {number} prompts'):
        _, changed = with_changes(lambda: self.losses(own, prompt, key), own)
      return changed

    key = jax.random.key(0)
    number = min(_NUM_CHECKED, self.train.batch_size)
    prompt = check_sampled(self.task, key, number)
    changed = jax.device_get(changes(state, prompt, key))
    if names := [variable for variable, has_changed in changed.items() if has_changed]:
      raise UserError(
        f'the objective {self.name!r} changes {shown(names)} of the model; a step '
        'changes weights by their gradient and nothing else, so an objective must '
        'leave all variables as they are (random numbers come from '
        'nnx.Rngs(dropout=key))'
      )
