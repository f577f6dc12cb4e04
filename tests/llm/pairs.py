"""Sentence pairs of our own on disk, a model to ask about them, and a config."""

import contextlib
import csv
import importlib
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from studies.llm import experiment
from zoo.reports import plots
from zoo.storage.rows import read_rows

# A folder that is there, where the weights of models that the tests replace would be.
WEIGHTS = pathlib.Path(__file__).parent

PAIRS = [
  ('A baker is kneading dough.', 'Someone kneads bread dough.', 4.2),
  ('The ferry leaves at noon.', 'At twelve the ferry departs.', 4.8),
  ('Two owls sit on a fence.', 'A dog is barking at a car.', 0.2),
  ('He repairs his old bicycle.', 'He is mending a bicycle.', 4.0),
  ('Snow covered the valley.', 'The valley lay under snow.', 5.0),
  ('She paints the door green.', 'She is painting a fence.', 2.4),
  ('A choir sings in the hall.', 'The hall is being cleaned.', 1.2),
  ('The tea is still hot, "very" hot.', 'The tea, it seems, has cooled.', 2.0),
  ('Children fly kites on a hill.', 'Kids play with kites outdoors.', 3.8),
  ('A clock hangs above the stove.', 'The stock market fell.', 0.0),
  ('The lamp flickered twice.', 'A lamp flickered two times.', 4.75),
  ('A fox crossed the road.', 'A hedgehog crossed the street.', 2.6),
]


def write_stsb(folder, pairs=PAIRS):
  """The three files of STS-B; queries and contexts are of the same pairs."""
  names = 'stsb-en-train.csv', 'stsb-en-dev.csv', 'stsb-en-test.csv'
  return _write(folder, names, ('sentence1', 'sentence2', 'similarity_score'), pairs)


def _write(folder, names, header, rows, delimiter=','):
  """The same rows in all files, of which the last has the line ends of Windows."""
  folder.mkdir(parents=True, exist_ok=True)
  quoting: Any = csv.QUOTE_NONE if delimiter == '\t' else csv.QUOTE_MINIMAL
  for name, end in zip(names, ('\n', '\n', '\r\n'), strict=True):
    with (folder / name).open('w', newline='') as file:
      writer = csv.writer(
        file,
        delimiter=delimiter,
        quoting=quoting,
        quotechar=None if delimiter == '\t' else '"',
        lineterminator=end,
      )
      writer.writerows([header, *rows])
  return folder


JUDGMENTS = ['NEUTRAL', 'ENTAILMENT', 'NEUTRAL', 'CONTRADICTION']


def sick_rows():
  """Number, sentences, score from 1 to 5, judgment."""
  return [
    (str(number), first, second, round(1 + 0.8 * score, 3), JUDGMENTS[number % 4])
    for number, (first, second, score) in enumerate(PAIRS)
  ]


def write_sick(folder):
  """The three files of SICK."""
  names = 'SICK_train.txt', 'SICK_trial.txt', 'SICK_test_annotated.txt'
  scores = 'relatedness_score', 'entailment_judgment'
  header = ('pair_ID', 'sentence_A', 'sentence_B', *scores)
  return _write(folder, names, header, sick_rows(), '\t')


# Question, whether the sentence answers it, and the sentence.
ANSWERS = [
  (f'Where is the {thing} ?', label, f'{start} {place} .')
  for thing, place in (
    ('owl', 'the barn'),
    ('ferry', 'the pier'),
    ('choir', 'the hall'),
    ('fox', 'the wood'),
    ('lamp', 'the attic'),
  )
  for start, label in (
    (f'The {thing} is in', 1),
    (f'No {thing} lives near', 0),
    (f'Nobody knows the {thing} of', 0),
  )
]


def write_trec_qa(folder, rows=ANSWERS):
  """The three files of TREC QA."""
  names = 'train.csv', 'dev.csv', 'test.csv'
  return _write(folder, names, ('qtext', 'label', 'atext'), rows)


def write_jsonl(folder, rows):
  folder.mkdir(parents=True, exist_ok=True)
  for split in ('train', 'test'):
    text = ''.join(json.dumps(row) + '\n' for row in rows)
    (folder / f'{split}.jsonl').write_text(text)
  return folder


def small_config(name='smollm2', variant='smoke', **fields):
  """A shipped config whose weights are any folder that is there, and fields set."""
  config = importlib.import_module(f'configs.llm.{name}').get_config(variant)
  config.model.weights = config.encoder.weights = str(WEIGHTS)
  config.model.batch_size = 2
  set_fields(config, fields)
  return config


def set_fields(config, fields):
  """Sets fields of a config that are named `section__field`."""
  named = {field.replace('__', '.'): value for field, value in fields.items()}
  config.update_from_flattened_dict(named)


@contextlib.contextmanager
def asking(model):
  """The model answers all runs, texts are embedded by their letters, and of figures
  only the numbers are written, since pictures take time.
  """

  def write_csv(plot, out):
    (out / f'figure_{plot.name}.csv').write_text(plots.to_csv(plot))

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(experiment, 'of_extra', lambda: _Models(model))
    patch.setattr(experiment, 'write_plot', write_csv)
    yield model


class _Models:
  """In place of `studies.llm.language_model`."""

  def __init__(self, model):
    self._model = model

  def load(self, path, dtype):
    return self._model

  def embed(self, path, texts):
    return embed(texts)


def lines_of(out):
  """The rows of the prompts of a run, without how long they took."""
  rows = [kept['row'] for kept in read_rows(out).values()]
  return [{**row, 'seconds': 0.0} for row in rows]


def embed(texts):
  """How often each letter is in each text, scaled to norm 1."""
  letters = 'abcdefghijklmnopqrstuvwxyz'
  counts = [[1 + text.lower().count(letter) for letter in letters] for text in texts]
  vectors = np.array(counts, np.float32)
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Parrot:
  """In place of a language model: repeats the last guess.

  Without one it says 2.50, or the first of the classes that it may choose from. It
  knows what it was asked, and can be made to stop when it was asked so many times.
  """

  name, num_params, engine = 'parrot', 0, 'a cage'
  max_length: int | None = None

  def __init__(self):
    self.asked: list[str] = []
    self.stops_at: int | None = None
    self.says: str | None = None

  def chat(self, user_text, answer_prefix=''):
    return f'<user>{user_text}<model>{answer_prefix}'

  def num_tokens(self, prompt):
    return len(prompt.split())

  def generate(self, prompts, max_new_tokens):
    if self.stops_at is not None and len(self.asked) >= self.stops_at:
      raise KeyboardInterrupt
    self.asked += prompts
    return [self.says or self._answer(prompt) for prompt in prompts]

  def log_probabilities(self, prompts, continuations):
    assert len(set(continuations)) == len(continuations)
    # Twice as likely as any other is the one nearest to the answer.
    logs = []
    for prompt in prompts:
      distances = self._distances(prompt, continuations)
      weights = np.where(np.array(distances) == min(distances), 2.0, 1.0)
      logs.append(np.log(weights / weights.sum() / 2))  # half the mass is elsewhere
    return np.stack(logs)

  def _distances(self, prompt, continuations):
    answer = self._answer(prompt)
    if answer.isalpha():
      return [float(text.strip() != answer) for text in continuations]
    return [abs(float(text) - float(answer)) for text in continuations]

  def _answer(self, prompt):
    if 'Initial guess: ' in prompt:
      return prompt.rpartition('Initial guess: ')[2].partition('\n')[0]
    classes = re.search(r'as one of (\w+)', prompt)
    return classes[1] if classes else '2.50'
