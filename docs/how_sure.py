"""Writes docs/how_sure.md, the list of what is claimed, from docs/register.toml.

python docs/how_sure.py
"""

import pathlib
import tomllib
from typing import Any

_FOLDER = pathlib.Path(__file__).resolve().parent
# The title and the meaning of each status of the register, in the order of the page.
STATUSES = {
  'proved': (
    'Proved',
    'The page has a proof, or a number follows from a proof by computing in fractions. '
    'The test compares the result with an independent computation.',
  ),
  'certified numerically': (
    'Certified',
    'The page has a proof whose last step is a computation in floating point. The '
    'rounding errors of this step are not bounded.',
  ),
  'searched': (
    'Searched',
    'This is the lowest value that a search found, and weights with this value are '
    'known. A lower value may exist.',
  ),
  'conjectured': (
    'Conjectured',
    'The statement has a derivation that is not a proof, and it agrees with all that '
    'was computed.',
  ),
  'measured': (
    'Measured',
    'The number was measured on models, with the settings of the page and with the '
    'seeds in brackets. Other settings or seeds may give something else.',
  ),
}
_HEAD = """# How sure are we?

This page sorts claims of the documents by how well each of them is known: *proved*,
*certified*, *searched*, *conjectured* or *measured*. It is for readers who want to rely
on a claim. The page [Results](results.md) has the same five words in its column
"status". Each claim is followed by the page that explains it, the code that computes
it, and the test that checks it, as far as there are any. A proof or a derivation that
stands in a paper, and not on the page, is named, too.

Most claims are about linear regression. There the weights of a function are drawn from
N(w*, Λ) and the features from N(0, Σ), labels have noise of standard deviation σ, and a
prompt has C examples with d features. [Theory](theory.md) introduces these symbols, and
the [glossary](glossary.md) has terms such as GD-β. "Section 6" is a section of the page
that is linked in the same line.

The page has every claim that uses one of the words *proved*, *exact*, *infimum*,
*optimum* and *optimal*: a test of the repository finds these words in documents, labels
and docstrings, and each use must belong to a statement or a phrase of
[register.toml](register.toml). The list of what was measured is not complete. It has
the main results; all others stand on the pages of the studies, such as the
[headlines](headlines.md), the [atlas](atlas.md) and [the paper](paper.md).

`python docs/how_sure.py` writes this page from register.toml."""


def register() -> dict[str, list[dict[str, Any]]]:
  """Returns the statements, and the phrases that claim nothing."""
  return tomllib.loads((_FOLDER / 'register.toml').read_text(encoding='utf-8'))


def page() -> str:
  """Returns the page, in Markdown."""
  parts = [_HEAD]
  statements = register()['statement']
  for status, (title, meaning) in STATUSES.items():
    chosen = [statement for statement in statements if statement['status'] == status]
    parts += ['', f'## {title}', '', meaning, '']
    parts += [f'- {statement["says"]} {_where(statement)}' for statement in chosen]
  return '\n'.join(parts) + '\n'


def _where(statement: dict[str, Any]) -> str:
  """Returns the page, the seeds, the code and more of a statement, in brackets."""
  name = statement['page'].partition('.md')[0]
  name = name.removeprefix('../studies/').removesuffix('/README').replace('_', ' ')
  places = [f'page: [{name}]({statement["page"]})']
  places += [
    f'{key}: {statement[key]}' for key in ('seeds', 'source') if key in statement
  ]
  places += [
    f'{key}: `{statement[key]}`' for key in ('code', 'test') if key in statement
  ]
  return f'({"; ".join(places)})'


if __name__ == '__main__':
  (_FOLDER / 'how_sure.md').write_text(page(), encoding='utf-8')
