"""Language models and sentence encoders, run by `transformers`."""

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
_BATCH = 16  # continuations of a prompt in one call of the model
_SENTENCES = 64  # sentences, of similar length, in one call of the encoder
_LIMITS = 'sentence_bert_config.json'
# Some chat templates, such as Llama's, ask for the date. It is fixed, so that a config
# always has the same prompts.
_DATE = '26 Jul 2024'


class LanguageModel:
  """A language model with trained weights, its tokenizer and its chat template.

  Attributes:
    name: The name of the folder, or of the GGUF file without its suffix.
    num_params: The number of weights.
    max_length: The most tokens that the model reads. None if its config has no limit.
    engine: The versions of `transformers` and `torch`, and the type of device.
  """

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
    """Returns a prompt: one user turn in the chat template, then the answer's start.

    Args:
      user_text: The text of the user turn.
      answer_prefix: The text with which the model's answer begins.

    Raises:
      UserError: If the model has no chat template, or its template fails.
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
    except Exception as error:  # a template is a program that may raise any error
      raise UserError(
        f'the chat template of {self.name} fails: {in_one_line(error)}'
      ) from error
    return f'{prompt}{answer_prefix}'

  def num_tokens(self, prompt: str) -> int:
    """Returns the number of tokens of a prompt that `chat` returned."""
    return len(self._encode(prompt))

  def generate(self, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
    """Answers prompts by greedy decoding, in one batch.

    Args:
      prompts: The prompts, from `chat`.
      max_new_tokens: The most tokens of an answer (≥ 1), which ends earlier at an end
        token of the model.

    Returns:
      The text of each answer, without special tokens.

    Raises:
      UserError: If there is no prompt, or one is empty, or `max_new_tokens` < 1.
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
    """Computes log p(continuation | prompt), summed over the continuation's tokens.

    The tokens are those that a continuation has after the prompt (see `tokens_after`).

    Args:
      prompts: The prompts, from `chat`.
      continuations: The texts that may follow each prompt.

    Returns:
      The log probabilities `[b, n]`, in nats.

    Raises:
      RunError: If a number is infinite or NaN.
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
    """Computes log probabilities after one prompt, which is read only once."""
    device = self._model.device
    *start, last = self._encode(prompt)
    # A continuation does not change how the text before the last line is tokenised.
    line = prompt.rpartition('\n')[2]
    paths = [tokens_after(self._encode, line, text) for text in continuations]
    cache = self._model(
      input_ids=torch.tensor([start], device=device), use_cache=True, logits_to_keep=1
    ).past_key_values
    # Many continuations share all tokens but the last: 501 scores have 51 beginnings.
    beginnings = list(dict.fromkeys(tuple([last, *path[:-1]]) for path in paths))
    logs: dict[tuple[int, ...], torch.Tensor] = {}
    for place in range(0, len(beginnings), _BATCH):
      batch = beginnings[place : place + _BATCH]
      repeated = copy.deepcopy(cache)
      repeated.batch_repeat_interleave(len(batch))
      # The padding comes last, so that causal attention does not see it.
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
  """Returns the tokens that a text has where it follows a beginning.

  They may differ from the tokens of the text alone, to which some tokenizers add a
  space.

  Args:
    encode: Returns the tokens of a text.
    beginning: The text before.
    text: The text that follows.

  Returns:
    The tokens after those of the beginning. If a token spans the end of the beginning,
    the tokens of `text` alone.
  """
  before, whole = encode(beginning), encode(beginning + text)
  is_whole = whole[: len(before)] == before
  return whole[len(before) :] if is_whole else encode(text)


def load(path: str | os.PathLike[str], dtype: str = 'float32') -> LanguageModel:
  """Loads a language model. `studies.llm.load_model` has the arguments and errors."""
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
  # Greedy decoding replaces sampling and penalties that come with the weights.
  model.generation_config = transformers.GenerationConfig(
    do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
  )
  return LanguageModel(model, tokenizer, path.name if path.is_dir() else path.stem)


@torch.inference_mode()
def embed(folder: pathlib.Path, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
  """Embeds sentences by an encoder, such as all-MiniLM-L6-v2.

  An embedding is the mean of the last layer over the tokens of a text, scaled to norm
  1. Texts with too many tokens are truncated.

  Args:
    folder: A Hugging Face folder of the encoder. If its `sentence_bert_config.json` has
      `max_seq_length`, a text has at most so many tokens.
    texts: The sentences.

  Returns:
    The embeddings `[n, w]`, float32.

  Raises:
    UserError: If the folder cannot be read.
    RunError: If a number is infinite or NaN.
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
  """Reads a model and its tokenizer.

  Args:
    kind: The `Auto` class of `transformers` for the model.
    path: The folder or the GGUF file.
    what: What the path should hold, for the error message.
    dtype: The type of the weights.
    **options: Further arguments of `from_pretrained`.

  Returns:
    The model and its tokenizer.

  Raises:
    UserError: If the path cannot be read, or lacks weights of the model.
  """  # noqa: DOC501
  folder = path.parent if 'gguf_file' in options else path
  options |= {'local_files_only': True, 'trust_remote_code': False}
  try:
    if not path.exists():
      raise FileNotFoundError('it does not exist')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    model, info = kind.from_pretrained(
      folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
    )
  except Exception as error:  # the libraries that read files raise many kinds
    raise UserError(f'{path} cannot be read as {what}: {in_one_line(error)}') from error
  if missing := info['missing_keys']:
    raise UserError(
      f'{path} lacks {len(missing)} weights of its model, such as {min(missing)}'
    )
  model.train(False)  # this turns dropout off
  return model, tokenizer


def _fit_to_gguf(tokenizer: Any, path: pathlib.Path) -> list[int]:
  """Sets the pre-tokenizer of a GGUF file that `transformers` does not set.

  Returns:
    The end tokens of the file.

  Raises:
    UserError: If `transformers` does not know how the file splits text. It would split
      it as GPT-2 does.
  """
  metadata, _ = read_gguf_metadata(str(path))
  kind = metadata.get('tokenizer.ggml.pre', 'default')
  if kind == 'smollm':  # it splits as GPT-2 does, but each digit is a token
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
