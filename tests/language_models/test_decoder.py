"""The decoder against transformers, NumPy, itself without a cache, and other meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.compare import assert_close, refuses
from tests.language_models import smollm2, tiny
from zoo.language_models.decoder import (
  QUERY_BLOCK,
  Decoder,
  Norm,
  attend,
  rotate,
)
from zoo.language_models.decoder_config import DecoderConfig, llama3_divisors
from zoo.language_models.decoding import PADDING, empty_cache, greedy
from zoo.language_models.weights import load_decoder, open_weights

REFERENCES = smollm2.arrays('tiny.npz')
KINDS = list(tiny.CONFIGS)
# How files are split does not depend on the family, and Gemma is not read from GGUF.
FORMS = [
  *((kind, form) for kind in KINDS for form in ('folder', 'gguf') if kind != 'gemma3'),
  *((kind, 'files') for kind in ('tied_llama', 'llama_3_1', 'qwen2')),
  ('gemma3', 'folder'),
]
# Logits of the tiny models reach 7; two layers of float32 leave errors of 2e-5 in them.
# A norm's ε of 1e-6 in place of 1e-5 moves them by 2e-3, a wrong θ by 2e-2 or more,
# Llama 3.1 without its scaling by 7, and each part of the later families, such as a
# window of one token more, by 1 or more.
TOLERANCE = 1e-4


def make_mesh(data=1, model=1):
  return jax.make_mesh(
    (data, model),
    ('data', 'model'),
    axis_types=(AxisType.Auto,) * 2,
    devices=jax.devices()[: data * model],
  )


def load(path, mesh=None, dtype=jnp.float32):
  with open_weights(path) as weights:
    return load_decoder(weights, mesh or make_mesh(), dtype)


@functools.partial(jax.jit, static_argnums=0)
def _logits(graph, state, tokens):
  positions = jnp.arange(tokens.shape[1])[None]
  mask = positions[:, None] <= positions[:, :, None]
  return nnx.merge(graph, state)(tokens, positions, positions, mask)[0]


def logits_of(decoder, tokens):
  """By one forward pass; what comes after a token, here zeros, does not reach it."""
  filled = np.zeros((1, -(-len(tokens) // 128) * 128), np.int32)
  filled[0, : len(tokens)] = tokens
  return np.asarray(_logits(*nnx.split(decoder), filled)[0, : len(tokens)])


def padded(prompts, width):
  """Tokens and positions, with padding on the left."""
  tokens = np.zeros((len(prompts), width), np.int32)
  positions = np.full((len(prompts), width), PADDING, np.int32)
  for i, prompt in enumerate(prompts):
    tokens[i, width - len(prompt) :] = prompt
    positions[i, width - len(prompt) :] = range(len(prompt))
  return tokens, positions


@functools.partial(jax.jit, static_argnums=0)
def _decode(graph, state, *arguments):
  return greedy(nnx.merge(graph, state), *arguments, num_new=32)


def decoded(decoder, prompts, new, ends=(-7, -7), mesh=None):
  """What greedy decoding in one program gives, and −1 after an end."""
  mesh = mesh or make_mesh()
  batch = np.zeros((len(prompts), 0), np.int32), *padded(prompts, 64)
  with jax.set_mesh(mesh):
    found = _decode(
      *nnx.split(decoder),
      empty_cache(decoder.config, len(prompts), jnp.float32),
      *jax.device_put(batch, NamedSharding(mesh, P('data'))),
      jnp.asarray(ends, jnp.int32),
    )
  return np.asarray(found)[:, :new]


@functools.cache
def loaded(path):
  """A decoder on one device, which several tests share."""
  return load(path)


# Parts.


def test_rotary_positions_turn_complex_numbers():
  rng = np.random.default_rng(0)
  x, positions = rng.normal(size=(2, 5, 3, 8)), rng.integers(0, 2000, (2, 5))
  frequencies = 10000.0 ** (-np.arange(4) / 4)
  angles = positions[..., None] * frequencies
  turned = rotate(jnp.asarray(x, jnp.float32), jnp.asarray(angles, jnp.float32))
  numbers = x[..., :4] + 1j * x[..., 4:]
  numbers = numbers * np.exp(1j * angles)[:, :, None]
  # An angle of 2000 is known to 1e-4 in float32.
  assert_close(turned, np.concatenate([numbers.real, numbers.imag], axis=-1), 2e-4)


def test_llama_3_1_scaling_follows_its_definition():
  config = tiny.CONFIGS['llama_3_1']
  rope = {name: x for name, x in config['rope_scaling'].items() if name != 'rope_type'}
  divisors = llama3_divisors(16, config['rope_theta'], **rope)
  assert_close(divisors, tiny.rope_factors(config), 1e-12)
  # All three cases occur.
  assert divisors[0] == 1
  assert divisors[-1] == pytest.approx(8, rel=1e-12)
  assert sum(1.001 < divisor < 7.999 for divisor in divisors) >= 1
  # And at Llama 3.1's own size: 29 frequencies stay, as 2π·θ^(2i/128) < 2048 says.
  full = llama3_divisors(
    128,
    500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
  )
  assert sum(divisor == 1 for divisor in full) == 29
  assert sum(divisor > 7.999 for divisor in full) == 64 - 35


@pytest.mark.parametrize('t', [5, QUERY_BLOCK + 5])
def test_attention_is_the_softmax_over_what_the_mask_shows(t):
  rng = np.random.default_rng(1)
  b, k, g, p, s = 2, 2, 3, 4, t + 2
  query = rng.normal(size=(b, t, k, g, p)).astype(np.float32)
  key, value = rng.normal(size=(2, b, k, s, p)).astype(np.float32)
  mask = rng.random((b, t, s)) < 0.5
  mask[..., 0] = True
  expected = np.zeros((b, t, k, g, p))
  for i, j, head, group in np.ndindex(b, t, k, g):
    seen = mask[i, j]
    scores = key[i, head, seen] @ query[i, j, head, group] / 3
    weights = np.exp(scores) / np.exp(scores).sum()
    expected[i, j, head, group] = weights @ value[i, head, seen]
  arrays = map(jnp.asarray, (query, key.swapaxes(2, 3), value, mask))
  found = attend(*arrays, scalar=9.0)
  assert_close(found, expected, 1e-6)


@pytest.mark.parametrize('kind', ['qwen3', 'gemma3'])
def test_a_norm_divides_by_the_root_mean_square_of_the_last_axis(kind):
  """And Gemma's scale counts from 1, so that 0 changes nothing."""
  config = DecoderConfig.from_hf(tiny.CONFIGS[kind])
  norm = Norm(config, jnp.float32, 8)
  x = np.random.default_rng(2).normal(size=(2, 3, 4, 8)).astype(np.float32)
  expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True))
  assert_close(norm(jnp.asarray(x)), expected, 1e-5)  # ε is 1e-6 of a mean of about 1
  norm.scale[...] += 2
  assert_close(norm(jnp.asarray(x)), 3 * expected, 3e-5)


# The whole, against transformers.


@pytest.mark.parametrize(('kind', 'form'), FORMS)
def test_logits_are_those_of_transformers(models, kind, form):
  expected = REFERENCES[f'{kind}_logits']
  found = logits_of(loaded(models[kind][form]), tiny.TOKENS)
  found = found[:, :: found.shape[1] // expected.shape[1]]  # all, or every eighth
  assert found.shape == expected.shape
  assert np.abs(found - expected).max() <= TOLERANCE


@pytest.mark.parametrize('kind', KINDS)
def test_greedy_tokens_are_those_of_transformers(models, kind):
  expected = REFERENCES[f'{kind}_greedy']
  found = decoded(loaded(models[kind]['folder']), [tiny.TOKENS], len(expected))
  np.testing.assert_array_equal(found[0], expected)


# The cache, the padding, the batch.


@pytest.mark.parametrize('kind', ['qwen2', 'smollm3', 'gemma3'])
def test_decoding_with_a_cache_is_the_whole_forward_pass(models, kind):
  """Logits too, and from a prompt longer than a block of queries, or a window."""
  decoder = loaded(models[kind]['folder'])
  tokens = np.concatenate([tiny.TOKENS, tiny.TOKENS[::-1]])
  whole = logits_of(decoder, tokens)
  # Six slots of padding come first, and two at the end are never used.
  start, pads, num_slots = 70, 6, len(tokens) + 8
  prompt, positions = map(jnp.asarray, padded([tokens[:start]], start + pads))
  graph, state = nnx.split(decoder)
  step = jax.jit(lambda state, *arguments: nnx.merge(graph, state)(*arguments))
  mask = positions[:, None] <= positions[:, :, None]
  logits, cache = step(state, prompt, positions, positions, mask)
  assert np.abs(logits[0, pads:] - whole[:start]).max() <= TOLERANCE
  free = 0, num_slots - start - pads
  cache = [
    (
      jnp.pad(key, ((0, 0), (0, 0), (0, 0), free)),
      jnp.pad(value, ((0, 0), (0, 0), free, (0, 0))),
    )
    for key, value in cache
  ]
  slots = np.arange(num_slots)
  slot_positions = jnp.asarray(slots[None] - pads)
  for i in range(start, len(tokens)):
    seen = (slots >= pads) & (slots <= i + pads)
    logits, cache = step(
      state,
      jnp.asarray([[tokens[i]]], jnp.int32),
      jnp.asarray([[i]], jnp.int32),
      slot_positions,
      jnp.asarray(seen[None, None]),
      cache,
      jnp.int32(i + pads),
    )
    assert np.abs(logits[0, 0] - whole[i]).max() <= TOLERANCE


def test_a_padded_batch_gives_what_each_prompt_gives_alone(models):
  decoder = loaded(models['qwen2']['folder'])
  prompts = [tiny.TOKENS[:n] for n in (1, 17, 48)]
  together = decoded(decoder, prompts, 12)
  for prompt, row in zip(prompts, together, strict=True):
    # In one forward pass without a cache each token follows from those before.
    logits = logits_of(decoder, np.concatenate([prompt, row]))
    np.testing.assert_array_equal(row, logits[len(prompt) - 1 : -1].argmax(axis=-1))


def test_a_row_stops_at_an_end_token_and_the_others_go_on(models):
  decoder = loaded(models['tied_llama']['folder'])
  prompts = [tiny.TOKENS[:n] for n in (9, 17, 48)]
  free = decoded(decoder, prompts, 12)
  ends = free[0, 3], free[2, 0]
  for row, cut in zip(free, decoded(decoder, prompts, 12, ends), strict=True):
    stop = min(np.flatnonzero(np.isin(row, ends)), default=11)
    np.testing.assert_array_equal(cut[: stop + 1], row[: stop + 1])
    assert (cut[stop + 1 :] == -1).all()


# Meshes and precisions.


@pytest.mark.parametrize(('data', 'model'), [(4, 2), (1, 8)])
def test_eight_devices_give_what_one_gives(models, data, model):
  path = models['qwen2']['gguf']  # eight key-value heads
  mesh = make_mesh(data, model)
  one, eight = loaded(path), load(path, mesh)
  layer = eight.layers[0]
  assert eight.head is not None
  for matrix in (
    layer.attention.query,
    layer.attention.key,
    layer.attention.value,
    layer.attention.out,
    layer.feed_forward.gate,
    layer.feed_forward.up,
    layer.feed_forward.down,
    eight.embedding,
    eight.head,
  ):
    for shard in matrix[...].addressable_shards:
      assert shard.data.size * model == matrix[...].size
  prompts = [tiny.TOKENS[n : n + 20] for n in range(8)]
  np.testing.assert_array_equal(
    decoded(eight, prompts, 12, mesh=mesh), decoded(one, prompts, 12)
  )


@pytest.mark.parametrize(('data', 'model'), [(4, 2), (1, 8)])
def test_logits_on_eight_devices_are_those_on_one(models, data, model):
  path, mesh = models['qwen2']['gguf'], make_mesh(data, model)
  with jax.set_mesh(mesh):
    logits = logits_of(load(path, mesh), tiny.TOKENS)
  assert np.abs(logits - logits_of(loaded(path), tiny.TOKENS)).max() <= TOLERANCE


def test_four_devices_give_what_one_gives_with_norms_of_heads(models):
  path, mesh = models['gemma3']['folder'], make_mesh(1, 4)
  prompts = [tiny.TOKENS[n : n + 20] for n in range(4)]
  np.testing.assert_array_equal(
    decoded(load(path, mesh), prompts, 12, mesh=mesh),
    decoded(loaded(path), prompts, 12),
  )


@pytest.mark.parametrize('kind', ['llama_3_1', 'gemma3'])
def test_bfloat16_is_float32_but_for_rounding(models, kind):
  path = models[kind]['folder']
  decoder = load(path, dtype=jnp.bfloat16)
  assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(nnx.state(decoder)))
  exact, rounded = logits_of(loaded(path), tiny.TOKENS), logits_of(decoder, tiny.TOKENS)
  assert rounded.dtype == np.float32
  # A number is rounded by 2⁻⁹ of itself, and about twenty roundings add up to 1%.
  assert np.sqrt(np.mean((rounded - exact) ** 2)) <= 0.03 * exact.std()


def test_a_random_decoder_needs_no_files():
  config = DecoderConfig.from_hf(tiny.CONFIGS['tied_llama'])
  make = nnx.jit(lambda: Decoder(config, rngs=nnx.Rngs(0)))
  logits = logits_of(make(), tiny.TOKENS)
  assert logits.shape == (48, config.vocab_size)
  assert np.isfinite(logits).all()


def test_a_mesh_that_does_not_divide_the_model_is_refused(models):
  with refuses('num_kv_heads of the model is 2', 'which is 4'):
    load(models['llama_3_1']['folder'], make_mesh(2, 4))
