"""Continuations of a prompt as a tree of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool


def tokens_after(
  encode: Callable[[str], list[int]], beginning: str, text: str
) -> list[int]:
  """The tokens of a text where it follows a beginning.

  They may be others than those of the text alone, to which some tokenizers add a space.
  If the beginning ends within a token of both, they are those of the text alone.
  """
  before, whole = encode(beginning), encode(beginning + text)
  is_whole = whole[: len(before)] == before
  return whole[len(before) :] if is_whole else encode(text)


class TokenTree:
  """A tree whose nodes are the tokens that are followed by others, parents first."""

  def __init__(self, paths: Sequence[Sequence[int]]):
    # A node by the tokens up to it; node 0, the root, is the prompt's last token.
    self._nodes: dict[tuple[int, ...], int] = {(): 0}
    self.paths: list[list[int]] = []  # the indices of each continuation's pairs
    pairs: dict[tuple[int, int], int] = {}  # (node, next token) → its index
    for path in paths:
      starts = [tuple(path[:end]) for end in range(len(path))]
      nodes = [self._nodes.setdefault(start, len(self._nodes)) for start in starts]
      steps = zip(nodes, path, strict=True)
      self.paths.append([pairs.setdefault(step, len(pairs)) for step in steps])
    self.pairs = list(pairs)
    _, *starts = self._nodes
    self.tokens = [start[-1] for start in starts]  # of all nodes except the root
    self.depths = [len(start) - 1 for start in starts]  # between each and the root

  def ancestors(self) -> Bool[np.ndarray, 'n n']:
    """Which of the n nodes each node attends to: itself, and those towards the root."""
    _, *starts = self._nodes
    seen = np.zeros((len(starts), len(starts)), bool)
    for node, start in enumerate(starts):
      own = [self._nodes[start[: end + 1]] - 1 for end in range(len(start))]
      seen[node, own] = True
    return seen
