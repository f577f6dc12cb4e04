"""The states of recurrent mixers, token by token, so that they can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import keystr
from jaxtyping import Array, Int, PyTree

from zoo.core.errors import UserError
from zoo.core.taps import Replacement, Tap
from zoo.mixers.mixer import Mixer, Tokens

# The axes of the matrix of each head, with the axis of tokens.
_MEMORY = 'b n h k v'
_LETTERS = 'b n p q r s'


def state_taps(mixer: Mixer) -> dict[str, Tap]:
  """Returns a tap for each array of a mixer's state, by its path within the state.

  A mixer that cannot take tokens one by one has no such taps. The number of tokens in a
  state has no tap.
  """
  if not mixer.causal:
    return {}
  state = jax.eval_shape(lambda: mixer.initial_state(1))
  taps = {}
  for name, leaf in named_leaves(state).items():
    if leaf.ndim == 0 or not jnp.issubdtype(leaf.dtype, jnp.inexact):
      continue
    is_memory = leaf.ndim == 4 and not name.startswith('past')
    axes = _MEMORY if is_memory else _LETTERS[: 2 * leaf.ndim + 1]
    taps[name] = Tap(f'mixer.state.{name}', axes, kind='state', is_on_demand=True)
  return taps


def named_leaves(state: PyTree) -> dict[str, Any]:
  """Returns the arrays of a state by their paths within it, such as `past.0`."""
  return {
    '.'.join(keystr((key,), simple=True) for key in path): leaf
    for path, leaf in jax.tree.leaves_with_path(state)
  }


def are_replaced(taps: Mapping[str, Tap]) -> bool:
  """Returns whether the states are to be read or changed."""
  return any(isinstance(tap, Replacement) for tap in taps.values())


def by_steps(mixer: Mixer, tokens: Tokens, taps: Mapping[str, Tap]) -> Tokens:
  """Returns the outputs of a mixer, one token after another, through taps of its state.

  Token t + 1 starts from what a tap returns for the state after token t. The output of
  token t itself is read before the tap, so the state after the last token changes no
  output. A tap takes an array with the states after all tokens. At each token the
  states after the other tokens are 0 in it.

  Args:
    mixer: The mixer, without the taps of its states, which belong to its layer.
    tokens: The input of the mixer, `[b, n, w]`.
    taps: The taps of the layer, by the path within the state, as `state_taps` returns
      them.

  Returns:
    The outputs, `[b, n, w]`.

  Raises:
    UserError: If another value in the mixer is to be read or changed. It would be the
      value of one token.
  """
  for _, module in nnx.iter_modules(mixer):
    if isinstance(module, Replacement):
      raise UserError(
        f'the states of a mixer are computed token by token, where the value at '
        f'{module.site!r} is that of one token; read or change it in a call of its own'
      )
  n = tokens.shape[1]

  def step(state: PyTree, inputs: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
    token, t = inputs
    output, state = mixer.step(token, state)
    after = {
      name: _changed(taps[name], leaf, t, n) if name in taps else leaf
      for name, leaf in named_leaves(state).items()
    }
    state = jax.tree.unflatten(jax.tree.structure(state), after.values())
    return state, (output, {name: after[name] for name in taps})

  start = mixer.initial_state(len(tokens))
  inputs = jnp.swapaxes(tokens, 0, 1), jnp.arange(n)
  _, (outputs, states) = jax.lax.scan(step, start, inputs)
  for name, tap in taps.items():
    if isinstance(tap, Replacement):
      tap.show(jnp.swapaxes(states[name], 0, 1))
  return jnp.swapaxes(outputs, 0, 1)


def _changed(tap: Tap, state: Array, t: Int[Array, ''], n: int) -> Array:
  """Returns the state after token t as a tap returns it."""
  if not isinstance(tap, Replacement):
    return state
  states = jnp.zeros((len(state), n, *state.shape[1:]), state.dtype)
  return tap(states.at[:, t].set(state))[:, t]
