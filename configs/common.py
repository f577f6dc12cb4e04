"""What all configs share: the fields of a training run, and the variants.

The config file of a model, such as configs/yq_lsa.py, starts from these fields, sets
its own values, and then applies the variants that the command line names, as in
`--config=configs/yq_lsa.py:smoke`. Each field can also be set on the command line, as
in `--config.train.num_steps=200`. zoo/config/run.py says what each field means,
which values it may have and what its default is.
"""

from collections.abc import Collection
from typing import Any

from ml_collections import FieldReference

from zoo.config.defaults import default_fields
from zoo.config.defaults import task_section as task_section
from zoo.core.errors import UserError, check_name


# The result is a ConfigDict, whose fields type checkers do not know.
def get_config() -> Any:
  """Returns all fields with their defaults; a config file sets the section `model`.

  `zoo/config/run.py` has each field once, with its default, its range and what it
  means.
  """
  return default_fields()


def number_or_vector(default: float) -> FieldReference:
  """Returns a field that may hold a number, or one number for each feature."""
  return FieldReference(default, field_type=object)


def with_variant(config: Any, variant: str, own: Collection[str] = ()) -> Any:
  """Applies variants to a config, and locks its fields.

  - `smoke` is a tiny run of seconds.
  - `paper` sets the constant learning rate 5e-4 of arXiv 2512.04268. It is meant for
    lsa, multi_head_lsa, yq_lsa and ltb.
  - `task=NAME` replaces the whole section `task` by that task, with the defaults of its
    class, sizes included. The task that the config has already is kept as it is.

  Args:
    config: The config, which is changed.
    variant: Names of variants, joined by commas; '' for none.
    own: Names of further variants, which the config file has applied itself.

  Returns:
    The config.

  Raises:
    UserError: If a variant is unknown, if there are several tasks, or if `paper` stands
      beside a task other than linear regression.
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
