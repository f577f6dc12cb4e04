"""Renders a report as one HTML page: text, tables, claims and figures."""

import dataclasses
import io
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TypedDict

from zoo.core.tables import Table
from zoo.reports import style
from zoo.reports.plots import Plot, render_figure


@dataclasses.dataclass(frozen=True)
class Picture:
  """A figure on white; `label` describes it in words."""

  drawing: style.Figure
  label: str


@dataclasses.dataclass(frozen=True)
class CaptionedFigure:
  """Pictures under one title; `files` are links by name, relative to the page."""

  title: str
  caption: str
  pictures: Sequence[Picture]
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)


class JudgedClaim(TypedDict):
  """A claim with its numbers and verdict, as in `claims.json`.

  `function` computes the numbers and has the rule of the verdict. A number that was not
  measured is None or missing.
  """

  key: str
  source: str
  statement: str
  verdict: str | None
  exact: dict[str, float]
  measured: dict[str, float | None]
  function: str
  figures: list[str]
  note: str


@dataclasses.dataclass(frozen=True)
class Section:
  """A heading with a text and links, claims, figures and tables below it.

  `files` are links by name, relative to the page; `figures` are named by their ids.
  """

  heading: str
  text: str = ''
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  claims: Sequence[JudgedClaim] = ()
  figures: Mapping[str, CaptionedFigure] = dataclasses.field(default_factory=dict)
  tables: Sequence[Table] = ()


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
  """One HTML page without scripts that opens without a network.

  The page follows the light or dark mode of the reader's system, and is readable on a
  phone. All texts are escaped, so they may be untrusted. Raises ValueError for a figure
  id with characters other than letters, digits and underscores.

    reports.render(
      'Probe of yq_lsa',
      'Is it doing gradient descent? Yes.',
      [
        reports.Section('Risk', tables=[reports.Table([['risk', '5.238']])]),
        reports.Section('Figures', figures={'figure_1': reports.figure_of(plot, …)}),
      ],
    )
  """
  import jinja2  # slow to import, and rarely needed

  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters['number'] = _number
  environment.globals['svg'] = _svg
  template = environment.get_template('page.html')
  return template.render(title=title, lead=lead, sections=sections)


def figure_of(plot: Plot, title: str, caption: str) -> CaptionedFigure:
  """A plot for the page, one picture per panel, with links to files of `write_plot`."""
  pictures = []
  for panel in plot.panels:
    names = ', '.join(series.name for series in panel.series)
    label = f'Panel {panel.key}: {panel.y_axis} against {panel.x_axis}. Shown: {names}.'
    drawing = render_figure([panel], is_part=len(plot.panels) > 1)
    pictures.append(Picture(drawing, label))
  name = f'figure_{plot.name}'
  files = {f'{name}.csv': f'{name}.csv', 'SVG': f'{name}.svg', 'PNG': f'{name}.png'}
  return CaptionedFigure(title, caption, pictures, files)


def _svg(picture: Picture, prefix: str) -> str:
  """The content of an SVG element, with a prefix that makes its ids unique."""
  if not re.fullmatch(r'\w+', prefix, re.ASCII):
    raise ValueError(
      f'{prefix!r} cannot be an id; it may have letters, digits and underscores'
    )
  text = io.StringIO()
  # Matplotlib draws texts as paths, and escapes them in comments.
  picture.drawing.savefig(text, format='svg', metadata={'Creator': None})
  svg = text.getvalue()
  svg = re.sub(r'<metadata>.*?</metadata>', '', svg, flags=re.DOTALL)
  svg = re.sub(r'\b(id="|href="#|url\(#)', rf'\g<1>{prefix}-', svg)
  return svg[svg.index('<svg') + len('<svg') :]


def _number(value: float | None) -> str:
  if value is None:
    return 'not in this run'
  return f'{0 if abs(value) < 1e-12 else value:.6g}'  # rounding noise is shown as 0
