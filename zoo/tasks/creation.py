"""Tasks by name, from their fields as configs have them."""

from collections.abc import Mapping
from typing import Any

from zoo.core import registry, trees
from zoo.core.errors import UserError, check_name
from zoo.core.protocols import Task
from zoo.core.registry import check_registered

_SIZES = 'num_features', 'context_length'
# Of a mixture that is made by name: the sections of its tasks.
PARTS = (
  {'name': 'linear_regression', 'noise_std': 0.1},
  {'name': 'linear_regression', 'noise_std': 1.0},
)


def create_task(name: str, **fields: Any) -> Task:
  """Makes the task that is registered under `name`, and checks it.

  In place of `tasks` a mixture may have `parts`, with the name and the fields of a task
  each, as the sections of configs have them, and the sizes `num_features` and
  `context_length` of all of them. Raises UserError.
  """
  if name == 'mixture' and 'tasks' not in fields:
    known = (*_SIZES, 'parts', 'weights')
    for field in fields:
      check_name("hyper-parameter of task 'mixture',", field, known)
    fields = _of_parts(**fields)
  task = registry.create('task', registry.TASKS, name, fields)
  task.check()
  trees.check_tree(task)
  return task


def _of_parts(
  parts: Any = PARTS,
  weights: Any = None,  # a list or a tuple of numbers
  num_features: int = 5,
  context_length: int = 10,
) -> dict[str, Any]:
  """The fields of a mixture from the sections of its tasks; raises UserError."""
  sizes = {'num_features': num_features, 'context_length': context_length}
  is_section = isinstance(parts, list | tuple) and all(
    isinstance(part, Mapping) and isinstance(part.get('name'), str) for part in parts
  )
  if not is_section or not parts:
    raise UserError(
      f'parts is {trees.shown(parts)}; it must be a tuple of tasks, such as '
      "({'name': 'linear_regression', 'noise_std': 0.1}, {'name': 'task_pool'})"
    )
  tasks = []
  for i, part in enumerate(parts):
    fields = dict(part)
    name = fields.pop('name')
    if repeated := sorted(fields.keys() & sizes.keys()):
      raise UserError(f'parts[{i}] has {repeated[0]}, which is that of the mixture')
    try:
      check_registered('task', name, registry.TASKS)
      taken = registry.parameters(registry.TASKS[name])
      is_mixture = name == 'mixture'
      own = {size: n for size, n in sizes.items() if size in taken or is_mixture}
      tasks.append(create_task(name, **fields, **own))
    except UserError as error:
      raise UserError(f'parts[{i}], {name}: {error}') from None
  return {'tasks': tuple(tasks), 'weights': None if weights is None else tuple(weights)}
