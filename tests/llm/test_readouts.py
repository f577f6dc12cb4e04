"""How prompts are put to a model: each is read once, in batches of similar length."""

from typing import Any

import pytest

from configs.llm import smollm2
from tests.llm.pairs import PAIRS, Parrot
from zoo.llm.benchmarks import Example
from zoo.llm.guesses import Scale
from zoo.llm.prompts import Wording, prompt_text
from zoo.llm.readouts import read_all

WORDING = Wording('Rate.', ('Sentence 1', 'Sentence 2'), 'Score', Scale(0.0, 5.0))
QUERIES = [Example((one, other), score) for one, other, score in PAIRS[:4]]
# The second and the fourth have guesses, and the last is much longer.
GUESSES = [None, [1.0], None, [2.0, 4.0]]
TEXTS = [
  prompt_text(WORDING, QUERIES[: len(guesses or [0]) - 1], query, guesses)
  for query, guesses in zip(QUERIES, GUESSES, strict=True)
]


def test_a_prompt_is_read_once_in_a_batch_of_similar_length():
  parrot = Parrot()
  config = smollm2.get_config('smoke').readouts
  answers: Any = read_all(parrot, TEXTS, QUERIES, WORDING, config)
  prompts = [parrot.chat(text) for text in TEXTS]
  assert [answer['prompt'] for answer in answers] == prompts
  assert parrot.beginnings == ['<user>Rate.']
  assert [sorted(map(prompts.index, batch)) for batch in parrot.batches] == [
    [0, 2],
    [1, 3],
  ]
  for readout in ('free', 'forced'):
    assert [answer[readout]['value'] for answer in answers] == [2.5, 1.0, 2.5, 4.0]
  # Half of the mass is on 501 scores, of which that of the parrot counts twice.
  for answer, said in zip(answers, [2.5, 1.0, 2.5, 4.0], strict=True):
    assert answer['expected']['mass'] == pytest.approx(0.5)
    expected = (501 * 2.5 + said) / 502
    assert answer['expected']['value'] == pytest.approx(expected)
