"""A language model from a folder or a GGUF file: it generates and scores answers."""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Float64, Int, PyTree

from zoo.errors import RunError, UserError, check_count, check_name
from zoo.language_models import tokenizer as tokenizers
from zoo.language_models.decoder import Decoder
from zoo.language_models.decoding import causal, greedy
from zoo.language_models.weights import GGUFWeights, Path, load_decoder, open_weights

_DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
# Prompts and trees of continuations are padded to a multiple of this many tokens, so
# that few programs are compiled.
_PROMPT_BLOCK, _TREE_BLOCK = 128, 32


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
    self._mesh = mesh
    self._graph, self._state = nnx.split(decoder)
    self.num_params = sum(
      math.prod(leaf.shape) for leaf in jax.tree.leaves(self._state)
    )
    # By default accelerators multiply float32 matrices in fewer bits.
    exact = decoder.embedding.dtype == jnp.float32
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

    The mesh has the axes `data` and `model`; None is one device. Raises UserError for
    files that are damaged, do not fit, or are of another architecture.
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

  def generate(self, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
    """Answers by greedy decoding, with all prompts in one batch.

    An answer ends at the model's end token or after `max_new_tokens`. Raises UserError
    if a prompt and that many tokens do not fit the cache.
    """
    new = check_count('max_new_tokens', max_new_tokens)
    encoded = [self._encode(prompt, new, 'new tokens') for prompt in prompts]
    if not encoded:
      return []
    longest = max(map(len, encoded))
    t = min(_rounded_up(longest, _PROMPT_BLOCK), self.cache_length - new)
    num_slots = min(_rounded_up(t + new, _PROMPT_BLOCK), self.cache_length)
    # Rows that pad the batch to the mesh's data axis repeat the first prompt.
    rows = _rounded_up(len(encoded), self._mesh.shape['data'])
    tokens = np.zeros((rows, t), np.int32)
    lengths = np.full(rows, len(encoded[0]), np.int32)
    for i in range(rows):
      ids = encoded[i if i < len(encoded) else 0]
      tokens[i, t - len(ids) :] = ids
      lengths[i] = len(ids)
    found = self._run(
      _greedy,
      (tokens, P('data')),
      (lengths, P('data')),
      (np.asarray(self._tokenizer.end_tokens, np.int32), P()),
      (np.int32(new), P()),
      num_slots=num_slots,
    )
    ends = set(self._tokenizer.end_tokens)
    return [
      self._tokenizer.decode([int(i) for i in row if i >= 0 and int(i) not in ends])
      for row in found[: len(encoded)]
    ]

  def log_probabilities(
    self, prompt: str, continuations: Sequence[str]
  ) -> Float64[np.ndarray, ' n']:
    """log p(continuation | prompt), added up over each continuation's own tokens.

    The prompt is run once. The continuations follow it as one tree, in which they share
    common prefixes, and no branch attends to another (arXiv 2305.09781, section 4).
    Raises UserError if the prompt and a continuation do not fit the cache, and RunError
    if a probability is not finite.
    """
    paths = [self._tokenizer.encode(text) for text in continuations]
    ids = self._encode(prompt, max(map(len, paths), default=0), 'of a continuation')
    tree = _Tree(paths)
    t = min(_rounded_up(len(ids), _PROMPT_BLOCK), self.cache_length)
    m = _rounded_up(len(tree.tokens), _TREE_BLOCK)
    tokens = np.zeros((1, t + m), np.int32)
    tokens[0, t - len(ids) : t] = ids
    tokens[0, t : t + len(tree.tokens)] = tree.tokens
    positions = np.zeros((1, m), np.int32)
    positions[0, : len(tree.depths)] = np.asarray(tree.depths) + len(ids)
    seen = np.zeros((m, m), bool)
    seen[: len(tree.tokens), : len(tree.tokens)] = tree.ancestors()
    pairs = np.zeros((_rounded_up(len(tree.pairs), _PROMPT_BLOCK), 2), np.int32)
    pairs[: len(tree.pairs)] = np.reshape(list(tree.pairs), (-1, 2))
    found = self._run(
      _log_probabilities,
      (tokens, P()),
      (np.asarray([len(ids)], np.int32), P()),
      (positions, P()),
      (seen, P()),
      (pairs, P()),
    ).astype(np.float64)
    if not np.isfinite(found).all():
      raise RunError(
        f'{self.name} gives probabilities that are not finite; its numbers may exceed '
        'the range of the dtype that it was loaded with'
      )
    return np.asarray([found[indices].sum() for indices in tree.paths], np.float64)

  def _encode(self, prompt: str, more: int, of: str) -> list[int]:
    ids = self._tokenizer.encode(prompt)
    if not ids:
      raise UserError('a prompt is empty; it must have at least one token')
    if len(ids) + more > self.cache_length:
      raise UserError(
        f'a prompt has {len(ids)} tokens, and with {more} {of} {len(ids) + more}; '
        f'it must fit cache_length, which is {self.cache_length}'
      )
    return ids

  def _run(
    self,
    compiled: Callable[..., Array],
    *arguments: tuple[np.ndarray | np.generic, P],
    **static: int,
  ) -> np.ndarray:
    sharded = [
      jax.device_put(value, NamedSharding(self._mesh, spec))
      for value, spec in arguments
    ]
    with (
      jax.set_mesh(self._mesh),
      jax.default_matmul_precision(self._precision),
    ):
      return np.asarray(compiled(self._graph, self._state, *sharded, **static))


class _Tree:
  """Continuations as a tree, whose nodes are the tokens that others follow."""

  def __init__(self, paths: Sequence[Sequence[int]]):
    self.tokens: list[int] = []  # of all nodes except the root, parents first
    self.depths: list[int] = []  # number of nodes between each one and the root
    self._parents: list[int] = []
    # Node 0, the root, is the prompt's last token.
    self.pairs: dict[tuple[int, int], int] = {}  # (node, next token) → its index
    self.paths: list[list[int]] = []  # the indices of each continuation's pairs
    nodes = {}
    for path in paths:
      node, indices = 0, []
      for depth, token in enumerate(path):
        pair = node, token
        indices.append(self.pairs.setdefault(pair, len(self.pairs)))
        if depth + 1 < len(path):
          if pair not in nodes:
            self.tokens.append(token)
            self.depths.append(depth)
            self._parents.append(node)
            nodes[pair] = len(self.tokens)
          node = nodes[pair]
      self.paths.append(indices)

  def ancestors(self) -> np.ndarray:
    """Which nodes each node attends to: itself, and all between it and the root."""
    seen = np.eye(len(self.tokens), dtype=bool)
    for node, parent in enumerate(self._parents):
      if parent:
        seen[node] |= seen[parent - 1]
    return seen


def _rounded_up(count: int, block: int) -> int:
  return -(-count // block) * block


@functools.partial(jax.jit, static_argnums=0, static_argnames='num_slots')
def _greedy(
  graph: nnx.GraphDef, state: PyTree, *arguments: Array, num_slots: int
) -> Array:
  return greedy(nnx.merge(graph, state), *arguments, num_slots=num_slots)


@functools.partial(jax.jit, static_argnums=0)
def _log_probabilities(
  graph: nnx.GraphDef,
  state: PyTree,
  tokens: Int[Array, '1 n'],
  lengths: Int[Array, 1],
  tree_positions: Int[Array, '1 m'],
  tree_seen: Array,
  pairs: Int[Array, 'n_pairs 2'],
) -> Float[Array, ' n_pairs']:
  """log p(token | node) of each pair."""
  m = tree_seen.shape[0]
  t = tokens.shape[1] - m
  positions, seen = causal(tokens[:, :t], lengths)
  # Each node sees the whole prompt, as the prompt's last token does.
  below = jnp.concatenate(
    [jnp.broadcast_to(seen[:, -1:], (1, m, t)), tree_seen[None]], axis=2
  )
  above = jnp.pad(seen, ((0, 0), (0, 0), (0, m)))
  logits, _ = nnx.merge(graph, state)(
    tokens,
    jnp.concatenate([positions, tree_positions], axis=1),
    jnp.concatenate([above, below], axis=1),
    read_from=t - 1,
  )
  log_p = jax.nn.log_softmax(logits[0], axis=-1)
  return log_p[pairs[:, 0], pairs[:, 1]]
