"""What counts as an operation, and what share of a device's peak it is."""

import jax
import jax.numpy as jnp
import pytest

from zoo.training.utilisation import describe, product_flops, share_of_peak


def flops_of(function, *shapes):
  arguments = [jax.ShapeDtypeStruct(shape, 'f') for shape in shapes]
  return product_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_products_are_counted_with_their_batches_and_loops():
  assert flops_of(lambda a, b: a @ b, (3, 4), (4, 5)) == 2 * 3 * 4 * 5
  batched = 'bij,bjk->bik'
  assert flops_of(lambda a, b: jnp.einsum(batched, a, b), (7, 3, 4), (7, 4, 5)) == 2 * (
    7 * 3 * 4 * 5
  )
  looped = jax.jit(lambda a: jax.lax.scan(lambda c, _: (c @ c, None), a, length=6)[0])
  assert flops_of(looped, (3, 3)) == 6 * 2 * 27


def powers(a):
  return a @ a @ a


def scanned_powers(a):
  return jax.lax.scan(lambda c, _: (c @ a, None), a, length=2)[0]


def test_without_a_loop_the_compiler_counts_the_same():
  """XLA counts a loop once, which is why its count is not taken."""
  shape = jax.ShapeDtypeStruct((64, 64), 'f')

  def compilers_count(function):
    analysis = jax.jit(function).lower(shape).compile().cost_analysis()
    assert analysis is not None
    return analysis['flops']

  assert flops_of(powers, (64, 64)) == compilers_count(powers) == 2 * 2 * 64**3
  assert flops_of(scanned_powers, (64, 64)) == 2 * 2 * 64**3
  once = pytest.approx(2 * 64**3, rel=1e-3)  # and the loop's counter
  assert compilers_count(scanned_powers) == once


def test_the_share_is_of_the_peak_of_all_devices():
  assert share_of_peak(197e12, 'TPU v5 lite', 4) == 0.25
  line = describe(197e12, 'TPU v5 lite', 4)
  assert '25.00% of the peak of 4 × TPU v5 lite in bfloat16' in line


def test_without_a_known_peak_there_is_no_share():
  assert share_of_peak(1e9, 'cpu', 1) is None
  assert describe(1.5e9, 'cpu', 1) == '1.5 GFLOP/s in products of matrices'
