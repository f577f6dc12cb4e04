"""Sentence embeddings by a BERT encoder, as all-MiniLM-L6-v2 makes them."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from tqdm import tqdm

from zoo.errors import UserError

_BATCH = 64  # sentences of about one length, in one call
_LENGTHS = 16, 32, 64, 128, 256, 512  # that sentences are padded to, in tokens

# The names of the weights in the file: a layer's by our names, and those before it.
_LAYER = {
  'query': 'attention.self.query',
  'key': 'attention.self.key',
  'value': 'attention.self.value',
  'attended': 'attention.output.dense',
  'attention_norm': 'attention.output.LayerNorm',
  'inner': 'intermediate.dense',
  'outer': 'output.dense',
  'norm': 'output.LayerNorm',
}
_LEAF = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'bias': 'bias'}
# Of the file, what the mean of the last layer has no use for.
_UNUSED = 'pooler.dense.weight', 'pooler.dense.bias', 'embeddings.position_ids'


class _Layer(nnx.Module):
  """One layer: attention, then the perceptron, each with its sum normalised.

  Equations (1) and (2) of Vaswani et al., arXiv 1706.03762, with GELU.
  """

  def __init__(self, width: int, inner: int, heads: int, eps: float, rngs: nnx.Rngs):
    self.heads = heads
    self.query = nnx.Linear(width, width, rngs=rngs)
    self.key = nnx.Linear(width, width, rngs=rngs)
    self.value = nnx.Linear(width, width, rngs=rngs)
    self.attended = nnx.Linear(width, width, rngs=rngs)
    self.attention_norm = nnx.LayerNorm(width, epsilon=eps, rngs=rngs)
    self.inner = nnx.Linear(width, inner, rngs=rngs)
    self.outer = nnx.Linear(inner, width, rngs=rngs)
    self.norm = nnx.LayerNorm(width, epsilon=eps, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'b t w'], is_token: Bool[Array, 'b t']
  ) -> Float[Array, 'b t w']:
    split = (*x.shape[:2], self.heads, -1)
    attended = jax.nn.dot_product_attention(
      self.query(x).reshape(split),
      self.key(x).reshape(split),
      self.value(x).reshape(split),
      mask=is_token[:, None, None, :],
    )
    x = self.attention_norm(x + self.attended(attended.reshape(x.shape)))
    inner = jax.nn.gelu(self.inner(x), approximate=False)
    return self.norm(x + self.outer(inner))


class Encoder(nnx.Module):
  """BERT (Devlin et al., arXiv 1810.04805) by the `config.json` of Hugging Face."""

  def __init__(self, config: dict[str, Any], rngs: nnx.Rngs):
    width, eps = config['hidden_size'], config['layer_norm_eps']
    self.word = nnx.Embed(config['vocab_size'], width, rngs=rngs)
    self.position = nnx.Embed(config['max_position_embeddings'], width, rngs=rngs)
    self.token_type = nnx.Embed(config['type_vocab_size'], width, rngs=rngs)
    self.norm = nnx.LayerNorm(width, epsilon=eps, rngs=rngs)
    heads, inner = config['num_attention_heads'], config['intermediate_size']
    self.layers = nnx.List(
      _Layer(width, inner, heads, eps, rngs) for _ in range(config['num_hidden_layers'])
    )

  def __call__(
    self, tokens: Int[Array, 'b t'], lengths: Int[Array, ' b']
  ) -> Float[Array, 'b w']:
    """The mean of the last layer over each sentence's tokens, of norm 1."""
    positions = jnp.arange(tokens.shape[1])[None]
    x = self.word(tokens) + self.position(positions)
    x = self.norm(x + self.token_type(jnp.zeros_like(positions)))
    is_token = positions < lengths[:, None]
    for layer in self.layers:
      x = layer(x, is_token)
    total = jnp.sum(x, axis=1, where=is_token[..., None])
    # The number of tokens cancels in the norm.
    return total / jnp.linalg.norm(total, axis=1, keepdims=True)


class SentenceEmbedder:
  """Texts to vectors of norm 1."""

  def __init__(self, encoder: Encoder, tokenizer: Tokenizer, max_length: int):
    graph, self._weights = nnx.split(encoder)
    self._embed = jax.jit(lambda weights, *args: nnx.merge(graph, weights)(*args))
    self._tokenizer, self._max_length = tokenizer, max_length
    self._tokenizer.no_padding()
    self._tokenizer.enable_truncation(max_length)

  @classmethod
  def load(cls, folder: str | os.PathLike[str]) -> SentenceEmbedder:
    """Reads `config.json`, `tokenizer.json` and `model.safetensors` of a folder.

    `max_seq_length` of `sentence_bert_config.json` bounds a text, where there is one.
    Raises UserError where a file is missing or is not of a BERT encoder.
    """
    folder = pathlib.Path(folder).expanduser()
    names = 'config.json', 'tokenizer.json', 'model.safetensors'
    if not folder.is_dir():
      raise UserError(f'the folder of the sentence encoder {folder} does not exist')
    for name in names:
      if not (folder / name).is_file():
        raise UserError(f'{folder} has no {name}; an encoder is {", ".join(names)}')
    try:
      config = json.loads((folder / 'config.json').read_text())
      tokenizer = Tokenizer.from_file(str(folder / 'tokenizer.json'))
      max_length = config['max_position_embeddings']
      limit = folder / 'sentence_bert_config.json'
      if limit.is_file():
        max_length = min(max_length, json.loads(limit.read_text())['max_seq_length'])
    except Exception as error:  # the tokenizers library raises bare Exceptions
      raise UserError(f'{folder} cannot be read: {error}') from error
    if config.get('model_type') != 'bert' or config.get('hidden_act') != 'gelu':
      raise UserError(
        f'{folder} holds a model of type {config.get("model_type")!r} with '
        f'{config.get("hidden_act")!r}; it must be bert with gelu'
      )
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.get('vocab_size', 0):
      raise UserError(
        f'the tokenizer of {folder} has the token {largest}; the encoder knows '
        f'{config.get("vocab_size")} tokens'
      )
    encoder = _load_encoder(config, folder / 'model.safetensors')
    return cls(encoder, tokenizer, max_length)

  def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
    """The embeddings, float32; each different text is computed once."""
    unique = list(dict.fromkeys(texts))
    tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(unique)]
    order = sorted(range(len(unique)), key=lambda i: len(tokens[i]))
    rows: list[Any] = [None] * len(unique)
    bar = tqdm(
      total=len(unique),
      desc='embedding',
      unit='text',
      dynamic_ncols=True,
      # A log file, unlike a terminal, keeps every refresh.
      mininterval=0.2 if sys.stderr.isatty() else 10.0,
      disable=len(unique) <= _BATCH,
    )
    with bar:
      for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        longest = len(tokens[batch[-1]])
        fitting = (length for length in _LENGTHS if length >= longest)
        padded = min(next(fitting, longest), self._max_length)
        ids = np.zeros((_BATCH, padded), np.int32)
        lengths = np.ones(_BATCH, np.int32)  # of rows that stay empty, too
        for row, i in enumerate(batch):
          ids[row, : len(tokens[i])] = tokens[i]
          lengths[row] = len(tokens[i])
        embedded = np.asarray(self._embed(self._weights, ids, lengths))
        for row, i in enumerate(batch):
          rows[i] = embedded[row]
        bar.update(len(batch))
    place = {text: i for i, text in enumerate(unique)}
    return np.stack([rows[place[text]] for text in texts])


def _load_encoder(config: dict[str, Any], path: pathlib.Path) -> Encoder:
  try:
    abstract = nnx.eval_shape(lambda: Encoder(config, nnx.Rngs(0)))
  except KeyError as error:
    raise UserError(f'the config.json beside {path} has no {error}') from None
  graph, state = nnx.split(abstract)
  flat = nnx.to_flat_state(state)
  try:
    with safe_open(path, framework='numpy') as file:
      names = set(file.keys())
      wanted = {_name(name): variable.get_value().shape for name, variable in flat}
      if missing := sorted(wanted.keys() - names):
        raise UserError(f'{path} lacks {_few(missing)}')
      if surplus := sorted(names - wanted.keys() - set(_UNUSED)):
        raise UserError(f'{path} has {_few(surplus)}, which are not of this encoder')
      loaded = []
      for name, variable in flat:
        tensor = file.get_tensor(_name(name)).astype(np.float32)
        # PyTorch keeps the weights of a linear layer output first.
        tensor = tensor.T if name[-1] == 'kernel' else tensor
        if tensor.shape != variable.get_value().shape:
          raise UserError(
            f'{_name(name)} in {path} has shape {tensor.shape}; by config.json it must '
            f'be {variable.get_value().shape}'
          )
        loaded.append((name, variable.replace(jnp.asarray(tensor))))
  except (SafetensorError, OSError) as error:
    raise UserError(f'{path} is damaged: {error}') from error
  return nnx.merge(graph, nnx.from_flat_state(loaded))


def _name(path: tuple[Any, ...]) -> str:
  """The name in the file of a weight of the encoder."""
  leaf = _LEAF[path[-1]]
  if path[0] == 'layers':
    return f'encoder.layer.{path[1]}.{_LAYER[path[2]]}.{leaf}'
  if path[0] == 'norm':
    return f'embeddings.LayerNorm.{leaf}'
  return f'embeddings.{path[0]}_embeddings.{leaf}'


def _few(names: Sequence[str]) -> str:
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more
