"""Reads figure 6, which `launch.llm` writes, for the report on the paper."""

from __future__ import annotations

import os
from typing import NamedTuple

from zoo.core.errors import UserError, check_count, check_number
from zoo.host.files import read_json, read_text, user_path
from zoo.reports.plots import Plot, from_csv

TITLE = 'Initial guesses in a language model'
_READOUTS = 'free', 'forced', 'expected'
_MAX_TEXT, _MAX_FIELDS, _MAX_NUMBER = 200, 20, 1e9
_MAX_BYTES = 2**24


class LanguageModelRun(NamedTuple):
  """A finished run: its figure, the caption, and its numbers as text."""

  plot: Plot
  caption: str
  facts: dict[str, str]


def read_run(folder: str | os.PathLike[str]) -> LanguageModelRun:
  """Reads the result of `launch.llm` in a folder, which may be untrusted.

  Raises UserError unless it is a finished run whose summary and figure can be shown.
  """
  folder = user_path(folder)
  try:
    summary = _Fields(read_json(folder / 'summary.json', _MAX_BYTES), 'summary.json')
    plot = from_csv('6', read_text(folder / 'figure_6.csv', _MAX_BYTES))
    return LanguageModelRun(plot, _caption(summary), _facts(summary))
  except UserError as error:
    raise UserError(f'{folder} holds no finished run of launch.llm: {error}') from error


class _Fields:
  """An object of JSON whose fields are checked as they are read."""

  def __init__(self, value: object, path: str):
    if not isinstance(value, dict):
      raise UserError(f'{path} is {_shown(value)}; it must be an object')
    self._fields, self._path = value, path

  def __contains__(self, name: str) -> bool:
    return name in self._fields

  def __getitem__(self, name: str) -> _Fields:
    return _Fields(self._get(name), f'{self._path}: {name}')

  def items(self) -> list[tuple[str, _Fields]]:
    """The fields of an object of objects; raises UserError if they cannot be shown."""
    if len(self._fields) > _MAX_FIELDS or not all(map(_is_text, self._fields)):
      raise UserError(
        f'{self._path} has the fields {_shown(list(self._fields))}; it must have at '
        f'most {_MAX_FIELDS}, with printable names'
      )
    return [(name, self[name]) for name in self._fields]

  def text(self, name: str) -> str:
    value = self._get(name)
    if not _is_text(value):
      raise UserError(
        f'{self._path}: {name} is {_shown(value)}; it must be at most {_MAX_TEXT} '
        'printable characters'
      )
    return str(value)

  def count(self, name: str) -> int:
    return check_count(f'{self._path}: {name}', self._get(name), minimum=0)

  def number(self, name: str) -> float | None:
    if self._get(name) is None:
      return None
    value = check_number(f'{self._path}: {name}', self._get(name))
    if abs(value) > _MAX_NUMBER:
      raise UserError(
        f'{self._path}: {name} is {value:g}; its absolute value must be at most '
        f'{_MAX_NUMBER:g}'
      )
    return value

  def _get(self, name: str) -> object:
    if name not in self._fields:
      raise UserError(f'{self._path} has no field {name!r}')
    return self._fields[name]


def _is_text(value: object) -> bool:
  return isinstance(value, str) and value.isprintable() and len(value) <= _MAX_TEXT


def _shown(value: object) -> str:
  return repr(value)[:80]


def _caption(summary: _Fields) -> str:
  return (
    f'{summary.text("model")} on {summary.count("num_prompts")} prompts of '
    f'{summary.count("num_examples")} examples ({summary.text("benchmark")}), with and '
    f'without the guesses of a small model ({summary["guess"].text("model")}): (a) the '
    f'{summary.text("metric")} by readout; (b) differences on the same prompts; (c) '
    'the answers against the guess of the query. A guess in the prompt can be copied, '
    'so only a lower error than that of the guess alone is a refinement. Bars are 95 % '
    'intervals.'
  )


def _facts(summary: _Fields) -> dict[str, str]:
  metric = summary.text('metric')
  facts = {
    f'{metric}, {name.replace("_", " ")}': _number(baseline.number('loss'))
    for name, baseline in summary['baselines'].items()
  }
  for readout in _READOUTS:
    for arm, readouts in summary['arms'].items():
      found = readouts[readout]
      loss, stderr = found.number('loss'), found.number('stderr')
      text = f'{_number(loss)} ± {_number(stderr)}'
      text += f', {found.number("parse_rate") or 0:.0%} parsed'
      copied = found.number('copied_share') if 'copied_share' in found else None
      if copied is not None:
        text += f', {copied:.0%} of these copy the guess'
      facts[f'{readout}, {arm.replace("_", " ")}'] = text
    for name, field in (
      ('with − without guess', 'paired'),
      ('with guess − guess alone', 'against_guess'),
    ):
      pair = summary[field][readout]
      facts[f'{readout}, {name}'] = (
        f'{_number(pair.number("difference"))} [{_number(pair.number("low"))}, '
        f'{_number(pair.number("high"))}] on {pair.count("num")} prompts'
      )
  return facts


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:.3f}'
