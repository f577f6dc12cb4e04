"""Continuations of a prompt as a tree of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool


class TokenTree:
  """A tree whose nodes are the tokens that are followed by others, parents first."""

  def __init__(self, paths: Sequence[Sequence[int]]):
    self.paths: list[list[int]] = []  # the indices of each continuation's pairs
    self.tokens: list[int] = []  # of all nodes except the root
    self.depths: list[int] = []  # number of nodes between each one and the root
    self._parents: list[int] = []
    # Node 0, the root, is the prompt's last token.
    pairs: dict[tuple[int, int], int] = {}  # (node, next token) → its index
    nodes: dict[tuple[int, int], int] = {}
    for path in paths:
      node, indices = 0, []
      for depth, token in enumerate(path):
        pair = node, token
        indices.append(pairs.setdefault(pair, len(pairs)))
        if depth + 1 < len(path):
          if pair not in nodes:
            self.tokens.append(token)
            self.depths.append(depth)
            self._parents.append(node)
            nodes[pair] = len(self.tokens)
          node = nodes[pair]
      self.paths.append(indices)
    self.pairs = list(pairs)

  def ancestors(self) -> Bool[np.ndarray, 'n n']:
    """Which of the n nodes each node attends to: itself, and those towards the root."""
    seen = np.eye(len(self.tokens), dtype=bool)
    for node, parent in enumerate(self._parents):
      if parent:
        seen[node] |= seen[parent - 1]
    return seen
