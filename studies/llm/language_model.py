"""Models of `transformers`: answers, probabilities of texts, embeddings."""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import os
import pathlib
from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
import transformers
from jaxtyping import Float, Float64
from tokenizers import pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
  GGUF_PRE_TOKENIZER_SPLITS,
)
from transformers.integrations.gguf.reader import read_gguf_metadata

from zoo.core.errors import RunError, UserError, check_count, check_name, in_one_line
from zoo.host.files import read_json, user_path

_DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
_BATCH = 16  # continuations of a prompt that are read at once
_SENTENCES = 64  # of similar length, that are embedded at once
_LIMITS = 'sentence_bert_config.json'
_DATE = '26 Jul 2024'  # in templates that ask for it, as in Llama's; prompts are pure


class LanguageModel:
  """A model with trained weights, its tokenizer and its chat template."""

  def __init__(self, model: Any, tokenizer: Any, name: str):
    config = model.config.get_text_config()
    self.name = name
    self.num_params = sum(weights.numel() for weights in model.parameters())
    self.max_length: int | None = getattr(config, 'max_position_embeddings', None)
    self.engine = (
      f'transformers {transformers.__version__}, torch {torch.__version__}, '
      f'{model.device.type}'
    )
    self._model, self._tokenizer = model, tokenizer

  def chat(self, user_text: str, answer_prefix: str = '') -> str:
    """A prompt: one user turn in the model's template, and the start of its answer.

    Raises UserError if the model has no chat template, or its template fails.
    """
    if self._tokenizer.chat_template is None:
      raise UserError(f'{self.name} has no chat template; use a model made for chat')
    try:
      prompt = self._tokenizer.apply_chat_template(
        [{'role': 'user', 'content': user_text}],
        tokenize=False,
        add_generation_prompt=True,
        strftime_now=lambda _: _DATE,
      )
    except Exception as error:  # a template is a program of somebody else
      raise UserError(
        f'the chat template of {self.name} fails: {in_one_line(error)}'
      ) from error
    return f'{prompt}{answer_prefix}'

  def num_tokens(self, prompt: str) -> int:
    """The number of tokens of a whole prompt."""
    return len(self._encode(prompt))

  def generate(self, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
    """Answers by greedy decoding, with all prompts in one batch.

    An answer ends at an end token of the model or after `max_new_tokens`. Raises
    UserError if a prompt is empty.
    """
    check_count('max_new_tokens', max_new_tokens)
    if not prompts or not all(prompts):
      raise UserError('there is no prompt, or it is empty; it must have a token')
    batch = self._tokenizer(
      list(prompts),
      add_special_tokens=False,
      padding=True,
      padding_side='left',
      return_tensors='pt',
      return_token_type_ids=False,
    ).to(self._model.device)
    tokens = self._model.generate(**batch, max_new_tokens=max_new_tokens)
    return self._tokenizer.batch_decode(
      tokens[:, batch['input_ids'].shape[1] :],
      skip_special_tokens=True,
      clean_up_tokenization_spaces=False,
    )

  def log_probabilities(
    self, prompts: Sequence[str], continuations: Sequence[str]
  ) -> Float64[np.ndarray, 'b n']:
    """log p(continuation | prompt), summed over each continuation's tokens.

    The tokens are those that a continuation has where it follows the prompt. Raises
    RunError if a probability is not finite.
    """
    logs = [self._log_probabilities(prompt, continuations) for prompt in prompts]
    if not np.isfinite(logs).all():
      raise RunError(
        f'{self.name} gives probabilities that are not finite; its numbers may exceed '
        'the range of the dtype that it was loaded with'
      )
    return np.array(logs)

  @torch.inference_mode()
  def _log_probabilities(
    self, prompt: str, continuations: Sequence[str]
  ) -> list[float]:
    """Those after one prompt, which is read once for all of them."""
    device = self._model.device
    *start, last = self._encode(prompt)
    # Tokens before the last line are not changed by what follows.
    line = prompt.rpartition('\n')[2]
    paths = [tokens_after(self._encode, line, text) for text in continuations]
    cache = self._model(
      input_ids=torch.tensor([start], device=device), use_cache=True, logits_to_keep=1
    ).past_key_values
    # The scores of a grid share all but their last tokens: 501 have 51 beginnings.
    beginnings = list(dict.fromkeys(tuple([last, *path[:-1]]) for path in paths))
    logs: dict[tuple[int, ...], torch.Tensor] = {}
    for place in range(0, len(beginnings), _BATCH):
      batch = beginnings[place : place + _BATCH]
      repeated = copy.deepcopy(cache)
      repeated.batch_repeat_interleave(len(batch))
      # The padding is behind the tokens, which do not see it.
      rows = pad_sequence([torch.tensor(tokens) for tokens in batch], batch_first=True)
      logits = self._model(input_ids=rows.to(device), past_key_values=repeated).logits
      logs |= zip(batch, logits.float().log_softmax(dim=-1).cpu(), strict=True)
    return [
      float(logs[last, *path[:-1]][range(len(path)), path].double().sum())
      for path in paths
    ]

  def _encode(self, text: str) -> list[int]:
    return self._tokenizer(text, add_special_tokens=False)['input_ids']


def tokens_after(encode: Any, beginning: str, text: str) -> list[int]:
  """The tokens of a text where it follows a beginning.

  They may be others than those of the text alone, to which some tokenizers add a space.
  If the beginning ends within a token of both, they are those of the text alone.
  """
  before, whole = encode(beginning), encode(beginning + text)
  is_whole = whole[: len(before)] == before
  return whole[len(before) :] if is_whole else encode(text)


def load(path: str | os.PathLike[str], dtype: str = 'float32') -> LanguageModel:
  """Loads what `studies.llm.load_model` is given; raises UserError as it says."""
  check_name('dtype', dtype, _DTYPES)
  path = user_path(path)
  options: dict[str, Any] = {} if path.is_dir() else {'gguf_file': path.name}
  if torch.cuda.is_available():
    options['device_map'] = 'auto'
  kind = transformers.AutoModelForCausalLM
  model, tokenizer = _read(kind, path, 'a language model', _DTYPES[dtype], **options)
  largest = max(tokenizer.get_vocab().values())
  if largest >= (size := model.get_input_embeddings().num_embeddings):
    raise UserError(
      f'the tokenizer of {path} has the token {largest}; the vocabulary of the model '
      f'has {size} tokens'
    )
  if 'past_key_values' not in signature(model.forward).parameters:
    raise UserError(
      f'{path} is of the architecture {model.config.model_type!r}, which keeps no keys '
      'and values; use a decoder with attention'
    )
  ends = [] if path.is_dir() else _fit_to_gguf(tokenizer, path)
  for tokens in model.generation_config.eos_token_id, tokenizer.eos_token_id:
    ends += tokens if isinstance(tokens, list) else [tokens]
  ends = [token for token in ends if token is not None]
  if not ends:
    raise UserError(f'{path} names no end token; its config must give eos_token_id')
  tokenizer.pad_token = tokenizer.convert_ids_to_tokens(ends[0])
  # In place of sampling or penalties that come with the weights.
  model.generation_config = transformers.GenerationConfig(
    do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
  )
  return LanguageModel(model, tokenizer, path.name if path.is_dir() else path.stem)


@torch.inference_mode()
def embed(folder: pathlib.Path, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
  """The embeddings of sentences by an encoder, such as all-MiniLM-L6-v2.

  They are the mean of the last layer over each text's tokens, scaled to norm 1. The
  folder is one of Hugging Face; `max_seq_length` of its `sentence_bert_config.json`, if
  it exists, limits the tokens of a text. Raises UserError if the folder cannot be read,
  and RunError if a number is not finite.
  """
  encoder, what = transformers.AutoModel, 'a sentence encoder'
  model, tokenizer = _read(encoder, folder, what, torch.float32)
  model.to('cuda' if torch.cuda.is_available() else 'cpu')
  limit, limits = model.config.max_position_embeddings, folder / _LIMITS
  if limits.is_file():
    limit = min(limit, read_json(limits, dict).get('max_seq_length', limit))
  tokenizer.model_max_length = limit
  order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
  embedded = np.zeros((len(texts), model.config.hidden_size), np.float32)
  for start in tqdm(range(0, len(order), _SENTENCES), desc='embedding', mininterval=1):
    batch = order[start : start + _SENTENCES]
    tokens = tokenizer(
      [texts[i] for i in batch], padding=True, truncation=True, return_tensors='pt'
    ).to(model.device)
    states = model(**tokens).last_hidden_state
    mask = tokens['attention_mask'][..., None].to(states.dtype)
    means = (states * mask).sum(dim=1) / mask.sum(dim=1)
    embedded[batch] = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
  if not np.isfinite(embedded).all():
    raise RunError('the sentence encoder gives numbers that are not finite')
  return embedded


def _read(
  kind: Any, path: pathlib.Path, what: str, dtype: torch.dtype, **options: Any
) -> tuple[Any, Any]:
  """The model, of an `Auto` class of transformers, and the tokenizer of a path.

  Raises UserError if they are not there, or not whole.
  """
  folder = path.parent if 'gguf_file' in options else path
  options |= {'local_files_only': True, 'trust_remote_code': False}
  try:
    if not path.exists():
      raise FileNotFoundError('it does not exist')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    model, info = kind.from_pretrained(
      folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
    )
  except Exception as error:  # of any of the libraries that read files
    raise UserError(f'{path} cannot be read as {what}: {in_one_line(error)}') from error
  if missing := info['missing_keys']:
    raise UserError(
      f'{path} lacks {len(missing)} weights of its model, such as {min(missing)}'
    )
  model.train(False)  # without dropout
  return model, tokenizer


def _fit_to_gguf(tokenizer: Any, path: pathlib.Path) -> list[int]:
  """Sets what transformers does not take from a GGUF file; returns its end tokens.

  Raises UserError for a way of splitting text that transformers does not know: it would
  split as GPT-2 does.
  """
  metadata, _ = read_gguf_metadata(str(path))
  kind = metadata.get('tokenizer.ggml.pre', 'default')
  if kind == 'smollm':  # like GPT-2, but each digit is a token
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
      [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
      ]
    )
  elif metadata.get('tokenizer.ggml.model') == 'gpt2':
    check_name(
      f'pre-tokenizer of {path.name}:', kind, ('gpt-2', *GGUF_PRE_TOKENIZER_SPLITS)
    )
  names = [f'tokenizer.ggml.{role}_token_id' for role in ('eos', 'eot', 'eom')]
  return [metadata[name] for name in names if name in metadata]
