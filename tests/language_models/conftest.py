"""The tiny models as files, written once; nearly all tests of models are weekly."""

import pathlib

import pytest

from tests.language_models import tiny
from tests.marks import FULL

# One path through all of a decoder, and one through an encoder.
SLOW_ALONE = (
  'test_greedy_tokens_are_those_of_transformers[tied_llama]',
  'test_a_tiny_random_encoder_is_that_of_transformers',
)


def pytest_collection_modifyitems(items):
  for item in items:
    if pathlib.Path(__file__).parent in item.path.parents:
      for mark in FULL if item.name not in SLOW_ALONE else FULL[:1]:
        item.add_marker(mark)


@pytest.fixture(scope='session')
def models(tmp_path_factory):
  """Each kind of model as a folder, a folder of several files, and most as GGUF."""
  base = tmp_path_factory.mktemp('models')
  made = {
    kind: {
      'folder': tiny.save_folder(kind, base / kind),
      'files': tiny.save_folder(kind, base / f'{kind}_files', num_files=3),
    }
    for kind in tiny.CONFIGS
  }
  for kind in set(tiny.CONFIGS) - {'gemma3'}:
    made[kind]['gguf'] = tiny.save_gguf(kind, base / f'{kind}.gguf')
  return made
