"""The predictions that can be read after each layer of a model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor, Task
from zoo.measure.curves import summarise
from zoo.measure.predict import Programs, gather, loss_of, sample_batches
from zoo.tasks.base import Loss, is_squared

_BATCH_SIZE = 512


class LayerCurve(NamedTuple):
  """The loss at the query by the number of layers before the readout."""

  num_layers: Int[np.ndarray, ' n']
  mean: Float[np.ndarray, ' n']
  standard_error: Float[np.ndarray, ' n']  # of the mean
  median: Float[np.ndarray, ' n']


class Lens(NamedTuple):
  """The loss at the query before the first layer, and after each.

  `own` uses the model's own readout (the logit lens). `fitted` uses the best linear map
  of the query's token, by least squares on other prompts; it is None if the loss is not
  the squared error.
  """

  own: LayerCurve
  fitted: LayerCurve | None


def lens(model: Predictor, task: Task, num_prompts: int = 4096, seed: int = 0) -> Lens:
  """The loss of predictions read from the tokens of each layer of a model.

  - Quantity: E ℓ(f_l, y) for the predictions f_l read after layer l, over prompts.
  - Null: the loss of the prediction without examples, for a model without context.

  The fitted maps use another `num_prompts` prompts. Raises UserError for a model that
  is not `zoo.core.protocols.Layered`.
  """
  check_layered(model)
  check_count('num_prompts', num_prompts, minimum=2)
  loss, squared, programs = loss_of(task), is_squared(task), Programs()
  # The first half is for the losses, the second for the fit, if there is one.
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
  """Raises UserError for a model that is not `zoo.core.protocols.Layered`."""
  if not (isinstance(model, Layered) and isinstance(model, nnx.Module)):
    raise UserError(
      f'{type(model).__name__} has no layers to read; it must be a module with '
      'layer_tokens and read, as transformer and deep_lsa have'
    )


def _curve(losses: Float[np.ndarray, 'p l']) -> LayerCurve:
  return LayerCurve(*summarise(losses)[:4])


def _losses_by_layer(
  predictors: Sequence[Layered], prompt: Prompt, loss: Loss
) -> tuple[Float[Array, 'b l'], Float[Array, 'b l w']]:
  """The loss at the query by the model's readout, and the query's token, by layer."""
  predictions, tokens = read_layers(predictors, prompt)
  losses = [loss(prediction, prompt.y_query) for prediction in predictions]
  return jnp.stack(losses, axis=1), jnp.stack(tokens, axis=1)


def read_layers(
  predictors: Sequence[Layered], prompt: Prompt
) -> tuple[list[Float[Array, ' b *k']], list[Float[Array, 'b w']]]:
  """The readout's predictions for the query, and the query's tokens, by layer."""
  (model,) = predictors
  states = model.layer_tokens(prompt)
  predictions = [model.read(tokens, prompt)[:, -1] for tokens in states]
  return predictions, [tokens[:, -1] for tokens in states]


def fitted_predictions(
  tokens: Float[np.ndarray, 'p l w'], targets: Float[np.ndarray, ' p'], num_prompts: int
) -> Float[np.ndarray, 'p l']:
  """Predictions of least squares fitted to the prompts after the first ones."""
  predictions = []
  for layer in np.moveaxis(tokens, 1, 0):
    inputs = np.column_stack([layer, np.ones(len(layer))])
    weights = np.linalg.lstsq(inputs[num_prompts:], targets[num_prompts:])[0]
    halves = inputs[:num_prompts], inputs[num_prompts:]
    predictions.append(np.concatenate([half @ weights for half in halves]))
  return np.stack(predictions, axis=1)
