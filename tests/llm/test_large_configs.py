"""The memory plans of the large configs: what each device holds, and that it compiles.

Nothing is computed and no memory taken: weights are shapes with shardings.
"""

import importlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from zoo.language_models.decoder import abstract_decoder
from zoo.language_models.decoder_config import DecoderConfig
from zoo.language_models.decoding import CACHE_AXES, greedy

# As the models' own config.json have them.
LLAMA = {
  'model_type': 'llama',
  'vocab_size': 128256,
  'hidden_size': 4096,
  'intermediate_size': 14336,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-5,
  'rope_theta': 500000.0,
  'rope_scaling': {
    'rope_type': 'llama3',
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
  },
}
QWEN = {
  'model_type': 'qwen2',
  'vocab_size': 152064,
  'hidden_size': 3584,
  'intermediate_size': 18944,
  'num_hidden_layers': 28,
  'num_attention_heads': 28,
  'num_key_value_heads': 4,
  'rms_norm_eps': 1e-6,
  'rope_theta': 1000000.0,
}
MODELS = {'llama3_1_8b': LLAMA, 'qwen2_5_7b': QWEN}


def mesh_of(data, model):
  return jax.make_mesh(
    (data, model),
    ('data', 'model'),
    axis_types=(AxisType.Auto,) * 2,
    devices=jax.devices()[: data * model],
  )


def bytes_on_a_device(state):
  return sum(
    jnp.dtype(leaf.dtype).itemsize * _size(leaf.sharding.shard_shape(leaf.shape))
    for leaf in jax.tree.leaves(state)
  )


def _size(shape):
  size = 1
  for length in shape:
    size *= length
  return size


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
def test_a_device_holds_what_the_docstring_says(name):
  config = importlib.import_module(f'configs.llm.{name}')
  wanted = re.findall(r'^  (\d) +(\d+\.\d) GB +(\d\.\d) GB', config.__doc__ or '', re.M)
  assert len(wanted) == {'llama3_1_8b': 4, 'qwen2_5_7b': 3}[name]
  fields = config.get_config()
  decoder = DecoderConfig.from_hf(MODELS[name])
  tokens = 2 * fields.model.batch_size * fields.model.cache_length
  per_token = 2 * 2 * decoder.num_layers * decoder.num_kv_heads * decoder.head_dim
  for model, weights, cache in wanted:
    _, state = abstract_decoder(decoder, mesh_of(1, int(model)), jnp.bfloat16)
    # To the digits that are given.
    assert abs(bytes_on_a_device(state) / 1e9 - float(weights)) < 0.06
    assert abs(tokens * per_token / int(model) / 1e9 - float(cache)) < 0.06


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'model'), [('llama3_1_8b', 8), ('qwen2_5_7b', 4)])
def test_decoding_compiles_for_a_mesh_with_the_weights_split(name, model):
  fields = importlib.import_module(f'configs.llm.{name}').get_config()
  mesh = mesh_of(8 // model, model)
  # All layers are alike: two of them compile in a tenth of the time.
  decoder = DecoderConfig.from_hf({**MODELS[name], 'num_hidden_layers': 2})
  graph, state = abstract_decoder(decoder, mesh, jnp.bfloat16)
  new, rows = fields.readouts.max_new_tokens, fields.model.batch_size
  slots = fields.model.cache_length - new - 1

  def abstract(dtype, shape, *axes):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

  k, p = decoder.num_kv_heads, decoder.head_dim
  key, value = (
    abstract(jnp.bfloat16, (rows, k, *shape), *CACHE_AXES)
    for shape in ((p, slots), (slots, p))
  )
  tokens = abstract(jnp.int32, (rows, 1), 'data')
  with jax.set_mesh(mesh):
    compiled = (
      jax.jit(lambda state, *args: greedy(nnx.merge(graph, state), *args, num_new=new))
      .lower(
        state,
        [(key, value)] * decoder.num_layers,
        abstract(jnp.int32, (rows, slots), 'data'),
        *(tokens, tokens),
        abstract(jnp.int32, (1,)),
      )
      .compile()
    )
  memory: Any = compiled.memory_analysis()
  weights = bytes_on_a_device(state)
  cache = bytes_on_a_device([(key, value)] * decoder.num_layers)
  assert cache == 2 * 2 * decoder.num_layers * rows * k * p * slots / 8
  # Besides these there are the tokens, which are a few KB.
  given = memory.argument_size_in_bytes - weights - cache
  assert 0 <= given < 1e5
