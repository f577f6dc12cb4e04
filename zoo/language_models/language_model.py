"""A language model from a folder or a GGUF file, which generates and scores answers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float64, PyTree

from zoo.core.errors import RunError, UserError, check_count, check_name
from zoo.language_models import tokenizer as tokenizers
from zoo.language_models.decoder import Cache, Decoder
from zoo.language_models.decoding import (
  PADDING,
  empty_cache,
  extend,
  greedy,
  tree_log_probabilities,
)
from zoo.language_models.weights import GGUFWeights, Path, load_decoder, open_weights

_DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
# Prompts are read in chunks that end at multiples of _CHUNK slots, and trees of
# continuations are padded to multiples of nodes and pairs, so that prompts of all
# lengths share few programs. A chunk attends only to the slots so far, which halves the
# time of attention.
_CHUNK, _TREE_BLOCK, _PAIR_BLOCK = 128, 32, 128


@dataclasses.dataclass(frozen=True)
class Past:
  """The keys and values of prompts, computed by `LanguageModel.read`."""

  prompts: Sequence[Sequence[int]]  # their tokens
  cache: Cache
  positions: np.ndarray  # of each row's slots; PADDING where there is no token


class LanguageModel:
  """A decoder with trained weights, its tokenizer and its chat template."""

  def __init__(
    self,
    decoder: Decoder,
    tokenizer: tokenizers.Tokenizer,
    *,
    cache_length: int,
    mesh: Mesh,
  ):
    """A prompt and its answer have at most `cache_length` tokens.

    Raises UserError if the tokenizer has tokens beyond the decoder's vocabulary.
    """
    config = decoder.config
    if tokenizer.largest_token >= config.vocab_size:
      raise UserError(
        f'the tokenizer of {tokenizer.name} has the token {tokenizer.largest_token}; '
        f'the vocabulary of the model has {config.vocab_size} tokens'
      )
    self.name = tokenizer.name
    self.cache_length = check_count('cache_length', cache_length)
    self._tokenizer = tokenizer
    # Batches are padded to a multiple of the devices that they are split over.
    self.batch_multiple = mesh.shape['data']
    self._mesh = mesh
    self._graph, self._state = nnx.split(decoder)
    self.num_params = sum(
      math.prod(leaf.shape) for leaf in jax.tree.leaves(self._state)
    )
    # By default accelerators multiply float32 matrices in fewer bits.
    self._config, self._dtype = config, decoder.embedding.dtype
    exact = self._dtype == jnp.float32
    self._precision = 'float32' if exact else 'default'

  @classmethod
  def load(
    cls,
    path: Path | Sequence[Path],
    dtype: str = 'float32',
    cache_length: int = 1536,
    mesh: Mesh | None = None,
  ) -> LanguageModel:
    """Loads a Hugging Face folder, a GGUF file, or its parts (a list or a folder).

    The mesh has the axes `data` and `model`; None means one device. Raises UserError
    for files that are damaged, do not fit each other, or are of another architecture.
    """
    check_name('dtype', dtype, _DTYPES)
    if mesh is None:
      mesh = jax.make_mesh(
        (1, 1),
        ('data', 'model'),
        axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[:1],
      )
    with open_weights(path) as weights:
      if isinstance(weights, GGUFWeights):
        tokenizer = tokenizers.from_gguf(weights.metadata, weights.name)
      else:
        assert isinstance(path, str | pathlib.Path)
        tokenizer = tokenizers.from_folder(pathlib.Path(path), weights.name)
      decoder = load_decoder(weights, mesh, _DTYPES[dtype])
    return cls(decoder, tokenizer, cache_length=cache_length, mesh=mesh)

  def chat(self, user_text: str, answer_prefix: str = '') -> str:
    """A prompt: one user turn in the model's template, and the start of its answer.

    Raises UserError if the model has no chat template.
    """
    return self._tokenizer.chat(user_text, answer_prefix)

  def num_tokens(self, prompt: str) -> int:
    """The number of tokens of a whole prompt."""
    return len(self._tokenizer.encode(prompt))

  def read(self, prompts: Sequence[str], past: Past | None = None) -> Past:
    """Computes the keys and values of prompts, from which the other methods start.

    `past` is the result of reading as many prompts, or one prompt; the beginning that a
    prompt shares with it is not computed again. Raises UserError if a prompt does not
    fit the cache.
    """
    return self._read([self._encode(prompt) for prompt in prompts], past)

  def read_beginning(self, prompts: Sequence[str]) -> Past | None:
    """The common beginning of all prompts, read as one prompt."""
    common = _common([self._encode(prompt) for prompt in prompts])
    return self._read([common], None) if common else None

  def generate(
    self, prompts: Sequence[str], max_new_tokens: int, past: Past | None = None
  ) -> list[str]:
    """Answers by greedy decoding, with all prompts in one batch.

    An answer ends at the model's end token or after `max_new_tokens`. `past` is as in
    `read`. Raises UserError if a prompt and that many tokens do not fit the cache.
    """
    new = check_count('max_new_tokens', max_new_tokens)
    encoded = [self._encode(prompt, new, 'new tokens') for prompt in prompts]
    if not encoded:
      return []
    ends = np.asarray(self._tokenizer.end_tokens, np.int32)
    found = self._follow(_greedy, encoded, past, ends, num_new=new)
    return [
      self._tokenizer.decode([i for i in row if i >= 0 and i not in ends])
      for row in found.tolist()
    ]

  def log_probabilities(
    self,
    prompts: Sequence[str],
    continuations: Sequence[str],
    past: Past | None = None,
  ) -> Float64[np.ndarray, 'b n']:
    """log p(continuation | prompt), summed over each continuation's tokens.

    The continuations follow each prompt as one tree, in which they share common
    prefixes and branches do not attend to each other. `past` is as in `read`. Raises
    UserError if a prompt and a continuation do not fit the cache, and RunError if a
    probability is not finite.
    """
    tree = _Tree([self._tokenizer.encode(text) for text in continuations])
    longest = max(map(len, tree.paths), default=0)
    encoded = [self._encode(prompt, longest, 'of a continuation') for prompt in prompts]
    logs = np.zeros((len(encoded), len(tree.paths)))
    if not encoded:
      return logs
    found = self._follow(_score, encoded, past, *tree.arrays()).astype(np.float64)
    if not np.isfinite(found).all():
      raise RunError(
        f'{self.name} gives probabilities that are not finite; its numbers may exceed '
        'the range of the dtype that it was loaded with'
      )
    for i, indices in enumerate(tree.paths):
      logs[:, i] = found[:, indices].sum(axis=1)
    return logs

  def _encode(self, prompt: str, more: int = 0, of: str = '') -> list[int]:
    ids = self._tokenizer.encode(prompt)
    if not ids:
      raise UserError('a prompt is empty; it must have at least one token')
    if len(ids) + more > self.cache_length:
      together = f', and with {more} {of} {len(ids) + more}' if more else ''
      raise UserError(
        f'a prompt has {len(ids)} tokens{together}; it must fit cache_length, which is '
        f'{self.cache_length}'
      )
    return ids

  def _read(self, prompts: Sequence[list[int]], past: Past | None) -> Past:
    if not prompts:
      raise UserError('there are no prompts to read')
    cache, positions, rest = self._fork(prompts, past)
    used = positions.shape[1]
    width = _rounded_up(used + max(map(len, rest)), _CHUNK) - used
    tokens, token_positions = _padded(rest, positions, width, left=False)
    start = 0
    while start < width:
      stop = _rounded_up(used + start + 1, _CHUNK) - used
      chunk = tokens[:, start:stop], token_positions[:, start:stop]
      cache = self._run(_extend, cache, (positions, *chunk))
      positions = np.concatenate([positions, chunk[1]], axis=1)
      start = stop
    return Past(prompts, cache, positions)

  def _follow(
    self,
    program: Callable[..., Array],
    prompts: Sequence[list[int]],
    past: Past | None,
    *arguments: np.ndarray,
    **static: int,
  ) -> np.ndarray:
    """Runs a program on the tokens of each prompt that its past lacks."""
    past = past or self._read(prompts, None)
    cache, positions, rest = self._fork(prompts, past)
    batch = positions, *_padded(rest, positions, max(map(len, rest)), left=True)
    found = self._run(program, cache, batch, *arguments, **static)
    return np.asarray(found)[: len(prompts)]

  def _fork(
    self, prompts: Sequence[list[int]], past: Past | None
  ) -> tuple[Cache, np.ndarray, list[list[int]]]:
    """A cache with the shared slots, their positions, and each prompt's other tokens.

    The other tokens always include a prompt's last one, since its logits are needed.
    """
    # Rows that pad the batch repeat the first prompt.
    rows = _rounded_up(len(prompts), self.batch_multiple)
    tokens = [*prompts, *[prompts[0]] * (rows - len(prompts))]
    if past is None:
      cache = empty_cache(self._config, rows, self._dtype)
      return cache, np.zeros((rows, 0), np.int32), tokens
    if len(past.prompts) not in (1, len(prompts)):
      raise UserError(
        f'the past is of {len(past.prompts)} prompts; it must be of 1 or {len(prompts)}'
      )
    kept = [
      min(len(_common([before, ids])), len(ids) - 1)
      for before, ids in zip(itertools.cycle(past.prompts), tokens, strict=False)
    ]
    if len(past.prompts) < len(prompts):
      kept = [min(kept)] * rows
      positions = np.repeat(past.positions[:1, : kept[0]], rows, axis=0)
    else:
      before = past.positions < np.reshape(kept, (-1, 1))
      positions = np.where(before, past.positions, PADDING)
    rest = [ids[count:] for ids, count in zip(tokens, kept, strict=True)]
    return past.cache, positions, rest

  def _run(
    self,
    program: Callable[..., Any],
    cache: Cache,
    batch: Sequence[np.ndarray],
    *arguments: np.ndarray,
    **static: int,
  ) -> Any:
    put = [jax.device_put(x, NamedSharding(self._mesh, P('data'))) for x in batch]
    put += [jax.device_put(x, NamedSharding(self._mesh, P())) for x in arguments]
    with (
      jax.set_mesh(self._mesh),
      jax.default_matmul_precision(self._precision),
    ):
      return program(self._graph, self._state, cache, *put, **static)


class _Tree:
  """Continuations as a tree, whose nodes are the tokens that are followed by others."""

  def __init__(self, paths: Sequence[Sequence[int]]):
    self.paths: list[list[int]] = []  # the indices of each continuation's pairs
    self._tokens: list[int] = []  # of all nodes except the root, parents first
    self._depths: list[int] = []  # number of nodes between each one and the root
    self._parents: list[int] = []
    # Node 0, the root, is the prompt's last token.
    self._pairs: dict[tuple[int, int], int] = {}  # (node, next token) → its index
    nodes = {}
    for path in paths:
      node, indices = 0, []
      for depth, token in enumerate(path):
        pair = node, token
        indices.append(self._pairs.setdefault(pair, len(self._pairs)))
        if depth + 1 < len(path):
          if pair not in nodes:
            self._tokens.append(token)
            self._depths.append(depth)
            self._parents.append(node)
            nodes[pair] = len(self._tokens)
          node = nodes[pair]
      self.paths.append(indices)

  def arrays(self) -> tuple[np.ndarray, ...]:
    """The nodes' tokens, depths and ancestors, and the pairs, padded with zeros."""
    count, num_pairs = len(self._tokens), len(self._pairs)
    n = _rounded_up(count, _TREE_BLOCK)
    nodes = np.zeros((2, n), np.int32)
    nodes[:, :count] = self._tokens, self._depths
    # Each node attends to itself, and to all nodes between it and the root.
    ancestors = np.eye(n, dtype=bool)
    for node, parent in enumerate(self._parents):
      if parent:
        ancestors[node] |= ancestors[parent - 1]
    pairs = np.zeros((_rounded_up(num_pairs, _PAIR_BLOCK), 2), np.int32)
    pairs[:num_pairs] = np.reshape(list(self._pairs), (-1, 2))
    return *nodes, ancestors, pairs


def _padded(
  rest: Sequence[Sequence[int]], seen: np.ndarray, width: int, *, left: bool
) -> tuple[np.ndarray, np.ndarray]:
  """Arrays of tokens and of their positions, which continue those seen before."""
  tokens = np.zeros((len(rest), width), np.int32)
  positions = np.full((len(rest), width), PADDING, np.int32)
  firsts = (seen < PADDING).sum(axis=1)
  for i, (ids, first) in enumerate(zip(rest, firsts, strict=True)):
    place = slice(width - len(ids), width) if left else slice(len(ids))
    tokens[i, place], positions[i, place] = ids, first + np.arange(len(ids))
  return tokens, positions


def _common(prompts: Sequence[Sequence[int]]) -> list[int]:
  """The tokens at the beginning that all prompts share."""
  places = zip(*prompts, strict=False)
  return [
    tokens[0]
    for tokens in itertools.takewhile(lambda tokens: len(set(tokens)) == 1, places)
  ]


def _rounded_up(count: int, block: int) -> int:
  return -(-count // block) * block


def _compiled(program: Callable[..., Any], *static: str) -> Callable[..., Any]:
  @functools.partial(jax.jit, static_argnums=0, static_argnames=static)
  def run(graph: nnx.GraphDef, state: PyTree, *arguments: Any, **static: int) -> Any:
    return program(nnx.merge(graph, state), *arguments, **static)

  return run


_extend, _score = _compiled(extend), _compiled(tree_log_probabilities)
_greedy = _compiled(greedy, 'num_new')
