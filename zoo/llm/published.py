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
class Published:
  """A benchmark in three files with one example per line, below a header."""

  folder: str  # the name of its folder, among those of others
  title: str
  origin: str  # where the user gets the files
  files: tuple[str, str, str]  # of train, dev and test
  header: tuple[str, ...]
  needed: str  # what a line must be, in words
  example: Callable[[Sequence[str]], Example]  # from a line's cells; raises ValueError
  classes: tuple[str, ...] = ()
  by_question: bool = False  # balanced, with one example per question in test
  delimiter: str = ','
  quoted: bool = True  # whether cells may be in quotation marks

  def read(self, folder: pathlib.Path | None) -> Benchmark:
    """The benchmark in a folder.

    Raises UserError for a missing or malformed file, and if no question has sentences
    of both classes.
    """
    if folder is None:
      raise UserError(
        f'--data is missing; it must name a folder with {", ".join(self.files)} of '
        f'{self.title} ({self.origin})'
      )
    files = files_of(folder, dict(zip(SPLITS, self.files, strict=True)), SPLITS)
    splits = {split: [*self._examples(path)] for split, path in files.items()}
    for split, path in files.items():
      if not splits[split]:
        raise UserError(f'{path} has no examples')
      if self.by_question:
        splits[split] = balanced(splits[split], self.classes, split == 'test')
      if not splits[split]:
        raise UserError(
          f'no question in {split!r} of {self.title} has both a sentence that answers '
          'it and one that does not'
        )
    return Benchmark(splits, self.classes, digest(list(files.values())))

  def _examples(self, path: pathlib.Path) -> Iterator[Example]:
    """The examples of a file; raises UserError, with file and line."""
    text = io.StringIO(read_text(path, MAX_BYTES), newline='')
    quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
    reader = csv.reader(text, delimiter=self.delimiter, quoting=quoting)
    cells: list[str] = []
    try:
      if (header := next(reader, [])) != list(self.header):
        raise UserError(
          f'{path} begins with {self.delimiter.join(header)[:80]!r}; it must begin '
          f'with {self.delimiter.join(self.header)!r}'
        )
      for cells in reader:
        yield self.example(cells)
    except UserError:
      raise
    except csv.Error as error:  # for example a cell of more than 131,072 characters
      raise UserError(
        f'{path}, line {reader.line_num} cannot be read: {error}'
      ) from None
    except ValueError:
      raise UserError(
        f'{path}, line {reader.line_num} is {self.delimiter.join(cells)[:80]!r}; it '
        f'must be {self.needed}'
      ) from None


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
    for name in [classes[number % len(classes)]] if one_each else classes:
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
_VERDICTS = 'no', 'yes'  # whether the sentence answers the question


def _sick_relatedness(cells: Sequence[str]) -> Example:
  _, one, other, relatedness, judgment = cells
  _JUDGMENTS.index(judgment.lower())
  return Example(_texts(one, other), _number(relatedness, 1.0, 5.0))


def _sick_entailment(cells: Sequence[str]) -> Example:
  return Example(_sick_relatedness(cells).texts, cells[-1].lower())


def _trec_qa(cells: Sequence[str]) -> Example:
  question, label, sentence = cells
  return Example(_texts(question, sentence), _VERDICTS[('0', '1').index(label)])


_SICK = Published(
  folder='sick',
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
  example=_sick_relatedness,
  delimiter='\t',
  quoted=False,
)
PUBLISHED = {
  'stsb': Published(
    folder='stsb',
    title='STS-B',
    origin='https://github.com/PhilipMay/stsb-multi-mt',
    files=('stsb-en-train.csv', 'stsb-en-dev.csv', 'stsb-en-test.csv'),
    header=('sentence1', 'sentence2', 'similarity_score'),
    needed='two sentences and a score from 0 to 5',
    example=_stsb,
  ),
  'sick_relatedness': _SICK,
  'sick_entailment': dataclasses.replace(
    _SICK, example=_sick_entailment, classes=_JUDGMENTS
  ),
  'trec_qa': Published(
    folder='trec_qa',
    title='TREC QA',
    origin='Wang, Smith and Mitamura 2007, as tokenised by Yao et al. 2013',
    files=('train.csv', 'dev.csv', 'test.csv'),
    header=('qtext', 'label', 'atext'),
    needed='a question, 1 or 0, and a sentence',
    example=_trec_qa,
    classes=_VERDICTS,
    by_question=True,
  ),
}
