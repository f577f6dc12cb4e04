"""Prompts: labelled examples in context, and a query to be labelled.

Shape letters, here and everywhere: `b` batch, `c` context examples, `d` features,
`k` classes, `t` tokens (c + 1), `e` token width (d + 1, or d + k), `h` heads. `*k` is
no axis for labels that are numbers, and one axis for labels of k classes.
"""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError

_REAL = jnp.floating, jnp.integer, jnp.bool_


@typing.no_type_check  # JAX also builds one from placeholders or stacked arrays
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Prompt:
  """A batch of prompts (arXiv 2512.04268, section 2).

  Labels are what a model sees: numbers, ±1 for two classes, or one-hot vectors. Targets
  are what its prediction is compared with: the label without noise, the probability of
  the label +1, or the probabilities of the classes. Such a loss has the same mean as
  one with sampled labels, up to a constant, and less variance.
  """

  x: Float[Array, 'b c d']  # features of the context examples
  y: Float[Array, 'b c *k']  # their labels
  x_query: Float[Array, 'b d']  # features of the query
  y_query: Float[Array, ' b *k']  # the target of the query
  # The targets of the context examples; None if their labels are the targets.
  context_targets: Float[Array, 'b c *k'] | None = None
  # What the task drew, such as w, if `sample` was asked for it. Not for models.
  latents: PyTree = None

  @property
  def features(self) -> Float[Array, 'b t d']:
    """The features of the context examples, then those of the query."""
    return jnp.concatenate([self.x, self.x_query[:, None]], axis=1)

  @property
  def labels(self) -> Float[Array, 'b c k']:
    """The labels of the context; numbers get an axis of one output."""
    return self.y if self.y.ndim == 3 else self.y[..., None]

  @property
  def targets(self) -> Float[Array, 'b t *k']:
    """The targets of the context examples, then that of the query."""
    context = self.y if self.context_targets is None else self.context_targets
    return jnp.concatenate([context, self.y_query[:, None]], axis=1)

  def prefix(self, k: int) -> Prompt:
    """The first k context examples, with the next example as the query.

    The prompt itself for k = c. Raises UserError for k < 0 or k > c.
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
    """The context examples with their labels, `z_i = [x_i; y_i]`."""
    return jnp.concatenate([self.x, self.labels], axis=-1)

  def second_moment(self) -> Float[Array, 'b e e']:
    """`G = (1/C) Σ_i z_i z_iᵀ`, all that the linear family uses; 0 without examples."""
    z_bce = self.examples()
    return jnp.einsum('bci,bcj->bij', z_bce, z_bce) / max(z_bce.shape[1], 1)

  def tokens(self, guess: Float[Array, ' b *k']) -> Float[Array, 'b t e']:
    """The embedding matrix (eq. 2), one token per row: the examples, then the query.

    `guess` is the initial guess `y_q`, in the place of the query's label.
    """
    guess = guess if guess.ndim == 2 else guess[:, None]
    query_be = jnp.concatenate([self.x_query, guess], axis=-1)
    return jnp.concatenate([self.examples(), query_be[:, None]], axis=1)


def check_prompt(
  prompt: object, user: str = 'model', num_features: int | None = None
) -> None:
  """Raises UserError unless it is a Prompt whose arrays fit each other.

  With `num_features` it must have as many, which `user` is for. (A Prompt cannot check
  itself, since JAX also builds one from placeholders.)
  """
  if not isinstance(prompt, Prompt):
    raise UserError(f'the prompt is a {type(prompt).__name__}; it must be a zoo.Prompt')
  for name in 'x', 'y', 'x_query', 'y_query':
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
