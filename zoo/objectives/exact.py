"""The objective `exact`: the in-context risk itself, by theory."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from zoo import theory
from zoo.config.run import Run
from zoo.core.errors import UserError
from zoo.core.protocols import FollowsRule, HasExactForm, Model, Predictor, Task
from zoo.objectives.base import Objective, StepInputs
from zoo.tasks.linear_regression import require_covered


class Exact(Objective):
  """The in-context risk at the query, from the learning rule or the exact form.

  Nothing is sampled. It needs a task and a model that theory covers.
  """

  measures = 'loss'
  draws_prompts = False

  def __init__(self, config: Run, task: Task, model: Model):
    super().__init__(config, task, model)
    name = config.objective.name
    try:
      regression = require_covered(task)
      if isinstance(model, HasExactForm):
        form = nnx.eval_shape(theory.exact_form, model)
        theory.form_constants(form, regression)
      elif not isinstance(model, FollowsRule):
        raise UserError(
          f"it must be 'sampled' for {config.model.name!r}, which has no learning rule "
          'and so no exact risk'
        )
    except UserError as error:
      raise UserError(f'config.objective.name is {name!r}; {error}') from None
    for field, wanted in ('num_parts', 1), ('compute_dtype', 'float32'):
      if (value := getattr(config.train, field)) != wanted:
        raise UserError(
          f'config.train.{field} is {value!r}; it must be {wanted!r} for the objective '
          f'{name!r}, which has no batch of prompts'
        )

  def loss(
    self, model: Predictor, batch: PyTree, key: Key[Array, ''], inputs: StepInputs
  ) -> Float[Array, '']:
    if isinstance(model, HasExactForm):
      form = theory.exact_form(model)
      return theory.form_risk(form, theory.form_constants(form, self.task))
    assert inputs.moments is not None
    assert isinstance(model, FollowsRule)
    return theory.population_risk(model.learning_rule(), inputs.moments)
