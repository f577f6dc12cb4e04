"""Published benchmarks, read from files that the user provides, under their licences.

The library ships none of their sentences.
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
from zoo.llm.benchmarks import MAX_BYTES, SPLITS, Benchmark, Example, digest, files_of


@dataclasses.dataclass(frozen=True)
class Source:
  """A folder of three files with one example per line, below a header."""

  name: str  # of the folder, among those of other sources
  title: str
  origin: str  # where the user gets the files
  files: tuple[str, str, str]  # of train, dev and test
  header: tuple[str, ...]
  needed: str  # what a line must be, in words
  delimiter: str = ','
  quoted: bool = True  # whether cells may be in quotation marks

  def examples(
    self, path: pathlib.Path, example: Callable[[Sequence[str]], Example]
  ) -> Iterator[Example]:
    """The examples of a file, made from the cells of each line.

    Raises UserError, with file and line, where `example` raises ValueError.
    """
    text = io.StringIO(read_text(path, MAX_BYTES), newline='')
    quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
    reader = csv.reader(text, delimiter=self.delimiter, quoting=quoting)
    count = 0
    try:
      if (header := next(reader, [])) != list(self.header):
        raise UserError(
          f'{path} begins with {self.delimiter.join(header)[:80]!r}; it must begin '
          f'with {self.delimiter.join(self.header)!r}'
        )
      for cells in reader:
        try:
          yield example(cells)
        except ValueError:
          raise UserError(
            f'{path}, line {reader.line_num} is '
            f'{self.delimiter.join(cells)[:80]!r}; it must be {self.needed}'
          ) from None
        count += 1
    except csv.Error as error:  # for example a cell of more than 131,072 characters
      raise UserError(
        f'{path}, line {reader.line_num} cannot be read: {error}'
      ) from None
    if not count:
      raise UserError(f'{path} has no examples')


@dataclasses.dataclass(frozen=True)
class Published:
  """A benchmark: a source, and what becomes the texts and the label of an example."""

  source: Source
  example: Callable[[Sequence[str]], Example]  # from a line's cells; raises ValueError
  classes: tuple[str, ...] = ()
  by_question: bool = False  # balanced, with one example per question in test

  def read(self, folder: pathlib.Path) -> Benchmark:
    """The benchmark in a folder.

    Raises UserError for a missing or malformed file, and if no question has sentences
    of both classes.
    """
    files = files_of(folder, dict(zip(SPLITS, self.source.files, strict=True)), SPLITS)
    splits = {
      split: list(self.source.examples(path, self.example))
      for split, path in files.items()
    }
    if self.by_question:
      splits = {
        split: balanced(examples, self.classes, one_each=split == 'test')
        for split, examples in splits.items()
      }
    for split, examples in splits.items():
      if not examples:
        raise UserError(
          f'no question in {split!r} of {self.source.title} has both a sentence that '
          'answers it and one that does not'
        )
    return Benchmark(splits, self.classes, digest(list(files.values())))


def load(name: str, folder: pathlib.Path | None) -> Benchmark:
  """A published benchmark; raises UserError if it is not, or damaged, in the folder."""
  published = PUBLISHED[name]
  if folder is None:
    source = published.source
    raise UserError(
      f'--data is missing; it must name a folder with {", ".join(source.files)} of '
      f'{source.title} ({source.origin})'
    )
  return published.read(folder)


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


def _texts(*cells: str) -> tuple[str, ...]:
  if not all(cell.strip() for cell in cells):
    raise ValueError('an empty text')
  return cells


def _number(cell: str, low: float, high: float) -> float:
  if not low <= float(cell) <= high:
    raise ValueError('out of bounds')
  return round(float(cell), 3)  # three digits are all that the scores have


def _stsb(cells: Sequence[str]) -> Example:
  one, other, score = cells
  return Example(_texts(one, other), _number(score, 0.0, 5.0))


_JUDGMENTS = 'contradiction', 'entailment', 'neutral'


def _sick_relatedness(cells: Sequence[str]) -> Example:
  _, one, other, relatedness, judgment = cells
  _JUDGMENTS.index(judgment.lower())
  return Example(_texts(one, other), _number(relatedness, 1.0, 5.0))


def _sick_entailment(cells: Sequence[str]) -> Example:
  texts = _sick_relatedness(cells).texts
  return Example(texts, cells[-1].lower())


def _trec_qa(cells: Sequence[str]) -> Example:
  question, label, sentence = cells
  return Example(_texts(question, sentence), _VERDICTS[('0', '1').index(label)])


_VERDICTS = 'no', 'yes'  # whether the sentence answers the question
_SICK = Source(
  name='sick',
  title='SICK',
  origin='https://alt.qcri.org/semeval2014/task1',
  files=('SICK_train.txt', 'SICK_trial.txt', 'SICK_test_annotated.txt'),
  header=(
    *('pair_ID', 'sentence_A', 'sentence_B'),
    *('relatedness_score', 'entailment_judgment'),
  ),
  needed=(
    'a number, two sentences, a score from 1 to 5, and NEUTRAL, ENTAILMENT or '
    'CONTRADICTION, with tabs between them'
  ),
  delimiter='\t',
  quoted=False,
)
_STSB = Source(
  name='stsb',
  title='STS-B',
  origin='https://github.com/PhilipMay/stsb-multi-mt',
  files=('stsb-en-train.csv', 'stsb-en-dev.csv', 'stsb-en-test.csv'),
  header=('sentence1', 'sentence2', 'similarity_score'),
  needed='two sentences and a score from 0 to 5',
)
_TREC_QA = Source(
  name='trec_qa',
  title='TREC QA',
  origin='Wang, Smith and Mitamura 2007, as tokenised by Yao et al. 2013',
  files=('train.csv', 'dev.csv', 'test.csv'),
  header=('qtext', 'label', 'atext'),
  needed='a question, 1 or 0, and a sentence',
)
PUBLISHED = {
  'stsb': Published(_STSB, _stsb),
  'sick_relatedness': Published(_SICK, _sick_relatedness),
  'sick_entailment': Published(_SICK, _sick_entailment, _JUDGMENTS),
  'trec_qa': Published(_TREC_QA, _trec_qa, _VERDICTS, by_question=True),
}
