"""The tree of continuations against lists of their beginnings, and their tokens."""

import re

import pytest

from zoo.llm.benchmarks import Example
from zoo.llm.guesses import Scale
from zoo.llm.prompts import Wording, prompt_text
from zoo.llm.readouts import _written
from zoo.llm.token_tree import TokenTree, tokens_after

WORDING = Wording('Rate.', ('One', 'Two'), 'Score', Scale(0.0, 5.0))
CLASSES = Wording('Sort.', ('One', 'Two'), 'Tone', Scale(0.0, 0.0, ('calm', 'upset')))
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


def _merging(text):
  """Tokens as of GPT-2: a space belongs to the word or number after it."""
  return re.findall(r' ?\w+| ?[^\w\s]|\s', text)


def _prefixing(text):
  """Tokens as of sentencepiece: each text begins with a space that it does not have."""
  return re.findall('▁*[^▁]', f'▁{text}'.replace(' ', '▁'))


@pytest.mark.parametrize('split', [_merging, _prefixing, list])
def test_the_tokens_of_a_label_are_those_that_it_has_after_its_name(split):
  vocabulary: dict[str, int] = {}

  def encode(text):
    return [vocabulary.setdefault(one, len(vocabulary)) for one in split(text)]

  for beginning in WORDING.answer_prefix, CLASSES.answer_prefix:
    for label in ' 3.20', ' calm':
      after = tokens_after(encode, beginning, label)
      assert encode(beginning) + after == encode(beginning + label)


def test_a_text_that_merges_with_its_beginning_has_its_own_tokens():
  assert tokens_after(lambda text: [len(text)], 'a', 'bc') == [2]


@pytest.mark.parametrize('wording', [WORDING, CLASSES])
def test_the_labels_that_are_read_are_written_as_in_a_prompt(wording):
  """The prefix ends before the space, so that a token may have both."""
  written = _written(wording, 501)
  example = Example(('a', 'b'), 3.2 if wording is WORDING else 'calm')
  text = prompt_text(wording, [example], example)
  assert any(f'\n{wording.answer_prefix}{label}\n' in text for label in written)
  assert len(written) == (501 if wording is WORDING else 2)
