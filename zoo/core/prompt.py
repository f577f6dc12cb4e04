"""Prompts: labelled examples in context, and a query to be labelled.

Shapes of prompts and models are written with the same letters everywhere:

- `b` prompts of a batch, `c` context examples, `d` features, `k` classes, `t` positions
  of a prompt (c + 1);
- `n` tokens, `e` entries of a token (d + 1, or d + k), `h` heads, `w` width, `s`
  entries of a head or of a state, `v` entries of a value, `l` layers;
- `*k`: no axis if labels are numbers, one axis if labels are one of k classes.

In other places a letter counts what the function says.
"""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError


class _Shown:
  """The type and the shape of an array, as text."""

  def __init__(self, array: typing.Any):
    self.array = array

  def __repr__(self) -> str:
    if not hasattr(self.array, 'shape') or not hasattr(self.array, 'dtype'):
      return repr(self.array)
    return f'{self.array.dtype}{[*self.array.shape]}'


_REAL = jnp.floating, jnp.integer, jnp.bool_


@typing.no_type_check  # JAX also builds one from placeholders or stacked arrays.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Prompt:
  """A batch of prompts: examples in context, and a query.

  A model sees labels: numbers, ±1 for two classes, or one-hot vectors. Its prediction
  is compared with a target: the label without noise, the probability of the label +1,
  or the probabilities of the classes. Compared with a loss on sampled labels, the mean
  loss on targets differs by a constant, and its variance is smaller.

  Attributes:
    x: The features of the context examples, `[b, c, d]`.
    y: The labels of the context examples, `[b, c]`; for k classes `[b, c, k]`.
    x_query: The features of the query, `[b, d]`.
    y_query: The target of the query, `[b]`; for k classes `[b, k]`.
    context_targets: The targets of the context examples, in the shape of `y`. None
      means that their labels are the targets.
    latents: What the task drew and does not show, such as the weights w, if `sample`
      was called with `latents=True`; else None. Models do not read it.

  Example:
    >>> prompt = zoo.Prompt(
    ...   x=jnp.array([[[1.0, 0.0], [0.0, 1.0]]]),
    ...   y=jnp.array([[1.0, 2.0]]),
    ...   x_query=jnp.array([[1.0, 1.0]]),
    ...   y_query=jnp.array([3.0]),
    ... )
    >>> prompt
    Prompt(x=float32[1, 2, 2], y=float32[1, 2], x_query=float32[1, 2],
           y_query=float32[1])
    >>> prompt.tokens(guess=jnp.zeros(1))[0].tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 2.0], [1.0, 1.0, 0.0]]

  References:
    arXiv 2512.04268, section 2.
  """

  x: Float[Array, 'b c d']
  y: Float[Array, 'b c *k']
  x_query: Float[Array, 'b d']
  y_query: Float[Array, ' b *k']
  context_targets: Float[Array, 'b c *k'] | None = None
  latents: PyTree = None

  def __repr__(self) -> str:
    """Returns the types and the shapes of the arrays, such as `float32[8, 10, 3]`."""
    parts = [
      f'{field.name}={jax.tree.map(_Shown, value)}'
      for field in dataclasses.fields(self)
      if (value := getattr(self, field.name)) is not None
    ]
    return f'Prompt({", ".join(parts)})'

  @property
  def features(self) -> Float[Array, 'b t d']:
    """The features of the context examples, followed by those of the query."""
    return jnp.concatenate([self.x, self.x_query[:, None]], axis=1)

  @property
  def labels(self) -> Float[Array, 'b c k']:
    """The labels of the context. Numbers get an axis of length 1, so that k is 1."""
    return self.y if self.y.ndim == 3 else self.y[..., None]

  @property
  def targets(self) -> Float[Array, 'b t *k']:
    """The targets of the context examples, followed by that of the query."""
    context = self.y if self.context_targets is None else self.context_targets
    return jnp.concatenate([context, self.y_query[:, None]], axis=1)

  def prefix(self, k: int) -> Prompt:
    """Returns the prompt of the first k examples, with the next example as the query.

    Args:
      k: From 0 to c. For k = c it is the prompt itself.

    Returns:
      A prompt of k examples, with the same latents.

    Raises:
      UserError: If k is out of its range.
    """
    c = self.x.shape[1]
    if not 0 <= k <= c:
      raise UserError(f'k is {k}; it must be from 0 to {c}, the length of the context')
    if k == c:
      return self
    targets = self.context_targets
    return Prompt(
      x=self.x[:, :k],
      y=self.y[:, :k],
      x_query=self.x[:, k],
      y_query=self.y[:, k] if targets is None else targets[:, k],
      context_targets=None if targets is None else targets[:, :k],
      latents=self.latents,
    )

  def examples(self) -> Float[Array, 'b c e']:
    """Returns the context examples with their labels, `z_i = [x_i; y_i]`."""
    return jnp.concatenate([self.x, self.labels], axis=-1)

  def second_moment(self) -> Float[Array, 'b e e']:
    """Returns the second moment of the examples, `G = (1/C) Σ_i z_i z_iᵀ`.

    It is all of the context that a model of the linear family uses. It is 0 if there
    are no examples.
    """
    z_bce = self.examples()
    return jnp.einsum('bci,bcj->bij', z_bce, z_bce) / max(z_bce.shape[1], 1)

  def tokens(self, guess: Float[Array, ' b *k']) -> Float[Array, 'b t e']:
    """Returns the tokens of each prompt (arXiv 2512.04268, eq. 2), one in each row.

    The tokens of the examples, `[x_i; y_i]`, come first; that of the query is last.

    Args:
      guess: The initial guess y_q of the query's label, which stands in the place of
        the label, `[b]` or `[b, k]`.
    """
    guess = guess if guess.ndim == 2 else guess[:, None]
    query_be = jnp.concatenate([self.x_query, guess], axis=-1)
    return jnp.concatenate([self.examples(), query_be[:, None]], axis=1)


def checked_prompt(
  prompt: object,
  user: str = 'model',
  num_features: int | None = None,
  of_numbers: bool = False,
) -> Prompt:
  """Returns a prompt of floats, after checking that its arrays fit each other.

  A Prompt cannot check itself, since JAX also builds one from placeholders.

  Args:
    prompt: The object.
    user: What needs the prompt, in messages, such as 'model'.
    num_features: The number of features that the user is for. None allows any number.
    of_numbers: Whether the user predicts numbers alone, and no classes.

  Returns:
    The prompt. Integers and truth values become floats: a sum of truth values would be
    a logical one, and numbers of the user would be rounded to integers.

  Raises:
    UserError: If the object is not a Prompt, if an array of it does not hold numbers or
      has a wrong shape, if the number of features is another, or if labels have several
      entries and the user predicts numbers alone.
  """
  if not isinstance(prompt, Prompt):
    raise UserError(
      f'the prompt is of type {type(prompt).__name__}; it must be a zoo.Prompt'
    )
  names = ['x', 'y', 'x_query', 'y_query']
  names += [] if prompt.context_targets is None else ['context_targets']
  for name in names:
    array: object = vars(prompt)[name]
    if not isinstance(array, jax.Array | np.ndarray):
      what = f'a {type(array).__name__}'
    elif not any(jnp.issubdtype(array.dtype, kind) for kind in _REAL):
      what = f'of type {array.dtype}'
    else:
      continue
    raise UserError(f'prompt.{name} is {what}; it must be an array of numbers')
  if prompt.x.ndim != 3 or prompt.y.ndim not in (2, 3):
    raise UserError(
      f'prompt.x and prompt.y have shapes {prompt.x.shape} and {prompt.y.shape}; they '
      'must be [b, c, d] and [b, c], or [b, c, k] for classes: prompts, examples and '
      'features'
    )
  (b, c, d), labels = prompt.x.shape, prompt.y.shape[2:]
  expected = {'y': (b, c, *labels), 'x_query': (b, d), 'y_query': (b, *labels)}
  for name, shape in expected.items():
    if (size := vars(prompt)[name].shape) != shape:
      raise UserError(
        f'prompt.{name} has shape {size}; it must be {shape}, since prompt.x has '
        f'{prompt.x.shape}'
      )
  if num_features not in (None, d):
    raise UserError(f'the {user} is for {num_features} features; the prompt has {d}')
  if of_numbers and labels and labels[0] > 1:
    raise UserError(
      f'the {user} predicts one number, and prompt.y has shape {prompt.y.shape}: each '
      f'label has {labels[0]} entries, as those of classes have; models with the '
      'argument num_outputs, such as a transformer, predict them'
    )
  whole = {
    name: jnp.asarray(array, float)
    for name in names
    if not jnp.issubdtype((array := vars(prompt)[name]).dtype, jnp.floating)
  }
  return dataclasses.replace(prompt, **whole) if whole else prompt
