"""The whole paper: trains, draws, judges, reports."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import jax
from tqdm import tqdm

from zoo.config import Config
from zoo.errors import UserError, check_count, unknown_name
from zoo.files import write_atomically
from zoo.paper.claims import CLAIMS, judge, names
from zoo.paper.figures import FIGURES, plot
from zoo.paper.language_model import TITLE, LanguageModelRun, read_run
from zoo.paper.report import page
from zoo.paper.training import GetConfig, Study, configure, train_all
from zoo.plots import Plot, draw, from_csv, to_csv

OBJECTIVES = 'sampled', 'exact'


def reproduce(
  out: str | os.PathLike[str],
  get_config: GetConfig,
  figures: Sequence[str] = tuple(FIGURES),
  num_seeds: int = 3,
  objective: str = 'sampled',
  llm_run: str | os.PathLike[str] | None = None,
) -> list[dict[str, Any]] | None:
  """Makes the figures and judges the claims; returns them as they are in `claims.json`.

  Into the folder `out` go the runs, `figure_NAME.csv`, `.svg` and `.png` for each
  figure, `claims.json` and `report.html`. What is trained there already is not trained
  again, so that the same call goes on after an interruption; after SIGTERM it returns
  None. `get_config` returns the config of a model by its name and variant. Figure 6 is
  that of the folder `llm_run`, which `launch.llm` wrote.

  Raises UserError, with nothing written, for a figure or an objective that is not
  known, no seed, an `out` that is no folder, or an `llm_run` without a result; else
  as `zoo.training.train` does.
  """
  figures = tuple(dict.fromkeys(figures))
  if not figures:
    raise UserError(f'no figure is named; known: {", ".join(FIGURES)}')
  for name in figures:
    if name not in FIGURES:
      raise unknown_name('figure', name, FIGURES)
  num_seeds = check_count('the number of seeds', num_seeds)
  if objective not in OBJECTIVES:
    raise unknown_name('objective', objective, OBJECTIVES)
  measured = None if llm_run is None else read_run(llm_run)
  out = pathlib.Path(out).expanduser()
  try:
    out.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    reason = error.strerror or error
    raise UserError(f'{out} cannot be the output folder: {reason}') from error

  try:
    with _stopping_at_sigterm():
      return _reproduce(out, get_config, figures, num_seeds, objective, measured)
  except _Stopped:
    return None


def _reproduce(
  out: pathlib.Path,
  get_config: GetConfig,
  figures: tuple[str, ...],
  num_seeds: int,
  objective: str,
  measured: LanguageModelRun | None,
) -> list[dict[str, Any]] | None:
  start = time.monotonic()
  points = [point for name in figures for point in FIGURES[name].points]
  plots: dict[str, Plot] = {}
  with tqdm(
    total=len(set(points)) * num_seeds + len(figures),
    unit='part',
    dynamic_ncols=True,
    # A log file, unlike a terminal, keeps every refresh.
    mininterval=0.2 if sys.stderr.isatty() else 10.0,
  ) as bar:
    workdir = out / 'runs' / objective
    runs = train_all(points, num_seeds, objective, get_config, workdir, bar)
    if runs is None:
      return None
    for name in figures:
      bar.set_description(f'drawing figure {name}')
      plots[name] = plot(name, runs)
      write_plot(plots[name], out)
      bar.update()
    bar.set_description('judging the claims')
    judged = [judge(claim, plots) for claim in CLAIMS]
    bar.set_description('done')
  settings = {
    'figures': ', '.join(figures),
    'seeds': ', '.join(map(str, range(num_seeds))),
    'objective': objective,
  }
  table = {'paper': 'arXiv 2512.04268', **settings, 'claims': judged}
  write_atomically(out / 'claims.json', json.dumps(table, indent=2) + '\n')
  studies = dict.fromkeys(point.study for point in points)
  facts = {
    'Settings': {
      **settings,
      **{_label(s): _summary(configure(s, objective, get_config)) for s in studies},
    },
    'Versions': versions(),
    'Machine': {**machine(), 'time of this call': f'{time.monotonic() - start:.0f} s'},
  }
  shown = [
    (FIGURES[name].title, FIGURES[name].caption, plots[name]) for name in figures
  ]
  if measured is not None:
    write_plot(measured.plot, out)
    shown.append((TITLE, measured.caption, measured.plot))
    facts = {'Figure 6': measured.facts, **facts}
  write_atomically(out / 'report.html', page(shown, judged, facts))
  return judged


class _Stopped(Exception):
  """SIGTERM came while nothing was being trained."""


@contextlib.contextmanager
def _stopping_at_sigterm() -> Iterator[None]:
  """Ends the block by _Stopped at a SIGTERM; training has its own way, and saves."""
  if threading.current_thread() is not threading.main_thread():
    yield  # Python allows signal handlers in the main thread only
    return

  def stop(number: int, frame: object) -> None:
    raise _Stopped

  before = signal.signal(signal.SIGTERM, stop)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def recompute(call: str, out: str | os.PathLike[str] | None = None) -> Any:
  """The value of a call of the claims table.

  Calls that read a figure need the folder `out` that its CSV is in. The text is
  evaluated as Python: give it no call of a stranger.
  """
  files = pathlib.Path(out).expanduser().glob('figure_*.csv') if out else ()
  plots = {}
  for file in files:
    name = file.stem.removeprefix('figure_')
    plots[name] = from_csv(name, file.read_text(encoding='utf-8'))
  return eval(call, names(plots))


def write_plot(plot: Plot, out: pathlib.Path) -> None:
  """Writes a figure's CSV, SVG and PNG."""
  write_atomically(out / f'figure_{plot.name}.csv', to_csv(plot))
  figure = draw(plot.panels)
  figure.savefig(out / f'figure_{plot.name}.svg', metadata={'Date': None})
  figure.savefig(out / f'figure_{plot.name}.png', dpi=150)


def versions() -> dict[str, str]:
  """The versions that the numbers depend on."""
  packages = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint', 'numpy', 'scipy'
  found = {name: metadata.version(name) for name in (*packages, 'matplotlib')}
  return {'python': platform.python_version(), **found}


def machine() -> dict[str, str]:
  """What the numbers were computed on."""
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
