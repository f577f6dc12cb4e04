"""What a summary counts as an operation, a token and the peak of memory."""

import pathlib
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.training.runs import small_config
from zoo.training.experiment import build
from zoo.training.summary import (
  peak_memory,
  product_flops,
  tokens_per_step,
)


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


@pytest.mark.parametrize(
  ('name', 'changes', 'tokens'),
  [
    ('yq_lsa', {}, 5),
    ('transformer', {'model__num_layers': 1}, 9),
    ('sequential', {}, 5),
  ],
)
def test_tokens_are_those_of_the_layout_of_four_examples(name, changes, tokens):
  config = small_config(name, objective__name='sampled', **changes)
  assert tokens_per_step(build(config)) == 16 * tokens


def test_an_objective_without_prompts_has_no_tokens():
  config = small_config('yq_lsa', objective__name='exact')
  assert tokens_per_step(build(config)) is None


def test_the_peak_is_that_of_the_fullest_device_or_else_of_the_process(unchecked):
  devices: Any = [
    types.SimpleNamespace(memory_stats=lambda peak=peak: {'peak_bytes_in_use': peak})
    for peak in (3, 7)
  ]
  assert peak_memory(devices) == (7, 'device')
  peak, of = peak_memory(jax.devices('cpu')[:1])
  assert of == 'process'
  status = pathlib.Path('/proc/self/status')
  if status.exists():  # on Linux
    kilobytes = re.search(r'VmHWM:\s*(\d+) kB', status.read_text())
    assert kilobytes
    assert peak == pytest.approx(1024 * int(kilobytes[1]), rel=0.01)
