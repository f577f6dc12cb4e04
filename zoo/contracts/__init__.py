"""Checks that a model or a task of any class does what the library relies on.

docs/models_and_tasks.md says what a model is, and docs/tasks_of_your_own.md a task.
"""

from zoo.contracts.models import check_model as check_model
from zoo.contracts.tasks import check_task as check_task
