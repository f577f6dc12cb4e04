"""Text to tokens and back, and a model's own chat template."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from zoo.errors import UserError
from zoo.language_models.weights import read_json

# GGUF's kinds of token that are not ordinary ones.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

# The split of GPT-4's tokenizer, which differs in how many digits stay together.
_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


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
    """`special_tokens` are what the template calls `bos_token` and `eos_token`.

    Raises UserError if there is no end token.
    """
    if not end_tokens:
      raise UserError(f'{name} names no end token; its config must give eos_token_id')
    self.name = name
    self.end_tokens = tuple(sorted(set(end_tokens)))
    self._tokenizer = tokenizer
    self._chat_template = chat_template
    self._special_tokens = special_tokens

  @property
  def largest_token(self) -> int:
    """The largest token number: one more is the least vocabulary of its model."""
    return max(self._tokenizer.get_vocab(with_added_tokens=True).values())

  def encode(self, text: str) -> list[int]:
    """The text's tokens; a special token is what its text says, and none is added."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def decode(self, tokens: Sequence[int]) -> str:
    """The tokens' text, without special tokens."""
    return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

  def chat(self, user_text: str, answer_prefix: str = '') -> str:
    """One user turn in the model's own template, up to where its answer starts.

    Raises UserError if the model has no chat template.
    """
    if self._chat_template is None:
      raise UserError(f'{self.name} has no chat template; take a model made for chat')
    # What a model's folder says must not run code here.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True, extensions=['jinja2.ext.loopcontrols']
    )
    environment.globals['raise_exception'] = _refuse
    try:
      text = environment.from_string(self._chat_template).render(
        messages=[{'role': 'user', 'content': user_text}],
        tools=None,
        documents=None,
        add_generation_prompt=True,
        **self._special_tokens,
      )
    except jinja2.TemplateError as error:
      said = ' '.join(str(error).split())
      raise UserError(f'the chat template of {self.name} fails: {said}') from None
    return text + answer_prefix


def from_folder(folder: pathlib.Path, name: str) -> Tokenizer:
  """Reads Hugging Face's `tokenizer.json` and what stands beside it."""
  path = folder / 'tokenizer.json'
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # the package raises nothing narrower
    said = ' '.join(str(error).split())
    raise UserError(f'{path} is not a tokenizer: {said}') from None

  def beside(file: str) -> dict[str, Any]:
    return read_json(folder / file) if (folder / file).exists() else {}

  config = beside('tokenizer_config.json')
  special = {}
  for role in 'bos_token', 'eos_token':
    token = config.get(role)
    token = token.get('content') if isinstance(token, dict) else token
    if token is not None:
      special[role] = token
  end_tokens = [tokenizer.token_to_id(special.get('eos_token', ''))]
  for file in 'config.json', 'generation_config.json':
    found = beside(file).get('eos_token_id')
    end_tokens += found if isinstance(found, list) else [found]
  template = config.get('chat_template')
  if isinstance(template, list):  # several by name
    template = {each['name']: each['template'] for each in template}.get('default')
  if (folder / 'chat_template.jinja').exists():
    template = (folder / 'chat_template.jinja').read_text('utf-8')
  return Tokenizer(
    tokenizer,
    name=name,
    end_tokens=[token for token in end_tokens if token is not None],
    chat_template=template,
    special_tokens=special,
  )


def from_gguf(metadata: Callable[..., Any], name: str) -> Tokenizer:
  """Builds the tokenizer that the metadata of a GGUF file describes.

  Raises UserError unless it is byte-level BPE, split as one of the known models does.
  """
  model, kind = metadata('tokenizer.ggml.model'), metadata('tokenizer.ggml.pre')
  splits = {
    'smollm': [
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
    ],
    'qwen2': _split(''),
    'llama-bpe': _split('{1,3}'),
  }
  if model != 'gpt2' or kind not in splits:
    raise UserError(
      f'the tokenizer of {name} is {model!r} with the pre-tokenizer {kind!r}; it must '
      f"be 'gpt2' with one of {', '.join(splits)}"
    )
  tokens = metadata('tokenizer.ggml.tokens')
  kinds = metadata('tokenizer.ggml.token_type')
  merges = [tuple(pair.split(' ', 1)) for pair in metadata('tokenizer.ggml.merges')]
  vocabulary = {
    token: i
    for i, (token, kind_) in enumerate(zip(tokens, kinds, strict=True))
    if kind_ != _UNUSED
  }
  tokenizer = tokenizers.Tokenizer(
    models.BPE(vocabulary, merges, ignore_merges=kind == 'llama-bpe')
  )
  if kind == 'qwen2':
    tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits[kind])
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_tokens(
    [
      tokenizers.AddedToken(token, special=kind_ == _CONTROL, normalized=False)
      for token, kind_ in zip(tokens, kinds, strict=True)
      if kind_ in (_CONTROL, _USER_DEFINED)
    ]
  )
  ends = (metadata(f'tokenizer.ggml.{end}_token_id') for end in ('eos', 'eot', 'eom'))
  special = {}
  for role in 'bos', 'eos':
    token = metadata(f'tokenizer.ggml.{role}_token_id')
    if token is not None:
      special[f'{role}_token'] = tokens[token]
  return Tokenizer(
    tokenizer,
    name=name,
    end_tokens=[token for token in ends if token is not None],
    chat_template=metadata('tokenizer.chat_template'),
    special_tokens=special,
  )


def _split(digits: str) -> list[Any]:
  return [
    pre_tokenizers.Split(tokenizers.Regex(_SPLIT % digits), 'isolated'),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
  ]


def _refuse(message: str) -> None:
  raise jinja2.TemplateError(message)
