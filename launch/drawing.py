"""Flags of all commands that draw: texts, legend, size, style and format.

  --title="In-context risk" --xlabel=step --ylabel=risk
  --rename=yq_lsa:ours      # a line of the legend; only of launch.plot
  --legend=right            # or none, above, below, best, "upper left", …
  --size=column             # 3.3 inches wide; page: 6.75; or WIDTHxHEIGHT in inches
  --style=paper.mplstyle    # a style file of matplotlib
  --format=png,pdf          # for commands that write several pictures

Beside each picture the command writes a CSV with the numbers that it shows. The
pictures of `launch.atlas` have one CSV together, atlas.csv.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from absl import flags

from zoo.core.errors import UserError
from zoo.host.files import user_path, write_atomically

if TYPE_CHECKING:
  from zoo.reports.style import Figure

FORMATS = 'png', 'svg', 'pdf'
# zoo.reports.style has the same list, but imports matplotlib, which is slow.
_LEGENDS = (
  'none',
  'above',
  'below',
  'right',
  'best',
  'upper left',
  'upper right',
  'lower left',
  'lower right',
)
_MOST_INCHES = 50.0
# The CSV of a picture begins with these columns if `launch.plot --csv` can draw it.
OF_PLOT = 'panel,x_axis,'

# --help lists a flag that this module defines as one of the module that asked for it.
flags.disclaim_key_flags()


class _Size(flags.ArgumentParser[str | tuple[float, float]]):
  """A parser of the size: column, page, or WIDTHxHEIGHT."""

  syntactic_help = 'column, page, or WIDTHxHEIGHT in inches'

  def parse(self, argument: str) -> str | tuple[float, float]:
    if argument in ('column', 'page'):
      return argument
    match = re.fullmatch(r'([0-9]+\.?[0-9]*)x([0-9]+\.?[0-9]*)', argument)
    size = tuple(map(float, match.groups())) if match else ()
    if not size or not all(1 <= side <= _MOST_INCHES for side in size):
      raise ValueError(
        'it must be column, page, or WIDTHxHEIGHT in inches, such as 5x3, from 1 to '
        f'{_MOST_INCHES:g}'
      )
    return size[0], size[1]


class _Legend(flags.ArgumentParser[str]):
  """A parser of the place of a legend."""

  syntactic_help = f'one of {", ".join(_LEGENDS)}'

  def parse(self, argument: str) -> str:
    if argument not in _LEGENDS:
      raise ValueError(f'it must be one of {", ".join(_LEGENDS)}')
    return argument


class _Formats(flags.ListParser):
  """A parser of names of formats, joined by commas."""

  def __init__(self):
    super().__init__()
    self.syntactic_help = f'some of {", ".join(FORMATS)}, joined by commas'

  def parse(self, argument: str | list[str]) -> list[str]:
    names = super().parse(argument)
    if not names or not {*names} <= {*FORMATS}:
      raise ValueError(f'it must name some of {", ".join(FORMATS)}, such as png,pdf')
    return names


class Drawing:
  """The drawing flags of one command, which draws and saves its pictures by them."""

  def __init__(
    self,
    *,
    has_texts: bool = True,
    has_formats: bool = False,
    has_names: bool = False,
  ):
    """Defines the flags.

    Args:
      has_texts: Whether the command takes --title, --xlabel and --ylabel.
      has_formats: Whether the command takes --format, because it chooses the names of
        its pictures itself.
      has_names: Whether the command takes --rename, because it draws one picture.
    """
    self._texts = {}
    if has_texts:
      self._texts = {
        name: flags.DEFINE_string(name, None, f'{what} Default: that of the picture.')
        for name, what in {
          'title': 'Title of the picture.',
          'xlabel': 'Label of the horizontal axis.',
          'ylabel': 'Label of the vertical axis.',
        }.items()
      }
    self._names = None
    if has_names:
      self._names = flags.DEFINE_multi_string(
        'rename',
        [],
        'Another name for a line of the legend: `OLD:NEW`. A number behind the name '
        'stays. The flag may be repeated.',
      )
    self._legend = flags.DEFINE(
      _Legend(),
      'legend',
      None,
      'Place of the legend. `above`, `below` and `right` put it outside the panels, '
      'and `none` leaves it out. All other values put it inside the first panel. '
      'Default: that of each picture.',
    )
    self._size = flags.DEFINE(
      _Size(),
      'size',
      None,
      'Size of the picture: `column` is 3.3 inches wide, with smaller letters, `page` '
      'is 6.75 inches wide, and `5x3` is 5 inches wide and 3 high. Default: 8 inches '
      'wide.',
    )
    self._style = flags.DEFINE_string(
      'style',
      None,
      'Style file of matplotlib, which is applied after the style of the library.',
    )
    self._formats = None
    if has_formats:
      self._formats = flags.DEFINE(
        _Formats(), 'format', ['png'], 'Formats in which each picture is written.'
      )

  def check(self, is_one: bool = True, why: str = '') -> dict[str, Any]:
    """Checks the flags before anything is computed or written.

    Args:
      is_one: Whether the command draws one picture, so that --title and labels fit it.
      why: The end of the error message if it draws several: what the user can do.

    Returns:
      The settings of the style file; empty without one.

    Raises:
      UserError: If a title or a label is given for several pictures, or if the style
        file does not exist or is one that matplotlib cannot read.
    """
    given = [name for name, flag in self._texts.items() if flag.value is not None]
    if given and not is_one:
      raise UserError(f'--{given[0]} belongs to one picture; {why}')
    if self._style.value is None:
      return {}
    path = user_path(self._style.value)
    if not path.is_file():
      raise UserError(
        f'--style is {self._style.value!r}; it must be a style file of matplotlib'
      )
    return _settings(path)

  @contextlib.contextmanager
  def wishes(self, *, is_one: bool = True, why: str = '') -> Iterator[None]:
    """Applies the size, legend and style of the flags to all pictures of the block.

    Args:
      is_one: Whether the command draws one picture, so that --title and labels fit it.
      why: The end of the error message if it draws several: what the user can do.

    Yields:
      Nothing.

    Raises:
      UserError: If a title or a label is given for several pictures, or if the style
        file does not exist or is one that matplotlib cannot read.
    """
    style = self.check(is_one, why)
    from zoo.reports.style import Wishes, drawn_with

    wishes = Wishes(self._size.value, self._legend.value, style, self._new_names())
    with drawn_with(wishes):
      yield

  def _new_names(self) -> dict[str, str]:
    """Returns the names of --rename; raises UserError for one without a colon."""
    texts = [] if self._names is None else self._names.value
    for text in texts:
      if not all(text.partition(':')):
        raise UserError(f'--rename is {text!r}; it must be OLD:NEW')
    return {old: new for old, _, new in (text.partition(':') for text in texts)}

  @property
  def formats(self) -> list[str]:
    """The formats of --format, png for a command without this flag."""
    return ['png'] if self._formats is None else self._formats.value

  def set_texts(self, figure: Figure) -> None:
    """Sets the given title and labels, of a single panel or of the whole figure."""
    title, x_label, y_label = self._given_texts()
    panels = [axes for axes in figure.axes if axes.axison and not _is_bar(axes)]
    is_one = len(panels) == 1
    if title is not None:
      if is_one:
        panels[0].set_title(title, parse_math=False)
      else:
        figure.suptitle(title, parse_math=False)
    if x_label is not None:
      figure.supxlabel('')
      for axes in panels:
        axes.set_xlabel(x_label if is_one else '', parse_math=False)
      if not is_one:
        figure.supxlabel(x_label, parse_math=False)
    if y_label is not None:
      figure.supylabel('')
      for axes in panels:
        axes.set_ylabel(y_label if is_one else '', parse_math=False)
      if not is_one:
        figure.supylabel(y_label, parse_math=False)

  def _given_texts(self) -> list[str | None]:
    """Returns the given title and labels, each None unless it is given."""
    names = 'title', 'xlabel', 'ylabel'
    return [self._texts[name].value if self._texts else None for name in names]

  def save(
    self,
    figure: Figure,
    path: pathlib.Path,
    *,
    has_texts: bool = True,
    has_numbers: bool = True,
  ) -> list[pathlib.Path]:
    """Writes a picture, in each format of --format, with a CSV of its numbers.

    Args:
      figure: The picture, drawn in a block of `wishes`.
      path: The file of the picture. If the command has --format, the formats replace
        its suffix.
      has_texts: Whether --title and the labels apply to this picture.
      has_numbers: Whether a CSV is written beside the picture.

    Returns:
      The files of the picture, without the CSV.

    Raises:
      OSError: If a file cannot be written.
    """
    if has_texts:
      self.set_texts(figure)
    suffixes = [path.suffix]
    if self._formats is not None:
      suffixes = [f'.{name}' for name in self._formats.value]
    paths = [path.with_suffix(suffix) for suffix in suffixes]
    for file in paths:
      figure.savefig(file)
    if has_numbers and figure.numbers:
      numbers, texts = figure.numbers, self._given_texts()
      if has_texts and any(texts) and numbers.startswith(OF_PLOT):
        from zoo.reports.plots import with_texts

        # The picture that `launch.plot --csv` draws of this file has the same texts.
        numbers = with_texts(numbers, *texts)
      write_atomically(path.with_suffix('.csv'), numbers)
    return paths


def _is_bar(axes: Any) -> bool:
  """Returns whether axes belong to a colour bar."""
  return hasattr(axes, '_colorbar')


def _settings(path: pathlib.Path) -> dict[str, Any]:
  """Returns the settings of a style file; raises UserError if one is wrong."""
  import logging

  import matplotlib

  said: list[str] = []
  handler = logging.Handler()
  handler.emit = lambda record: said.append(record.getMessage())
  log = logging.getLogger('matplotlib')
  log.addHandler(handler)
  try:
    read = matplotlib.rc_params_from_file(path, use_default_template=False)
  except (OSError, UnicodeDecodeError, ValueError) as error:
    said.append(str(error))
    read = {}
  finally:
    log.removeHandler(handler)
  if said:
    text = ' '.join(said[0].split())
    raise UserError(f'--style is {str(path)!r}, of which matplotlib says: {text}')
  return dict(read)
