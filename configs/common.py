"""A config with every field of a training run, and the variants of the command line.

The file of a model, such as configs/yq_lsa.py, takes these fields, sets its own
numbers, and then applies the variants of the command line, as in
`--config=configs/yq_lsa.py:smoke`. A field is also a flag:
`--config.train.num_steps=200`. zoo/config/fields.py says of each field what it means,
what it may be and what its default is.
"""

from collections.abc import Collection
from typing import Any

from ml_collections import FieldReference

from zoo.config.defaults import all_fields
from zoo.config.defaults import task_section as task_section
from zoo.core.errors import UserError, check_name


def get_config() -> Any:  # a ConfigDict, whose fields type checkers do not know
  """All fields with their defaults; each file of a model sets the section `model`."""
  return all_fields()


def number_or_vector(default: float) -> FieldReference:
  """A field that may hold a number, or one number for each feature."""
  return FieldReference(default, field_type=object)


def a_tenth_of_the_steps(config: Any, at_most: int) -> FieldReference:
  """A number of warm-up steps, also where train.num_steps is set later."""
  tenth = config.train.get_ref('num_steps') // 10
  return (tenth + at_most - abs(tenth - at_most)) // 2  # min, which references lack


def with_variant(config: Any, variant: str, own: Collection[str] = ()) -> Any:
  """Applies variants, joined by commas, and locks the config.

  `smoke` ends in seconds. `paper` has the constant learning rate 5e-4 of arXiv
  2512.04268, and is meant for lsa, multi_head_lsa, yq_lsa and ltb. `task=NAME` replaces
  the whole section `task` by that task with the defaults of its class, sizes included.
  `own` names further variants, which the config file has applied. Raises UserError for
  an unknown one.
  """
  parts = variant.split(',') if variant else []
  names = [part for part in parts if not part.startswith('task=')]
  tasks = [part.removeprefix('task=') for part in parts if part.startswith('task=')]
  for name in names:
    check_name('variant', name, [*own, 'paper', 'smoke', 'task=NAME'])
  if len(tasks) > 1:
    raise UserError(f'the variant {variant!r} names several tasks; it can name one')
  if {*tasks} - {'linear_regression'} and 'paper' in names:
    raise UserError(f'the variant {variant!r} has a task that the paper does not have')
  if tasks and tasks[0] != config.task.name:
    config.task = task_section(tasks[0])
  if 'paper' in names:
    config.optimizer.learning_rate, config.optimizer.schedule = 5e-4, 'constant'
  if 'smoke' in names:
    config.train.num_steps, config.train.batch_size = 20, 64
    config.train.log_every = 5
    config.checkpoint.every, config.eval.every = 10, 10
    config.eval.num_batches, config.eval.num_compared = 4, 256
  return config.lock()
