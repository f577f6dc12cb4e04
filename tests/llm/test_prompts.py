"""Draws and prompts: what the two arms share, and what tells them apart."""

from studies.llm.benchmarks import Example
from studies.llm.guesses import LabelScale
from studies.llm.prompts import Wording, prompt_text, sample_indices
from tests.llm.pairs import PAIRS

EXAMPLES = [Example(pair[:2], pair[2]) for pair in PAIRS]
GUESSES = [0.5 + 0.25 * place for place in range(len(PAIRS))]
WORDING = Wording(
  'Rate the pair.',
  ('Sentence 1', 'Sentence 2'),
  'Similarity score',
  LabelScale(0.0, 5.0),
)


def test_draws_are_a_function_of_seed_and_index():
  draws = [sample_indices(3, index, 50, 30, 10) for index in range(50)]
  assert draws == [sample_indices(3, index, 50, 30, 10) for index in range(50)]
  assert sorted(query for query, _ in draws) == list(range(50))  # each query once
  for _, context in draws:
    assert len(set(context)) == 10
    assert set(context) <= set(range(30))
  assert draws != [sample_indices(4, index, 50, 30, 10) for index in range(50)]
  # A shorter context is the beginning of a longer one.
  shorter = sample_indices(3, 7, 50, 30, 4)
  assert shorter == (draws[7][0], draws[7][1][:4])
  # Drawn anew for each prompt, and with no favourite.
  counts = [sum(place in context for _, context in draws) for place in range(30)]
  assert 5 <= min(counts) <= max(counts) <= 35  # 16.7 ± 3.3 each


def test_the_arms_differ_in_the_guesses_alone():
  context, query = EXAMPLES[:5], EXAMPLES[-1]
  guesses = [*GUESSES[:5], 3.5]
  without = prompt_text(WORDING, context, query)
  with_guess = prompt_text(WORDING, context, query, guesses)
  for place, guess in enumerate(guesses):
    line = f'\nInitial guess: {guess:.2f}'
    assert with_guess.count(line) >= 1, place
    with_guess = with_guess.replace(line, '', 1)
  for sentence in (
    ' Each item comes with an initial guess of its similarity score, made by a small '
    'model; it may be wrong.',
    'Refine the initial guess of the last item. ',
  ):
    assert with_guess.count(sentence) == 1
    with_guess = with_guess.replace(sentence, '')
  assert with_guess == without
  assert 'guess' not in without


def test_a_prompt_has_everything_in_its_order():
  text = prompt_text(WORDING, EXAMPLES[:2], EXAMPLES[3], [4.0, 4.5, 3.333])
  assert text.split('\n\n')[1:-1] == [
    'Sentence 1: A baker is kneading dough.\nSentence 2: Someone kneads bread dough.\n'
    'Initial guess: 4.00\nSimilarity score: 4.20',
    'Sentence 1: The ferry leaves at noon.\nSentence 2: At twelve the ferry departs.\n'
    'Initial guess: 4.50\nSimilarity score: 4.80',
    'Sentence 1: He repairs his old bicycle.\nSentence 2: He is mending a bicycle.\n'
    'Initial guess: 3.33',
  ]
  assert 'a number from 0 to 5 with two decimals' in text.split('\n\n')[-1]


def test_classes_are_named():
  wording = Wording('Sort.', ('Text',), 'Tone', LabelScale(0.0, 0.0, ('calm', 'upset')))
  text = prompt_text(
    wording, [Example(('Oh!',), 'upset')], Example(('Hm.',), 'calm'), ['upset', 'upset']
  )
  assert 'Text: Oh!\nInitial guess: upset\nTone: upset\n' in text
  assert 'Give the tone of the last item as one of calm, upset.' in text
  assert wording.answer_prefix == 'Tone:'
  assert WORDING.answer_prefix == 'Similarity score:'
