"""How prompts are put to a model, and the tokens of labels after an answer's prefix."""

import re
from typing import Any

import pytest

from configs.llm import smollm2
from studies.llm.benchmarks import Example
from studies.llm.guesses import LabelScale
from studies.llm.prompts import Wording, prompt_text
from studies.llm.readouts import label_texts, read_all
from tests.llm.pairs import PAIRS, Parrot

WORDING = Wording('Rate.', ('Sentence 1', 'Sentence 2'), 'Score', LabelScale(0.0, 5.0))
CLASSES = Wording(
  'Sort.', ('One', 'Two'), 'Tone', LabelScale(0.0, 0.0, ('calm', 'upset'))
)
QUERIES = [Example(pair[:2], pair[2]) for pair in PAIRS[:4]]
# The second and the fourth have guesses, and the last is much longer.
GUESSES = [None, [1.0], None, [2.0, 4.0]]
TEXTS = [
  prompt_text(WORDING, QUERIES[: len(guesses or [0]) - 1], query, guesses)
  for query, guesses in zip(QUERIES, GUESSES, strict=True)
]


def test_a_prompt_is_read_in_three_ways():
  parrot = Parrot()
  config = smollm2.get_config('smoke').readouts
  answers: Any = read_all(parrot, TEXTS, QUERIES, WORDING, config)
  prompts = [parrot.chat(text) for text in TEXTS]
  assert [answer['prompt'] for answer in answers] == prompts
  # The prefix has no space at its end, which may be part of the token after it.
  assert parrot.asked == [*prompts, *(f'{prompt}Score:' for prompt in prompts)]
  for readout in ('free', 'forced'):
    assert [answer[readout]['value'] for answer in answers] == [2.5, 1.0, 2.5, 4.0]
  # Half of the mass is on 501 scores, of which that of the parrot counts twice.
  for answer, said in zip(answers, [2.5, 1.0, 2.5, 4.0], strict=True):
    assert answer['expected']['mass'] == pytest.approx(0.5)
    expected = (501 * 2.5 + said) / 502
    assert answer['expected']['value'] == pytest.approx(expected)


def _merging(text):
  """Tokens as of GPT-2: a space belongs to the word or number after it."""
  return re.findall(r' ?\w+| ?[^\w\s]|\s', text)


def _prefixing(text):
  """Tokens as of sentencepiece: each text begins with a space that it does not have."""
  return re.findall('▁*[^▁]', f'▁{text}'.replace(' ', '▁'))


@pytest.mark.slow  # it imports transformers
@pytest.mark.parametrize('split', [_merging, _prefixing, list])
def test_the_tokens_of_a_label_are_those_that_it_has_after_its_name(split):
  language_model = pytest.importorskip('studies.llm.language_model')
  vocabulary: dict[str, int] = {}

  def encode(text):
    return [vocabulary.setdefault(token, len(vocabulary)) for token in split(text)]

  for beginning in WORDING.answer_prefix, CLASSES.answer_prefix:
    for label in ' 3.20', ' calm':
      after = language_model.tokens_after(encode, beginning, label)
      assert encode(beginning) + after == encode(beginning + label)
  merged = language_model.tokens_after(lambda text: [len(text)], 'a', 'bc')
  assert merged == [2]  # a text that merges with its beginning has its own tokens


@pytest.mark.parametrize('wording', [WORDING, CLASSES])
def test_the_labels_that_are_read_are_written_as_in_a_prompt(wording):
  """The prefix ends before the space, so that a token may have both."""
  written = label_texts(wording)
  example = Example(('a', 'b'), 3.2 if wording is WORDING else 'calm')
  text = prompt_text(wording, [example], example)
  assert any(f'\n{wording.answer_prefix}{label}\n' in text for label in written)
  assert len(written) == (501 if wording is WORDING else 2)
  assert not wording.answer_prefix.endswith(' ')
