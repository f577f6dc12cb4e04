"""Weights from files: what is wrong with them is named, and one is read at a time."""

import json
import pathlib
import shutil
import weakref

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.compare import refuses
from tests.language_models import tiny
from tests.language_models.test_decoder import (
  REFERENCES,
  TOLERANCE,
  load,
  logits_of,
  make_mesh,
)
from zoo.language_models.weights import load_decoder, open_weights

KIND = 'qwen2'


@pytest.fixture
def folder(models, tmp_path):
  return shutil.copytree(models[KIND]['folder'], tmp_path / 'model')


@pytest.fixture
def parts(models, tmp_path):
  """The GGUF file in eleven parts, so that 10 sorts before 2."""
  whole = models[KIND]['gguf'].read_bytes()
  (tmp_path / 'parts').mkdir()
  size = -(-len(whole) // 11)
  for i in range(11):
    part = tmp_path / 'parts' / f'part{i + 1}.bin'
    part.write_bytes(whole[i * size : (i + 1) * size])
  return tmp_path / 'parts'


def test_parts_are_joined_in_the_order_of_their_numbers(parts):
  for path in parts, sorted(parts.iterdir(), reverse=True):
    decoder = load(path)
    expected = REFERENCES[f'{KIND}_logits']
    assert np.abs(logits_of(decoder, tiny.TOKENS) - expected).max() <= TOLERANCE


def test_one_tensor_at_a_time_is_on_the_host(models):
  with open_weights(models[KIND]['files']) as weights:
    read, alive, most = weights.read, [], 0

    def watched(name):
      nonlocal most
      array = read(name)
      alive.append(weakref.ref(array))
      most = max(most, sum(one() is not None for one in alive))
      return array

    weights.read = watched
    load_decoder(weights, make_mesh(1, 8), jnp.float32)
  assert most <= 2  # the one being read, and the one before until its name is reused


def test_weights_in_bfloat16_are_read_as_they_are(folder):
  """So the large models are stored."""
  exact = load_file(folder / 'model.safetensors')
  rounded = {name: array.astype(jnp.bfloat16) for name, array in exact.items()}
  save_file(rounded, folder / 'model.safetensors')
  for dtype in jnp.bfloat16, jnp.float32:
    decoder = load(folder, dtype=dtype)
    expected = rounded['model.layers.1.mlp.down_proj.weight'].astype(dtype).T
    found = decoder.layers[1].feed_forward.down[...]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


def test_what_is_missing_surplus_or_misshapen_is_named(folder):
  tensors = load_file(folder / 'model.safetensors')
  del tensors['model.layers.1.mlp.up_proj.weight']
  tensors['model.layers.2.mlp.up_proj.weight'] = np.zeros(3, np.float32)
  tensors['model.norm.weight'] = np.zeros(31, np.float32)
  save_file(tensors, folder / 'model.safetensors')
  with refuses(
    '1 missing (model.layers.1.mlp.up_proj.weight)',
    '1 surplus (model.layers.2.mlp.up_proj.weight)',
    '1 misshapen (model.norm.weight is (31,) and must be (32,))',
  ):
    load(folder)


def test_a_matrix_of_the_right_size_and_another_shape_is_refused(folder):
  tensors = load_file(folder / 'model.safetensors')
  name = 'model.layers.0.mlp.down_proj.weight'
  tensors[name] = np.ascontiguousarray(tensors[name].T)
  save_file(tensors, folder / 'model.safetensors')
  with refuses(name, '(64, 32)', '(32, 64)'):
    load(folder)


def test_files_that_are_not_there_are_named(folder, models, tmp_path):
  with refuses('nowhere', 'does not exist'):
    load(tmp_path / 'nowhere')
  (tmp_path / 'empty').mkdir()
  with refuses('empty', 'holds no model', 'config.json'):
    load(tmp_path / 'empty')
  (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
  with refuses('holds no *.safetensors', 'pickled'):
    load(folder)
  several = shutil.copytree(models[KIND]['files'], tmp_path / 'several')
  (several / 'model-00002-of-00003.safetensors').unlink()
  with refuses('model-00002-of-00003.safetensors', 'index.json names'):
    load(several)


def test_damaged_files_of_a_folder_are_named(folder):
  file = folder / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:5000])
  with refuses('model.safetensors', 'not a whole safetensors file'):
    load(folder)
  (folder / 'config.json').write_text('{"model_type":')
  with refuses('config.json', 'is not JSON'):
    load(folder)
  (folder / 'config.json').write_text('[]')
  with refuses('config.json', 'list', 'object'):
    load(folder)


def test_another_architecture_is_named(models, tmp_path, folder):
  config = tiny.CONFIGS[KIND] | {'model_type': 'gpt_neox'}
  (folder / 'config.json').write_text(json.dumps(config))
  with refuses("'gpt_neox'", "'llama', 'qwen2'"):
    load(folder)
  path = tiny.save_gguf(KIND, tmp_path / 'other.gguf', architecture='gemma3')
  with refuses('other.gguf', "'gemma3'", "'llama', 'qwen2'"):
    load(path)


def test_a_part_of_a_gguf_file_is_refused(models, tmp_path):
  whole = models['llama_3_1']['gguf'].read_bytes()
  path = tmp_path / 'part.gguf'
  for size in [0, 3, 10, 30, 100, 1000, len(whole) // 4, len(whole) // 2]:
    path.write_bytes(whole[:size])
    with refuses('part.gguf is not a whole GGUF file', f'{size} bytes'):
      load(path)
  path.write_bytes(whole[: len(whole) - 200])
  with refuses('part.gguf is not a whole GGUF file'):
    load(path)


def test_parts_that_do_not_follow_each_other_are_refused(parts):
  with refuses('0 parts'):
    load([])
  (parts / 'part5.bin').unlink()
  with refuses('10 parts', '1 to 11', 'each number once'):
    load(parts)
  with refuses('weights.bin', 'number in its name'):
    load([pathlib.Path('weights.bin')])
  # Without the last one there is no gap, but the file is not whole.
  with refuses('not a whole GGUF file'):
    load([parts / f'part{i}.bin' for i in range(1, 5)])


def test_a_quantised_gguf_is_the_same_model_but_for_rounding(models, tmp_path):
  import gguf

  kinds = gguf.GGMLQuantizationType
  exact = REFERENCES['tied_llama_logits']
  path = tiny.save_gguf('tied_llama', tmp_path / 'q8.gguf', quantisation=kinds.Q8_0)
  found = logits_of(load(path), tiny.TOKENS)
  # Q8_0 rounds by 2⁻⁸ of a block's largest entry: about 1% in all.
  error = np.sqrt(np.mean((found - exact) ** 2))
  assert TOLERANCE < error <= 0.05 * exact.std()
