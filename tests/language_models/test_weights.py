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
from zoo.language_models import weights
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
  with open_weights(models[KIND]['files']) as opened:
    read, alive, most = opened.read, [], 0

    def watched(name):
      nonlocal most
      array = read(name)
      alive.append(weakref.ref(array))
      most = max(most, sum(one() is not None for one in alive))
      return array

    opened.read = watched
    load_decoder(opened, make_mesh(1, 8), jnp.float32)
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
    '1 of another shape (model.norm.weight is (31,) and must be (32,))',
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
  for name in 'nowhere', 'x' * 5000, '\0':
    with refuses(name, 'does not exist'):
      load(tmp_path / name)
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


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_when_they_are_read(folder, value):
  tensors = load_file(folder / 'model.safetensors')
  tensors['model.layers.1.mlp.up_proj.weight'][3, 4] = value
  save_file(tensors, folder / 'model.safetensors')
  with refuses('model.layers.1.mlp.up_proj.weight', 'not finite'):
    load(folder)


@pytest.mark.parametrize('dtype', [np.int32, np.int8, bool])
def test_weights_that_are_not_floating_point_are_refused(folder, dtype):
  tensors = load_file(folder / 'model.safetensors')
  name = 'model.layers.0.self_attn.k_proj.bias'
  tensors[name] = tensors[name].astype(dtype)
  save_file(tensors, folder / 'model.safetensors')
  with refuses(name, 'must be one of BF16, F16, F32, F64'):
    load(folder)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'num_hidden_layers': 10**12}, ['num_hidden_layers', 'from 1 to']),
    ({'num_hidden_layers': 1000}, ['11976 missing (model.layers.10.input_layernorm']),
    ({'vocab_size': 4 * 10**6}, ['model.embed_tokens.weight', '(4000000, 32)']),
    ({'vocab_size': 10**12}, ['vocab_size', 'is 1000000000000']),
    ({'hidden_size': 10**9}, ['hidden_size', 'from 1 to 131072']),
    ({'head_dim': 10**9}, ['head_dim', 'from 2 to 4096']),
    ({'intermediate_size': 10**6}, ['mlp.down_proj.weight', '(32, 1000000)']),
    ({'num_attention_heads': True}, ['num_attention_heads', 'True']),
    ({'rope_theta': '1e6'}, ['rope_theta', "'1e6'", 'a number']),
    ({'rope_scaling': [1]}, ['rope_scaling', 'is a list', 'an object']),
    ({'tie_word_embeddings': 'no'}, ['tie_word_embeddings', "'no'"]),
    ({'rms_norm_eps': 1e400}, ['rms_norm_eps', 'inf']),
  ],
)
def test_sizes_that_the_files_do_not_have_are_refused_before_anything_is_built(
  folder, monkeypatch, change, said
):
  def build(*_):
    raise AssertionError('a decoder is built')

  monkeypatch.setattr(weights, 'abstract_decoder', build)
  config = tiny.CONFIGS[KIND] | change
  (folder / 'config.json').write_text(json.dumps(config))
  with refuses(*said):
    load(folder)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'block_count': 10**6}, ['qwen2.block_count', '1000000', 'from 1 to 1024']),
    ({'block_count': 900}, ['missing', 'model.layers.10.']),
    ({'embedding_length': 2**31}, ['qwen2.embedding_length', '2147483648']),
    ({'attention.key_length': 2**30}, ['qwen2.attention.key_length', 'from 2 to 4096']),
    ({'attention.head_count': 0}, ['qwen2.attention.head_count', 'from 1']),
    ({'rope.freq_base': float('nan')}, ['qwen2.rope.freq_base', 'nan']),
    ({'rope.scaling.type': 'yarn'}, ['qwen2.rope.scaling.type', "'yarn'"]),
  ],
)
def test_sizes_that_a_gguf_file_does_not_have_are_refused(tmp_path, change, said):
  path = tiny.save_gguf(KIND, tmp_path / 'model.gguf', fields=change)
  with refuses(*said):
    load(path)


@pytest.mark.parametrize('divisors', [np.ones(3), np.zeros(8), np.ones(2**13)])
def test_rotary_divisors_that_do_not_fit_are_refused(tmp_path, divisors):
  path = tiny.save_gguf('llama_3_1', tmp_path / 'model.gguf', rope_freqs=divisors)
  with refuses('rotary' if divisors.size < 10 else 'rope_freqs.weight'):
    load(path)


@pytest.mark.parametrize(
  ('weight_map', 'said'),
  [
    ({'model.norm.weight': 7}, ['model.norm.weight of weight_map', '7', 'a text']),
    (['model.safetensors'], ['weight_map', 'is a list']),
    ({'x': '../qwen2/model.safetensors'}, ['lacks ../qwen2/model.safetensors']),
    ({}, ['holds no *.safetensors']),
  ],
)
def test_an_index_of_another_form_is_refused(models, tmp_path, weight_map, said):
  folder = shutil.copytree(models[KIND]['files'], tmp_path / 'model')
  text = json.dumps({'weight_map': weight_map})
  (folder / 'model.safetensors.index.json').write_text(text)
  with refuses(*said):
    load(folder)


def test_parts_with_large_numbers_are_not_counted_one_by_one(parts):
  (parts / 'part5.bin').rename(parts / 'part1000000000000.bin')
  with refuses('11 parts', '1 to 1000000000000', 'each number once'):
    load(parts)
