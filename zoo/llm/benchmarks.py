"""Benchmarks: examples with texts, and a number or a class as label, in three splits.

STS-B is read from files that the user provides, under their licences; the library ships
none of its sentences.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import pathlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from zoo.core.errors import UserError
from zoo.host.files import MIB, UnreadableFile, parse_as, read_bytes, read_text
from zoo.llm.config import MAX_LABEL

MAX_BYTES = 512 * MIB  # of a file
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
      for number, line in enumerate(read_text(path, MAX_BYTES).split('\n'), start=1)
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
    total.update(read_bytes(path, MAX_BYTES))
  return total.hexdigest()


_Number = Annotated[float, msgspec.Meta(ge=-MAX_LABEL, le=MAX_LABEL)]


class _Line(msgspec.Struct):
  inputs: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
  label: _Number | Annotated[str, msgspec.Meta(pattern=r'\S')]


def _example(line: str, source: str) -> Example:
  try:
    found = parse_as(line, _Line, source)
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


_HEADER = ['sentence1', 'sentence2', 'similarity_score']


def read_stsb(folder: pathlib.Path | None) -> Benchmark:
  """Reads STS-B from the files of github.com/PhilipMay/stsb-multi-mt.

  Raises UserError, with file and line, for a missing or malformed file.
  """
  names = [f'stsb-en-{split}.csv' for split in SPLITS]
  if folder is None:
    raise UserError(
      f'--data is missing; it must name a folder with {", ".join(names)} of STS-B '
      '(https://github.com/PhilipMay/stsb-multi-mt)'
    )
  files = _files_of(folder, names)
  splits = {split: [*_stsb_examples(path)] for split, path in files.items()}
  return Benchmark(splits, (), _digest(files))


def _stsb_examples(path: pathlib.Path) -> Iterator[Example]:
  reader = csv.reader(io.StringIO(read_text(path, MAX_BYTES), newline=''))
  cells: list[str] = []
  try:
    if (header := next(reader, [])) != _HEADER:
      raise UserError(
        f'{path} begins with {",".join(header)[:80]!r}; it must begin with '
        f'{",".join(_HEADER)!r}'
      )
    for cells in reader:
      one, other, score = cells
      if not (one.strip() and other.strip() and 0.0 <= float(score) <= 5.0):
        raise ValueError
      # Three digits are all that the scores have.
      yield Example((one, other), round(float(score), 3))
    if reader.line_num == 1:
      raise UserError(f'{path} has no examples')
  except UserError:
    raise
  except csv.Error as error:  # for example a cell of more than 131,072 characters
    raise UserError(f'{path}, line {reader.line_num} cannot be read: {error}') from None
  except ValueError:
    raise UserError(
      f'{path}, line {reader.line_num} is {",".join(cells)[:80]!r}; it must be two '
      'sentences and a score from 0 to 5'
    ) from None
