"""The Jacobian lens: what the stream after a layer means to the last layer, on average.

The logit lens applies the readout to the tokens of an early layer as if nothing came
after it. The Jacobian lens first maps these tokens to the last layer, by the mean
derivative of the last layer's tokens in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  LOSS_BATCH_SIZE,
  Programs,
  gather,
  in_batches,
  loss_of,
  sample_batches,
)
from zoo.measure.table import Rows, WithRows, name_of_half
from zoo.probing.checks import sites_of_kind
from zoo.probing.edit import edited
from zoo.probing.logit_lens import check_layered
from zoo.tasks.base import Loss

_NUM_AVERAGED = 512  # A Jacobian is averaged over at most so many prompts.


class JacobianLoss(NamedTuple):
  """The loss of what can be read after some layers.

  It is a row of the table that `jacobian_lens` returns.

  Attributes:
    num_layers: The number of layers before the readout, from 0.
    logit: The loss of the readout from the query's token as it is, the logit lens.
    jacobian: The loss of the readout from the mean Jacobian times the query's token.
  """

  num_layers: int
  logit: Estimate
  jacobian: Estimate


@dataclasses.dataclass(frozen=True)
class JacobianLens(WithRows):
  """The losses of the Jacobian lens beside those of the logit lens.

  `jacobian_lens` returns it. It prints as a table.

  Attributes:
    rows: The losses by the number of layers.
    jacobians: The mean of ∂z/∂h for the query's token h after each number of layers and
      z after the last one, `[l, w, w]`. The last one is the identity.
  """

  rows: Rows[JacobianLoss]
  jacobians: Float[np.ndarray, 'l w w']

  @property
  def footer(self) -> str:
    """What ± is in the printed table."""
    num_prompts = self.rows[0].logit.num
    return f'{name_of_half(num_prompts)} over {num_prompts} prompts'


def jacobian_lens(
  model: Predictor, task: Task, num_prompts: int = 4096, seed: int = 0
) -> JacobianLens:
  """Measures what can be read after each layer through the mean Jacobian.

  The query's token h after some layers is mapped to J h, where J is the mean over
  prompts of ∂z/∂h for the query's token z after the last layer. The model's own readout
  is applied to J h. If the later layers are linear maps of each token, J is the product
  of these maps, and the prediction is exactly what they make of h. What later layers
  move in from other tokens, or add as a bias, is not in J h.

  - Quantity: E ℓ(f_l, y) for the predictions f_l read from J h after layer l.
  - Null: for a model that ignores its context, the loss of what the layer says of the
    query alone. A low loss shows that the answer is there in directions that move the
    last layer; it does not show that the model uses it on each prompt.

  The Jacobian is that of the query's token in itself. The query is the last token, so
  that no later token reads it.

  Args:
    model: A model whose layers can be read (`zoo.core.protocols.Layered`) and whose
      residual stream has a tap before each layer, at a site whose name ends in
      `.tokens`, such as `transformer`.
    task: The task whose prompts and loss are used.
    num_prompts: The number of prompts on which losses are measured, at least 2. The
      Jacobians are means over as many others, but over 512 at most.
    seed: The seed of the prompts, which are those of `lens`.

  Returns:
    The losses by layer, and the mean Jacobians.

  Raises:
    UserError: If the layers of the model cannot be read or changed, or if there are too
      few prompts.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> print(zoo.probing.jacobian_lens(saved.model, saved.task, num_prompts=1024))
    num_layers          logit       jacobian
    0           5.639 ± 0.590  5.809 ± 0.585
    1           5.131 ± 0.552  5.391 ± 0.563
    2           1.184 ± 0.127  1.016 ± 0.124
    3           0.338 ± 0.043  0.338 ± 0.043
    ± 95 % over 1024 prompts

  References:
    Gurnee et al., "Verbalizable Representations Form a Global Workspace in Language
    Models", 2026, whose estimator also sums over later tokens.
  """
  require_task(task)
  check_layered(model)
  check_count('num_prompts', num_prompts, minimum=2)
  sites = _stream_sites(model, task)
  loss, programs = loss_of(task), Programs()
  prompts = [*sample_batches(task, seed, 2 * num_prompts, LOSS_BATCH_SIZE)]
  whole = jax.tree.map(lambda *parts: jnp.concatenate(parts), *prompts)
  averaged = jax.tree.map(lambda array: array[num_prompts:][:_NUM_AVERAGED], whole)

  def jacobian_at(models: Sequence[Any], prompt: Prompt) -> Float[Array, 'l w w']:
    return _mean_jacobians(models[0], prompt, sites)

  jacobians = programs.run(jacobian_at, [model], averaged)
  logit, jacobian = gather(
    lambda prompt: programs.run(_losses, [model], prompt, jacobians, loss),
    in_batches(whole, num_prompts, LOSS_BATCH_SIZE),
  )
  rows = Rows(
    JacobianLoss(i, estimate(logit[:, i]), estimate(jacobian[:, i]))
    for i in range(len(jacobians))
  )
  return JacobianLens(rows, np.asarray(jacobians))


def _stream_sites(model: Any, task: Task) -> list[str]:
  """Returns the sites of the stream before each layer.

  Raises:
    UserError: If there is not one for each layer, as in a model that applies its layers
      several times.
  """
  sites = [site for site in sites_of_kind(model, 'stream') if site.endswith('.tokens')]
  prompt = task.held_out().sample(jax.random.key(0), 1)
  num_layers = len(jax.eval_shape(lambda: model.layer_tokens(prompt))) - 1
  if len(sites) != num_layers:
    raise UserError(
      f'{type(model).__name__} has {len(sites)} sites of its stream before layers, and '
      f'{num_layers} layers; jacobian_lens needs one for each, as transformer has with '
      'num_loops=1'
    )
  return sites


def _mean_jacobians(
  model: Any, prompt: Prompt, sites: Sequence[str]
) -> Float[Array, 'l w w']:
  """Returns the mean of ∂z/∂h at the query, after 0, 1, … layers."""
  width = model.layer_tokens(prompt)[-1].shape[-1]

  def last_layer(added: Float[Array, ' w'], site: str) -> Float[Array, ' w']:
    copy = edited(model, {site: lambda tokens: tokens.at[:, -1].add(added)})
    return jnp.mean(copy.layer_tokens(prompt)[-1][:, -1], axis=0)

  nothing = jnp.zeros(width, prompt.x.dtype)
  # The same vector is added on all prompts, so that this is the mean over prompts.
  slopes = [jax.jacfwd(last_layer)(nothing, site) for site in sites]
  return jnp.stack([*slopes, jnp.eye(width, dtype=nothing.dtype)])


def _losses(
  models: Sequence[Any],
  prompt: Prompt,
  jacobians: Float[Array, 'l w w'],
  loss: Loss,
) -> tuple[Float[Array, 'b l'], Float[Array, 'b l']]:
  """Returns the losses of the logit lens and of the Jacobian lens, by layer."""
  (model,) = models

  def loss_from(tokens: Float[Array, 'b n w']) -> Float[Array, ' b']:
    return loss(model.read(tokens, prompt)[:, -1], prompt.y_query)

  states = model.layer_tokens(prompt)
  mapped = [
    tokens.at[:, -1].set(tokens[:, -1] @ jacobian.T)
    for tokens, jacobian in zip(states, jacobians, strict=True)
  ]
  logit, jacobian = ([loss_from(of) for of in tokens] for tokens in (states, mapped))
  return jnp.stack(logit, axis=1), jnp.stack(jacobian, axis=1)
