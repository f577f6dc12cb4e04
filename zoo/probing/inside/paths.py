"""Paths: what one value within a model does to another through the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from zoo.core.errors import UserError, shown
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.predict import run_once
from zoo.measure.statistics import Estimate, ratio
from zoo.probing.inside.activations import recorded, sites_of_kind, wanted_sites
from zoo.probing.inside.edits import edited, put_back, readers
from zoo.probing.inside.effects import (
  LossAtQuery,
  Metric,
  check_metric,
  checked_prompts,
)

# The kinds of values that are, or are added to, what all later layers read.
_OF_STREAM = 'embed', 'stream', 'added'


def path_effect(
  model: Predictor,
  task: Task,
  clean: Prompt,
  corrupt: Prompt,
  sender: str,
  receiver: str,
  metric: Metric | None = None,
) -> Estimate:
  """The share of the gap that the path from one site to another recovers.

  The value of the sender in the clean prompts reaches the receiver in the corrupt ones
  by the residual stream alone: the outputs of all mixers and networks that the sender
  is no part of stay as they are (path patching, Goldowsky-Dill et al., arXiv
  2304.05969). The receiver's value goes on from there.

  These values are those of all taps of the kind `added`. The sender is a part of such a
  value if the value depends on it while the residual stream stays as it is.

  Arguments and errors are those of `effects`; UserError, too, for a model without taps
  of this kind, for a receiver that the sender does not reach by this path, and for
  one that does not reach the prediction.
  """
  wanted_sites(model, [sender, receiver])
  clean, corrupt = checked_prompts(clean, corrupt)
  added = sites_of_kind(model, 'added')
  if not added:
    raise UserError(
      f'{type(model).__name__} has no tap of the kind added, whose values would be '
      'kept off the path'
    )
  frozen = [site for site in added if site not in (sender, receiver)]
  if sender not in sites_of_kind(model, *_OF_STREAM):
    few = jax.tree.map(lambda array: array[:2], corrupt)
    direct = readers(model, few, [sender])
    frozen = [site for site in frozen if site not in direct]
  loss = metric or LossAtQuery(task)

  def measured(
    models: Sequence[Any], clean: Prompt, corrupt: Prompt
  ) -> tuple[Array, ...]:
    (model,) = models
    sent, prediction = recorded(model, clean, [sender])
    values, without = recorded(model, corrupt, frozen)
    kept = put_back(values, frozen)
    first = edited(model, kept | put_back(sent, [sender]))
    received, _ = recorded(first, corrupt, [receiver])
    second = edited(model, put_back(received, [receiver]))
    noise = {sender: lambda value: jnp.full_like(value, jnp.nan)}
    reached, _ = recorded(
      edited(model, put_back(values, frozen) | noise), corrupt, [receiver]
    )
    is_reached = [jnp.any(jnp.isnan(value)) for value in reached.values()]
    last = edited(model, {receiver: lambda value: jnp.full_like(value, jnp.nan)})
    goes_on = jnp.any(jnp.isnan(last(corrupt)))
    patched = second(corrupt)
    losses = [loss(answer, clean) for answer in (prediction, without, patched)]
    return jnp.any(jnp.stack(is_reached)), goes_on, *losses

  is_reached, goes_on, *arrays = run_once(measured, [model], clean, corrupt)
  if not is_reached:
    keeps = f', which keeps the values at {shown(frozen)}' if frozen else ''
    raise UserError(f'{receiver!r} does not depend on {sender!r} by this path{keeps}')
  if not goes_on:
    raise UserError(f'the site {receiver!r} does not reach the prediction')
  for array in arrays:
    check_metric(array, len(clean.x))
  before, after, patched = (np.asarray(array, np.float64) for array in arrays)
  return ratio(after - patched, after - before)
