"""Nodes: the parts of a model that paths and circuits connect."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from jaxtyping import Array

from zoo.core.errors import UserError
from zoo.probing.activations import calls_of

# The letters of the axes of tokens, and of heads, in the axes of a tap.
TOKENS, HEADS = ('n', 'q'), ('h',)


class Node(NamedTuple):
  """A site of a model, or one head or one token of the value there.

  Attributes:
    site: One of `zoo.probing.sites(model)`.
    head: The head, from 0. None means all heads, or that the site has none.
    token: The token, from 0, or from −1 for the last token. None means all tokens. In
      scores and patterns of attention it is the query.

  Example:
    >>> print(zoo.probing.Node('layers.0.mixer.heads', head=1, token=-2))
    layers.0.mixer.heads, head 1, token -2
  """

  site: str
  head: int | None = None
  token: int | None = None

  def __str__(self) -> str:
    head = '' if self.head is None else f', head {self.head}'
    token = '' if self.token is None else f', token {self.token}'
    return f'{self.site}{head}{token}'


# The name of a site stands for the node of its whole value.
NodeLike: TypeAlias = Node | str
# The index of the part of a value that belongs to a node.
Part: TypeAlias = tuple[int | slice, ...]


def node_of(node: NodeLike) -> Node:
  """Returns the node; the name of a site becomes the node of its whole value."""
  return Node(node) if isinstance(node, str) else node


def axis_of(axes: str | None, letters: Sequence[str]) -> int | None:
  """Returns the number of the first axis with one of these letters, or None."""
  names = [] if axes is None else axes.split()
  return next((i for i, name in enumerate(names) if name in letters), None)


def part_of(node: Node, axes: str | None, shape: tuple[int, ...]) -> Part:
  """Returns the index of a node's part in the value at its site.

  Args:
    node: The node.
    axes: A letter for each axis of the value, as in `Tap`. None means that they are not
      known.
    shape: The shape of the value.

  Returns:
    An index with one entry for each axis.

  Raises:
    UserError: If the site has no axis of heads or of tokens, or no such head or token.
  """
  part: list[int | slice] = [slice(None)] * len(shape)
  for name, number, known in (
    ('head', node.head, HEADS),
    ('token', node.token, TOKENS),
  ):
    if number is None:
      continue
    axis = axis_of(axes, known)
    if axis is None:
      raise UserError(
        f'the site {node.site!r} has no axis of {name}s; its axes are '
        f'{axes or "not known"}'
      )
    least, most = (0 if name == 'head' else -shape[axis]), shape[axis] - 1
    is_integer = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    if not is_integer or not least <= number <= most:
      raise UserError(
        f'the {name} is {number!r} at the site {node.site!r}; it must be an integer '
        f'from {least} to {most}'
      )
    part[axis] = int(number)
  return tuple(part)


def put_part(
  values: dict[str, Array], site: str, part: Part
) -> Callable[[Array], Array]:
  """Returns an edit that puts a part of captured values back, for one forward pass."""
  calls = iter(calls_of(values, site))
  return lambda value: value.at[part].set(next(calls)[part])
