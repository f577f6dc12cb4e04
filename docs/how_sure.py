"""Writes docs/how_sure.md, the list of what is claimed, from docs/register.toml.

python docs/how_sure.py
"""

import pathlib
import tomllib
from typing import Any

_FOLDER = pathlib.Path(__file__).resolve().parent
STATUSES = {
  'proved': 'The page, or a source that it names, has a proof. A test compares the '
  'result with an independent computation.',
  'certified numerically': 'There is a proof, and its last step is a computation in '
  'floating point, whose rounding errors are not bounded.',
  'searched': 'This is the lowest value that a search found. Weights with this value '
  'are known. Nothing shows that there is no lower value.',
  'conjectured': 'The statement agrees with all that was computed. There is no proof.',
  'one run': 'The statement was measured, with the settings and seeds of the page. '
  'Other settings or seeds may give something else.',
}
_HEAD = """# How sure are we?

This page lists what the documents claim, by how well each claim is known: proved,
certified numerically, searched, conjectured, or seen in one run. It is for readers who
want to rely on a claim. Each claim is followed by the page that explains it, the code
that computes it, and the test that checks it.

A test of the repository finds the words *proved*, *exact*, *infimum*, *optimum* and
*optimal* wherever they are used, and holds them against a list,
[register.toml](register.toml). `python docs/how_sure.py` writes this page from it."""


def register() -> dict[str, list[dict[str, Any]]]:
  """Returns the statements, and the phrases that claim nothing."""
  return tomllib.loads((_FOLDER / 'register.toml').read_text(encoding='utf-8'))


def page() -> str:
  """Returns the page, in Markdown."""
  parts = [_HEAD]
  statements = register()['statement']
  for status, meaning in STATUSES.items():
    chosen = [statement for statement in statements if statement['status'] == status]
    parts += ['', f'## {status.capitalize()}', '', meaning, '']
    parts += [f'- {statement["says"]} {_where(statement)}' for statement in chosen]
  return '\n'.join(parts) + '\n'


def _where(statement: dict[str, Any]) -> str:
  """Returns the page, the code and the test of a statement, in brackets."""
  name = statement['page'].partition('.md')[0]
  name = name.removeprefix('../studies/').removesuffix('/README').replace('_', ' ')
  places = [f'page: [{name}]({statement["page"]})']
  places += [
    f'{key}: `{statement[key]}`' for key in ('code', 'test') if key in statement
  ]
  return f'({"; ".join(places)})'


if __name__ == '__main__':
  (_FOLDER / 'how_sure.md').write_text(page(), encoding='utf-8')
