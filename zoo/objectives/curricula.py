"""Curricula: which features, examples and loops a model is trained on at each step.

All stages of a curriculum are one compiled program: shapes stay as they are, features
beyond the stage are 0, and losses beyond it do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Int

from zoo.config.run import GROWING, CurriculumFields, Run
from zoo.core.errors import UserError
from zoo.core.protocols import Model, Task
from zoo.core.registry import check_registered, entering
from zoo.models import TokenModel
from zoo.tasks.base import FunctionClass

_Function = TypeVar('_Function', bound=Callable)


class Stage(NamedTuple):
  """The part of prompts and loops that a step is trained on.

  None stands for all of them. Each value is a scalar integer, which may be traced.

  Attributes:
    features: The number of features in use. They are the first ones; the others are 0.
    examples: The length of the longest context that counts. Losses after more examples
      are left out.
    loops: The number of trained loops that count. They are the first ones; the losses
      of the others are left out.

  Example:
    >>> zoo.training.Stage(features=5)
    Stage(features=5, examples=None, loops=None)
  """

  features: int | Array | None = None
  examples: int | Array | None = None
  loops: int | Array | None = None


_LEAST = {'features': 1, 'examples': 0, 'loops': 1}  # A stage has at least these.
_MOST_CHECKED_STAGES = 1000


def stage_at(section: CurriculumFields, step: Int[Array, '']) -> Stage:
  """Returns the stage at a step, according to the section `curriculum`."""
  stage_of = CURRICULA[section.name]
  return stage_of(step, section) if section.name == GROWING else stage_of(step)


def _growing(step: Int[Array, ''], section: CurriculumFields) -> Stage:
  """Returns the stage of the curriculum that grows by constant amounts."""

  def grown(first: int | None, more: int) -> Array | None:
    if first is None:
      return None
    # The bounds keep the product below the largest int32. Every stage beyond the end
    # counts as the last one.
    more = min(more, 2**30)
    return first + more * jnp.minimum(step // section.every, 2**30 // more)

  return Stage(
    grown(section.features, section.more_features),
    grown(section.examples, section.more_examples),
    grown(section.loops, section.more_loops),
  )


# Each function maps a step, a traced integer from 0, to its `Stage`. The function of
# the library takes the section `curriculum` as well.
CURRICULA: dict[str, Callable[..., Stage]] = {GROWING: _growing}


def register_curriculum(name: str) -> Callable[[_Function], _Function]:
  """Returns a decorator that registers a function as a curriculum.

  The function is `curriculum(step) -> zoo.training.Stage`. It is compiled: `step` is a
  traced integer that counts from 0. A run uses it if `config.curriculum.name` is its
  name.

  A second function under the same name replaces the first without a warning. The name
  of the library's own curriculum, 'growing', is the exception: it is refused.

  Args:
    name: The name of the curriculum in `config.curriculum.name`.

  Returns:
    A decorator, which returns the function unchanged.

  Raises:
    UserError: If the name is not a string, if it is 'growing', or if the decorated
      object is not a function of one argument.

  Example:
    >>> @zoo.register_curriculum('doubling')
    ... def doubling(step):
    ...   return zoo.training.Stage(features=2 ** jnp.minimum(step // 1000, 5))
  """
  if name == GROWING:
    raise UserError(
      f'the name of a curriculum is {name!r}, which is the one of the library; choose '
      'another one'
    )
  return entering('curriculum', CURRICULA, name, function=True, arguments=['step'])


def check_curriculum(config: Run, task: Task, model: Model) -> None:
  """Raises UserError unless the task and the model allow the curriculum.

  Args:
    config: The config of the run.
    task: The task of the config.
    model: The model of the config, which may be abstract.

  Raises:
    UserError: If the first stage of the curriculum `growing` is larger than the task,
      if a stage has no loss, or if the task or the model has nothing that can grow. A
      later stage that is larger than the task leaves nothing out.
  """
  section = config.curriculum
  check_registered('config.curriculum.name', section.name, CURRICULA)
  limits = _limits(task, model)
  for field, most in limits.items():
    first = getattr(section, field)
    if first is not None and first > most:
      raise UserError(f'config.curriculum.{field} is {first}; it must be ≤ {most}')
  stage = _abstract_stage(config)
  if section.name != GROWING:
    _check_least(config)
  if stage.features is not None and not isinstance(task, FunctionClass):
    raise UserError(
      f'config.curriculum: the features of {config.task.name!r} cannot grow; it is no '
      'zoo.tasks.FunctionClass, whose features are drawn before its labels'
    )
  if stage.examples is not None and config.objective.positions != 'every':
    raise UserError(
      "config.objective.positions is 'query'; it must be 'every' where the examples "
      'grow, since shorter contexts are the beginnings of whole prompts'
    )
  if stage.loops is not None and limits['loops'] == 1:
    raise UserError(
      f'config.curriculum: {config.model.name!r} has no loops that can grow; it needs '
      'config.model.num_trained_loops > 1'
    )


def _check_least(config: Run) -> None:
  """Raises UserError if a stage has no loss, at some of the steps."""
  section, last = config.curriculum, config.train.num_steps - 1
  steps = np.unique(np.linspace(0, last, _MOST_CHECKED_STAGES).astype(np.int32))
  of_step = jax.jit(jax.vmap(lambda step: stage_at(section, step)))
  for field, numbers in jax.device_get(of_step(steps))._asdict().items():
    if numbers is not None and (few := numbers < _LEAST[field]).any():
      at = int(np.argmax(few))
      raise UserError(
        f'the curriculum {section.name!r} has {numbers[at]} {field} at step '
        f'{steps[at]}; it must have {_LEAST[field]} or more'
      )


def log_unended(config: Run, task: Task, model: Model) -> None:
  """Warns of a curriculum that still leaves something out at the last step."""
  section, last = config.curriculum, np.int32(config.train.num_steps - 1)
  stage: Stage = jax.device_get(jax.jit(lambda step: stage_at(section, step))(last))
  limits, reached = _limits(task, model), stage._asdict()
  left_out = [
    f'{reached[name]} of {most} {name}'
    for name, most in limits.items()
    if reached[name] is not None and reached[name] < most
  ]
  if left_out:
    hint = ''
    if section.name == GROWING:
      hint = (
        '; a smaller config.curriculum.every or more of config.train.num_steps would '
        'end it'
      )
    logging.warning(
      'the curriculum has not ended at the last step, %d, which is trained on %s%s',
      last + 1,
      ' and '.join(left_out),
      hint,
    )


def _limits(task: Task, model: Model) -> dict[str, int]:
  """Returns the largest number of features, examples and loops."""
  loops = model.num_trained_loops if isinstance(model, TokenModel) else 1
  sizes = {'features': task.num_features, 'examples': task.context_length}
  return sizes | {'loops': loops}


def _abstract_stage(config: Run) -> Stage:
  """Returns a stage of the curriculum with shapes in place of numbers.

  Raises:
    UserError: If the function of the curriculum returns anything but a `Stage` of
      integers or None.
  """
  step = jax.ShapeDtypeStruct((), jnp.int32)
  stage: Any = jax.eval_shape(lambda step: stage_at(config.curriculum, step), step)
  numbers = jax.tree.leaves(stage)
  whole = all(
    number.shape == () and jnp.issubdtype(number.dtype, jnp.integer)
    for number in numbers
  )
  if not (isinstance(stage, Stage) and whole):
    types = ', '.join(f'{number.dtype}{[*number.shape]}' for number in numbers)
    what = f'a Stage with {types}'
    if not isinstance(stage, Stage):
      is_array = isinstance(stage, jax.ShapeDtypeStruct)
      what = 'a number or an array' if is_array else f'a {type(stage).__name__}'
    raise UserError(
      f'the curriculum {config.curriculum.name!r} returns {what}; it must return a '
      'zoo.training.Stage of integers or None'
    )
  return stage
