"""The logit lens: the predictions that can be read after each layer of a model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor, Task, require_task
from zoo.measure.curve import summarise
from zoo.measure.intervals import Estimate, half_of
from zoo.measure.predict import Programs, gather, loss_of, sample_batches
from zoo.measure.table import Rows, WithRows, name_of_half
from zoo.tasks.base import Loss, is_squared

_BATCH_SIZE = 512


class LayerCurve(NamedTuple):
  """The loss at the query by the number of layers before the readout.

  The result of `lens` has two of them, `own` and `fitted`.

  Attributes:
    num_layers: The numbers of layers, 0, 1, ….
    mean: The mean loss over prompts.
    stderr: The standard error of the mean.
    median: The median of the loss over prompts.
    num_prompts: The number of prompts.
  """

  num_layers: Int[np.ndarray, ' n']
  mean: Float[np.ndarray, ' n']
  stderr: Float[np.ndarray, ' n']
  median: Float[np.ndarray, ' n']
  num_prompts: int | float

  @property
  def half(self) -> Float[np.ndarray, ' n']:
    """The standard error of each mean loss times Student's t, as in `Estimate`."""
    return half_of(self.stderr, self.num_prompts)


class LayerLoss(NamedTuple):
  """The loss of what can be read after some layers.

  It is a row of the table that `lens` returns.

  Attributes:
    num_layers: The number of layers before the readout, from 0.
    own: The loss with the model's own readout.
    fitted: The loss with a fitted linear map. None if the loss of the task is not the
      squared error.
  """

  num_layers: int
  own: Estimate
  fitted: Estimate | None


@dataclasses.dataclass(frozen=True)
class Lens(WithRows):
  """Losses at the query, of predictions read before the first layer and after each one.

  `lens` returns it. It prints as a table. `records` returns the rows as dictionaries,
  `to_frame` as a data frame of pandas, and `to_csv` writes them to a file.

  Attributes:
    own: The loss with the model's own readout, which is the logit lens.
    fitted: The loss with the linear map of the query's token that is fitted to the
      targets by least squares, on other prompts. None if the loss of the task is not
      the squared error.
  """

  own: LayerCurve
  fitted: LayerCurve | None

  @property
  def footer(self) -> str:
    """What ± is in the printed table."""
    return f'{name_of_half(self.own.num_prompts)} over {self.own.num_prompts} prompts'

  @property
  def rows(self) -> Rows[LayerLoss]:
    """The losses by the number of layers."""
    losses = [
      [None] * len(self.own.mean)
      if curve is None
      else [
        Estimate(mean, stderr, curve.num_prompts)
        for mean, stderr in zip(curve.mean, curve.stderr, strict=True)
      ]
      for curve in (self.own, self.fitted)
    ]
    return Rows(map(LayerLoss, self.own.num_layers.tolist(), *losses))


def lens(model: Predictor, task: Task, num_prompts: int = 4096, seed: int = 0) -> Lens:
  """Measures the loss of the predictions that can be read after each layer of a model.

  The readout of the model, which makes its predictions from the tokens after the last
  layer, is applied to the tokens of each layer. The losses show after which layer the
  prediction can be read. If they stay high until the last layer, the loss with a fitted
  linear map shows whether earlier tokens have the information already, in directions
  that the readout ignores.

  - Quantity: E ℓ(f_l, y) for the predictions f_l read after layer l, over prompts.
  - Null: for a model that ignores its context, the loss of the layer's own prediction
    from the query alone. This loss may differ from layer to layer.

  Args:
    model: A model whose layers can be read (`zoo.core.protocols.Layered`), such as
      `transformer` and `deep_lsa`.
    task: The task whose prompts and loss are used.
    num_prompts: The number of prompts on which losses are measured. The fits use as
      many others. A linear map of tokens with w entries has w + 1 parameters, and needs
      twice as many prompts, so that the least number is 2 (w + 1). If the loss of the
      task is not the squared error, nothing is fitted, and the least number is 2.
    seed: The seed of the prompts.

  Returns:
    The losses by layer, with the model's own readout and with the fitted linear map.

  Raises:
    UserError: If the model has no methods `layer_tokens` and `read`, or is not an NNX
      module; if there are too few prompts.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, width=8, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> losses = zoo.probing.lens(model, task, num_prompts=18)
    >>> losses.own.mean.shape  # before the layer and after it
    (2,)

  References:
    nostalgebraist, "interpreting GPT: the logit lens", 2020.
  """
  require_task(task)
  check_layered(model)
  check_count('num_prompts', num_prompts, minimum=2)
  loss, squared, programs = loss_of(task), is_squared(task), Programs()
  if squared:
    check_enough_prompts(model, task, num_prompts)
  # Losses are measured on the first half, and the map is fitted on the second.
  batches = sample_batches(task, seed, 2 * num_prompts, _BATCH_SIZE)
  if not squared:
    batches = itertools.islice(batches, -(-num_prompts // _BATCH_SIZE))
  losses, tokens, targets = gather(
    lambda prompt: (
      *programs.run(_losses_by_layer, [model], prompt, loss),
      prompt.y_query,
    ),
    batches,
  )
  own = _curve(losses[:num_prompts].astype(np.float64))
  if not squared:
    return Lens(own, None)
  fitted = fitted_predictions(tokens.astype(np.float64), targets, num_prompts)
  errors = (fitted[:num_prompts] - targets[:num_prompts, None]) ** 2
  return Lens(own, _curve(errors))


def check_layered(model: Predictor) -> None:
  """Checks that the layers of a model can be read.

  Such a model follows `zoo.core.protocols.Layered`, and is an NNX module.

  Raises:
    UserError: If they cannot be read.
  """
  if not (isinstance(model, Layered) and isinstance(model, nnx.Module)):
    raise UserError(
      f'{type(model).__name__} has no layers to read; it must be a module with '
      'layer_tokens and read, as transformer and deep_lsa have'
    )


def check_enough_prompts(model: Any, task: Task, num_prompts: int) -> None:
  """Checks that a linear map of a layer's token can be fitted to `num_prompts` prompts.

  Raises:
    UserError: If there are fewer than two prompts for each weight of the map.
  """
  prompt = task.held_out().sample(jax.random.key(0), 1)
  (token, *_) = jax.eval_shape(lambda: read_layers([model], prompt)[1])
  check_count('num_prompts', num_prompts, minimum=2 * (token.shape[-1] + 1))


def _curve(losses: Float[np.ndarray, 'p l']) -> LayerCurve:
  curve = summarise(losses)
  return LayerCurve(
    num_layers=curve.num_examples,
    mean=curve.mean,
    stderr=curve.stderr,
    median=curve.median,
    num_prompts=curve.num_prompts,
  )


def _losses_by_layer(
  predictors: Sequence[Layered], prompt: Prompt, loss: Loss
) -> tuple[Float[Array, 'b l'], Float[Array, 'b l w']]:
  """Returns the model's own losses and the tokens at the query, by layer."""
  predictions, tokens = read_layers(predictors, prompt)
  losses = [loss(prediction, prompt.y_query) for prediction in predictions]
  return jnp.stack(losses, axis=1), jnp.stack(tokens, axis=1)


def read_layers(
  predictors: Sequence[Layered], prompt: Prompt
) -> tuple[list[Float[Array, ' b *k']], list[Float[Array, 'b w']]]:
  """Returns the predictions for the query, and the query's tokens, by layer."""
  (model,) = predictors
  states = model.layer_tokens(prompt)
  predictions = [model.read(tokens, prompt)[:, -1] for tokens in states]
  return predictions, [tokens[:, -1] for tokens in states]


def fitted_predictions(
  tokens: Float[np.ndarray, 'p l w'], targets: Float[np.ndarray, ' p'], num_prompts: int
) -> Float[np.ndarray, 'p l']:
  """Returns the predictions of linear maps that are fitted by least squares.

  The maps are fitted on the prompts after the first `num_prompts`.
  """
  predictions = []
  for layer in np.moveaxis(tokens, 1, 0):
    inputs = np.column_stack([layer, np.ones(len(layer))])
    weights = np.linalg.lstsq(inputs[num_prompts:], targets[num_prompts:])[0]
    halves = inputs[:num_prompts], inputs[num_prompts:]
    predictions.append(np.concatenate([half @ weights for half in halves]))
  return np.stack(predictions, axis=1)
