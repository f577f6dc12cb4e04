"""The report of an atlas: pictures first, then the cells."""

import pathlib
from collections.abc import Sequence

from zoo import reports
from zoo.host.files import write_atomically
from zoo.studies.atlas.pictures import draw
from zoo.studies.atlas.results import LOWEST, TRAINED, AtlasRow, last_budgets, tables

ABOUT = {  # the title and the caption of each picture
  'atlas': (
    'What each architecture learns',
    '0 is the loss of Bayes, or no loss where Bayes is not known; 1 is the loss '
    'without examples, or of the answer 0. Cells that say “theory” were not trained: '
    'they have the lowest known risk. A trained cell has a colour if its loss is '
    'final: the last doubling of its budget changed it by less than 3 %, or by less '
    'than a thousandth of what can be learned; half its interval over seeds is less '
    'than a tenth of what can be learned; the whole interval is below 1; and its '
    'learning rate is better than half and twice that rate. Otherwise it says in grey '
    'what is missing: % are the last change of its loss, ± % half its interval.',
  ),
  'atlas_operations': (
    'Loss against operations',
    'Each budget has its own decay of the learning rate. Bands are 95 % intervals over '
    'seeds. Operations are those of products of matrices.',
  ),
  'atlas_examples': (
    'Loss by number of examples',
    'Trained on prompts of one length, measured on shorter and longer ones. Models '
    'for a fixed number of examples cannot take more.',
  ),
  'atlas_guesses': (
    'What a guess changes',
    'Differences after the same number of steps, paired by seed and prompt; bars are '
    '95 % intervals over seeds. The first row has the mean over all models, whose '
    'interval is over models.',
  ),
  'atlas_contexts': (
    'By the context length of training',
    'Each point was trained and measured at its own context length.',
  ),
}


def write(rows: Sequence[AtlasRow], command: str, out: pathlib.Path) -> None:
  """Writes the pictures, and `report.html` with all of them, to a folder."""
  figures = {}
  for name, drawing in draw(rows).items():
    for suffix in ('png', 'svg'):
      drawing.savefig(out / f'{name}.{suffix}')
    title, caption = ABOUT[name]
    picture = reports.Picture(drawing, title)
    figures[name] = reports.CaptionedFigure(title, caption, [picture])
  text = (
    'The intervals of 95 % are over seeds, by Student’s t; each seed is measured on '
    'prompts of its own. What a guess changes on all models comes first; p values of '
    'single models are by Holm over the page. '
    f'The command: {command}'
  )
  page = reports.render(
    'Atlas of architectures and tasks',
    summary(rows),
    [
      reports.Section('Pictures', figures=figures),
      reports.Section('Cells', text, {'atlas.csv': 'atlas.csv'}, tables=tables(rows)),
    ],
  )
  write_atomically(out / 'report.html', page)


def summary(rows: Sequence[AtlasRow]) -> str:
  """How many architectures and cells there are, and how many of these are final."""
  cells = last_budgets(rows)
  trained = [row for row in cells if row.known == TRAINED]
  final = sum(not row.grey for row in trained)
  theory = sum(row.known == LOWEST for row in cells)
  return (
    f'{len({row.model for row in cells})} architectures, {len(cells)} cells. '
    f'{len(trained)} are trained, of which {final} have a loss that is final; {theory} '
    f'have a value of theory; {len(cells) - len(trained) - theory} have no loss.'
  )
