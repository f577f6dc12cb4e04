"""Curricula: what of its prompts and loops a model is trained on at each step.

All stages of a curriculum are one compiled program: shapes stay as they are, features
beyond those of a stage are 0, and losses beyond it do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Int

from zoo.config.building import Config
from zoo.core.errors import UserError
from zoo.core.protocols import Model, Task
from zoo.core.registry import check_registered, entering
from zoo.models import TokenModel
from zoo.tasks.base import FunctionClass

_Function = TypeVar('_Function', bound=Callable)


class Stage(NamedTuple):
  """What is trained on at a step; None: everything."""

  features: Any = None  # the first of them; the others are 0
  examples: Any = None  # the longest context; losses after more examples do not count
  loops: Any = None  # the first of the trained loops; losses after others do not count


GROWING = 'growing'
_LEAST = {'features': 1, 'examples': 0, 'loops': 1}  # of a stage
_MOST_STAGES = 1000  # of a user's curriculum that are checked


def has_curriculum(config: Config) -> bool:
  """Whether a section `curriculum` leaves anything out at any step."""
  grows = config.features, config.examples, config.loops
  return config.name != GROWING or grows != (None, None, None)


def stage_at(config: Config, step: Int[Array, '']) -> Stage:
  """The stage at a step of the section `curriculum`."""
  stage_of = CURRICULA[check_registered('curriculum', config.name, CURRICULA)]
  return stage_of(step, config) if config.name == GROWING else stage_of(step)


def _growing(step: Int[Array, ''], config: Config) -> Stage:
  """What grows by as much at each stage."""
  # As many as the largest int32 stay below it: what is beyond the end counts the same.
  number = jnp.minimum(step // config.every, 2**20)

  def grown(first: int | None, more: int) -> Any:
    return None if first is None else first + jnp.minimum(more, 2**10) * number

  return Stage(
    grown(config.features, config.more_features),
    grown(config.examples, config.more_examples),
    grown(config.loops, config.more_loops),
  )


# Functions from the step, a traced integer from 0, to its `Stage`; that of the library
# takes the section `curriculum` as well.
CURRICULA: dict[str, Callable[..., Stage]] = {GROWING: _growing}


def register_curriculum(name: str) -> Callable[[_Function], _Function]:
  """A decorator that enters a function, from the step to a `Stage`, under a name.

  Args:
    name: what `config.curriculum.name` calls it. A second function under the same name
      replaces the first.

  Raises UserError for a name that is no text, and for what is no function.
  """
  return entering('curriculum', CURRICULA, name, function=True)


def check_curriculum(config: Config, task: Task, model: Model) -> None:
  """Raises UserError unless task, model and objective allow the curriculum."""
  section = config.curriculum
  if config.objective.name not in ('sampled', 'nll'):
    raise UserError(
      f'config.objective.name is {config.objective.name!r}; a curriculum needs '
      "'sampled' or 'nll'"
    )
  limits = _limits(task, model)
  for field, most in limits.items():
    first = getattr(section, field)
    if first is not None and section.name != GROWING:
      raise UserError(
        f'config.curriculum.{field} is {first}; it must be None for the curriculum '
        f'{section.name!r}, which is a function of the step'
      )
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


def _check_least(config: Config) -> None:
  """Raises UserError for a stage without a loss, at some of the steps."""
  section, last = config.curriculum, config.train.num_steps - 1
  steps = np.unique(np.linspace(0, last, _MOST_STAGES).astype(np.int32))
  of_step = jax.jit(jax.vmap(lambda step: stage_at(section, step)))
  for field, numbers in jax.device_get(of_step(steps))._asdict().items():
    if numbers is not None and (few := numbers < _LEAST[field]).any():
      at = int(np.argmax(few))
      raise UserError(
        f'the curriculum {section.name!r} has {numbers[at]} {field} at step '
        f'{steps[at]}; it must have {_LEAST[field]} or more'
      )


def log_unended(config: Config, task: Task, model: Model) -> None:
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
    logging.warning(
      'the curriculum has not ended at the last step, %d, which is trained on %s; a '
      'smaller config.curriculum.every or more of config.train.num_steps would end it',
      last + 1,
      ' and '.join(left_out),
    )


def _limits(task: Task, model: Model) -> dict[str, int]:
  """The most of everything that can grow."""
  loops = model.num_trained_loops if isinstance(model, TokenModel) else 1
  sizes = {'features': task.num_features, 'examples': task.context_length}
  return sizes | {'loops': loops}


def _abstract_stage(config: Config) -> Stage:
  """A stage of the curriculum with shapes in place of numbers; raises UserError."""
  step = jax.ShapeDtypeStruct((), jnp.int32)
  stage: Any = jax.eval_shape(lambda step: stage_at(config.curriculum, step), step)
  numbers = jax.tree.leaves(stage)
  whole = all(
    number.shape == () and jnp.issubdtype(number.dtype, jnp.integer)
    for number in numbers
  )
  if not (isinstance(stage, Stage) and whole):
    raise UserError(
      f'the curriculum {config.curriculum.name!r} returns {stage}; it must return a '
      'zoo.training.Stage of integers or None'
    )
  return stage
