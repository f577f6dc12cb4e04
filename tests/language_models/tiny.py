"""Tiny random models of each kind, from NumPy alone, as files like the real ones.

`tests/data/llm/make_references.py` gives the same tensors to transformers.
"""

import json
import pathlib
from typing import Any

import gguf
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

_COMMON = {
  'vocab_size': 320,
  'hidden_size': 32,
  'intermediate_size': 64,
  'num_hidden_layers': 2,
  'num_attention_heads': 8,
  'max_position_embeddings': 256,
  'hidden_act': 'silu',
}
CONFIGS = {
  'llama_3_1': _COMMON
  | {
    'model_type': 'llama',
    'architectures': ['LlamaForCausalLM'],
    'head_dim': 16,  # not hidden_size / heads
    'num_key_value_heads': 2,
    'rms_norm_eps': 1e-5,
    'rope_theta': 500.0,
    # Kept, changed and divided frequencies are all among the eight.
    'rope_scaling': {
      'rope_type': 'llama3',
      'factor': 8.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      'original_max_position_embeddings': 64,
    },
    'tie_word_embeddings': False,
  },
  'qwen2': _COMMON
  | {
    'model_type': 'qwen2',
    'architectures': ['Qwen2ForCausalLM'],
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-6,
    'rope_theta': 1000000.0,
    'use_sliding_window': False,
    'tie_word_embeddings': False,
  },
  'tied_llama': _COMMON
  | {
    'model_type': 'llama',
    'architectures': ['LlamaForCausalLM'],
    'num_key_value_heads': 4,
    'rms_norm_eps': 1e-5,
    'rope_theta': 10000.0,
    'tie_word_embeddings': True,
  },
  'llama_3_2': _COMMON
  | {
    'model_type': 'llama',
    'architectures': ['LlamaForCausalLM'],
    'num_key_value_heads': 4,
    'rms_norm_eps': 1e-5,
    'rope_theta': 500.0,
    'rope_scaling': {
      'rope_type': 'llama3',
      'factor': 32.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      'original_max_position_embeddings': 64,
    },
    'tie_word_embeddings': True,
  },
  'qwen3': _COMMON
  | {
    'model_type': 'qwen3',
    'architectures': ['Qwen3ForCausalLM'],
    'head_dim': 16,
    'num_key_value_heads': 4,
    'rms_norm_eps': 1e-6,
    'rope_theta': 1000000.0,
    'attention_bias': False,
    'use_sliding_window': False,
    'tie_word_embeddings': True,
  },
  'smollm3': _COMMON
  | {
    'model_type': 'smollm3',
    'architectures': ['SmolLM3ForCausalLM'],
    'num_hidden_layers': 4,  # the last of which does not rotate
    'num_key_value_heads': 4,
    'rms_norm_eps': 1e-6,
    'rope_theta': 5000000.0,
    'no_rope_layers': [1, 1, 1, 0],
    'pad_token_id': None,  # transformers' own is outside of this vocabulary
    'tie_word_embeddings': True,
  },
  'gemma3': {name: value for name, value in _COMMON.items() if name != 'hidden_act'}
  | {
    'model_type': 'gemma3_text',
    'architectures': ['Gemma3ForCausalLM'],
    'hidden_activation': 'gelu_pytorch_tanh',
    'head_dim': 16,
    'num_key_value_heads': 4,
    'query_pre_attn_scalar': 10,  # not head_dim
    'rms_norm_eps': 1e-6,
    'rope_theta': 1000000.0,
    'rope_local_base_freq': 100.0,
    'rope_scaling': {'rope_type': 'linear', 'factor': 8.0},
    'sliding_window': 5,
    'layer_types': ['sliding_attention', 'full_attention'],
    'tie_word_embeddings': True,
  },
}
TOKENS = np.random.default_rng(7).integers(0, _COMMON['vocab_size'], 48)
END_TOKEN = 1
TEMPLATE = (
  '{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>'
  '{{ message.content }}<|end|>{% endfor %}'
  '{% if add_generation_prompt %}<|assistant|>{% endif %}'
)


def head_dim(config: dict) -> int:
  return config.get('head_dim', config['hidden_size'] // config['num_attention_heads'])


def tensors(kind: str) -> dict[str, np.ndarray]:
  """Weights so large that attention is sharp and every part matters to the logits."""
  config = CONFIGS[kind]
  d, f = config['hidden_size'], config['intermediate_size']
  v, p = config['vocab_size'], head_dim(config)
  all_, kept = config['num_attention_heads'] * p, config['num_key_value_heads'] * p
  shapes = {'model.embed_tokens.weight': (v, d), 'model.norm.weight': (d,)}
  if not config['tie_word_embeddings']:
    shapes['lm_head.weight'] = (v, d)
  for i in range(config['num_hidden_layers']):
    layer = {
      'input_layernorm.weight': (d,),
      'self_attn.q_proj.weight': (all_, d),
      'self_attn.k_proj.weight': (kept, d),
      'self_attn.v_proj.weight': (kept, d),
      'self_attn.o_proj.weight': (d, all_),
      'post_attention_layernorm.weight': (d,),
      'mlp.gate_proj.weight': (f, d),
      'mlp.up_proj.weight': (f, d),
      'mlp.down_proj.weight': (d, f),
    }
    if config['model_type'] in ('qwen3', 'gemma3_text'):
      layer |= {'self_attn.q_norm.weight': (p,), 'self_attn.k_norm.weight': (p,)}
    if config['model_type'] == 'gemma3_text':
      layer |= {
        'pre_feedforward_layernorm.weight': (d,),
        'post_feedforward_layernorm.weight': (d,),
      }
    if config['model_type'] == 'qwen2':
      layer |= {
        'self_attn.q_proj.bias': (all_,),
        'self_attn.k_proj.bias': (kept,),
        'self_attn.v_proj.bias': (kept,),
      }
    shapes |= {f'model.layers.{i}.{name}': shape for name, shape in layer.items()}
  rng = np.random.default_rng(list(CONFIGS).index(kind))
  made = {}
  for name, shape in shapes.items():
    normal = rng.standard_normal(shape, np.float32)
    if name.endswith('norm.weight'):
      # Gemma's norms add the 1 themselves.
      offset = np.float32(config['model_type'] != 'gemma3_text')
      made[name] = offset + 0.3 * normal
    elif name.endswith('bias'):
      made[name] = 0.5 * normal
    else:
      made[name] = normal * np.float32(1.5 / np.sqrt(shape[-1]))
  return made


def tokenizer() -> tokenizers.Tokenizer:
  """Byte-level BPE with a few merges, fewer tokens than the models know."""
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  made.train_from_iterator(
    ['Rain falls on the old bridge, and the lamps are lit. 0.00 1.25 3.80 5.00'] * 9,
    trainers.BpeTrainer(
      vocab_size=300,
      special_tokens=['<|start|>', '<|end|>', '<|user|>', '<|assistant|>'],
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
    ),
  )
  assert made.token_to_id('<|end|>') == END_TOKEN
  return made


def save_folder(kind: str, folder: pathlib.Path, num_files: int = 1) -> pathlib.Path:
  """The model as Hugging Face's library saves one."""
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(CONFIGS[kind]))
  (folder / 'generation_config.json').write_text(json.dumps({'eos_token_id': [1]}))
  said = {
    'bos_token': {'content': '<|start|>'},
    'eos_token': '<|end|>',
    'chat_template': TEMPLATE,
  }
  (folder / 'tokenizer_config.json').write_text(json.dumps(said))
  tokenizer().save(str(folder / 'tokenizer.json'))
  made = tensors(kind)
  if num_files == 1:
    save_file(made, folder / 'model.safetensors')
    return folder
  names = sorted(made)
  index = {}
  for i in range(num_files):
    file = f'model-{i + 1:05}-of-{num_files:05}.safetensors'
    index |= dict.fromkeys(names[i::num_files], file)
    save_file({name: made[name] for name in names[i::num_files]}, folder / file)
  text = json.dumps({'weight_map': index})
  (folder / 'model.safetensors.index.json').write_text(text)
  return folder


def save_gguf(kind: str, path: pathlib.Path, **metadata: Any) -> pathlib.Path:
  """The model as llama.cpp's converter writes one: other names, and other q/k rows.

  Gemma 3 is not written: it has another kind of vocabulary, and no reader here.
  """
  config, made = CONFIGS[kind], tensors(kind)
  family = config['model_type']
  writer = gguf.GGUFWriter(path, metadata.get('architecture', family))
  writer.add_name('Tiny')
  fields = {
    'block_count': config['num_hidden_layers'],
    'context_length': config['max_position_embeddings'],
    'embedding_length': config['hidden_size'],
    'feed_forward_length': config['intermediate_size'],
    'attention.head_count': config['num_attention_heads'],
    'attention.head_count_kv': config['num_key_value_heads'],
    'attention.key_length': head_dim(config),
    'attention.layer_norm_rms_epsilon': config['rms_norm_eps'],
    'rope.freq_base': config['rope_theta'],
  }
  for name, value in (fields | metadata.get('fields', {})).items():
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add[type(value)](f'{family}.{name}', value)
  made_tokenizer = json.loads(tokenizer().to_str())
  vocabulary = made_tokenizer['model']['vocab']
  tokens = sorted(vocabulary, key=vocabulary.__getitem__)
  special = [token['id'] for token in made_tokenizer['added_tokens']]
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre(metadata.get('pre', 'smollm'))
  writer.add_token_list(tokens)
  writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
  writer.add_token_merges(
    [' '.join(pair) for pair in made_tokenizer['model']['merges']]
  )
  writer.add_bos_token_id(0)
  writer.add_eos_token_id(END_TOKEN)
  writer.add_chat_template(TEMPLATE)
  if 'rope_scaling' in config:
    divisors = metadata.get('rope_freqs', rope_factors(config))
    writer.add_tensor('rope_freqs.weight', divisors.astype(np.float32))
  names = gguf.get_tensor_name_map(
    gguf.MODEL_ARCH[family.upper()], config['num_hidden_layers']
  )
  for name, array in made.items():
    if family in ('llama', 'smollm3') and name.endswith(
      ('q_proj.weight', 'k_proj.weight')
    ):
      # As in llama.cpp's convert_hf_to_gguf.py: LlamaModel.permute.
      heads = array.shape[0] // head_dim(config)
      halves = array.reshape(heads, 2, head_dim(config) // 2, -1)
      array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
    stem, _, part = name.rpartition('.')
    stored_as = metadata.get('quantisation')
    if stored_as is None or array.ndim == 1:
      stored_as = gguf.GGMLQuantizationType.F32
    array = gguf.quantize(array, stored_as)
    writer.add_tensor(f'{names.get_name(stem)}.{part}', array, raw_dtype=stored_as)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def rope_factors(config: dict) -> np.ndarray:
  """Llama 3.1's scaling, frequency by frequency as its paper's authors wrote it."""
  rope = config['rope_scaling']
  old, low, high = (
    rope[name]
    for name in (
      'original_max_position_embeddings',
      'low_freq_factor',
      'high_freq_factor',
    )
  )
  factors = []
  for i in range(head_dim(config) // 2):
    frequency = config['rope_theta'] ** (-2 * i / head_dim(config))
    wavelength = 2 * np.pi / frequency
    if wavelength < old / high:
      scaled = frequency
    elif wavelength > old / low:
      scaled = frequency / rope['factor']
    else:
      smooth = (old / wavelength - low) / (high - low)
      scaled = (1 - smooth) * frequency / rope['factor'] + smooth * frequency
    factors.append(frequency / scaled)
  return np.asarray(factors)
