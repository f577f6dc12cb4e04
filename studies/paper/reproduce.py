"""The reproduction of the paper: it trains, draws, judges and reports."""

import os
import time
from collections.abc import Mapping, Sequence

from studies.paper import beyond, figures
from studies.paper.claim import judge
from studies.paper.claims import CLAIMS
from studies.paper.training import train_all
from studies.runner import (
  GetConfig,
  Trainer,
  facts,
  run_in,
  sections_of,
  with_progress,
  write_report,
  writing,
)
from zoo import reports
from zoo.core.errors import UserError, check_count, check_name
from zoo.host.files import read_text, user_path
from zoo.host.parts import Part
from zoo.reports.plots import Plot, from_csv, write_plot

OBJECTIVES = 'sampled', 'exact'
# The figures of the paper and two more, by name.
FIGURES: dict[str, figures.PaperFigure] = {**figures.OF_THE_PAPER, **beyond.BEYOND}

_TITLE = 'The Initialization Determines Whether In-Context Learning Is Gradient Descent'
_FIGURE_6 = (
  'Figure 6. Initial guesses in a language model',
  'A language model asked with and without the guesses of a small model: (a) the error '
  'by readout; (b) differences on the same prompts; (c) the answers against the guess '
  'of the query, ± the standard error times Student’s t.',
)


def reproduce(
  out: str | os.PathLike[str],
  get_config: GetConfig,
  figures: Sequence[str] = tuple(FIGURES),
  num_seeds: int = 3,
  objective: str = 'sampled',
  llm_run: str | os.PathLike[str] | None = None,
  part: Part | None = None,
) -> list[reports.JudgedClaim] | None:
  """Trains the models of the paper, draws its figures and judges its claims.

  The folder gets the trained models, `figure_NAME.csv`, `.svg` and `.png` for each
  figure, `claims.json` and `report.html`. Models that are already trained there are not
  trained again, so the same call resumes after an interruption.

  Args:
    out: The folder, which may be in a bucket, such as gs://bucket/paper.
    get_config: Returns the config of a model by its name and variant.
    figures: The names of the figures to draw, of `FIGURES`.
    num_seeds: The number of seeds (≥ 1) with which each model is trained.
    objective: `sampled` trains on sampled prompts, as the paper does, and `exact` on
      the risk that theory computes.
    llm_run: The folder of a run of `launch.llm`, from which figure 6 is read. None
      leaves figure 6 out.
    part: Trains only a part of the runs, and draws and judges nothing. `Part(2, 4)` is
      every fourth run, from the second on. Processes that share only `out` may train
      different parts at the same time.

  Returns:
    The claims with their verdicts, as in `claims.json`. An empty list for a part. None
    after SIGTERM.

  Raises:
    UserError: For an unknown figure or objective, no figure, no seed, an `llm_run`
      without a result, and an `out` that cannot be the folder. Nothing is written then.
      Also for a config that cannot be trained, and if another process uses the folder.
    RunError: If `out` cannot be written, or if training fails.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.
  """
  wanted = {name: FIGURES[check_name('figure', name, FIGURES)] for name in figures}
  if not wanted:
    raise UserError(f'no figure is named; known: {", ".join(FIGURES)}')
  num_seeds = check_count('the number of seeds', num_seeds)
  check_name('objective', objective, OBJECTIVES)
  figure_6 = None if llm_run is None else read_figure_6(llm_run)

  with writing(out), run_in(out) as (folder, interruption):
    start = time.monotonic()
    train = Trainer(folder / 'runs' / objective, get_config)
    points = [point for figure in wanted.values() for point in figure.points]
    runs = train_all(points, num_seeds, objective, train, part)
    if part is not None:
      return []
    plots = {}
    for name, figure in with_progress('figure', wanted, interruption):
      plots[name] = Plot(name, figure.plot(runs))
      write_plot(plots[name], folder)
    if figure_6 is not None:
      plots['6'] = figure_6
      write_plot(figure_6, folder)
    claims = with_progress(
      'claim', {claim.key: claim for claim in CLAIMS}, interruption
    )
    judged = [judge(claim, plots) for _, claim in claims]
    arguments = {
      'figures': ', '.join(wanted),
      'seeds': ', '.join(map(str, range(num_seeds))),
      'objective': objective,
    }
    tables = {'Configuration': arguments, **facts()}
    tables['Machine']['time of this call'] = f'{time.monotonic() - start:.0f} s'
    data = {'paper': 'arXiv 2512.04268', **arguments, 'claims': judged}
    write_report(folder, 'claims.json', data, _page(plots, judged, tables))
    return judged
  return None


def read_figure_6(folder: str | os.PathLike[str]) -> Plot:
  """Reads the figure of a run of `launch.llm`; raises UserError if there is none."""
  path = user_path(folder) / 'figure_6.csv'
  try:
    return from_csv('6', read_text(path))
  except UserError as error:
    raise UserError(f'{folder} holds no finished run of launch.llm: {error}') from error


def _page(
  plots: Mapping[str, Plot],
  judged: Sequence[reports.JudgedClaim],
  tables: Mapping[str, Mapping[str, str]],
) -> str:
  words = {name: (figure.title, figure.caption) for name, figure in FIGURES.items()}
  words['6'] = _FIGURE_6
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
    [claims, reports.Section('Figures', figures=figures), *sections_of(tables)],
  )


def verdicts_of(claims: Sequence[reports.JudgedClaim]) -> str:
  """Returns a sentence that says how many claims have each verdict."""
  verdicts = [claim['verdict'] for claim in claims]
  counts = (
    f'{verdict or "not measured in this run"}: {verdicts.count(verdict)}'
    for verdict in ('holds', 'holds, not sharp', 'fails', 'not decided', None)
    if verdict in verdicts
  )
  return f'Verdicts on the {len(claims)} claims: {"; ".join(counts)}.'
