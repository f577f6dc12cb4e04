"""The generator is Threefry, and its numbers have the distributions they claim."""

import jax
import numpy as np
import pytest
import scipy.stats
from jax.extend.random import threefry2x32_p

from zoo.core import draws

_KEY = jax.random.key(3)
# Compiled as a whole, since JAX compiles operations one by one otherwise.
_threefry, _bind = jax.jit(draws.threefry), jax.jit(threefry2x32_p.bind)
_words, _normals = (
  jax.jit(f, static_argnums=(1, 2)) for f in (draws.words, draws.normals)
)
# A Kolmogorov–Smirnov test of a true claim gives less than this once in 10,000 seeds;
# the seeds are fixed.
_LEAST_P = 1e-4


def test_the_cipher_is_jaxs_own_bit_for_bit():
  words = np.random.default_rng(0).integers(0, 2**32, (4, 1000), np.uint32)
  words[:, :4] = [[0, 0, 2**32 - 1, 1]] * 4
  for key in ([0, 0], [2**32 - 1, 2**32 - 1], [1, 2**31]):
    ours = _threefry(np.asarray(key, np.uint32), words[0], words[1])
    full = [np.full(1000, word, np.uint32) for word in key]
    theirs = _bind(*full, words[0], words[1])
    np.testing.assert_array_equal(jax.device_get(ours), jax.device_get(theirs))


def test_each_counter_gives_its_own_words():
  left, right = jax.device_get(_words(_KEY, 50, 40))
  key = jax.random.key_data(_KEY)
  full = [np.full((50, 40), word, np.uint32) for word in key]
  index, position = np.mgrid[:50, :40].astype(np.uint32)
  np.testing.assert_array_equal(
    (left, right), jax.device_get(_bind(*full, position, index))
  )
  assert len(np.unique([left, right])) > 0.999 * 2 * 50 * 40


@pytest.mark.parametrize('x64', [False, True])
def test_box_muller_is_a_radius_and_a_uniform_direction(x64):
  rng = np.random.default_rng(1)
  words = rng.integers(0, 2**32, (2, 200_000), np.uint32)
  words[0, :2], words[1, :2] = [0, 2**32 - 1], [2**32 - 1, 0]
  with jax.enable_x64(x64):
    cosines, sines = np.asarray(jax.jit(draws.box_muller)(*words[:, None]))
  assert cosines.dtype == (np.float64 if x64 else np.float32)
  cosines, sines = cosines.astype(float), sines.astype(float)
  uniform = (words[0] // 2 + 0.5) / 2**31
  # float32 rounds u to 2^-24, which near u = 1 is the whole of −2 log u; the sine and
  # the cosine are wrong by 2e-9, each, and float32 by 6e-8.
  rounding = 2e-8 if x64 else 5e-7
  expected = -2 * np.log(uniform)
  np.testing.assert_allclose(
    cosines**2 + sines**2, expected, rtol=rounding, atol=rounding
  )
  turn = np.arctan2(sines, cosines) / (2 * np.pi) + 0.5
  assert scipy.stats.kstest(turn, 'uniform').pvalue > _LEAST_P
  # Of the angle, which has 29 bits beside the swap and the sign, none is lost.
  assert len(np.unique(turn)) > 0.99 * len(turn) / (1 if x64 else 2)


def test_normals_are_normal_and_independent():
  normal = np.asarray(_normals(_KEY, 21, 10_000), float)
  assert normal.shape == (21, 10_000)
  assert scipy.stats.kstest(normal.ravel(), 'norm').pvalue > _LEAST_P
  for row in (normal[0], normal[20]):
    assert scipy.stats.kstest(row, 'norm').pvalue > _LEAST_P
  # Of n products of independent normals the mean has the standard error 1/√n; with 462
  # of them, 5 standard errors are exceeded once in 4000 seeds. Squares, too: the two
  # numbers of a pair share their radius.
  for columns, spread in ((normal, 1.0), (normal**2 - 1, 2.0)):
    gram = columns @ columns.T / 10_000
    off_diagonal = gram[~np.eye(21, dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 * spread / np.sqrt(10_000)
  neighbours = np.mean(normal[:, 1:] * normal[:, :-1], axis=1)
  assert np.abs(neighbours).max() < 5 / np.sqrt(10_000)


_DEGREES = np.array([2, 2, 3, 11, 10_000])
_chi = jax.jit(lambda key, n: draws.chi(key, _DEGREES, n), static_argnums=1)


def test_chi_has_its_distribution_and_a_longer_batch_begins_with_the_shorter_one():
  drawn = np.asarray(_chi(_KEY, 20_000))
  for row, degrees in zip(drawn.astype(float), _DEGREES, strict=True):
    assert scipy.stats.kstest(row, scipy.stats.chi(degrees).cdf).pvalue > _LEAST_P
  correlation = np.corrcoef(drawn.astype(float))[~np.eye(5, dtype=bool)]
  assert np.abs(correlation).max() < 5 / np.sqrt(20_000)
  np.testing.assert_array_equal(_chi(_KEY, 100), drawn[:, :100])


def test_any_generator_of_keys_will_do():
  normals, other_normals = (
    np.asarray(_normals(jax.random.key(s, impl='rbg'), 4, 1000)) for s in (0, 1)
  )
  assert scipy.stats.kstest(normals.ravel(), 'norm').pvalue > _LEAST_P
  assert not np.isclose(normals, other_normals).any(axis=1).all()


def test_what_is_kept_is_what_was_computed():
  def double(x):
    return {'twice': 2 * x}

  def kept(x):
    return draws.materialize_once(_KEY, double, x)['twice']

  x = np.arange(6, dtype='f')
  of_array, of_entries = jax.jit(lambda x: (kept(x), jax.vmap(kept)(x[:, None])))(x)
  np.testing.assert_array_equal(of_array, 2 * x)
  np.testing.assert_array_equal(of_entries, 2 * x[:, None])
