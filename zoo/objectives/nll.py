"""The objective `nll`: the negative log likelihood of observed labels."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float

from zoo.core.distributions import HasDistributions, has_distribution
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.statistics import Statistics
from zoo.models import TokenModel
from zoo.objectives.base import StepInputs
from zoo.objectives.losses import negative_log_likelihoods
from zoo.objectives.sampled import Sampled, headed


class Likelihood(Sampled):
  """The mean negative log likelihood of observed labels, in nats.

  Positions, lengths, loops and curricula are those of `Sampled`. Labels are drawn,
  whatever `objective.labels` says.
  """

  measures = 'likelihood'
  draws_labels = True
  needs_prompts = True

  def losses(
    self, model: Any, batch: Prompt | Statistics, numbers: StepInputs, every: bool
  ) -> Float[Array, '*n']:
    assert isinstance(batch, Prompt)  # As `needs_prompts` asks.
    return negative_log_likelihoods(model, numbers.task, batch, every)

  def _check_model(self) -> None:
    """Raises UserError unless the model has a distribution of numbers."""
    if self.task.label_kind != 'numbers':
      return
    config, model = self.config, self.model
    if not has_distribution(model):
      why = 'which has no method distribution'
      if 'head' in config.model.arguments or isinstance(model, TokenModel):
        why = "which has no distribution; the heads 'gaussian' and 'bars' have one"
      raise UserError(
        "config.objective.name is 'nll'; it must be 'sampled' for "
        f'{headed(config)}, {why}'
      )
    asked = config.objective
    every = asked.positions == 'every' or asked.min_examples is not None
    if every and not isinstance(model, HasDistributions):
      raise UserError(
        "config.objective.positions is 'every'; it must be 'query' for "
        f'{config.model.name!r}, which has no method distributions'
      )
