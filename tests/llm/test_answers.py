"""The parser of answers: what counts as an answer, and the traps that were met."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.llm.answers import parse_answer, parse_forced
from studies.llm.benchmarks import Example
from studies.llm.guesses import LabelScale
from studies.llm.prompts import Wording, prompt_text

SCORES = Wording(
  instruction='Rate how close in meaning two sentences are, from 0 to 5.',
  inputs=('Sentence 1', 'Sentence 2'),
  label='Similarity score',
  scale=LabelScale(0.0, 5.0),
)
TONES = Wording(
  instruction='Name the tone of a text.',
  inputs=('Text',),
  label='Tone',
  scale=LabelScale(0.0, 0.0, ('calm', 'not calm', 'upset')),
)
PAIR = Example(('He has 3 dogs.', 'Three dogs are his.'), 4.5)
QUERY = 'Sentence 1: He has 3 dogs.\nSentence 2: Three dogs are his.\n'
OTHER = 'Sentence 1: He has 2 cats.\nSentence 2: A bird sings.\n'


@pytest.mark.parametrize(
  ('answer', 'score'),
  [
    ('3.40', 3.4),
    ('0', 0.0),
    ('3,4', 3.4),
    ('**Similarity score:** 3.40', 3.4),
    ('The similarity score of the last item is 3.4.', 3.4),
    ('I would give a score of 4/5.', 4.0),
    ('4 out of 5', 4.0),
    ('Similarity score (0 to 5): 3.4', 3.4),
    ('On a scale of 0-5 the score is 2.5', 2.5),
    # The first answer counts; what a model invents behind it does not.
    ('Similarity score: 3.40\n\nSentence 1: a\nSimilarity score: 2.10', 3.4),
    # Echoes of the prompt.
    (f'{QUERY}Similarity score: 4', 4.0),
    (f'{QUERY}Initial guess: 3.50\nSimilarity score: 3.40\n\n{OTHER}Score: 1', 3.4),
    (f'{OTHER}Similarity score: 1.20\n\n{QUERY}Similarity score: 4.00', 4.0),
    (f'3.40\n\n{QUERY}Similarity score: 1.10', 3.4),
    (f'**Sentence 1:** {PAIR.texts[0]}\n**Sentence 2:** {PAIR.texts[1]}\n3.4', 3.4),
    ('Sentence 1 and Sentence 2 are close. Score: 4.2', 4.2),
    ('Initial guess: 3.5\nSimilarity score: 3.4', 3.4),
    ('The initial guess of 3.5 is a bit high, so the score is 3.4', 3.4),
    ('I refine the initial guess of 3.50 to 3.40.', 3.4),
    ('I changed it from 3.5 to 3.4.', 3.4),
    ('My refined guess is 3.4', 3.4),
    ('Refining the initial guess, similarity score: 3.40', 3.4),
    # Numbers that count things.
    ('2 sentences about dogs.\nSimilarity score: 3.4', 3.4),
    ('1. They share a topic.\n2. They differ in number.\nSimilarity score: 3.4', 3.4),
    # No answer.
    ('', None),
    (f'{OTHER}Similarity score: 1.20', None),
    (f'Sentence 1: {PAIR.texts[0]}\nSentence 2: Made up.\nSimilarity score: 1', None),
    ('The similarity score of the first item is 2.8, of the second item 2.4.', None),
    ('A score for the first and second sentence: 3.4', 3.4),
    ('The score of the first item is 2.8, and the score of the last item is 2', 2.0),
    ('Give the score as a number from 0 to 5 with two decimals.', None),
    ('It may be 3.2, or perhaps 4.1.', None),
    ('Similarity score: 3-4', None),
    ('Similarity score: -1', None),
    ('Similarity score: 80%', None),
    ('Similarity score: 1,000', None),
    ('Similarity score: 1.2.3', None),
  ],
)
def test_scores(answer, score):
  assert parse_answer(answer, SCORES, PAIR.texts) == score


@pytest.mark.parametrize(
  ('answer', 'tone'),
  [
    ('calm', 'calm'),
    ('The tone is not calm; calm would be another matter.', 'not calm'),
    ('The initial guess was calm. Tone: upset', 'upset'),
    ('It could be calm, not calm, or upset. I choose upset', 'upset'),
    ('It is not an upset text.', None),
    ('This is not the upset tone but calm.', 'calm'),
    ('Text: an upset man\n', None),
    ('calmer', None),
    ('', None),
  ],
)
def test_classes(answer, tone):
  assert parse_answer(answer, TONES, ['Hush.']) == tone


@pytest.mark.parametrize('guesses', [None, [2.5, 3.5]])
def test_a_prompt_that_is_repeated_is_no_answer_of_its_own(guesses):
  text = prompt_text(SCORES, [], PAIR, guesses and guesses[:1])
  assert parse_answer(text, SCORES, PAIR.texts) is None
  assert parse_answer(f'{text}\n\nSimilarity score: 1.25', SCORES, PAIR.texts) == 1.25


@pytest.mark.parametrize(
  ('text', 'score'),
  [
    ('3.80', 3.8),
    (' 3.8\n\nSentence 1: 2', 3.8),
    ('', None),
  ],
)
def test_forced_answers(text, score):
  assert parse_forced(text, SCORES) == score


def test_forced_classes():
  assert parse_forced(' not calm\n', TONES) == 'not calm'
  assert parse_forced(' calmly', TONES) is None


scores = st.integers(0, 500).map(lambda hundredths: hundredths / 100)


@given(
  scores, st.sampled_from(['{}', '**{}**', 'Similarity score: {}', 'Score = {}/5'])
)
def test_every_score_is_read_as_it_is_written(score, form):
  for digits in (2, 3):
    assert parse_answer(form.format(f'{score:.{digits}f}'), SCORES, PAIR.texts) == score


@given(scores, scores)
def test_a_guess_before_an_answer_changes_nothing(score, guess):
  text = f'Initial guess: {guess:.2f}\nSimilarity score: {score:.2f}'
  assert parse_answer(text, SCORES, PAIR.texts) == score


# What answers are made of, and signs that count as digits or as none.
@given(st.text(string.printable + 'é−²٣½'))
def test_any_text_has_an_answer_in_bounds_or_none(text):
  for score in (parse_answer(text, SCORES, PAIR.texts), parse_forced(text, SCORES)):
    assert score is None or 0 <= float(score) <= 5
  for tone in (parse_answer(text, TONES, ['Hush.']), parse_forced(text, TONES)):
    assert tone in (None, 'calm', 'not calm', 'upset')
