"""Paths from head to head, beside a forward pass in NumPy."""

import functools
from typing import Any

import numpy as np
import pytest

from tests.compare import refuses
from tests.probing import numpy_transformer as steps
from tests.weights import double, promoting_float64
from zoo import probing
from zoo.probing import Node

# Shares are None only where a test says so.
path_effect: Any = probing.path_effect


def _losses(model, prompt, changed):
  """The losses after a change of the second layer's queries, keys and values."""
  first, second = model.layers
  stream = steps.embedded(model, prompt)
  stream = steps.after(first, stream, steps.attended(**steps.parts(first, stream)))
  parts = changed(steps.parts(second, stream), stream)
  stream = steps.after(second, stream, steps.attended(**parts))
  outputs = steps.linear(model.read_out, steps.normed(model.norm, stream))[:, -1, 0]
  return np.square(outputs - steps.setting()[2].y_query)


def _expected(name, sender, receiver):
  """The share by equations; sender and receiver are (head, token), None is all."""
  model, _, clean, corrupt = steps.setting()
  first, second = model.layers
  heads = [
    steps.attended(**steps.parts(first, steps.embedded(model, prompt)))
    for prompt in (clean, corrupt)
  ]

  def mask(head, token):
    chosen = np.zeros(heads[0].shape[1:3], bool)
    rows = slice(None) if token is None else token
    chosen[rows, slice(None) if head is None else head] = True
    return chosen[None, :, :, None]

  change = np.where(mask(*sender), heads[0] - heads[1], 0)
  moved = change.reshape(*change.shape[:2], -1) @ double(first.mixer.out)[0]

  def changed(parts, stream):
    new = steps.projected(second, name, stream + moved)
    return parts | {name: np.where(mask(*receiver), new, parts[name])}

  before = _losses(model, clean, lambda parts, stream: parts)
  after = _losses(model, corrupt, lambda parts, stream: parts)
  patched = _losses(model, corrupt, changed)
  return (after - patched).mean() / (after - before).mean()


@pytest.mark.parametrize(
  ('name', 'sender', 'receiver'),
  [
    ('query', (1, None), (0, None)),
    ('key', (1, None), (0, None)),
    ('value', (1, None), (0, None)),
    ('key', (0, -2), (1, -2)),
    ('value', (None, None), (1, None)),
  ],
)
def test_the_path_from_a_head_to_the_inputs_of_another_is_that_of_numpy(
  name, sender, receiver
):
  model, task, clean, corrupt = steps.setting()
  nodes = (
    Node('layers.0.mixer.heads', *sender),
    Node(f'layers.1.mixer.{name}', *receiver),
  )
  with promoting_float64():
    share = path_effect(model, task, clean, corrupt, *nodes)
  expected = _expected(name, sender, receiver)
  assert abs(expected) > 1e-5  # a share of 0 would say nothing
  # Losses are differences of sums of some hundred products in float64.
  assert share.mean == pytest.approx(expected, rel=1e-9)


def test_nodes_that_are_not_there_are_refused():
  model, task, clean, corrupt = steps.setting()
  effect = functools.partial(path_effect, model, task, clean, corrupt)
  heads, key = Node('layers.0.mixer.heads'), Node('layers.1.mixer.key')
  with promoting_float64():
    with refuses('the head is 2 at the site', 'from 0 to 1'):
      effect(heads._replace(head=2), key)
    with refuses('the token is -8 at the site', 'from -7 to 6'):
      effect(heads, key._replace(token=-8))
    with refuses("'layers.1.tokens' has no axis of heads", 'axes are b n w'):
      effect(heads, Node('layers.1.tokens', head=0))
    with refuses("unknown site 'layers.0.mixer.hats'"):
      effect('layers.0.mixer.hats', key)
    # The residual stream keeps tokens apart.
    with refuses('layers.1.mixer.key, token 1', 'does not depend on', 'token 2'):
      effect(heads._replace(token=2), key._replace(token=1))
