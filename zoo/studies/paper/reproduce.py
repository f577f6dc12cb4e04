"""Reproduces the whole paper: trains, plots, judges and reports."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tqdm import tqdm

from zoo import reports
from zoo.config.validation import Config
from zoo.core.errors import UserError, check_count, check_name
from zoo.host.files import write_atomically
from zoo.host.interruption import Interruption
from zoo.host.parts import Part
from zoo.reports.plots import Plot, write_plot
from zoo.studies.paper.claim import judge
from zoo.studies.paper.claims import CLAIMS
from zoo.studies.paper.figures import FIGURES, plot
from zoo.studies.paper.language_model import TITLE, LanguageModelRun, read_run
from zoo.studies.paper.training import Runs, fields_of, train_all
from zoo.studies.runner import (
  GetConfig,
  Trainer,
  facts,
  run_in,
  sections_of,
  stop_if_asked,
)

OBJECTIVES = 'sampled', 'exact'

_TITLE = 'The Initialization Determines Whether In-Context Learning Is Gradient Descent'


class _Request(NamedTuple):
  """The checked arguments of `reproduce`."""

  get_config: GetConfig
  figures: tuple[str, ...]
  num_seeds: int
  objective: str
  language_model: LanguageModelRun | None
  part: Part | None


def reproduce(
  out: str | os.PathLike[str],
  get_config: GetConfig,
  figures: Sequence[str] = tuple(FIGURES),
  num_seeds: int = 3,
  objective: str = 'sampled',
  llm_run: str | os.PathLike[str] | None = None,
  part: Part | None = None,
) -> list[reports.Claim] | None:
  """Makes the figures and judges the claims; returns what it writes to `claims.json`.

  The runs, `figure_NAME.csv`, `.svg` and `.png` for each figure, `claims.json` and
  `report.html` are written to the folder `out`. Models that are already trained there
  are not trained again, so the same call resumes after an interruption; it returns None
  after SIGTERM, and raises KeyboardInterrupt after Ctrl-C. `get_config` returns the
  config of a model by its name and variant. Figure 6 is read from the folder `llm_run`,
  which `launch.llm` wrote. `out` may be in a bucket, such as gs://bucket/paper.

  With a `part`, such as `Part(2, 4)`, it only trains that part of the runs, and returns
  no claims; processes that share only `out` may have different parts.

  Raises UserError, and writes nothing, for an unknown figure or objective, no seed, an
  `out` that is not a folder, or an `llm_run` without a result; RunError if `out` cannot
  be written; and otherwise the errors of `zoo.training.sweep`.
  """
  figures = tuple(dict.fromkeys(figures))
  if not figures:
    raise UserError(f'no figure is named; known: {", ".join(FIGURES)}')
  for name in figures:
    check_name('figure', name, FIGURES)
  num_seeds = check_count('the number of seeds', num_seeds)
  check_name('objective', objective, OBJECTIVES)
  language_model = None if llm_run is None else read_run(llm_run)
  request = _Request(get_config, figures, num_seeds, objective, language_model, part)
  return run_in(out, functools.partial(_reproduce, request))


def _reproduce(
  request: _Request, out: pathlib.Path, interruption: Interruption
) -> list[reports.Claim]:
  """Trains, plots and judges."""
  start = time.monotonic()
  points = [point for name in request.figures for point in FIGURES[name].points]
  with tqdm(
    total=len(set(points)) * request.num_seeds + len(request.figures),
    unit='part',
    dynamic_ncols=True,
    # A log file, unlike a terminal, would record every refresh.
    mininterval=0.2 if sys.stderr.isatty() else 10.0,
  ) as bar:
    train = Trainer(out / 'runs' / request.objective, request.get_config)
    runs = train_all(
      points, request.num_seeds, request.objective, train, bar, request.part
    )
    if request.part is not None:
      return []
    plots = _plot_all(request, runs, out, interruption, bar)
    bar.set_description('judging the claims')
    judged = []
    for claim in CLAIMS:
      stop_if_asked(interruption)
      judged.append(judge(claim, plots))
    bar.set_description('done')
  _write(request, train, plots, judged, time.monotonic() - start, out)
  return judged


def _plot_all(
  request: _Request,
  runs: Runs,
  out: pathlib.Path,
  interruption: Interruption,
  bar: tqdm,
) -> dict[str, Plot]:
  """Writes the plots, and returns them by name."""
  plots: dict[str, Plot] = {}
  for name in request.figures:
    stop_if_asked(interruption)
    bar.set_description(f'plotting figure {name}')
    plots[name] = plot(name, runs)
    write_plot(plots[name], out)
    bar.update()
  if request.language_model is not None:
    plots['6'] = request.language_model.plot
    write_plot(plots['6'], out)
  return plots


def _write(
  request: _Request,
  train: Trainer,
  plots: Mapping[str, Plot],
  judged: Sequence[reports.Claim],
  seconds: float,
  out: pathlib.Path,
) -> None:
  """Writes `claims.json` and `report.html`."""
  arguments = {
    'figures': ', '.join(request.figures),
    'seeds': ', '.join(map(str, range(request.num_seeds))),
    'objective': request.objective,
  }
  table = {'paper': 'arXiv 2512.04268', **arguments, 'claims': judged}
  write_atomically(out / 'claims.json', json.dumps(table, indent=2) + '\n')
  recipes = dict.fromkeys(
    point.recipe for name in request.figures for point in FIGURES[name].points
  )
  objective = request.objective
  configs = {
    f'configs/{recipe.config}.py:{recipe.variant}'.rstrip(':'): _summary(
      train.config(recipe.label, fields_of(recipe, objective, train))
    )
    for recipe in recipes
  }
  found = facts()
  tables: dict[str, Mapping[str, str]] = {
    'Configuration': {**arguments, **configs},
    **found,
    'Machine': {**found['Machine'], 'time of this call': f'{seconds:.0f} s'},
  }
  figures = {
    f'figure_{name}': reports.figure_of(
      plots[name], _numbered(name, FIGURES[name].title), FIGURES[name].caption
    )
    for name in request.figures
  }
  if (run := request.language_model) is not None:
    title = _numbered('6', TITLE)
    figures['figure_6'] = reports.figure_of(run.plot, title, run.caption)
    tables = {'Figure 6': run.facts, **tables}
  page = reports.render(
    _TITLE,
    'The synthetic figures and the claims of arXiv 2512.04268, reproduced by ICL Zoo, '
    f'with exact results and trained models. {verdicts_of(judged)}',
    [
      reports.Section(
        'Claims',
        'A verdict follows from the numbers by the rule below it; each number is shown '
        'with the source that computes it.',
        {'claims.json': 'claims.json'},
        judged,
      ),
      reports.Section('Figures', figures=figures),
      *sections_of(tables),
    ],
  )
  write_atomically(out / 'report.html', page)


def _summary(config: Config) -> str:
  optimizer, train = config.optimizer, config.train
  data = f'of {train.batch_size} prompts'
  if config.objective.name == 'exact':
    data = 'on the exact risk'
  return (
    f'{train.num_steps} steps {data}, {optimizer.name} {optimizer.learning_rate:g}, '
    f'{optimizer.schedule}'
  )


def _numbered(name: str, title: str) -> str:
  number = f'Figure {name}' if name.isdecimal() else 'Beyond the paper'
  return f'{number}. {title}'


def verdicts_of(claims: Sequence[reports.Claim]) -> str:
  """How many claims of the paper have each verdict, and how many that go beyond it."""
  beyond = [claim for claim in claims if claim['source'].startswith('Beyond the paper')]
  of_paper = [claim for claim in claims if claim not in beyond]
  text = f'Verdicts on the {len(of_paper)} claims of the paper: {_counts(of_paper)}.'
  if beyond:
    text += (
      f' On {len(beyond)} that the paper does not make, with the source “Beyond the '
      f'paper”: {_counts(beyond)}.'
    )
  return text


def _counts(claims: Sequence[reports.Claim]) -> str:
  verdicts = [claim['verdict'] for claim in claims]
  return '; '.join(
    f'{verdict or "not measured in this run"}: {verdicts.count(verdict)}'
    for verdict in ('holds', 'holds, not sharp', 'fails', None)
    if verdict in verdicts
  )
