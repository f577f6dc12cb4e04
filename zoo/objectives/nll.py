"""The objective `nll`: the negative log likelihood of observed labels."""

from __future__ import annotations

from jaxtyping import Array, Float

from zoo.config.run import Run
from zoo.core.distributions import HasDistributions, has_distribution
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
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
    self, model: Predictor, batch: Prompt | Statistics, inputs: StepInputs, every: bool
  ) -> Float[Array, '*n']:
    assert isinstance(batch, Prompt)  # As `needs_prompts` asks.
    return negative_log_likelihoods(model, inputs.task, batch, every)

  def _check_model(self, config: Run) -> None:
    """Raises UserError unless the model has a distribution of numbers."""
    model = self.model
    if self.task.label_kind != 'numbers':
      return
    if not has_distribution(model):
      why = 'which has no method distribution'
      if 'head' in config.model.arguments or isinstance(model, TokenModel):
        why = "which has no distribution; the heads 'gaussian' and 'bars' have one"
      raise UserError(
        "config.objective.name is 'nll'; it must be 'sampled' for "
        f'{headed(config)}, {why}'
      )
    asked = self.section
    every = asked.positions == 'every' or asked.min_examples is not None
    if every and not isinstance(model, HasDistributions):
      raise UserError(
        "config.objective.positions is 'every'; it must be 'query' for "
        f'{config.model.name!r}, which has no method distributions'
      )
