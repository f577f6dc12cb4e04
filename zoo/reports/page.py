"""Reports as one HTML page: text, tables, claims and figures."""

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
  """A figure on white.

  Attributes:
    drawing: The figure.
    label: A description in words, for readers who do not see the figure.
  """

  drawing: style.Figure
  label: str


@dataclasses.dataclass(frozen=True)
class CaptionedFigure:
  """Pictures under one title.

  Attributes:
    title: The title above the pictures.
    caption: The text below the pictures.
    pictures: The pictures, in order.
    files: Links below the caption: their names, and paths relative to the page.
  """

  title: str
  caption: str
  pictures: Sequence[Picture]
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)


class JudgedClaim(TypedDict):
  """A claim with its numbers and verdict, as in `claims.json`.

  `exact` has the numbers of the theory, by name.

  Attributes:
    key: The short name of the claim.
    source: The place in the paper where the claim is made.
    statement: The claim in words.
    verdict: The verdict; None if numbers are missing.
    measured: Measured numbers by name. A number that was not measured is None or
      missing.
    function: The function that computes the numbers and has the rule of the verdict.
    figures: The names of the figures that show the claim.
    note: A remark.
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
  """A heading with a text and links, and with claims, figures and tables below it.

  Attributes:
    heading: The heading.
    text: The text below the heading.
    files: Links: their names, and paths relative to the page.
    claims: The claims of the section.
    figures: The figures by their ids in the page, which have letters, digits and
      underscores.
    tables: The tables of the section.

  Example:
    >>> from zoo import reports
    >>> table = reports.Table([['risk', '5.238']])
    >>> reports.Section('Risk', text='The risk is low.', tables=[table]).heading
    'Risk'
  """

  heading: str
  text: str = ''
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  claims: Sequence[JudgedClaim] = ()
  figures: Mapping[str, CaptionedFigure] = dataclasses.field(default_factory=dict)
  tables: Sequence[Table] = ()


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
  """Returns a report as one HTML page without scripts, which needs no network.

  The page follows the light or dark mode of the reader's system, and is readable on a
  phone. All texts are escaped, so that they need not be trusted.

  Args:
    title: The title of the page.
    lead: The paragraph below the title.
    sections: The sections, in order.

  Returns:
    The HTML of the page.

  Raises:
    ValueError: If the id of a figure has characters other than letters, digits and
      underscores.

  Example:
    >>> from zoo import reports
    >>> section = reports.Section('Risk', tables=[reports.Table([['risk', '5.238']])])
    >>> page = reports.render('Probe of yq_lsa', 'Its risk is low.', [section])
    >>> '5.238' in page
    True
  """
  import jinja2  # It is slow to import, and rarely needed.

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
  """Returns a plot as a figure for the page, with one picture for each panel.

  The figure links the CSV, SVG and PNG files that `zoo.reports.plots.write_plot`
  writes.

  Args:
    plot: The plot.
    title: The title above the pictures.
    caption: The text below the pictures.

  Returns:
    The figure, with its pictures drawn.

  Example:
    >>> from zoo import reports
    >>> from zoo.reports.plots import Panel, Plot, level
    >>> plot = Plot('a', (Panel('A', 'x', 'y', (level('one', 1.0, [0, 1]),)),))
    >>> [*reports.figure_of(plot, 'One', 'A line at 1.').files]
    ['figure_a.csv', 'SVG', 'PNG']
  """
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
  """Returns the content of an SVG element, with a prefix that makes its ids unique."""
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
  return f'{0 if abs(value) < 1e-12 else value:.6g}'  # Rounding is shown as 0.
