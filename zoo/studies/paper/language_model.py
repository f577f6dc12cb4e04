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
  """The figure of a finished run, and its caption."""

  plot: Plot
  caption: str


def read_run(folder: str | os.PathLike[str]) -> LanguageModelRun:
  """Reads the result of `launch.llm` in a folder; raises UserError if there is none."""
  from zoo.llm.summary import Summary  # only here, since few reports need it

  folder = user_path(folder)
  try:
    summary = read_as(folder / 'summary.json', Summary)
    plot = from_csv('6', read_text(folder / 'figure_6.csv'))
    return LanguageModelRun(plot, _caption(summary))
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
