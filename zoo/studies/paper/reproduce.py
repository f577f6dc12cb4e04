"""Reproduces the whole paper: trains, plots, judges and reports."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

from zoo import reports
from zoo.core.errors import UserError, check_count, check_name
from zoo.host.interruption import Interruption
from zoo.host.parts import Part
from zoo.reports.plots import Plot, write_plot
from zoo.studies.paper.claim import judge
from zoo.studies.paper.claims import CLAIMS
from zoo.studies.paper.figures import FIGURES, plot
from zoo.studies.paper.language_model import TITLE, LanguageModelRun, read_run
from zoo.studies.paper.training import Point, Runs, fields_of, train_all
from zoo.studies.runner import (
  GetConfig,
  Trainer,
  each,
  facts,
  run_in,
  sections_of,
  write_report,
)

OBJECTIVES = 'sampled', 'exact'

_TITLE = 'The Initialization Determines Whether In-Context Learning Is Gradient Descent'


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

  def work(out: pathlib.Path, interruption: Interruption) -> list[reports.Claim]:
    start = time.monotonic()
    train = Trainer(out / 'runs' / objective, get_config)
    points = [point for name in figures for point in FIGURES[name].points]
    runs = train_all(points, num_seeds, objective, train, part)
    if part is not None:
      return []
    plots = {}
    for name, one in _plots(figures, runs, language_model, interruption):
      plots[name] = one
      write_plot(one, out)
    claims = each('claim', {claim.key: claim for claim in CLAIMS}, interruption)
    judged = [judge(claim, plots) for _, claim in claims]
    arguments = {
      'figures': ', '.join(figures),
      'seeds': ', '.join(map(str, range(num_seeds))),
      'objective': objective,
    }
    found = {
      'Configuration': arguments | _configs(points, objective, train),
      **facts(),
    }
    found['Machine']['time of this call'] = f'{time.monotonic() - start:.0f} s'
    data = {'paper': 'arXiv 2512.04268', **arguments, 'claims': judged}
    page = _page(plots, judged, found, language_model)
    write_report(out, 'claims.json', data, page)
    return judged

  return run_in(out, work)


def _plots(
  figures: Sequence[str],
  runs: Runs,
  language_model: LanguageModelRun | None,
  interruption: Interruption,
) -> Iterator[tuple[str, Plot]]:
  """The figures by name, made one by one; figure 6 is that of a language model."""
  wanted = {name: FIGURES[name] for name in figures}
  for name, _ in each('figure', wanted, interruption):
    yield name, plot(name, runs)
  if language_model is not None:
    yield '6', language_model.plot


def _page(
  plots: Mapping[str, Plot],
  judged: Sequence[reports.Claim],
  found: Mapping[str, Mapping[str, str]],
  language_model: LanguageModelRun | None,
) -> str:
  words = {name: (FIGURES[name].title, FIGURES[name].caption) for name in FIGURES}
  if language_model is not None:
    words['6'] = TITLE, language_model.caption
  figures = {
    f'figure_{name}': reports.figure_of(shown, *words[name])
    for name, shown in plots.items()
  }
  claims = reports.Section(
    'Claims',
    'A verdict follows from the numbers by the rule below it; each number is shown '
    'with the source that computes it.',
    {'claims.json': 'claims.json'},
    judged,
  )
  return reports.render(
    _TITLE,
    'The synthetic figures and the claims of arXiv 2512.04268, reproduced by ICL Zoo, '
    f'with exact results and trained models. {verdicts_of(judged)}',
    [claims, reports.Section('Figures', figures=figures), *sections_of(found)],
  )


def _configs(points: Sequence[Point], objective: str, train: Trainer) -> dict[str, str]:
  """How the models of each config are trained."""
  found = {}
  for recipe in dict.fromkeys(point.recipe for point in points):
    config = train.config(recipe.config, fields_of(recipe, objective, train))
    optimizer, num_steps = config.optimizer, config.train.num_steps
    prompts = f'of {config.train.batch_size} prompts'
    data = 'on the exact risk' if objective == 'exact' else prompts
    rate = f'{optimizer.name} {optimizer.learning_rate:g}'
    found[recipe.config] = f'{num_steps} steps {data}, {rate}, {optimizer.schedule}'
  return found


def verdicts_of(claims: Sequence[reports.Claim]) -> str:
  """How many claims have each verdict."""
  verdicts = [claim['verdict'] for claim in claims]
  counts = (
    f'{verdict or "not measured in this run"}: {verdicts.count(verdict)}'
    for verdict in ('holds', 'holds, not sharp', 'fails', None)
    if verdict in verdicts
  )
  return f'Verdicts on the {len(claims)} claims: {"; ".join(counts)}.'
