"""Benchmarks: splits of examples, each with texts and a number or class as label."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence
from typing import Annotated

import msgspec

from zoo.core.errors import UserError
from zoo.host.files import MIB, UnreadableFile, parse_as, read_bytes, read_text
from zoo.llm.config import MAX_LABEL

MAX_BYTES = 512 * MIB  # of a file

SPLITS = 'train', 'dev', 'test'
_Number = Annotated[float, msgspec.Meta(ge=-MAX_LABEL, le=MAX_LABEL)]


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


def read_jsonl(folder: pathlib.Path) -> Benchmark:
  """Reads a user's own `train.jsonl`, `test.jsonl` and, if it exists, `dev.jsonl`.

  A line is `{"inputs": ["text", …], "label": 3.5}`; the label may also be the name of a
  class. Raises UserError, with file and line, for anything else.
  """
  splits = {}
  for split, path in files_of(
    folder, {name: f'{name}.jsonl' for name in SPLITS}
  ).items():
    lines = read_text(path, MAX_BYTES).split('\n')
    splits[split] = [
      _example(line, f'{path}, line {number}')
      for number, line in enumerate(lines, start=1)
      if line.strip()
    ]
  return _benchmark(splits, folder, [f'{split}.jsonl' for split in splits])


def digest(paths: Sequence[pathlib.Path]) -> str:
  """The SHA-256 of the concatenated files."""
  total = hashlib.sha256()
  for path in paths:
    total.update(read_bytes(path, MAX_BYTES))
  return total.hexdigest()


def files_of(
  folder: pathlib.Path,
  names: dict[str, str],
  needed: Sequence[str] = ('train', 'test'),
) -> dict[str, pathlib.Path]:
  """The files in a folder by split; raises UserError if a `needed` one is missing."""
  if not folder.is_dir():
    raise UserError(f'the data folder {folder} does not exist')
  found = {split: folder / name for split, name in names.items()}
  found = {split: path for split, path in found.items() if path.is_file()}
  for split in needed:
    if split not in found:
      raise UserError(
        f'the data folder {folder} has no {names[split]}; it must hold '
        f'{", ".join(names.values())}'
      )
  return found


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


def _benchmark(
  splits: dict[str, list[Example]], folder: pathlib.Path, names: Sequence[str]
) -> Benchmark:
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
  return Benchmark(
    splits, tuple(sorted(classes)), digest([folder / name for name in names])
  )
