"""The predictions that can be read after each layer of a model."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor, Task
from zoo.measure.curves import sample_batches, split, summarise
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

  The fitted maps use another `num_prompts` prompts. Raises UserError for a model that
  is not `zoo.core.protocols.Layered`.
  """
  if not (isinstance(model, Layered) and isinstance(model, nnx.Module)):
    raise UserError(
      f'{type(model).__name__} has no layers to read; it must be a module with '
      'layer_tokens and read, as transformer and deep_lsa have'
    )
  check_count('num_prompts', num_prompts, minimum=2)
  graph, state = split(model)
  loss = task.loss
  each_losses, each_tokens, targets = [], [], []
  # The first half is for the losses, the second for the fit, if there is one.
  squared = is_squared(task)
  batches = sample_batches(task, seed, 2 * num_prompts, _BATCH_SIZE)
  if not squared:
    batches = itertools.islice(batches, -(-num_prompts // _BATCH_SIZE))
  for prompt in batches:
    found = jax.device_get(_read_layers(graph, loss, state, prompt))
    each_losses.append(found[0])
    each_tokens.append(found[1])
    targets.append(np.asarray(prompt.y_query))
  own = np.concatenate(each_losses, axis=1).astype(np.float64)[:, :num_prompts]
  fitted = None
  if squared:
    tokens = np.concatenate(each_tokens, axis=1).astype(np.float64)
    fitted = _curve(_fitted(tokens, np.concatenate(targets), num_prompts))
  return Lens(_curve(own), fitted)


def _curve(losses: Float[np.ndarray, 'l p']) -> LayerCurve:
  return LayerCurve(*summarise(losses.T))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _read_layers(
  graph: Any, loss: Loss, state: PyTree, prompt: Prompt
) -> tuple[Float[Array, 'l b'], Float[Array, 'l b w']]:
  """The loss at the query by the model's readout, and the query's token, by layer."""
  model = nnx.merge(graph, state)
  with jax.default_matmul_precision('highest'):
    each = model.layer_tokens(prompt)
    predictions = [model.read(tokens, prompt)[:, -1] for tokens in each]
  found = jnp.stack([loss(one, prompt.y_query) for one in predictions])
  return found, jnp.stack([tokens[:, -1] for tokens in each])


def _fitted(
  tokens: Float[np.ndarray, 'l p w'], targets: Float[np.ndarray, ' p'], num_prompts: int
) -> Float[np.ndarray, 'l m']:
  """Squared errors on the first m prompts, of least squares fitted to the others."""
  found = []
  for one in tokens:
    inputs = np.column_stack([one, np.ones(len(one))])
    weights = np.linalg.lstsq(inputs[num_prompts:], targets[num_prompts:])[0]
    found.append((inputs[:num_prompts] @ weights - targets[:num_prompts]) ** 2)
  return np.stack(found)
