"""Converts text to tokens and back, and renders a model's chat template."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from zoo.core.errors import UserError, in_one_line
from zoo.core.fields import Fields
from zoo.host.files import read_json, read_text
from zoo.language_models.chat_template import MAX_SOURCE, ChatTemplate

# GGUF's special kinds of token.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

# The split of GPT-4's tokenizer, with a varying number of digits in one piece.
_PATTERN = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


def _split(digits: str) -> list[pre_tokenizers.PreTokenizer]:
  return [
    pre_tokenizers.Split(tokenizers.Regex(_PATTERN % digits), 'isolated'),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
  ]


# Values of tokenizer.ggml.pre in GGUF files.
_SPLITS = {
  'smollm': [
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
  ],
  'qwen2': _split(''),
  'llama-bpe': _split('{1,3}'),
}

# The largest factor by which replacements may lengthen a text, and the most characters
# of the post-processor, which adds text to it.
_MAX_GROWTH, _MAX_TEMPLATE = 2**8, 2**12

_Arguments = ParamSpec('_Arguments')
_Result = TypeVar('_Result')


class Tokenizer:
  """A tokenizer, the tokens that end an answer, and a chat template."""

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    *,
    name: str,
    end_tokens: Sequence[int],
    chat_template: str | None,
    special_tokens: dict[str, str],
  ):
    """`special_tokens` are the template's `bos_token` and `eos_token`.

    Raises UserError if there is no end token, or if one is not in the vocabulary.
    """
    if not end_tokens:
      raise UserError(f'{name} names no end token; its config must give eos_token_id')
    self.name = name
    self.end_tokens = tuple(sorted(set(end_tokens)))
    self.largest_token = largest_token(tokenizer)
    if self.end_tokens[-1] > self.largest_token:
      raise UserError(
        f'{name} names the end token {self.end_tokens[-1]}; its tokens are numbered 0 '
        f'to {self.largest_token}'
      )
    self._tokenizer = tokenizer
    self._template = (
      None if chat_template is None else ChatTemplate(chat_template, name)
    )
    self._special_tokens = special_tokens

  def encode(self, text: str) -> list[int]:
    """The tokens of a text, which may spell special tokens; no others are added.

    Raises UserError if the tokenizer fails.
    """
    encode = self._tokenizer.encode
    failure = f'the tokenizer of {self.name} fails'
    return guarded(failure, encode, text, add_special_tokens=False).ids

  def decode(self, tokens: Sequence[int]) -> str:
    """The tokens' text, without special tokens."""
    decode = self._tokenizer.decode
    failure = f'the tokenizer of {self.name} fails'
    return guarded(failure, decode, list(tokens), skip_special_tokens=True)

  def chat(self, user_text: str, answer_prefix: str = '') -> str:
    """The prompt of one user turn in the model's template, up to the answer.

    Raises UserError if the model has no chat template, or its template fails.
    """
    if self._template is None:
      raise UserError(f'{self.name} has no chat template; use a model made for chat')
    return self._template.render(user_text, self._special_tokens) + answer_prefix


def from_folder(folder: pathlib.Path, name: str) -> Tokenizer:
  """Reads Hugging Face's `tokenizer.json` and the files beside it.

  Raises UserError for files that are damaged, or whose fields have other types.
  """
  tokenizer = read_tokenizer(folder / 'tokenizer.json')

  def beside(file: str) -> Fields:
    path = folder / file
    return Fields(read_json(path) if path.exists() else {}, str(path))

  config = beside('tokenizer_config.json')
  special = {}
  for role in 'bos_token', 'eos_token':
    if isinstance(config.raw(role), dict):
      special[role] = config.nested(role).text('content')
    elif role in config:
      special[role] = config.text(role)
  end_tokens = [tokenizer.token_to_id(special.get('eos_token', ''))]
  for file in 'config.json', 'generation_config.json':
    end_tokens += beside(file).integers('eos_token_id', 0, default=())
  return Tokenizer(
    tokenizer,
    name=name,
    end_tokens=[token for token in end_tokens if token is not None],
    chat_template=_chat_template(folder, config),
    special_tokens=special,
  )


def from_gguf(metadata: Fields, name: str) -> Tokenizer:
  """Builds the tokenizer that the metadata of a GGUF file describes.

  Raises UserError unless it is byte-level BPE with one of the known pre-tokenizers, and
  for fields of other types or lengths.
  """
  model = metadata.text('tokenizer.ggml.model', 'none')
  kind = metadata.text('tokenizer.ggml.pre', 'none')
  if model != 'gpt2' or kind not in _SPLITS:
    raise UserError(
      f'the tokenizer of {name} is {model!r} with the pre-tokenizer {kind!r}; it must '
      f"be 'gpt2' with one of {', '.join(_SPLITS)}"
    )
  tokens = metadata.texts('tokenizer.ggml.tokens')
  kinds = metadata.integers('tokenizer.ggml.token_type', 0)
  merges = [pair.partition(' ') for pair in metadata.texts('tokenizer.ggml.merges')]
  if len(kinds) != len(tokens):
    raise UserError(
      f'the tokenizer of {name} has {len(tokens)} tokens and {len(kinds)} types of '
      'tokens; each token must have a type'
    )
  vocabulary = {
    token: i
    for i, (token, kind_) in enumerate(zip(tokens, kinds, strict=True))
    if kind_ != _UNUSED
  }
  bpe = guarded(
    f'the vocabulary of {name} is damaged',
    models.BPE,
    vocabulary,
    [(first, second) for first, _, second in merges],
    ignore_merges=kind == 'llama-bpe',
  )
  tokenizer = tokenizers.Tokenizer(bpe)
  if kind == 'qwen2':
    tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_SPLITS[kind])
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_tokens(
    [
      tokenizers.AddedToken(token, special=kind_ == _CONTROL, normalized=False)
      for token, kind_ in zip(tokens, kinds, strict=True)
      if kind_ in (_CONTROL, _USER_DEFINED)
    ]
  )
  ids = {
    role: metadata.integer(f'tokenizer.ggml.{role}_token_id', 0, len(tokens) - 1)
    for role in ('bos', 'eos', 'eot', 'eom')
    if f'tokenizer.ggml.{role}_token_id' in metadata
  }
  return Tokenizer(
    tokenizer,
    name=name,
    end_tokens=[token for role, token in ids.items() if role != 'bos'],
    chat_template=metadata.text('tokenizer.chat_template', '') or None,
    special_tokens={
      f'{role}_token': tokens[ids[role]] for role in ('bos', 'eos') if role in ids
    },
  )


def read_tokenizer(path: pathlib.Path) -> tokenizers.Tokenizer:
  """Reads a `tokenizer.json` without its truncation and padding.

  Raises UserError for a file that is not a tokenizer or could make a text very long.
  """
  rules = read_json(path)
  if not isinstance(rules, dict):
    raise UserError(f'{path} is not a tokenizer; it must hold an object')
  for part in 'normalizer', 'decoder':
    growth = math.prod(1 + len(text) for text in _replacements(rules.get(part)))
    if growth > _MAX_GROWTH:
      raise UserError(
        f'the {part} of {path} may make a text {growth} times as long; the limit is '
        f'{_MAX_GROWTH} times'
      )
  if len(json.dumps(rules.get('post_processor'))) > _MAX_TEMPLATE:
    raise UserError(
      f'the post_processor of {path} has more than {_MAX_TEMPLATE} characters'
    )
  rules |= {'truncation': None, 'padding': None}  # callers set their own limits
  read = tokenizers.Tokenizer.from_str
  return guarded(f'{path} is not a tokenizer', read, json.dumps(rules))


def largest_token(tokenizer: tokenizers.Tokenizer) -> int:
  """The largest token number; its model needs a vocabulary of at least one more."""
  return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def guarded(
  failure: str,
  function: Callable[_Arguments, _Result],
  *arguments: _Arguments.args,
  **options: _Arguments.kwargs,
) -> _Result:
  """Calls the tokenizers package; any error becomes a UserError, begun by `failure`."""
  try:
    return function(*arguments, **options)
  except BaseException as error:  # its panics derive directly from BaseException
    if not isinstance(error, Exception) and type(error).__name__ != 'PanicException':
      raise
    raise UserError(f'{failure}: {in_one_line(error)}') from None


def _chat_template(folder: pathlib.Path, config: Fields) -> str | None:
  path = folder / 'chat_template.jinja'
  if path.exists():
    return read_text(path, 4 * MAX_SOURCE)
  if isinstance(config.raw('chat_template'), list):  # several by name
    templates = config.objects('chat_template')
    by_name = {each.text('name'): each.text('template') for each in templates}
    return by_name.get('default')
  return config.text('chat_template', '') or None


def _replacements(rules: object) -> Iterator[str]:
  """The texts that the rules of a normalizer or decoder insert."""
  if isinstance(rules, list):
    for rule in rules:
      yield from _replacements(rule)
  elif isinstance(rules, dict):
    for name, rule in rules.items():
      if name in ('content', 'prepend') and isinstance(rule, str):
        yield rule
      else:
        yield from _replacements(rule)
