"""The modules of docs/ that write pages and draw diagrams."""

import importlib
from types import ModuleType

import pytest

from tests.launch.processes import ROOT


def module(name: str) -> ModuleType:
  """Returns the module `docs/NAME.py`, whose imports find the folder docs."""
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / 'docs')
    return importlib.import_module(name)
