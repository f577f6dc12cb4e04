"""Published benchmarks: their files, and how rows become examples.

The library ships none of their sentences: the user provides the files, under their
licences.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from zoo.core.errors import UserError
from zoo.host.files import read_text
from zoo.llm.benchmarks import MAX_BYTES, SPLITS, Benchmark, Example, files_of

Row = dict[str, str | float]  # by name of the feature


@dataclasses.dataclass(frozen=True)
class Source:
  """A folder of three files with one row per line, below a header."""

  title: str
  origin: str  # where the user gets the files
  files: dict[str, str]  # by split
  header: tuple[str, ...]
  delimiter: str
  quoted: bool  # whether cells may be in quotation marks
  features: dict[str, type]  # the type of each value in a row: str or float
  row: Callable[[Sequence[str]], Row]  # from a line's cells; raises ValueError
  needed: str  # what a line must be, in words

  def paths(self, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The files in a folder, by split; raises UserError if one is missing."""
    return files_of(folder, self.files, needed=SPLITS)

  def rows(self, path: pathlib.Path) -> Iterator[Row]:
    """The rows of a file; raises UserError, with file and line, if it is malformed."""
    text = io.StringIO(read_text(path, MAX_BYTES), newline='')
    quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
    reader = csv.reader(text, delimiter=self.delimiter, quoting=quoting)
    found = None
    try:
      if (header := next(reader, [])) != list(self.header):
        raise UserError(
          f'{path} begins with {self.delimiter.join(header)[:80]!r}; it must begin '
          f'with {self.delimiter.join(self.header)!r}'
        )
      for cells in reader:
        try:
          found = self.row(cells)
        except ValueError:
          raise UserError(
            f'{path}, line {reader.line_num} is '
            f'{self.delimiter.join(cells)[:80]!r}; it must be {self.needed}'
          ) from None
        yield found
    except csv.Error as error:  # for example a cell of more than 131,072 characters
      raise UserError(
        f'{path}, line {reader.line_num} cannot be read: {error}'
      ) from None
    if found is None:
      raise UserError(f'{path} has no examples')


def _text(cell: str) -> str:
  if not cell.strip():
    raise ValueError('an empty text')
  return cell


def _number(cell: str, low: float, high: float) -> float:
  if not low <= float(cell) <= high:
    raise ValueError('out of bounds')
  return float(cell)


def _stsb_row(cells: Sequence[str]) -> Row:
  one, other, score = cells
  return {
    'sentence1': _text(one),
    'sentence2': _text(other),
    'score': _number(score, 0.0, 5.0),
  }


_JUDGMENTS = 'contradiction', 'entailment', 'neutral'


def _sick_row(cells: Sequence[str]) -> Row:
  _, one, other, relatedness, judgment = cells
  if judgment not in map(str.upper, _JUDGMENTS):
    raise ValueError('an unknown class')
  return {
    'sentence_a': _text(one),
    'sentence_b': _text(other),
    'relatedness': _number(relatedness, 1.0, 5.0),
    'judgment': judgment.lower(),
  }


_ANSWERS = {'0': 'no', '1': 'yes'}  # whether the sentence answers the question


def _trec_qa_row(cells: Sequence[str]) -> Row:
  question, label, sentence = cells
  if label not in _ANSWERS:
    raise ValueError('an unknown class')
  return {
    'question': _text(question),
    'sentence': _text(sentence),
    'answers': _ANSWERS[label],
  }


SOURCES = {
  'stsb': Source(
    title='STS-B',
    origin='https://github.com/PhilipMay/stsb-multi-mt',
    files={split: f'stsb-en-{split}.csv' for split in SPLITS},
    header=('sentence1', 'sentence2', 'similarity_score'),
    delimiter=',',
    quoted=True,
    features={'sentence1': str, 'sentence2': str, 'score': float},
    row=_stsb_row,
    needed='two sentences and a score from 0 to 5',
  ),
  'sick': Source(
    title='SICK',
    origin='https://alt.qcri.org/semeval2014/task1',
    files={
      'train': 'SICK_train.txt',
      'dev': 'SICK_trial.txt',
      'test': 'SICK_test_annotated.txt',
    },
    header=(
      *('pair_ID', 'sentence_A', 'sentence_B'),
      *('relatedness_score', 'entailment_judgment'),
    ),
    delimiter='\t',
    quoted=False,
    features={
      'sentence_a': str,
      'sentence_b': str,
      'relatedness': float,
      'judgment': str,
    },
    row=_sick_row,
    needed=(
      'a number, two sentences, a score from 1 to 5, and NEUTRAL, ENTAILMENT or '
      'CONTRADICTION, with tabs between them'
    ),
  ),
  'trec_qa': Source(
    title='TREC QA',
    origin='Wang, Smith and Mitamura 2007, as tokenised by Yao et al. 2013',
    files={split: f'{split}.csv' for split in SPLITS},
    header=('qtext', 'label', 'atext'),
    delimiter=',',
    quoted=True,
    features={'question': str, 'sentence': str, 'answers': str},
    row=_trec_qa_row,
    needed='a question, 1 or 0, and a sentence',
  ),
}


def balanced(
  examples: Sequence[Example], classes: tuple[str, ...], one_each: bool
) -> list[Example]:
  """A subset of examples with as many of each class, for every question.

  An example's first text is its question. Only questions with examples of both classes
  are kept; from the more frequent class as many examples as the rarer class has are
  drawn at random. With `one_each` every question has one example, and the class
  alternates from question to question. The draws are the same in each call.
  """
  rng = np.random.default_rng(0)
  by_question: dict[str, dict[str, list[Example]]] = {}
  for example in examples:
    of = by_question.setdefault(example.texts[0], {name: [] for name in classes})
    of[str(example.label)].append(example)
  chosen = []
  both = [of for of in by_question.values() if all(of.values())]
  for number, of in enumerate(both):
    size = 1 if one_each else min(map(len, of.values()))
    kept = [classes[number % len(classes)]] if one_each else classes
    for name in kept:
      places = rng.choice(len(of[name]), size, replace=False)
      chosen += [of[name][place] for place in sorted(places)]
  return chosen


@dataclasses.dataclass(frozen=True)
class Published:
  """The features of a source's rows that become the texts and labels of examples."""

  source: str
  texts: tuple[str, ...]
  label: str
  classes: tuple[str, ...] = ()
  by_question: bool = False  # balanced, with one example per question in test

  def benchmark(self, rows: dict[str, list[Row]], sha256: str) -> Benchmark:
    """The benchmark of all rows by split.

    Raises UserError for an unknown class, and if no question has both classes.
    """
    splits = {split: [*map(self._example, found)] for split, found in rows.items()}
    if self.by_question:
      splits = {
        split: balanced(examples, self.classes, one_each=split == 'test')
        for split, examples in splits.items()
      }
      for split, examples in splits.items():
        if not examples:
          raise UserError(
            f'no question in {split!r} of {SOURCES[self.source].title} has both a '
            'sentence that answers it and one that does not'
          )
    return Benchmark(splits, self.classes, sha256)

  def _example(self, row: Row) -> Example:
    label = row[self.label]
    if self.classes and label not in self.classes:
      raise UserError(f'a label is {label!r}; it must be one of {self.classes}')
    return Example(tuple(str(row[name]) for name in self.texts), label)


_SICK_TEXTS = 'sentence_a', 'sentence_b'
PUBLISHED = {
  'stsb': Published('stsb', ('sentence1', 'sentence2'), 'score'),
  'sick_relatedness': Published('sick', _SICK_TEXTS, 'relatedness'),
  'sick_entailment': Published('sick', _SICK_TEXTS, 'judgment', _JUDGMENTS),
  'trec_qa': Published(
    'trec_qa', ('question', 'sentence'), 'answers', ('no', 'yes'), by_question=True
  ),
}
