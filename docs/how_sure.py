"""Writes docs/how_sure.md, the list of what is claimed, from docs/register.toml.

python docs/how_sure.py
"""

import pathlib
import tomllib
from typing import Any

_FOLDER = pathlib.Path(__file__).resolve().parent
STATUSES = {
  'proved': 'The page, or a source that it names, has a proof, and a test compares the '
  'result with an independent computation.',
  'certified numerically': 'A proof that ends with a computation in floating point, '
  'whose rounding errors are not bounded.',
  'searched': 'The lowest value that a search found. Models reach it; nothing shows '
  'that there is no lower one.',
  'conjectured': 'It agrees with all that was computed; there is no proof.',
  'one run': 'Measured, with the settings and seeds of the page.',
}
_HEAD = """# How sure are we?

What the documents claim. `python docs/how_sure.py` writes this page from
[register.toml](register.toml). A test finds the words *proved*, *exact*, *infimum*,
*optimum* and *optimal* wherever they are used, and holds them against that file."""


def register() -> dict[str, list[dict[str, Any]]]:
  """The statements, and the phrases that claim nothing or what anyone can check."""
  return tomllib.loads((_FOLDER / 'register.toml').read_text(encoding='utf-8'))


def page() -> str:
  """The page, in Markdown."""
  parts = [_HEAD]
  statements = register()['statement']
  for status, meaning in STATUSES.items():
    chosen = [statement for statement in statements if statement['status'] == status]
    parts += ['', f'## {status.capitalize()}', '', meaning, '']
    parts += [f'- {statement["says"]} {_where(statement)}' for statement in chosen]
  return '\n'.join(parts) + '\n'


def _where(statement: dict[str, Any]) -> str:
  """The page, the code and the test of a statement, in brackets."""
  name = statement['page'].partition('.md')[0]
  name = name.removeprefix('../studies/').removesuffix('/README')
  places = [f'[{name}]({statement["page"]})']
  places += [f'`{statement[key]}`' for key in ('code', 'test') if key in statement]
  return f'({", ".join(places)})'


if __name__ == '__main__':
  (_FOLDER / 'how_sure.md').write_text(page(), encoding='utf-8')
