"""Draws the pictures and tables of the documentation from the CSV files of results.

  python -m launch.results            # after a CSV in docs/results has changed
  python -m launch.results --check    # writes nothing; fails if a file would change

The folder docs/results keeps the results of long runs:

- `baselines.csv`, from `benchmarks.baselines`.
- `atlas.csv`, from `launch.atlas`. Its pictures and its table go between the comments
  `atlas` and `/atlas` of studies/atlas/README.md.
- `strategies.csv` and `strategies_clusters.csv`, from `launch.strategies`.
- `figure_NAME.csv`, from `launch.headlines`.
- `examples_NAME.csv`, which `launch.plot --against=examples` wrote beside a picture.
"""

from __future__ import annotations

import csv
import io
import pathlib
import re
from typing import TYPE_CHECKING

from absl import flags

from launch import cli
from zoo.core.errors import RunError, UserError

if TYPE_CHECKING:
  from zoo.reports.style import Figure

flags.adopt_module_key_flags(cli)
_CHECK = flags.DEFINE_bool(
  'check',
  False,
  'Write nothing, and end with exit code 1 if a picture or a table would change.',
)
_DOCS = flags.DEFINE(
  cli.Folder(),
  'docs',
  'docs',
  'Folder of the documents: its `results/` is read, its `images/` is written.',
)


def main() -> None:
  docs = _DOCS.value
  made = _made(docs)
  if not made:
    raise UserError(f'{docs / "results"} has neither baselines.csv nor atlas.csv')
  differing = [path for path, content in made.items() if not _is_same(path, content)]
  if not _CHECK.value:
    for path in differing:
      path.parent.mkdir(exist_ok=True)
      path.write_bytes(made[path])
      print(path)
  elif differing:
    raise RunError(
      f'{", ".join(map(str, differing))}: not what the CSV files in {docs / "results"} '
      'give; run python -m launch.results'
    )
  print(f'{len(made)} files, of which {len(differing)} differed')


def _made(docs: pathlib.Path) -> dict[pathlib.Path, bytes]:
  """Returns the content of each picture, table and page, by its path."""
  # Imported here so that a mistyped flag is reported at once.
  from benchmarks.deviations import plot_deviations
  from studies import atlas
  from studies.strategies import phases
  from studies.strategies.pictures import plot_diagrams, plot_lines
  from zoo.host.files import read_text
  from zoo.reports import plots
  from zoo.reports.style import drawing_of

  made: dict[pathlib.Path, bytes] = {}
  baselines, cells = (
    docs / 'results' / f'{name}.csv' for name in ('baselines', 'atlas')
  )
  if baselines.is_file():
    lines = csv.DictReader(io.StringIO(read_text(baselines)))
    # A median has no deviation. A 0 without a sign means that the values agree up to
    # rounding.
    written = [line['deviation'] for line in lines]
    deviations = [float(text) for text in written if text not in ('', '0')]
    made[docs / 'images' / 'baselines.png'] = _png(
      drawing_of(plot_deviations(deviations))
    )
  for name, drawings in {
    'strategies': {'strategies': plot_diagrams, 'strategies_lines': plot_lines},
    'strategies_clusters': {'strategies_clusters': plot_lines},
  }.items():
    diagram = docs / 'results' / f'{name}.csv'
    if diagram.is_file():
      shown = phases.diagrams(phases.from_csv(read_text(diagram)))
      for image, plot in drawings.items():
        made[docs / 'images' / f'{image}.png'] = _png(drawing_of(plot(shown)))
  for file in sorted((docs / 'results').glob('figure_*.csv')):
    name = file.stem.removeprefix('figure_')
    panels = plots.from_csv(name, read_text(file)).panels
    made[docs / 'images' / f'{name}.png'] = _png(plots.render_figure(panels))
  for file in sorted((docs / 'results').glob('examples_*.csv')):
    name = file.stem.removeprefix('examples_')
    made[docs / 'images' / f'{name}.png'] = _png(_by_examples(name, read_text(file)))
  if cells.is_file():
    rows = atlas.from_csv(read_text(cells), str(cells))
    # The slopes are one column, as one task has two budgets: no picture for a page.
    drawn = atlas.draw(rows)
    figures = {name: drawn[name] for name in drawn if name != 'atlas_slopes'}
    for name, drawing in figures.items():
      made[docs / 'images' / f'{name}.png'] = _png(drawing)
    text = '\n\n'.join(table.text() for table in atlas.tables(rows))
    made[cells.with_suffix('.txt')] = f'{text}\n'.encode()
    shown = '\n'.join(
      f'![{atlas.ABOUT[name][0]}](../../docs/images/{name}.png)\n\n*{atlas.ABOUT[name][1]}*\n'
      for name in figures
    )
    link = '[atlas.txt](../../docs/results/atlas.txt) has the numbers of all cells.\n'
    page = docs.parent / 'studies' / 'atlas' / 'README.md'
    beside = atlas.beside_softmax(rows).markdown()
    text = f'{atlas.summary(rows)} {link}\n{beside}\n\n{shown}'
    text = f'<!-- atlas -->\n{text}<!-- /atlas -->'
    parts = re.split('<!-- atlas -->.*<!-- /atlas -->', read_text(page), flags=re.S)
    made[page] = text.join(parts).encode()
  return made


def _by_examples(name: str, text: str) -> Figure:
  """Returns the figure of losses by number of examples that a CSV file has."""
  from zoo.reports import plots
  from zoo.reports.comparison_plots import of_examples
  from zoo.reports.style import drawing_of

  panels = plots.from_csv(name, text).panels
  (axes,) = plots.plot_panels(panels, len(panels), 3.5)
  axes.xaxis.set_major_locator(of_examples())
  return drawing_of(axes)


def _png(drawing: Figure) -> bytes:
  content = io.BytesIO()
  drawing.savefig(content, format='png')
  return content.getvalue()


def _is_same(path: pathlib.Path, content: bytes) -> bool:
  """Returns whether a file has the same text or pixels, whatever its metadata."""
  import numpy as np
  from matplotlib.image import imread

  if not path.is_file():
    return False
  if path.suffix != '.png':
    return path.read_bytes() == content
  return np.array_equal(imread(path), imread(io.BytesIO(content)))


if __name__ == '__main__':
  cli.run(main)
