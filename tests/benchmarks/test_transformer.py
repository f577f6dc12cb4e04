"""The benchmark of a transformer has the products of a step, and a table."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import transformer
from benchmarks.harness import Contender, Timing
from tests.launch.processes import launch


def test_the_products_of_a_program_are_all_its_products():
  """Those of the forward and of the backward pass, and of each iteration of a scan."""

  def loss(weight, tokens):
    def layer(tokens, _):
      return tokens @ weight, None

    return jax.lax.scan(layer, tokens, length=3)[0].sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss))(jnp.ones((4, 4)), jnp.ones((5, 4)))
  products: list[Any] = transformer.products_of(jaxpr.jaxpr)
  shapes = sorted(tuple(of.aval.shape for of in each.invars) for each in products)
  forward, tokens = ((5, 4), (4, 4)), ((5, 4), (4, 4))
  assert shapes == sorted([*[forward] * 3, *[tokens] * 3, *[((5, 4), (5, 4))] * 3])


def test_the_table_has_ratios_to_the_zoo():
  def timed(rate, cpu):
    return Contender('', lambda _: Timing(1.0, 1.0), [Timing(rate, cpu)])

  rows = transformer.rows(
    {
      'plain Flax': timed(10.0, 150.0),
      'zoo': timed(20.0, 75.0),
      'bound': timed(25.0, 60),
    }
  )
  text = transformer.table(rows)
  lines = {line.split('  ')[0]: line.split() for line in text.splitlines()}
  assert lines['plain Flax'][-2:] == ['2.00', '2.00']
  assert lines['bound'][-2:] == ['0.80', '0.80']
  assert 'PyTorch was not timed' in text


@pytest.mark.slow
@pytest.mark.full
def test_all_programs_are_timed(tmp_path, cache):
  sizes = '--smoke', '--repeats=1', '--seconds=0.01', '--cases=transformer'
  arguments = *sizes, f'--json={tmp_path}/b.json'
  answer = launch(*arguments, cache=cache, module='launch.benchmark')
  assert answer.returncode == 0, answer.stderr
  rows = json.loads((tmp_path / 'b.json').read_text())['transformer']
  names = ['plain Flax', 'zoo', 'bound']
  assert [row['program'] for row in rows][-3:] == names
  assert all(name in answer.stdout for name in names)
  assert all(row['steps_per_second']['median'] > 0 for row in rows)
  assert ('PyTorch was not timed' in answer.stdout) == (not transformer.has_pytorch())
