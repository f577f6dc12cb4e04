"""Benchmarks: examples with texts, and a number or a class as label, in three splits.

Published ones are read from files that the user provides, under their licences; the
library ships none of their sentences.
"""

import csv
import dataclasses
import hashlib
import io
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from zoo.core.errors import UserError
from zoo.host.files import parse_json, read_bytes, read_text

SPLITS = 'train', 'dev', 'test'
_MAX_LABEL = 1e12


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


_Text = Annotated[str, msgspec.Meta(pattern=r'\S')]


class _StsB(msgspec.Struct, forbid_unknown_fields=True):
  """A line of STS-B; the fields are those of the header, also below."""

  sentence1: _Text
  sentence2: _Text
  similarity_score: Annotated[float, msgspec.Meta(ge=0, le=5)]

  def example(self) -> Example:
    # Three digits are all that the scores have.
    return Example((self.sentence1, self.sentence2), round(self.similarity_score, 3))


class _SickRelatedness(msgspec.Struct, forbid_unknown_fields=True):
  pair_ID: str
  sentence_A: _Text
  sentence_B: _Text
  relatedness_score: Annotated[float, msgspec.Meta(ge=1, le=5)]
  entailment_judgment: Literal['CONTRADICTION', 'ENTAILMENT', 'NEUTRAL']

  def example(self) -> Example:
    return Example((self.sentence_A, self.sentence_B), round(self.relatedness_score, 3))


class _SickEntailment(_SickRelatedness):
  def example(self) -> Example:
    return Example((self.sentence_A, self.sentence_B), self.entailment_judgment.lower())


class _TrecQA(msgspec.Struct, forbid_unknown_fields=True):
  qtext: _Text
  label: Literal['0', '1']
  atext: _Text

  def example(self) -> Example:
    return Example((self.qtext, self.atext), _VERDICTS[int(self.label)])


class _Own(msgspec.Struct):
  """A line of a user's own JSONL."""

  inputs: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
  label: Annotated[float, msgspec.Meta(ge=-_MAX_LABEL, le=_MAX_LABEL)] | _Text

  def example(self) -> Example:
    label = self.label.strip() if isinstance(self.label, str) else self.label
    return Example(self.inputs, label)


_VERDICTS = 'no', 'yes'  # whether the sentence answers the question
_SICK_FILES = 'SICK_train.txt', 'SICK_trial.txt', 'SICK_test_annotated.txt'
# By name: the files of train, dev and test, the kind of their lines, and the classes.
_KINDS: dict[str, tuple[tuple[str, str, str], Any, tuple[str, ...]]] = {
  'stsb': (('stsb-en-train.csv', 'stsb-en-dev.csv', 'stsb-en-test.csv'), _StsB, ()),
  'sick_relatedness': (_SICK_FILES, _SickRelatedness, ()),
  'sick_entailment': (
    _SICK_FILES,
    _SickEntailment,
    ('contradiction', 'entailment', 'neutral'),
  ),
  'trec_qa': (('train.csv', 'dev.csv', 'test.csv'), _TrecQA, _VERDICTS),
  'jsonl': (('train.jsonl', 'dev.jsonl', 'test.jsonl'), _Own, ()),
}
BENCHMARKS = tuple(_KINDS)


def read_benchmark(name: str, folder: pathlib.Path | None) -> Benchmark:
  """A benchmark of `BENCHMARKS` from the files in a folder.

  `jsonl` is a user's own, whose `dev.jsonl` need not exist. Raises UserError, with file
  and line, for a missing or malformed file.
  """
  names, kind, classes = _KINDS[name]
  if folder is None:
    raise UserError(f'--data is missing; it must name a folder with {", ".join(names)}')
  splits, sha256 = {}, hashlib.sha256()
  for split, file in zip(SPLITS, names, strict=True):
    path = folder / file
    if not path.is_file():
      if (name, split) == ('jsonl', 'dev'):
        continue
      raise UserError(f'there is no {path}; --data must hold {", ".join(names)}')
    examples = _json_lines(path) if name == 'jsonl' else _rows(path, kind)
    if name == 'trec_qa':
      examples = balanced(examples, is_single=split == 'test')
    if not examples:
      raise UserError(f'{path} has no examples' + ' of both labels' * bool(classes))
    splits[split] = examples
    sha256.update(read_bytes(path))
  if name == 'jsonl':
    classes = _classes(splits, folder)
  return Benchmark(splits, classes, sha256.hexdigest())


def _rows(path: pathlib.Path, kind: Any) -> list[Example]:
  """The examples of a published file: one a line, below a header."""
  text = io.StringIO(read_text(path), newline='')
  # In files with tabs a quotation mark is a character like any other.
  tabs: Any = {'delimiter': '\t', 'quoting': csv.QUOTE_NONE}
  reader = csv.DictReader(text, **(tabs if path.suffix == '.txt' else {}))
  examples = []
  try:
    if (header := tuple(reader.fieldnames or ())) != kind.__struct_fields__:
      raise UserError(
        f'{path} begins with {str(header)[:80]}; it must begin with '
        f'{kind.__struct_fields__}'
      )
    for cells in reader:
      examples.append(msgspec.convert(cells, kind, strict=False).example())
  except (csv.Error, msgspec.ValidationError) as error:
    line = reader.reader.line_num
    raise UserError(f'{path}, line {line} cannot be read: {error}') from None
  return examples


def _json_lines(path: pathlib.Path) -> list[Example]:
  """The examples of a file of the user's own."""
  return [
    parse_json(text, _Own, f'{path}, line {number}').example()
    for number, text in enumerate(read_text(path).split('\n'), start=1)
    if text.strip()
  ]


def balanced(examples: Sequence[Example], is_single: bool) -> list[Example]:
  """A subset of TREC QA with as many sentences of each verdict, for every question.

  Only questions with sentences of both verdicts are kept, and of each verdict as many
  as the rarer has, drawn at random. If `is_single`, a question has one sentence, and
  the verdict alternates from question to question. The draws are the same in each call.
  """
  rng = np.random.default_rng(0)
  questions: dict[str, dict[str, list[Example]]] = {}
  for example in examples:
    verdicts = questions.setdefault(example.texts[0], {name: [] for name in _VERDICTS})
    verdicts[str(example.label)].append(example)
  chosen = []
  complete = [verdicts for verdicts in questions.values() if all(verdicts.values())]
  for number, verdicts in enumerate(complete):
    size = 1 if is_single else min(map(len, verdicts.values()))
    for name in [_VERDICTS[number % 2]] if is_single else _VERDICTS:
      places = rng.choice(len(verdicts[name]), size, replace=False)
      chosen += [verdicts[name][place] for place in sorted(places)]
  return chosen


def _classes(splits: dict[str, list[Example]], folder: pathlib.Path) -> tuple[str, ...]:
  """The names of the classes of a user's own, if there are some; raises UserError."""
  examples = [example for split in splits.values() for example in split]
  if len({len(example.texts) for example in examples}) > 1:
    raise UserError(f'the examples of {folder} differ in their number of inputs')
  classes = {example.label for example in examples if isinstance(example.label, str)}
  if classes and not all(isinstance(example.label, str) for example in examples):
    raise UserError(
      f'{folder} has the label {min(classes)!r} and numbers; all must be numbers, or '
      'all must be names of classes'
    )
  if len({name.casefold() for name in classes}) < len(classes):
    raise UserError(f'{folder} has classes that differ only in upper and lower case')
  if len(classes) == 1:
    raise UserError(f'{folder} has only the class {min(classes)!r}; two are needed')
  return tuple(sorted(classes))
