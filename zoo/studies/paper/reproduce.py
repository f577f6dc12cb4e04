"""Reproduces the whole paper: trains, plots, judges and reports."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

import jax
from tqdm import tqdm

from zoo import reports
from zoo.config.validation import Config
from zoo.core.errors import RunError, UserError, check_count, check_name
from zoo.host.files import workdir_path, write_atomically
from zoo.host.interruption import Interruption
from zoo.host.parts import Part
from zoo.reports.plots import Plot, write_plot
from zoo.studies.paper.claims import CLAIMS, judge
from zoo.studies.paper.figures import FIGURES, plot
from zoo.studies.paper.language_model import TITLE, LanguageModelRun, read_run
from zoo.studies.paper.report import Facts, page
from zoo.studies.paper.training import GetConfig, Runs, Study, configure, train_all

OBJECTIVES = 'sampled', 'exact'


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
  be written; and otherwise the errors of `zoo.training.train`.
  """
  figures = tuple(dict.fromkeys(figures))
  if not figures:
    raise UserError(f'no figure is named; known: {", ".join(FIGURES)}')
  for name in figures:
    check_name('figure', name, FIGURES)
  num_seeds = check_count('the number of seeds', num_seeds)
  check_name('objective', objective, OBJECTIVES)
  language_model = None if llm_run is None else read_run(llm_run)
  folder = workdir_path(out)
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f'{out} cannot be the output folder: {error.strerror}') from error
  request = _Request(
    folder, get_config, figures, num_seeds, objective, language_model, part
  )
  with Interruption() as interruption:
    try:
      judged = _reproduce(request, interruption)
    except OSError as error:
      raise RunError(
        f'{error.filename or out} cannot be written: {error.strerror or error}'
      ) from error
    if judged is None:
      interruption.raise_if_ctrl_c()
  return judged


class _Request(NamedTuple):
  """The checked arguments of `reproduce`."""

  out: pathlib.Path
  get_config: GetConfig
  figures: tuple[str, ...]
  num_seeds: int
  objective: str
  language_model: LanguageModelRun | None
  part: Part | None


def _reproduce(
  request: _Request, interruption: Interruption
) -> list[reports.Claim] | None:
  """Trains, plots and judges; None after an interruption."""
  start = time.monotonic()
  out = request.out
  points = [point for name in request.figures for point in FIGURES[name].points]
  with tqdm(
    total=len(set(points)) * request.num_seeds + len(request.figures),
    unit='part',
    dynamic_ncols=True,
    # A log file, unlike a terminal, would record every refresh.
    mininterval=0.2 if sys.stderr.isatty() else 10.0,
  ) as bar:
    runs = train_all(
      points,
      request.num_seeds,
      request.objective,
      request.get_config,
      out / 'runs' / request.objective,
      bar,
      request.part,
    )
    if runs is None:
      return None
    if request.part is not None:
      return []
    found = _plot_and_judge(request, runs, interruption, bar)
    if found is None:
      return None
    _write(request, *found, time.monotonic() - start)
  return found[1]


def _plot_and_judge(
  request: _Request, runs: Runs, interruption: Interruption, bar: tqdm
) -> tuple[dict[str, Plot], list[reports.Claim]] | None:
  """Writes the plots and judges the claims; returns both, or None if interrupted."""
  plots: dict[str, Plot] = {}
  for name in request.figures:
    if interruption.due():
      return None
    bar.set_description(f'plotting figure {name}')
    plots[name] = plot(name, runs)
    write_plot(plots[name], request.out)
    bar.update()
  if request.language_model is not None:
    plots['6'] = request.language_model.plot
    write_plot(plots['6'], request.out)
  bar.set_description('judging the claims')
  judged = []
  for claim in CLAIMS:
    if interruption.due():
      return None
    judged.append(judge(claim, plots))
  bar.set_description('done')
  return plots, judged


def _write(
  request: _Request,
  plots: dict[str, Plot],
  judged: list[reports.Claim],
  seconds: float,
) -> None:
  """Writes `claims.json` and `report.html`."""
  arguments = {
    'figures': ', '.join(request.figures),
    'seeds': ', '.join(map(str, range(request.num_seeds))),
    'objective': request.objective,
  }
  table = {'paper': 'arXiv 2512.04268', **arguments, 'claims': judged}
  write_atomically(request.out / 'claims.json', json.dumps(table, indent=2) + '\n')
  studies = dict.fromkeys(
    point.study for name in request.figures for point in FIGURES[name].points
  )
  configs = {
    _label(study): _summary(configure(study, request.objective, request.get_config))
    for study in studies
  }
  facts: dict[str, Facts] = {
    'Configuration': {**arguments, **configs},
    'Versions': versions(),
    'Machine': {**machine(), 'time of this call': f'{seconds:.0f} s'},
  }
  shown = [
    (FIGURES[name].title, FIGURES[name].caption, plots[name])
    for name in request.figures
  ]
  if request.language_model is not None:
    found = request.language_model
    shown.append((TITLE, found.caption, found.plot))
    facts = {'Figure 6': found.facts, **facts}
  write_atomically(request.out / 'report.html', page(shown, judged, facts))


def versions() -> dict[str, str]:
  """The versions of the packages that the numbers depend on."""
  packages = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint', 'numpy', 'scipy'
  found = {name: metadata.version(name) for name in (*packages, 'matplotlib')}
  return {'python': platform.python_version(), **found}


def machine() -> dict[str, str]:
  """The machine that computed the numbers."""
  device = jax.devices()[0]
  return {
    'system': f'{platform.system()} {platform.machine()}',
    'CPU cores': str(os.cpu_count()),
    'devices': f'{jax.device_count()} × {device.device_kind}',
  }


def _label(study: Study) -> str:
  return f'configs/{study.config}.py:{study.variant}'.rstrip(':')


def _summary(config: Config) -> str:
  optimizer, train = config.optimizer, config.train
  data = f'of {train.batch_size} prompts'
  if config.objective.name == 'exact':
    data = 'on the exact risk'
  return (
    f'{train.num_steps} steps {data}, {optimizer.name} {optimizer.learning_rate:g}, '
    f'{optimizer.schedule}'
  )
