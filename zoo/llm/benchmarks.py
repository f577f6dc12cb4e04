"""Benchmarks: examples with texts, and a number or a class as label, in three splits.

Published ones are read from files that the user provides, under their licences; the
library ships none of their sentences.
"""

import csv
import dataclasses
import hashlib
import io
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np

from zoo.core.errors import UserError
from zoo.host.files import UnreadableFile, parse_json, read_bytes, read_text
from zoo.llm.config import MAX_LABEL

SPLITS = 'train', 'dev', 'test'


@dataclasses.dataclass(frozen=True)
class Example:
  """Texts and their label: a number, or the name of a class."""

  texts: tuple[str, ...]
  label: float | str


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """Examples by split; `classes` is empty where labels are numbers.

  `sha256` is the checksum of the files that they were read from.
  """

  splits: dict[str, list[Example]]
  classes: tuple[str, ...]
  sha256: str


def read_jsonl(folder: pathlib.Path | None) -> Benchmark:
  """Reads a user's own `train.jsonl`, `test.jsonl` and, if it exists, `dev.jsonl`.

  A line is `{"inputs": ["text", …], "label": 3.5}`; the label may also be the name of a
  class. Raises UserError, with file and line, for anything else.
  """
  if folder is None:
    raise UserError(
      '--data is missing; it must name a folder with train.jsonl and test.jsonl'
    )
  files = _files_of(folder, [f'{split}.jsonl' for split in SPLITS], ('train', 'test'))
  splits = {
    split: [
      _example(line, f'{path}, line {number}')
      for number, line in enumerate(read_text(path).split('\n'), start=1)
      if line.strip()
    ]
    for split, path in files.items()
  }
  return Benchmark(splits, _classes(splits, folder), _digest(files))


def _files_of(
  folder: pathlib.Path, names: Sequence[str], needed: Sequence[str] = SPLITS
) -> dict[str, pathlib.Path]:
  """The files in a folder by split; raises UserError if a `needed` one is missing."""
  if not folder.is_dir():
    raise UserError(f'the data folder {folder} does not exist')
  found = {}
  for split, name in zip(SPLITS, names, strict=True):
    if (folder / name).is_file():
      found[split] = folder / name
    elif split in needed:
      raise UserError(
        f'the data folder {folder} has no {name}; it must hold {", ".join(names)}'
      )
  return found


def _digest(files: dict[str, pathlib.Path]) -> str:
  """The SHA-256 of the concatenated files."""
  total = hashlib.sha256()
  for path in files.values():
    total.update(read_bytes(path))
  return total.hexdigest()


_Number = Annotated[float, msgspec.Meta(ge=-MAX_LABEL, le=MAX_LABEL)]


class _Line(msgspec.Struct):
  inputs: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
  label: _Number | Annotated[str, msgspec.Meta(pattern=r'\S')]


def _example(line: str, source: str) -> Example:
  try:
    found = parse_json(line, _Line, source)
  except UnreadableFile:
    raise UserError(
      f'{source} is {line[:80]!r}; it must be like {{"inputs": ["a text"], "label": '
      '3.5}, the label a number or the name of a class'
    ) from None
  label = found.label
  return Example(found.inputs, label.strip() if isinstance(label, str) else label)


def _classes(splits: dict[str, list[Example]], folder: pathlib.Path) -> tuple[str, ...]:
  """The names of the classes, if there are some; raises UserError."""
  everything = [example for examples in splits.values() for example in examples]
  for split, examples in splits.items():
    if not examples:
      raise UserError(f'the split {split!r} of {folder} is empty')
  for example in everything:
    if len(example.texts) != len(everything[0].texts):
      raise UserError(
        f'an example of {folder} has {len(example.texts)} inputs and another one '
        f'{len(everything[0].texts)}; all must have the same number'
      )
    if isinstance(example.label, str) != isinstance(everything[0].label, str):
      raise UserError(
        f'{folder} has the labels {everything[0].label!r} and {example.label!r}; all '
        'must be numbers, or all must be names of classes'
      )
  classes = {example.label for example in everything if isinstance(example.label, str)}
  if len({name.casefold() for name in classes}) < len(classes):
    raise UserError(f'{folder} has classes that differ only in upper and lower case')
  if len(classes) == 1:
    raise UserError(f'{folder} has only the class {classes.pop()!r}; two are needed')
  return tuple(sorted(classes))


@dataclasses.dataclass(frozen=True)
class Published:
  """A benchmark in three files with one example per line, below a header."""

  title: str  # and where the user gets the files
  files: tuple[str, str, str]  # of train, dev and test
  header: str
  needed: str  # what a line must be, in words
  example: Callable[[Sequence[str]], Example]  # from a line's cells; raises ValueError
  classes: tuple[str, ...] = ()
  dialect: type[csv.Dialect] = csv.excel
  is_balanced: bool = False  # see `balanced`; test has one example per question

  def read(self, folder: pathlib.Path | None) -> Benchmark:
    """The benchmark in a folder.

    Raises UserError, with file and line, for a missing or malformed file.
    """
    if folder is None:
      raise UserError(
        f'--data is missing; it must name a folder with {", ".join(self.files)} of '
        f'{self.title}'
      )
    files = _files_of(folder, self.files)
    splits = {split: [*self._examples(path)] for split, path in files.items()}
    for split, path in files.items():
      if self.is_balanced:
        splits[split] = balanced(splits[split], self.classes, split == 'test')
      if not splits[split]:
        missing = 'question with both labels' if self.is_balanced else 'examples'
        raise UserError(f'{path} has no {missing}')
    return Benchmark(splits, self.classes, _digest(files))

  def _examples(self, path: pathlib.Path) -> Iterator[Example]:
    join = self.dialect.delimiter.join
    text = io.StringIO(read_text(path), newline='')
    reader = csv.reader(text, self.dialect)
    cells: list[str] = []
    try:
      if (header := join(next(reader, []))) != self.header:
        raise UserError(
          f'{path} begins with {header[:80]!r}; it must begin with {self.header!r}'
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
        f'{path}, line {reader.line_num} is {join(cells)[:80]!r}; it must be '
        f'{self.needed}'
      ) from None


def balanced(
  examples: Sequence[Example], classes: Sequence[str], one_each: bool
) -> list[Example]:
  """A subset of examples with as many of each class, for every question.

  An example's first text is its question. Only questions with examples of all classes
  are kept, and of each class as many examples as the rarest has, drawn at random. With
  `one_each` every question has one example, and the class alternates from question to
  question. The draws are the same in each call.
  """
  rng = np.random.default_rng(0)
  questions: dict[str, dict[str, list[Example]]] = {}
  for example in examples:
    of = questions.setdefault(example.texts[0], {name: [] for name in classes})
    of[str(example.label)].append(example)
  chosen = []
  complete = [of for of in questions.values() if all(of.values())]
  for number, of in enumerate(complete):
    size = 1 if one_each else min(map(len, of.values()))
    for name in [classes[number % len(classes)]] if one_each else classes:
      places = rng.choice(len(of[name]), size, replace=False)
      chosen += [of[name][place] for place in sorted(places)]
  return chosen


def _texts(*cells: str) -> tuple[str, ...]:
  if not all(cell.strip() for cell in cells):
    raise ValueError('an empty text')
  return cells


def _score(cell: str, low: float, high: float) -> float:
  if not low <= float(cell) <= high:
    raise ValueError('out of bounds')
  return round(float(cell), 3)  # three digits are all that the scores have


def _stsb(cells: Sequence[str]) -> Example:
  one, other, score = cells
  return Example(_texts(one, other), _score(score, 0.0, 5.0))


_JUDGMENTS = 'contradiction', 'entailment', 'neutral'
_VERDICTS = 'no', 'yes'  # whether the sentence answers the question


def _sick_relatedness(cells: Sequence[str]) -> Example:
  _, one, other, score, judgment = cells
  _JUDGMENTS.index(judgment.lower())
  return Example(_texts(one, other), _score(score, 1.0, 5.0))


def _sick_entailment(cells: Sequence[str]) -> Example:
  return Example(_sick_relatedness(cells).texts, cells[-1].lower())


def _trec_qa(cells: Sequence[str]) -> Example:
  question, label, sentence = cells
  return Example(_texts(question, sentence), _VERDICTS[('0', '1').index(label)])


class _Tabs(csv.excel_tab):
  quoting = csv.QUOTE_NONE
  quotechar = None


_SICK = Published(
  title='SICK (https://alt.qcri.org/semeval2014/task1)',
  files=('SICK_train.txt', 'SICK_trial.txt', 'SICK_test_annotated.txt'),
  header='pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment',
  needed=(
    'a number, two sentences, a score from 1 to 5, and NEUTRAL, ENTAILMENT or '
    'CONTRADICTION, with tabs between them'
  ),
  example=_sick_relatedness,
  dialect=_Tabs,
)
PUBLISHED = {
  'stsb': Published(
    title='STS-B (https://github.com/PhilipMay/stsb-multi-mt)',
    files=('stsb-en-train.csv', 'stsb-en-dev.csv', 'stsb-en-test.csv'),
    header='sentence1,sentence2,similarity_score',
    needed='two sentences and a score from 0 to 5',
    example=_stsb,
  ),
  'sick_relatedness': _SICK,
  'sick_entailment': dataclasses.replace(
    _SICK, example=_sick_entailment, classes=_JUDGMENTS
  ),
  'trec_qa': Published(
    title='TREC QA (Wang, Smith and Mitamura 2007, as tokenised by Yao et al. 2013)',
    files=('train.csv', 'dev.csv', 'test.csv'),
    header='qtext,label,atext',
    needed='a question, 1 or 0, and a sentence',
    example=_trec_qa,
    classes=_VERDICTS,
    is_balanced=True,
  ),
}
