"""Figure 6, which is measured by `launch.llm` and shown beside the others."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, NamedTuple

from zoo.errors import UserError
from zoo.plots import Plot, from_csv

TITLE = 'Initial guesses in a language model'
_READOUTS = 'free', 'forced', 'expected'


class LanguageModelRun(NamedTuple):
  """A finished run: its figure, the caption, and its numbers in words."""

  plot: Plot
  caption: str
  facts: dict[str, str]


def read_run(folder: str | os.PathLike[str]) -> LanguageModelRun:
  """What `launch.llm` left in a folder; raises UserError unless it is finished."""
  folder = pathlib.Path(folder).expanduser()
  try:
    summary = json.loads((folder / 'summary.json').read_text(encoding='utf-8'))
    plot = from_csv('6', (folder / 'figure_6.csv').read_text(encoding='utf-8'))
    caption = (
      f'{summary["model"]} on {summary["num_prompts"]} prompts of '
      f'{summary["num_examples"]} examples ({summary["benchmark"]}), with and without '
      f'the guesses of a small model ({summary["guess"]["model"]}): (a) the '
      f'{summary["metric"]} by how the answer is read; (b) differences on the same '
      'prompts; (c) the answers against the guess of the query. A guess in the prompt '
      'can be copied, so that only less than the guess alone would be a refinement. '
      'Bars are 95 % intervals.'
    )
    facts = _facts(summary)
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(
      f'{folder} holds no finished run of launch.llm ({type(error).__name__}: {error})'
    ) from error
  return LanguageModelRun(plot, caption, facts)


def _facts(summary: dict[str, Any]) -> dict[str, str]:
  facts = {
    f'{summary["metric"]}, {name.replace("_", " ")}': _number(baseline['loss'])
    for name, baseline in summary['baselines'].items()
  }
  for readout in _READOUTS:
    for arm, found in summary['arms'].items():
      text = f'{_number(found[readout]["loss"])} ± {_number(found[readout]["stderr"])}'
      text += f', {found[readout]["parse_rate"]:.0%} parsed'
      if (copied := found[readout].get('copied_share')) is not None:
        text += f', {copied:.0%} of these copy the guess'
      facts[f'{readout}, {arm.replace("_", " ")}'] = text
    for name, pairs in (
      ('with − without guess', summary['paired']),
      ('with guess − guess alone', summary['against_guess']),
    ):
      pair = pairs[readout]
      facts[f'{readout}, {name}'] = (
        f'{_number(pair["difference"])} [{_number(pair["low"])}, '
        f'{_number(pair["high"])}] on {pair["num"]} prompts'
      )
  return facts


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:.3f}'
