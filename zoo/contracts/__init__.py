"""Checks that a model or a task of any class does what the library relies on.

docs/model_interface.md says what a model is, and docs/task_interface.md a task.
"""

from zoo.contracts.models import check_model as check_model
from zoo.contracts.tasks import check_task as check_task
