"""The tiny models as files, written once."""

import pytest

from tests.language_models import tiny


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
