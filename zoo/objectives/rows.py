"""The objective `rows`: many queries of one table in one pass."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from zoo.config.run import Run
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model, Predictor, Task
from zoo.objectives.functions import PerPrompt


@runtime_checkable
class PredictsRows(Predictor, Protocol):
  """A model of many rows of one table."""

  def losses_of_rows(
    self, prompt: Prompt, num_seen: Int[Array, ' b'], most_seen: int
  ) -> Float[Array, 'b t']:
    """Returns the loss of each row after `num_seen` ones, at most `most_seen`."""
    ...


class Rows(PerPrompt):
  """The negative log likelihood of the rows behind a random place.

  Each prompt is cut behind a number of its examples, uniform from a sixteenth to seven
  eighths of them. The examples before the cut are the context. All others, and the
  query, are queries of this context, so that a prompt trains many predictions (Hollmann
  et al., arXiv 2207.01848). The order of the rows of a prompt has no meaning. Labels
  are drawn, whatever `objective.labels` says. The loss of a prompt is the mean over its
  queries, in nats.
  """

  measures = 'likelihood'
  draws_labels = True

  def __init__(self, config: Run, task: Task, model: Model):
    super().__init__(config, task, model)
    if not isinstance(model, PredictsRows):
      raise UserError(
        f"config.objective.name is 'rows', and {type(model).__name__} has no "
        "losses_of_rows; it must be a model of rows, such as 'tabular'"
      )
    most_classes = getattr(model, 'num_classes', task.num_outputs)
    if task.label_kind == 'classes' and task.num_outputs > most_classes:
      raise UserError(
        f'config.task has {task.num_outputs} classes; config.model.num_classes is '
        f'{most_classes}, and it must be at least as many'
      )

  def losses(
    self, model: Predictor, prompt: Prompt, key: Key[Array, '']
  ) -> Float[Array, ' b']:
    assert isinstance(model, PredictsRows)
    b, c = prompt.x.shape[:2]
    least, most = max(c // 16, 1), max(c - c // 8, 1)
    num_seen = jax.random.randint(key, (b,), least, most + 1)
    losses = model.losses_of_rows(prompt, num_seen, most)
    is_query = jnp.arange(c + 1)[None] >= num_seen[:, None]
    return jnp.mean(losses, axis=1, where=is_query)
