"""Paths: how one value within a model affects another through the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from zoo.core.errors import UserError, shown
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.taps import places
from zoo.measure.predict import run_once
from zoo.measure.ratio import Share, share_of_gap
from zoo.probing.checks import checked_module, no_array, sites_of_kind, wanted_sites
from zoo.probing.inside.activations import put_back, recorded
from zoo.probing.inside.edits import edited
from zoo.probing.inside.effects import (
  LossAtQuery,
  Metric,
  check_metric,
  check_takes_prompts,
  checked_prompts,
)
from zoo.probing.inside.nodes import Node, NodeLike, Part, node_of, part_of, put_part
from zoo.probing.inside.reach import depends, readers

# The kinds of the residual stream, and of the values that are added to it. All later
# layers read their sum.
_OF_STREAM = 'embed', 'stream', 'added'


def path_effect(
  model: Predictor,
  task: Task,
  clean: Prompt,
  corrupt: Prompt,
  sender: NodeLike,
  receiver: NodeLike,
  metric: Metric | None = None,
) -> Share | None:
  """Measures the share of the gap that the path from one node to another recovers.

  This is path patching. The clean value of the sender reaches the receiver, in the
  corrupt prompts, through the residual stream alone: the outputs of all other mixers
  and networks keep their corrupt values. The new value of the receiver then replaces
  its corrupt value, and everything after it is computed from it. If the receiver is
  `Node('layers.1.mixer.query', head=0)`, the path ends in the queries of one head.

  The outputs of mixers and networks are the values at all taps of the kind `added`.
  They keep their corrupt values, except for an output that contains the sender: if the
  sender is a head, the output of its mixer carries the new value of the head. An output
  contains the sender if it changes with the sender while the residual stream is held
  fixed, at all taps of the kinds `embed`, `stream` and `added`. A sender before the
  stream, such as `guess`, is in none of these outputs. To know this, a model must have
  a tap of the kind `embed` or `stream`.

  - Quantity: (E L(corrupt) − E L(corrupt; receiver ← r)) / (E L(corrupt) − E L(clean)),
    where r is the value that the receiver has in the corrupt prompts if the sender has
    its clean value and all other outputs keep theirs, and E is over pairs of prompts.
  - Null: 0, if the part of the sender that reaches the receiver does not change the
    prediction. If nothing of the sender reaches the receiver, an error is raised.
  - Counterfactual: the corrupt prompts, such as `task.redraw(key, clean, 'inputs')`.
  - Denominator: the gap E L(corrupt) − E L(clean). The share is None if the gap is less
    than 3 standard errors from 0 or, without a `metric`, if the corrupt prompts have
    the lower loss.

  Args:
    model: A model with taps.
    task: The task of the prompts, whose loss L is taken.
    clean: Two or more prompts. All losses are measured against the labels of their
      queries.
    corrupt: As many prompts of the same sizes.
    sender: A site, or a `Node`, which may name one head or one token.
    receiver: A site, or a `Node`.
    metric: A function that replaces the loss: it takes predictions and the clean
      prompts, and returns a number for each prompt.

  Returns:
    The share with its error over prompts, an `Interval` if the gap is less than 8
    standard errors from 0. None if the gap is less than 3 standard errors from 0 or,
    without a `metric`, if the corrupt prompts have the lower loss.

  Raises:
    UserError: If a site, head or token is unknown; if the model has no tap of the kind
      `added`; if it has no tap of the kind `embed` or `stream`, and the kind of the
      sender is `guess` or not known; if the receiver does not depend on the sender by
      this path, or does not reach the prediction; if the value at an end has integers
      or is a tree of arrays; if the prompts have different sizes, or there is one
      prompt alone; if `metric` does not take predictions and prompts. A value depends
      on another one if it becomes NaN with it, and also changes, by more than rounding,
      with its clean value or with normal noise. So the values at earlier tokens do not
      depend on those at later ones if attention is causal.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> clean = saved.task.sample(jax.random.key(0), 64)
    >>> corrupt = saved.task.redraw(jax.random.key(1), clean, 'inputs')
    >>> sender = zoo.probing.Node('layers.1.mixer.heads', head=0)
    >>> receiver = zoo.probing.Node('layers.2.mixer.key', head=1)
    >>> share = zoo.probing.path_effect(
    ...   saved.model, saved.task, clean, corrupt, sender, receiver
    ... )
    >>> round(share.mean, 1)
    0.0

  References:
    Wang et al., arXiv 2211.00593; Goldowsky-Dill et al., arXiv 2304.05969.
  """
  require_task(task)
  sender, receiver = node_of(sender), node_of(receiver)
  wanted_sites(model, [sender.site, receiver.site])
  check_takes_prompts(metric)
  clean, corrupt = checked_prompts(clean, corrupt)
  added = sites_of_kind(model, 'added')
  if not added:
    raise UserError(
      f'{type(model).__name__} has no tap of the kind added, whose values would be '
      'kept off the path'
    )
  sent_part, received_part = _parts(model, corrupt, sender, receiver)
  kind = {place.site: place.tap.kind for place in places(checked_module(model))}
  is_before = kind[sender.site] in ('guess', None)
  if is_before and not sites_of_kind(model, 'embed', 'stream'):
    raise UserError(
      f'{type(model).__name__} has no tap of the kind embed or stream; without one it '
      f'is not known which outputs contain {sender.site!r}, whose kind is '
      f'{kind[sender.site]}'
    )
  frozen = [site for site in added if site not in (sender.site, receiver.site)]
  if sender.site not in sites_of_kind(model, *_OF_STREAM):
    few = jax.tree.map(lambda array: array[:2], corrupt)
    direct = readers(model, few, [sender.site])
    frozen = [site for site in frozen if site not in direct]
  loss = metric or LossAtQuery(task)

  def measured(
    models: Sequence[Any], clean: Prompt, corrupt: Prompt
  ) -> tuple[Array, ...]:
    (model,) = models
    sent, prediction = recorded(model, clean, [sender.site])
    values, without = recorded(model, corrupt, frozen)

    # The value r of the receiver: the clean value of the sender reaches it, and all
    # other outputs keep their corrupt values.
    clean_sender = put_part(sent, sender.site, sent_part)
    on_path = edited(model, put_back(values, frozen) | {sender.site: clean_sender})
    received, _ = recorded(on_path, corrupt, [receiver.site])

    # Then r replaces the corrupt value, and everything after it is computed anew.
    from_path = put_part(received, receiver.site, received_part)
    patched = edited(model, {receiver.site: from_path})(corrupt)
    losses = [loss(answer, clean) for answer in (prediction, without, patched)]

    def received_with(edit: Callable[[Array], Array]) -> list[Array]:
      on_path = edited(model, put_back(values, frozen) | {sender.site: edit})
      received, _ = recorded(on_path, corrupt, [receiver.site])
      return [value[received_part] for value in received.values()]

    def predicted_with(edit: Callable[[Array], Array]) -> list[Array]:
      return [edited(model, {receiver.site: edit})(corrupt)]

    # The edits of above count the calls of one forward pass, so they are made anew.
    is_reached = depends(
      received_with, sent_part, lambda: put_part(sent, sender.site, sent_part)
    )
    goes_on = depends(
      predicted_with,
      received_part,
      lambda: put_part(received, receiver.site, received_part),
    )
    return is_reached, goes_on, *losses

  is_reached, goes_on, *arrays = run_once(measured, [model], clean, corrupt)
  if not is_reached:
    keeps = f', which keeps the values at {shown(frozen)}' if frozen else ''
    raise UserError(
      f'{str(receiver)!r} does not depend on {str(sender)!r} by this path{keeps}'
    )
  if not goes_on:
    raise UserError(f'the site {str(receiver)!r} does not reach the prediction')
  for array in arrays:
    check_metric(array, len(clean.x))
  clean_loss, corrupt_loss, patched = (
    np.asarray(array, np.float64) for array in arrays
  )
  return share_of_gap(
    corrupt_loss - patched, clean_loss, corrupt_loss, is_loss=metric is None
  )


def _parts(model: Predictor, prompt: Prompt, *nodes: Node) -> list[Part]:
  """Returns the parts of nodes; raises UserError for an unknown head or token."""
  sites = [node.site for node in nodes]
  shapes = jax.eval_shape(lambda: recorded(model, prompt, sites)[0])
  axes = {place.site: place.tap.axes for place in places(checked_module(model))}
  for site in sites:
    if site not in shapes:
      raise UserError(no_array(site, shapes))
    if not jnp.issubdtype(shapes[site].dtype, jnp.inexact):
      raise UserError(
        f'the value at the site {site!r} is {shapes[site].dtype}; the ends of a path '
        'must have numbers with a fraction'
      )
  return [part_of(node, axes[node.site], shapes[node.site].shape) for node in nodes]
