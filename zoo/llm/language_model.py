"""A language model of `transformers`, which generates and scores answers.

A prompt is read once: what follows continues from its keys and values, which do not
change. All tokens, also those of batches and trees, carry their positions, and see the
slots of the cache that a mask of four dimensions allows.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from jaxtyping import Float64
from tokenizers import pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
  GGUF_PRE_TOKENIZER_SPLITS,
)
from transformers.integrations.gguf.reader import read_gguf_metadata

from zoo.core.errors import RunError, UserError, check_count, check_name, in_one_line
from zoo.host.files import user_path
from zoo.llm.token_tree import TokenTree, tokens_after

_DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
_PADDING = 2**30  # the position of a slot without a token, which is after all others
_CHUNK = 256  # tokens that are read at once, each of which sees the slots so far
_DATE = '26 Jul 2024'  # in templates that ask for it, as in Llama's; prompts are pure


@dataclasses.dataclass(frozen=True)
class Past:
  """The keys and values of prompts, computed by `LanguageModel.read`."""

  prompts: Sequence[Sequence[int]]  # their tokens
  cache: transformers.DynamicCache
  positions: torch.Tensor  # [b, s], of each row's slots


class LanguageModel:
  """A model with trained weights, its tokenizer and its chat template."""

  def __init__(
    self,
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    *,
    name: str,
    end_tokens: Sequence[int],
  ):
    """Raises UserError for a model whose attention takes no mask of its own."""
    config = model.config.get_text_config().to_dict()
    self.name = name
    self.num_params = sum(weights.numel() for weights in model.parameters())
    self.max_length: int | None = config.get('max_position_embeddings')
    self.engine = (
      f'transformers {transformers.__version__}, torch {torch.__version__}, '
      f'{model.device.type}'
    )
    model.train(False)  # without dropout
    self._model, self._tokenizer = model, tokenizer
    self._end_tokens = frozenset(end_tokens)
    self._window: int | None = config.get('sliding_window')
    self._layer_types = sorted(set(config.get('layer_types') or ()))
    self._check()

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

  def read_beginning(self, prompts: Sequence[str]) -> Past | None:
    """The common beginning of all prompts, read as one prompt."""
    common = _common([self._encode(prompt) for prompt in prompts])
    return self._read([common], None) if common else None

  def read(self, prompts: Sequence[str], past: Past | None = None) -> Past:
    """Computes the keys and values of prompts, from which the other methods start.

    `past` is the result of reading as many prompts, or one prompt; the beginning that a
    prompt shares with it is not computed again. Raises UserError if a prompt is empty
    or too long for the model.
    """
    return self._read(self._encode_all(prompts), past)

  def generate(
    self, prompts: Sequence[str], max_new_tokens: int, past: Past | None = None
  ) -> list[str]:
    """Answers by greedy decoding, with all prompts in one batch.

    An answer ends at the model's end token or after `max_new_tokens`. `past` is as in
    `read`. Raises UserError if a prompt and that many tokens are too long.
    """
    new = check_count('max_new_tokens', max_new_tokens)
    encoded = self._encode_all(prompts, new)
    past = past or self._read(encoded, None)
    past, tokens, positions = self._rest(encoded, past)
    answers: list[list[int]] = [[] for _ in encoded]
    going = set(range(len(encoded)))
    for _ in range(new):
      logits, past = self._extend(past, tokens, positions)
      tokens, positions = logits.argmax(dim=-1), positions[:, -1:] + 1
      for row, token in enumerate(tokens[:, 0].tolist()):
        if token in self._end_tokens:
          going.discard(row)
        elif row in going:
          answers[row].append(token)
      if not going:
        break
    return self._tokenizer.batch_decode(
      answers, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )

  def log_probabilities(
    self,
    prompts: Sequence[str],
    continuations: Sequence[str],
    past: Past | None = None,
  ) -> Float64[np.ndarray, 'b n']:
    """log p(continuation | prompt), summed over each continuation's tokens.

    The continuations follow each prompt as one tree, in which they share common
    prefixes and branches do not attend to each other (arXiv 2305.09781, section 4).
    Their tokens are those after the last line of the first prompt, so that all prompts
    should end alike. `past` is as in `read`. Raises UserError if a prompt and a
    continuation are too long, and RunError if a probability is not finite.
    """
    end = prompts[0].rpartition('\n')[2] if prompts else ''
    tree = TokenTree([tokens_after(self._encode, end, one) for one in continuations])
    encoded = self._encode_all(prompts, max(map(len, tree.paths), default=0))
    past = past or self._read(encoded, None)
    past, tokens, positions = self._rest(encoded, past)
    device, rows = positions.device, len(encoded)
    nodes = torch.tensor(tree.tokens, dtype=torch.long, device=device).expand(rows, -1)
    depths = torch.tensor(tree.depths, dtype=torch.long, device=device)
    logits, _ = self._extend(
      past,
      torch.cat([tokens, nodes], dim=1),
      torch.cat([positions, positions[:, -1:] + 1 + depths], dim=1),
      torch.tensor(tree.ancestors(), device=device),
    )
    node, token = torch.tensor(tree.pairs, device=device).reshape(-1, 2).T
    logs = np.zeros((rows, len(tree.paths)))
    for row, of_row in enumerate(logits):
      found = of_row.float().log_softmax(dim=-1)[node, token].double().cpu().numpy()
      if not np.isfinite(found).all():
        raise RunError(
          f'{self.name} gives probabilities that are not finite; its numbers may '
          'exceed the range of the dtype that it was loaded with'
        )
      logs[row] = [found[indices].sum() for indices in tree.paths]
    return logs

  def _encode(self, text: str) -> list[int]:
    return self._tokenizer(text, add_special_tokens=False)['input_ids']

  def _encode_all(self, prompts: Sequence[str], more: int = 0) -> list[list[int]]:
    """The tokens of prompts that may be followed by `more` tokens."""
    encoded = [self._encode(prompt) for prompt in prompts]
    if not encoded or not all(encoded):
      raise UserError('there is no prompt, or it is empty; it must have a token')
    longest = max(map(len, encoded)) + more
    if self.max_length is not None and longest > self.max_length:
      raise UserError(
        f'a prompt of {longest - more} tokens and {more} new ones are too long for '
        f'{self.name}, which takes {self.max_length}'
      )
    return encoded

  def _read(self, prompts: Sequence[list[int]], past: Past | None) -> Past:
    past, tokens, positions = self._rest(prompts, past or self._empty(len(prompts)))
    chunks = tokens.split(_CHUNK, dim=1), positions.split(_CHUNK, dim=1)
    for chunk in zip(*chunks, strict=True):
      _, past = self._extend(past, *chunk)
    return dataclasses.replace(past, prompts=prompts)

  def _empty(self, rows: int) -> Past:
    """The past of prompts of which nothing was read."""
    positions = torch.zeros((rows, 0), dtype=torch.long, device=self._model.device)
    return Past([[]] * rows, transformers.DynamicCache(), positions)

  def _rest(
    self, prompts: Sequence[list[int]], past: Past
  ) -> tuple[Past, torch.Tensor, torch.Tensor]:
    """A copy of a past for these prompts, and their other tokens with the positions.

    The other tokens always include a prompt's last one, since its logits are needed.
    Shorter rows begin with padding.
    """
    rows = len(prompts)
    if len(past.prompts) not in (1, rows):
      raise UserError(
        f'the past is of {len(past.prompts)} prompts; it must be of 1 or {rows}'
      )
    before = list(past.prompts) * (rows // len(past.prompts))
    kept = [
      min(len(_common([seen, ids])), len(ids) - 1)
      for seen, ids in zip(before, prompts, strict=True)
    ]
    starts, device = [*zip(prompts, kept, strict=True)], past.positions.device
    pad = functools.partial(pad_sequence, batch_first=True, padding_side='left')
    tokens = pad([torch.tensor(ids[count:]) for ids, count in starts])
    places = [torch.arange(count, len(ids)) for ids, count in starts]
    positions = pad(places, padding_value=_PADDING)
    limits = torch.tensor(kept, device=device)[:, None]
    slots = past.positions.expand(rows, -1)
    cache = _copied(past.cache)
    if len(past.prompts) < rows:
      cache.batch_repeat_interleave(rows)
    seen = Past(prompts, cache, torch.where(slots < limits, slots, _PADDING))
    return seen, tokens.to(device), positions.to(device)

  @torch.inference_mode()
  def _extend(
    self,
    past: Past,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    ancestors: torch.Tensor | None = None,
  ) -> tuple[torch.Tensor, Past]:
    """The past with the tokens' keys and values, and logits.

    The logits are those of the last token, or with `ancestors` of it and all nodes of a
    tree, which are the tokens after it.
    """
    slots = torch.cat([past.positions, positions], dim=1)
    seen = slots[:, None] <= positions[:, :, None]
    num_nodes = 0
    if ancestors is not None and (num_nodes := len(ancestors)):
      seen[:, -num_nodes:, -num_nodes:] = ancestors
    cache = _copied(past.cache)
    logits = self._model(
      input_ids=tokens,
      position_ids=torch.where(positions < _PADDING, positions, 0),
      attention_mask=self._mask(seen, positions[:, :, None] - slots[:, None]),
      past_key_values=cache,
      use_cache=True,
      logits_to_keep=1 + num_nodes,
    ).logits
    return logits[:, -1 - num_nodes :], Past(past.prompts, cache, slots)

  def _mask(self, seen: torch.Tensor, distance: torch.Tensor) -> Any:
    """What is added to attention scores: one mask, or one for each type of layer."""

    def added(allowed: torch.Tensor) -> torch.Tensor:
      dtype = self._model.dtype
      never = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=allowed.device)
      return torch.where(allowed, torch.zeros_like(never), never)[:, None]

    near = seen if self._window is None else seen & (distance < self._window)
    if not self._layer_types:
      return added(near)
    masks = {'full_attention': seen, 'sliding_attention': near}
    return {kind: added(masks[kind]) for kind in self._layer_types}

  def _check(self) -> None:
    """Raises UserError unless the model uses masks and positions as they are given.

    A token that is hidden from those after it, and padding before it, must not matter.
    """
    first, hidden, last = range(3)
    device = self._model.device
    tokens = torch.tensor([[hidden, first, hidden, last]], device=device)
    positions = torch.tensor([[_PADDING, 0, 1, 1]], device=device)
    reason = 'it gives other numbers with a mask and positions than without'
    try:
      with torch.inference_mode():
        plain = self._model(input_ids=torch.tensor([[first, last]], device=device))
      alone = torch.eye(2, dtype=torch.bool, device=device)
      found, _ = self._extend(self._empty(1), tokens, positions, alone)
      expected, found = plain.logits[0, -1].float(), found[0, -1].float()
      if not expected.isfinite().all():
        raise UserError(f'{self.name} gives numbers that are not finite')
      if (found - expected).abs().max() <= 0.2 * expected.std():
        return
    except UserError:
      raise
    except Exception as error:  # of the code of any architecture
      reason = in_one_line(error)
    kind = self._model.config.model_type
    raise UserError(
      f'{self.name} is of the architecture {kind!r}, whose attention cannot be given a '
      f'mask ({reason}); use a decoder with plain attention'
    )


def load(path: str | os.PathLike[str], dtype: str = 'float32') -> LanguageModel:
  """Loads what `zoo.llm.load_model` is given; raises UserError as it says."""
  check_name('dtype', dtype, _DTYPES)
  path = user_path(path)
  if not path.exists():
    raise UserError(f'there is no language model {path}')
  is_folder = path.is_dir()
  folder = path if is_folder else path.parent
  options: dict[str, Any] = {'local_files_only': True, 'trust_remote_code': False}
  if not is_folder:
    options['gguf_file'] = path.name
  devices = {'device_map': 'auto'} if torch.cuda.is_available() else {}
  try:
    with _parsed_once():
      tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
      ends = [] if is_folder else _fit_to_gguf(tokenizer, path)
      read: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=_DTYPES[dtype],
        use_safetensors=True,
        output_loading_info=True,
        **options,
        **devices,
      )
    model, info = read
  except UserError:
    raise
  except Exception as error:  # of any of the libraries that read files
    raise UserError(
      f'{path} cannot be read as a language model: {in_one_line(error)}'
    ) from error
  if missing := sorted(info['missing_keys']):
    raise UserError(
      f'{path} lacks {len(missing)} weights of its model, such as {missing[0]}'
    )
  for config in (model.config, model.generation_config):
    found = config.eos_token_id
    ends += found if isinstance(found, list) else [found]
  ends = [token for token in [*ends, tokenizer.eos_token_id] if token is not None]
  if not ends:
    raise UserError(f'{path} names no end token; its config must give eos_token_id')
  largest = max(tokenizer.get_vocab().values())
  if largest >= (size := model.get_input_embeddings().num_embeddings):
    raise UserError(
      f'the tokenizer of {path} has the token {largest}; the vocabulary of the model '
      f'has {size} tokens'
    )
  name = path.name if is_folder else path.stem
  return LanguageModel(model, tokenizer, name=name, end_tokens=ends)


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
  """Keeps what transformers computes of a GGUF file again and again.

  It parses the file for the tokenizer, the config and the weights, and makes the table
  of all names of tensors for each module of the model.
  """
  library: Any = gguf
  reader, names = library.GGUFReader, library.get_tensor_name_map
  library.GGUFReader = functools.cache(reader)
  library.get_tensor_name_map = functools.cache(names)
  try:
    yield
  finally:
    library.GGUFReader, library.get_tensor_name_map = reader, names


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


def _common(prompts: Sequence[Sequence[int]]) -> list[int]:
  """The tokens at the beginning that all prompts share."""
  places = zip(*prompts, strict=False)
  return [
    tokens[0]
    for tokens in itertools.takewhile(lambda tokens: len(set(tokens)) == 1, places)
  ]


def _copied(cache: transformers.DynamicCache) -> transformers.DynamicCache:
  """A cache that grows without changing the one that it begins with."""
  copied = transformers.DynamicCache()
  copied.layers = [copy.copy(layer) for layer in cache.layers]
  return copied
