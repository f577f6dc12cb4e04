"""Prompts as tokens: how a layout holds features, labels and initial guesses.

Shape letters: `n` tokens of a layout, `m` their width, `w` the width of a body.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo.core.prompt import Prompt

# A prompt has these tokens in each layout. `joint` puts each label beside its own
# features, so that only the label of the query, which is missing, can be predicted.
LAYOUTS = {
  'joint': '[x_1; y_1], …, [x_C; y_C], [x_q; guess]',
  'interleaved': '[x_1; guess_1], [0; y_1], [x_2; guess_2], …, [x_q; guess_q]',
  'shifted': '[x_1; 0; guess_1], [x_2; y_1; guess_2], …, [x_q; y_C; guess_q]',
}


def token_width(layout: str, num_features: int, num_outputs: int) -> int:
  """Returns the width of the tokens of a layout."""
  return num_features + num_outputs * (2 if layout == 'shifted' else 1)


def num_tokens(layout: str, context_length: int) -> int:
  """Returns the number of tokens of a prompt with `context_length` examples."""
  return 2 * context_length + 1 if layout == 'interleaved' else context_length + 1


def lay_out(
  prompt: Prompt, guess: Float[Array, 'b t k'], layout: str
) -> Float[Array, 'b n m']:
  """Returns the tokens of prompts.

  Args:
    prompt: Prompts `[b]` with c examples.
    guess: The guess of each label, `[b, c + 1, k]`, that of the query last.
    layout: One of LAYOUTS.
  """
  if layout == 'joint':
    return prompt.tokens(guess[:, -1])
  x = prompt.features
  before = jnp.pad(prompt.labels, ((0, 0), (1, 0), (0, 0)))  # y_0 = 0, y_1, …, y_C
  if layout == 'shifted':
    return jnp.concatenate([x, before, guess], axis=-1)
  asked = jnp.concatenate([x, guess], axis=-1)
  told = jnp.concatenate([jnp.zeros_like(x), before], axis=-1)
  b, t, m = asked.shape
  # The tokens are pairs: the label of the previous example, then the example. The first
  # example has no label before it.
  return jnp.stack([told, asked], axis=2).reshape(b, 2 * t, m)[:, 1:]


def at_examples(layout: str) -> slice:
  """Returns the tokens at which the labels of examples and query are predicted."""
  return slice(None, None, 2 if layout == 'interleaved' else 1)


def token_names(layout: str, context_length: int) -> list[str]:
  """Returns what the tokens of a layout hold, such as `x_1` and `y_1`.

  The query is `x_q`.
  """
  places = range(1, context_length + 1)
  if layout == 'interleaved':
    return [f'{name}_{i}' for i in places for name in 'xy'] + ['x_q']
  if layout == 'joint':
    return [f'x_{i}, y_{i}' for i in places] + ['x_q']
  features = [f'x_{i}' for i in places] + ['x_q']
  labelled = zip(places, features[1:], strict=True)
  return features[:1] + [f'{x}, y_{i}' for i, x in labelled]
