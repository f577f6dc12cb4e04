"""The tree of continuations against lists of their beginnings."""

from zoo.llm.token_tree import TokenTree

PATHS = [[3, 1, 4], [3, 1, 5], [3, 2], [7], [3, 1, 4, 9], [], [7]]


def test_each_beginning_is_one_node_that_attends_to_its_own_beginnings():
  tree = TokenTree(PATHS)
  beginnings = [()]  # of a node: the tokens up to it
  for depth, (token, seen) in enumerate(
    zip(tree.tokens, tree.ancestors(), strict=True)
  ):
    own = [tree.tokens[i] for i in seen.nonzero()[0]]
    assert own[-1] == token
    assert seen[: depth + 1].sum() == len(own)  # parents come first
    assert tree.depths[depth] == len(own) - 1
    beginnings.append(tuple(own))
  assert len(set(beginnings)) == len(beginnings)
  followed = {tuple(path[:i]) for path in PATHS for i in range(1, len(path))}
  assert set(beginnings[1:]) == followed
  for path, indices in zip(PATHS, tree.paths, strict=True):
    read = [
      (beginnings[node], token) for node, token in map(tree.pairs.__getitem__, indices)
    ]
    assert read == [(tuple(path[:i]), token) for i, token in enumerate(path)]
  assert len(set(tree.pairs)) == len(tree.pairs)
