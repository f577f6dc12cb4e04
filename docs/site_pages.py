"""Writes the pages that are tables of the code, before Sphinx reads the pages."""

import importlib
import pathlib
from typing import Any

from sphinx.application import Sphinx

_DOCS = pathlib.Path(__file__).resolve().parent
# Each is a module of this folder, whose function `page` returns the text.
NAMES = ('commands', 'fields', 'instruments', 'model_and_task_fields', 'parameters')


def write_pages(_: Sphinx) -> None:
  """Writes docs/NAME.md for each name."""
  for name in NAMES:
    text = importlib.import_module(name).page()
    (_DOCS / f'{name}.md').write_text(text, encoding='utf-8')


def setup(app: Sphinx) -> dict[str, Any]:
  """Connects the function to Sphinx."""
  app.connect('builder-inited', write_pages)
  return {'parallel_read_safe': True, 'parallel_write_safe': True}
