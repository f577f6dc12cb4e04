"""Benchmarks: examples with texts, and a number or a class as label, in three splits.

Published benchmarks are read from files that the user provides under their licences.
The library ships none of their sentences.
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
  """An example of a benchmark.

  Attributes:
    texts: The texts, in the order of the names in `config.benchmark.inputs`.
    label: A number, or the name of a class.
  """

  texts: tuple[str, ...]
  label: float | str


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """The examples of a benchmark.

  Attributes:
    splits: The examples by name of the split: train, dev and test.
    classes: The names of the classes. Empty if labels are numbers.
    sha256: The checksum of the files.
  """

  splits: dict[str, list[Example]]
  classes: tuple[str, ...]
  sha256: str


_Text = Annotated[str, msgspec.Meta(pattern=r'\S')]


class _StsB(msgspec.Struct, forbid_unknown_fields=True):
  """A line of STS-B. Here and below the fields are the names in the header."""

  sentence1: _Text
  sentence2: _Text
  similarity_score: Annotated[float, msgspec.Meta(ge=0, le=5)]

  def example(self) -> Example:
    # The scores of the file have three digits.
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
  """A line of a JSONL file of the user."""

  inputs: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
  label: Annotated[float, msgspec.Meta(ge=-_MAX_LABEL, le=_MAX_LABEL)] | _Text

  def example(self) -> Example:
    label = self.label.strip() if isinstance(self.label, str) else self.label
    return Example(self.inputs, label)


_VERDICTS = 'no', 'yes'  # the answers to: does the sentence answer the question?
_SICK_FILES = 'SICK_train.txt', 'SICK_trial.txt', 'SICK_test_annotated.txt'
# Each benchmark has the files of train, dev and test, the type of their lines, and the
# names of its classes.
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
  """Reads a benchmark from the files in a folder.

  Args:
    name: A name of `BENCHMARKS`. `jsonl` is the user's own benchmark, for which
      `dev.jsonl` may be missing.
    folder: The folder of the files. None raises an error that names the files.

  Returns:
    The examples of each split, with the digest of the files.

  Raises:
    UserError: If a file is missing, or has a line that cannot be read (the message has
      the file and the line); and if the labels of `jsonl` contradict each other.
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
  """Reads the examples of a published file: one in each line below a header."""
  text = io.StringIO(read_text(path), newline='')
  # In files with tabs a quotation mark has no special meaning.
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
  """Reads the examples of a JSONL file of the user."""
  return [
    parse_json(text, _Own, f'{path}, line {number}').example()
    for number, text in enumerate(read_text(path).split('\n'), start=1)
    if text.strip()
  ]


def balanced(examples: Sequence[Example], is_single: bool) -> list[Example]:
  """Draws a subset of TREC QA in which both verdicts are equally frequent.

  Questions that lack sentences of one verdict are left out. For each other question the
  subset has as many sentences of each verdict as the rarer verdict has. The draws are
  random, and the same in each call.

  Args:
    examples: The examples of a split.
    is_single: Whether each question keeps one sentence only. The verdict then
      alternates from question to question.

  Returns:
    The chosen examples.
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
  """Returns the classes of the user's benchmark, if any; raises UserError."""
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
