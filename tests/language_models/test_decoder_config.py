"""Configs of decoders as Hugging Face writes them: those read and those refused."""

import jax
import jax.numpy as jnp
import pytest

from tests.compare import refuses
from tests.language_models import tiny
from tests.language_models.test_decoder import make_mesh
from zoo.language_models.decoder import abstract_decoder
from zoo.language_models.decoder_config import DecoderConfig, LayerConfig, Rope


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'model_type': 'gpt2'}, ("'gpt2'", "'llama', 'qwen2'")),
    ({'hidden_act': 'gelu'}, ('hidden_act', "'gelu'", "'silu'")),
    ({'attention_bias': True}, ('attention_bias', 'True', 'False')),
    ({'mlp_bias': True}, ('mlp_bias', 'True', 'False')),
    ({'use_sliding_window': True}, ('use_sliding_window', 'True', 'False')),
    ({'rope_scaling': {'rope_type': 'yarn'}}, ('rope_type', "'yarn'", 'llama3')),
    ({'rope_scaling': {'rope_type': 'llama3'}}, ("lacks 'factor'",)),
    ({'num_key_value_heads': 3}, ('8 heads', '3 key-value heads', 'multiple')),
    ({'hidden_size': 'wide'}, ('hidden_size', "'wide'", 'integer')),
    ({'head_dim': 3}, ('3 features', 'two features')),
    ({'rms_norm_eps': 0}, ('rms_norm_eps', 'is 0', 'from 1e-12 to 1')),
  ],
)
def test_a_config_that_cannot_be_built_is_refused(change, said):
  with refuses(*said):
    DecoderConfig.from_hf(tiny.CONFIGS['tied_llama'] | change)


@pytest.mark.parametrize(
  ('kind', 'change', 'said'),
  [
    ('gemma3', {'model_type': 'gemma3'}, ["'gemma3'", "'gemma3_text'"]),
    ('gemma3', {'hidden_activation': 'silu'}, ['silu', "'gelu_pytorch_tanh'"]),
    ('gemma3', {'final_logit_softcapping': 30.0}, ['final_logit_softcapping', '30.0']),
    ('gemma3', {'use_bidirectional_attention': True}, ['bidirectional', 'True']),
    ('gemma3', {'layer_types': ['full_attention']}, ['layer_types', '1 items', '2']),
    ('gemma3', {'layer_types': ['chunked'] * 2}, ["'chunked'", "'sliding_attention'"]),
    ('gemma3', {'layer_types': 'full'}, ['layer_types', "'full'", 'a list of texts']),
    ('gemma3', {'sliding_window': 0}, ['sliding_window', 'is 0', 'from 1']),
    ('gemma3', {'query_pre_attn_scalar': 0}, ['query_pre_attn_scalar', 'is 0']),
    ('gemma3', {'rope_local_base_freq': -1}, ['rope_local_base_freq', '-1']),
    ('qwen3', {'layer_types': ['sliding_attention'] * 2}, ["of 'full_attention'"]),
    ('qwen3', {'attention_bias': True}, ['attention_bias', 'True']),
    ('qwen3', {'rope_scaling': {'type': 'yarn'}}, ["'yarn'", "'linear', 'llama3'"]),
    ('smollm3', {'no_rope_layers': [1, 0]}, ['no_rope_layers', '2 items', '4']),
    ('smollm3', {'no_rope_layers': [2] * 4}, ['no_rope_layers', 'from 0 to 1']),
    (
      'smollm3',
      {'no_rope_layers': None, 'no_rope_layer_interval': 0},
      ['no_rope_layer_interval', 'is 0'],
    ),
    ('smollm3', {'use_sliding_window': True}, ['use_sliding_window', 'True']),
  ],
)
def test_layers_that_cannot_be_built_are_refused(kind, change, said):
  with refuses(*said):
    DecoderConfig.from_hf(tiny.CONFIGS[kind] | change)


def test_a_config_that_lacks_a_field_is_refused():
  config = dict(tiny.CONFIGS['qwen2'])
  del config['intermediate_size']
  with refuses("lacks 'intermediate_size'"):
    DecoderConfig.from_hf(config)


def test_rope_as_transformers_5_writes_it_reads_the_same():
  config = dict(tiny.CONFIGS['llama_3_1'])
  old = DecoderConfig.from_hf(config)
  rope = config.pop('rope_scaling') | {'rope_theta': config.pop('rope_theta')}
  assert DecoderConfig.from_hf(config | {'rope_parameters': rope}) == old

  config = dict(tiny.CONFIGS['gemma3'])
  old = DecoderConfig.from_hf(config)
  full = config.pop('rope_scaling') | {'rope_theta': config.pop('rope_theta')}
  sliding = {'rope_theta': config.pop('rope_local_base_freq')}
  rope = {'full_attention': full, 'sliding_attention': sliding}
  assert DecoderConfig.from_hf(config | {'rope_parameters': rope}) == old
  with refuses('rope_parameters', "lacks 'sliding_attention'"):
    DecoderConfig.from_hf(config | {'rope_parameters': {'full_attention': full}})


def num_params(config, num_layers):
  fields = config | {'num_hidden_layers': num_layers, 'layer_types': None}
  _, state = abstract_decoder(DecoderConfig.from_hf(fields), make_mesh(), jnp.bfloat16)
  return sum(leaf.size for leaf in jax.tree.leaves(state))


# As the models' own config.json have them, and the number of their parameters.
SMALL = {
  'Llama-3.2-1B': (
    {
      'model_type': 'llama',
      'vocab_size': 128256,
      'hidden_size': 2048,
      'intermediate_size': 8192,
      'num_hidden_layers': 16,
      'num_attention_heads': 32,
      'num_key_value_heads': 8,
      'head_dim': 64,
      'rope_theta': 500000.0,
      'rope_scaling': tiny.CONFIGS['llama_3_2']['rope_scaling']
      | {'original_max_position_embeddings': 8192},
      'tie_word_embeddings': True,
    },
    1_235_814_400,
  ),
  'Qwen3-0.6B': (
    {
      'model_type': 'qwen3',
      'vocab_size': 151936,
      'hidden_size': 1024,
      'intermediate_size': 3072,
      'num_hidden_layers': 28,
      'num_attention_heads': 16,
      'num_key_value_heads': 8,
      'rope_theta': 1000000.0,
      'sliding_window': None,
      'tie_word_embeddings': True,
    },
    596_049_920,
  ),
  'SmolLM3-3B': (
    {
      'model_type': 'smollm3',
      'vocab_size': 128256,
      'hidden_size': 2048,
      'intermediate_size': 11008,
      'num_hidden_layers': 36,
      'num_attention_heads': 16,
      'num_key_value_heads': 4,
      'rope_theta': 5000000.0,
      'layer_types': ['full_attention'] * 36,
    },
    3_075_098_624,
  ),
  'gemma-3-1b': (
    {
      'model_type': 'gemma3_text',
      'vocab_size': 262144,
      'hidden_size': 1152,
      'intermediate_size': 6912,
      'num_hidden_layers': 26,
      'num_attention_heads': 4,
      'num_key_value_heads': 1,
      'rope_scaling': None,
      'sliding_window': 512,
      'final_logit_softcapping': None,
    },
    999_885_952,
  ),
}


@pytest.mark.parametrize('name', SMALL)
def test_real_configs_have_as_many_parameters_as_the_models(name):
  """All layers have as many as the second."""
  config, expected = SMALL[name]
  one, two = num_params(config, 1), num_params(config, 2)
  assert one + (config['num_hidden_layers'] - 1) * (two - one) == expected


def test_layers_that_a_config_does_not_list_follow_the_pattern_of_the_family():
  smollm3 = DecoderConfig.from_hf(SMALL['SmolLM3-3B'][0])
  assert [i for i, layer in enumerate(smollm3.layers) if layer.rope is None] == [
    *(3, 7, 11, 15, 19, 23, 27, 31, 35)
  ]
  assert {layer.window for layer in smollm3.layers} == {None}
  gemma = DecoderConfig.from_hf(SMALL['gemma-3-1b'][0])
  assert [i for i, layer in enumerate(gemma.layers) if layer.window is None] == [
    *(5, 11, 17, 23)
  ]
  assert gemma.layers[0] == LayerConfig(Rope(10000.0, (1.0,) * 128), 512)
  assert gemma.layers[5] == LayerConfig(Rope(1000000.0, (1.0,) * 128))
  assert gemma.query_scalar == 256
  every_second = SMALL['gemma-3-1b'][0] | {'sliding_window_pattern': 2}
  layers = DecoderConfig.from_hf(every_second).layers
  assert [layer.window for layer in layers] == [512, None] * 13
  every_second = SMALL['SmolLM3-3B'][0] | {'no_rope_layer_interval': 2}
  layers = DecoderConfig.from_hf(every_second).layers
  assert [layer.rope is None for layer in layers] == [False, True] * 18
