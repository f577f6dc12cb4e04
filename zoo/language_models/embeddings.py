"""Sentence embeddings by a BERT encoder such as all-MiniLM-L6-v2."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree
from tokenizers import Tokenizer
from tqdm import tqdm

from zoo.core.errors import RunError, UserError
from zoo.core.fields import Fields
from zoo.host.files import read_json, user_path
from zoo.language_models.encoder import Encoder, EncoderConfig, load_encoder
from zoo.language_models.tokenizer import guarded, largest_token, read_tokenizer

_BATCH = 64  # sentences of similar length in one call
_LENGTHS = 16, 32, 64, 128, 256, 512  # tokens; sentences are padded to one of these


class SentenceEmbedder:
  """Embeds texts as vectors of norm 1."""

  def __init__(self, encoder: Encoder, tokenizer: Tokenizer, max_length: int):
    """Texts are truncated to `max_length` tokens.

    Raises UserError if special tokens leave no room for the text.
    """
    around = tokenizer.num_special_tokens_to_add(is_pair=False)
    if max_length <= around:
      raise UserError(
        f'the sentence encoder takes {max_length} tokens; it must take more than the '
        f'{around} that its tokenizer puts around each text'
      )
    self._graph, self._weights = nnx.split(encoder)
    self._vocab_size = encoder.word.num_embeddings
    self._tokenizer, self._max_length = tokenizer, max_length
    self._tokenizer.enable_truncation(max_length)

  @classmethod
  def load(cls, folder: str | os.PathLike[str]) -> SentenceEmbedder:
    """Reads `config.json`, `tokenizer.json` and `model.safetensors` from a folder.

    `max_seq_length` of `sentence_bert_config.json`, if it exists, limits the tokens of
    a text. Raises UserError if a file is missing, damaged or not of a BERT encoder.
    """
    folder = user_path(folder)
    names = 'config.json', 'tokenizer.json', 'model.safetensors'
    if not os.path.isdir(folder):  # false for a name that is too long
      raise UserError(f'the folder of the sentence encoder {folder} does not exist')
    for name in names:
      if not (folder / name).is_file():
        raise UserError(f'{folder} has no {name}; an encoder is {", ".join(names)}')
    path = folder / 'config.json'
    config = EncoderConfig.from_hf(read_json(path), str(path))
    limit = folder / 'sentence_bert_config.json'
    fields = Fields(read_json(limit) if limit.is_file() else {}, str(limit))
    max_length = fields.integer('max_seq_length', 1, default=config.max_length)
    tokenizer = read_tokenizer(folder / 'tokenizer.json')
    if (largest := largest_token(tokenizer)) >= config.vocab_size:
      raise UserError(
        f'the tokenizer of {folder} has the token {largest}; the vocabulary of the '
        f'encoder has {config.vocab_size} tokens'
      )
    encoder = load_encoder(config, folder / 'model.safetensors')
    return cls(encoder, tokenizer, min(max_length, config.max_length))

  def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
    """The embeddings, float32; repeated texts are computed once.

    Raises UserError if the tokenizer fails, and RunError if a number is not finite.
    """
    unique = list(dict.fromkeys(texts))
    tokens = self._encode(unique)
    order = sorted(range(len(unique)), key=lambda i: len(tokens[i]))
    embedded: dict[str, np.ndarray] = {}
    bar = tqdm(
      total=len(unique),
      desc='embedding',
      unit='text',
      dynamic_ncols=True,
      # A log file, unlike a terminal, would record every refresh.
      mininterval=0.2 if sys.stderr.isatty() else 10.0,
      disable=len(unique) <= _BATCH,
    )
    with bar:
      for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        rows = self._embed_batch([tokens[i] for i in batch])
        embedded |= {unique[i]: row for i, row in zip(batch, rows, strict=True)}
        bar.update(len(batch))
    found = np.stack([embedded[text] for text in texts])
    if not np.isfinite(found).all():
      raise RunError('the sentence encoder gives numbers that are not finite')
    return found

  def _encode(self, texts: Sequence[str]) -> list[list[int]]:
    encode = self._tokenizer.encode_batch
    encodings = guarded("the sentence encoder's tokenizer fails", encode, texts)
    tokens = [encoding.ids for encoding in encodings]
    for ids in tokens:
      # Special tokens need not be in the vocabulary.
      if not 0 < len(ids) <= self._max_length or max(ids) >= self._vocab_size:
        raise UserError(
          f"the sentence encoder's tokenizer makes {len(ids)} tokens of a text, the "
          f'largest {max(ids, default=-1)}; it must make 1 to {self._max_length}, all '
          f'below {self._vocab_size}'
        )
    return tokens

  def _embed_batch(self, tokens: Sequence[Sequence[int]]) -> Float[np.ndarray, 'n w']:
    """Embeds up to `_BATCH` texts, sorted by length, as a padded batch."""
    longest = len(tokens[-1])
    padded = next((length for length in _LENGTHS if length >= longest), longest)
    ids = np.zeros((_BATCH, min(padded, self._max_length)), np.int32)
    lengths = np.ones(_BATCH, np.int32)  # 1 also for padding rows
    for row, of_text in enumerate(tokens):
      ids[row, : len(of_text)] = of_text
      lengths[row] = len(of_text)
    embedded = _embed(self._graph, self._weights, ids, lengths)
    return np.asarray(embedded)[: len(tokens)]


@functools.partial(jax.jit, static_argnums=0)
def _embed(
  graph: nnx.GraphDef,
  weights: PyTree,
  tokens: Int[Array, 'n t'],
  lengths: Int[Array, ' n'],
) -> Float[Array, 'n w']:
  return nnx.merge(graph, weights)(tokens, lengths)
