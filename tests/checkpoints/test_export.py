"""`zoo.export`: one file that `zoo.load` and others open."""

import json
import re
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

import zoo
from tests.checkpoints.test_loading import assert_same
from tests.checkpoints.test_saving import Scaled
from tests.compare import refuses
from tests.compiled import predict_all
from tests.settings import config_for
from tests.trees import ROOT
from tests.weights import drawn
from zoo.storage import saving


@pytest.fixture(scope='module')
def file(tmp_path_factory):
  """The file of a shipped model."""
  path = tmp_path_factory.mktemp('files') / 'yq_lsa.safetensors'
  zoo.export(zoo.load('checkpoints/yq_lsa'), path)
  return path


def test_a_file_is_opened_as_what_was_exported(file):
  saved, again = zoo.load('checkpoints/yq_lsa'), zoo.load(file)
  assert_same(again.model, saved.model)
  assert (again.step, again.task) == (saved.step, saved.task)
  assert again.config == saved.config
  assert zoo.theory.exact_risk(again.model, again.task) == zoo.theory.exact_risk(
    saved.model, saved.task
  )
  with refuses('has no step 3', '[5000]'):
    zoo.load(file, step=3)


def test_a_flipped_bit_is_found(file, tmp_path):
  path = tmp_path / 'flipped.safetensors'
  content = bytearray(file.read_bytes())
  content[-3] ^= 64
  path.write_bytes(content)
  with pytest.raises(zoo.RunError, match='is damaged: the checksum of its arrays'):
    zoo.load(path)


def test_what_is_loaded_is_saved_as_it_is(tmp_path, unchecked):
  saved = zoo.load('checkpoints/yq_lsa')
  zoo.save(saved, tmp_path / 'a')
  again = zoo.load(tmp_path / 'a')
  assert_same(again.model, saved.model)
  assert (again.step, again.config) == (saved.step, saved.config)
  nothing: Any = None
  with refuses('NoneType is not a model: it must be an nnx.Module'):
    zoo.save(nothing, tmp_path / 'b', saved.config)
  with refuses('NoneType is not a model'):
    zoo.export(nothing, tmp_path / 'b.safetensors', saved.config)


# Of a transformer with one of each array; a name that changes breaks other programs.
NAMES = """
guess.bias guess.weights layers.0.feed_forward.gate.kernel
layers.0.feed_forward.out.kernel layers.0.feed_forward.up.kernel
layers.0.mixer.key.bias layers.0.mixer.key.kernel layers.0.mixer.out.bias
layers.0.mixer.out.kernel layers.0.mixer.query.bias layers.0.mixer.query.kernel
layers.0.mixer.value.bias layers.0.mixer.value.kernel layers.0.norm_1.scale
layers.0.norm_2.scale norm.scale read_in.bias read_in.kernel read_out.bias
read_out.kernel
"""


def test_names_are_stable_and_the_metadata_say_what_it_is(tmp_path, monkeypatch):
  monkeypatch.setattr(saving, '_check_predicts_the_same', lambda *arguments: None)
  fields: Any = dict(
    *({'num_features': 3, 'context_length': 4, 'num_layers': 1, 'width': 4},),
    **{'positions': 'rotary', 'feed_forward': 'swiglu', 'norm': 'rms'},
    **{'guess': 'fixed', 'guess_weights': [1.0, 2.0, 3.0], 'guess_bias': 0.5},
  )

  def build() -> Any:
    return zoo.create_model('transformer', **fields, rngs=nnx.Rngs(0))

  model = drawn(build, dtype='float32')
  path = tmp_path / 'new' / 'model.safetensors'
  of_task = 'num_features', 'context_length'
  arguments = {name: fields[name] for name in fields if name not in of_task}
  zoo.export(model, path, config_for('transformer', **arguments))
  with safetensors.safe_open(path, framework='numpy') as opened:
    text = opened.metadata()['icl_zoo']
    arrays = opened.get_tensors()
  assert ' '.join(sorted(arrays)) == ' '.join(NAMES.split())
  kernel = model.layers[0].mixer.query.kernel
  np.testing.assert_array_equal(arrays['layers.0.mixer.query.kernel'], kernel)
  np.testing.assert_array_equal(arrays['guess.weights'], [[1.0], [2.0], [3.0]])
  metadata = json.loads(text)
  assert metadata['config']['model'] == {'name': 'transformer', **arguments}
  assert metadata['config']['task']['context_length'] == 4
  assert_same(zoo.load(path).model, model)


def test_what_cannot_be_exported_is_one_line(file, tmp_path, register):
  saved = zoo.load(file)
  with refuses('config is missing; a model needs one'):
    zoo.export(saved.model, tmp_path / 'a.safetensors')
  with refuses("model.pt'; it must be a file NAME.safetensors"):
    zoo.export(saved, tmp_path / 'model.pt')
  with refuses('gs:, which cannot'):
    zoo.export(saved, 'gs://bucket/a.safetensors')

  @register('drawing')
  class Drawing(Scaled):
    def __init__(self, num_features, *, rngs):
      super().__init__(num_features, rngs=rngs)
      self.rngs = rngs

  assert not list(tmp_path.iterdir())
  model = Drawing(3, rngs=nnx.Rngs(0))
  zoo.export(model, tmp_path / 'a.safetensors', config_for('drawing'))
  loaded = zoo.load(tmp_path / 'a.safetensors').model
  own, read = (jax.random.key_data(m.rngs.default.key[...]) for m in (model, loaded))
  np.testing.assert_array_equal(own, read)


def test_a_file_of_something_else_is_named(file, tmp_path):
  path = tmp_path / 'a.safetensors'
  with refuses('a.safetensors cannot be read', 'No such file'):
    zoo.load(path)
  safetensors.numpy.save_file({'w': np.zeros(3)}, path)
  with refuses("no model of ICL Zoo: its metadata have no entry 'icl_zoo'"):
    zoo.load(path)
  safetensors.numpy.save_file({'w': np.zeros(3)}, path, {'icl_zoo': '{"format": 1}'})
  with pytest.raises(zoo.RunError, match='is damaged: the checksum of its arrays'):
    zoo.load(path)
  content = file.read_bytes()
  for damaged in content[:-1], b'', content[:100]:
    path.write_bytes(damaged)
    with pytest.raises(zoo.RunError, match=r'a\.safetensors is damaged'):
      zoo.load(path)
  with safetensors.safe_open(file, framework='numpy') as opened:
    metadata = opened.metadata()
  safetensors.numpy.save_file({'w': np.zeros(3)}, path, metadata)
  with pytest.raises(zoo.RunError, match='the checksum of its arrays'):
    zoo.load(path)


@pytest.fixture(scope='module')
def transformer(tmp_path_factory):
  """The file of the shipped transformer, and prompts with what it predicts."""
  pytest.importorskip('torch', reason='torch is in the extra llm')
  path = tmp_path_factory.mktemp('files') / 'model.safetensors'
  saved = zoo.load('checkpoints/transformer')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(saving, '_check_predicts_the_same', lambda *arguments: None)
    zoo.export(saved, path)
  prompt = saved.task.sample(jax.random.key(0), 8)
  return path, prompt, np.asarray(predict_all(saved.model, prompt))


def test_pytorch_predicts_what_the_exported_model_does(transformer, tmp_path):
  import torch

  from examples import torch_loader

  path, prompt, expected = transformer
  features = torch.tensor(np.asarray(prompt.features))
  predictions = torch_loader.load(path)(features, torch.tensor(np.asarray(prompt.y)))
  # Both compute in float32, and sum in different orders: 1.4e-6 apart on one machine,
  # with predictions of up to 6.
  np.testing.assert_allclose(predictions.numpy(), expected, atol=2e-5)
  other = tmp_path / 'lsa.safetensors'
  zoo.export(zoo.load('checkpoints/yq_lsa'), other)
  with pytest.raises(ValueError, match='it must be'):
    torch_loader.load(other)


@pytest.mark.slow
@pytest.mark.full
def test_a_program_of_stablehlo_predicts_what_the_model_does(
  tmp_path, monkeypatch, capsys
):
  page = (ROOT / 'docs' / 'export.md').read_text()
  (code,) = re.findall(r'```python\n([^`]*jax\.export\.export[^`]*)```', page)
  monkeypatch.chdir(tmp_path)
  exec(compile(code, 'export.md', 'exec'), {})
  assert capsys.readouterr().out == 'True\n'
  assert 'stablehlo' in (tmp_path / 'model.mlir').read_text()


def test_a_file_is_written_through_a_link_and_under_a_long_name(tmp_path):
  saved, link = zoo.load('checkpoints/yq_lsa'), tmp_path / 'latest.safetensors'
  (tmp_path / 'kept').mkdir()
  kept = tmp_path / 'kept' / f'{240 * "a"}.safetensors'  # It has 252 bytes.
  link.symlink_to(kept)
  for _ in range(2):
    zoo.export(saved, link)
    assert link.is_symlink()
    assert zoo.load(kept).step == saved.step
  assert len(list(tmp_path.rglob('*'))) == 3
