import pathlib
import re

import jax
import numpy as np
import pytest

THEORY = pathlib.Path(__file__).parents[2] / 'docs' / 'theory.md'


def rows():
  """The number and the call of each row that has them."""
  text = THEORY.read_text(encoding='utf-8')
  return re.findall(r'^\|.*\| (-?[\d.]+) \| `(.+)` \|$', text, flags=re.MULTILINE)


@pytest.fixture(scope='module')
def names():
  text = THEORY.read_text(encoding='utf-8')
  namespace = {}
  for block in re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL):
    exec(block, namespace)
  return namespace


def test_all_rows_are_found():
  text = THEORY.read_text(encoding='utf-8')
  assert len(rows()) == len(re.findall(r'[)\]][.\w]*` \|$', text, re.M)) > 40


# The searches of section 8 apart, so that neither part takes too long.
@pytest.mark.slow
@pytest.mark.parametrize('deep', [False, True])
def test_numbers_are_what_the_calls_return(names, deep):
  chosen = [row for row in rows() if ('theory.deep' in row[1]) == deep]
  assert len(chosen) > 10
  for number, call in chosen:
    places = len(number.partition('.')[2])
    with jax.enable_x64(True):
      value = eval(call, names)
    # To the places that are printed.
    np.testing.assert_allclose(value, float(number), rtol=0, atol=0.5001 * 10**-places)
