"""Language models and an encoder of random weights, as folders of Hugging Face.

Making them needs the extra `llm`.
"""

# pyright: reportMissingImports=false

import pathlib

# `mistral` has a window in all layers, `gemma3_text` in every other one.
SIZES = {
  'vocab_size': 264,
  'hidden_size': 32,
  'intermediate_size': 48,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'max_position_embeddings': 4096,
  'initializer_range': 0.3,  # large, so that answers depend on the prompts
  'tie_word_embeddings': True,
}
FIELDS = {
  'llama': {},
  'qwen2': {},
  'mistral': {'sliding_window': 12},
  'gemma3_text': {
    'head_dim': 8,
    'sliding_window': 12,
    'layer_types': ['sliding_attention', 'full_attention'],
  },
  'phi': {'tie_word_embeddings': False},
  'gpt_neox': {'tie_word_embeddings': False},
  'bloom': {},
  'mamba': {},
}
TEMPLATE = (
  "{% for m in messages %}{{ '<|start|>' + m['role'] + ' ' + m['content'] }}"
  '<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>model {% endif %}'
)


def save_model(folder: pathlib.Path, kind: str = 'llama', **fields) -> pathlib.Path:
  """Writes a decoder of an architecture, with a tokenizer of bytes and a template."""
  import torch
  import transformers

  tokenizer = _tokenizer(['<|start|>', '<|end|>'])
  ends = {'eos_token_id': tokenizer.token_to_id('<|end|>'), 'pad_token_id': None}
  config = transformers.AutoConfig.for_model(
    kind, **{**SIZES, **FIELDS[kind], **ends, **fields}
  )
  torch.manual_seed(0)
  transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
  fast = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token='<|end|>'
  )
  fast.chat_template = TEMPLATE
  fast.save_pretrained(folder)
  return folder


def save_encoder(folder: pathlib.Path) -> pathlib.Path:
  """Writes an encoder of sentences of at most 64 tokens."""
  import torch
  import transformers

  sizes = {**SIZES, 'max_position_embeddings': 64}
  del sizes['num_key_value_heads'], sizes['tie_word_embeddings']
  torch.manual_seed(0)
  model = transformers.BertModel(transformers.BertConfig(**sizes))
  model.save_pretrained(folder)
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=_tokenizer(['<|pad|>']), pad_token='<|pad|>'
  ).save_pretrained(folder)
  return folder


def _tokenizer(special: list[str]):
  import tokenizers

  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  names = [*alphabet, *special]
  vocabulary = {name: i for i, name in enumerate(names)}
  made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = tokenizers.decoders.ByteLevel()
  made.add_special_tokens(special)
  return made
