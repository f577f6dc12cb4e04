"""Reads figure 6, which `launch.llm` writes, for the report on the paper."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from zoo.core.errors import UserError
from zoo.host.files import read_as, read_text, user_path
from zoo.reports.plots import Plot, from_csv

if TYPE_CHECKING:
  from zoo.llm.summary import Summary

TITLE = 'Figure 6. Initial guesses in a language model'


class LanguageModelRun(NamedTuple):
  """A finished run: its figure, the caption, and its numbers as text."""

  plot: Plot
  caption: str
  facts: dict[str, str]


def read_run(folder: str | os.PathLike[str]) -> LanguageModelRun:
  """Reads the result of `launch.llm` in a folder; raises UserError if there is none."""
  from zoo.llm.summary import Summary  # only here, since few reports need it

  folder = user_path(folder)
  try:
    summary = read_as(folder / 'summary.json', Summary)
    plot = from_csv('6', read_text(folder / 'figure_6.csv'))
    return LanguageModelRun(plot, _caption(summary), _facts(summary))
  except (UserError, KeyError) as error:
    raise UserError(f'{folder} holds no finished run of launch.llm: {error}') from error


def _caption(summary: Summary) -> str:
  return (
    f'{summary["model"]} on {summary["num_prompts"]} prompts of '
    f'{summary["num_examples"]} examples ({summary["benchmark"]}), with and '
    f'without the guesses of a small model ({summary["guess"]["model"]}): (a) the '
    f'{summary["metric"]} by readout; (b) differences on the same prompts; (c) '
    'the answers against the guess of the query. A guess in the prompt can be copied, '
    'so only a lower error than that of the guess alone is a refinement. Bars are 95 % '
    'intervals.'
  )


def _facts(summary: Summary) -> dict[str, str]:
  facts = {
    f'{summary["metric"]}, {name.replace("_", " ")}': _number(baseline['loss'])
    for name, baseline in summary['baselines'].items()
  }
  for readout, paired in summary['paired'].items():
    for arm, readouts in summary['arms'].items():
      found = readouts[readout]
      text = f'{_number(found["loss"])} ± {_number(found["stderr"])}'
      text += f', {found["parse_rate"]:.0%} parsed'
      copied = found.get('copied_share')
      if copied is not None:
        text += f', {copied:.0%} of these copy the guess'
      facts[f'{readout}, {arm.replace("_", " ")}'] = text
    for name, pair in (
      ('with − without guess', paired),
      ('with guess − guess alone', summary['against_guess'][readout]),
    ):
      facts[f'{readout}, {name}'] = (
        f'{_number(pair["difference"])} [{_number(pair["low"])}, '
        f'{_number(pair["high"])}] on {pair["num"]} prompts'
      )
  return facts


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:.3f}'
