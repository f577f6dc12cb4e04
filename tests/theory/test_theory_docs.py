import pathlib
import re

import jax
import numpy as np
import pytest

from tests.marks import mostly_full

DOCS = pathlib.Path(__file__).parents[2] / 'docs'
# The first defines what the others use, and has no number of its own.
PAGES = [
  *sorted(DOCS.glob('theory*.md')),
  DOCS.parent / 'studies' / 'paper' / 'README.md',
]


def rows(*pages):
  """The number and the call of each row that has them."""
  text = '\n'.join(page.read_text(encoding='utf-8') for page in pages)
  return re.findall(r'^\|.*\| (-?[\d.]+) \| `(.+)` \|$', text, flags=re.MULTILINE)


def names_in(*pages):
  """What the code on the pages defines."""
  text = '\n'.join(page.read_text(encoding='utf-8') for page in pages)
  namespace = {}
  for block in re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL):
    exec(block, namespace)
  return namespace


@pytest.fixture(scope='module')
def names():
  return names_in(*PAGES)


def assert_printed(chosen, names):
  """The calls return the numbers, to the places that are printed."""
  for number, call in chosen:
    places = len(number.partition('.')[2])
    with jax.enable_x64(True):
      value = eval(call, names)
    np.testing.assert_allclose(value, float(number), rtol=0, atol=0.5001 * 10**-places)


def test_all_rows_are_found():
  for page in PAGES[1:]:
    calls = re.findall(r'[)\]][.\w]*` \|$', page.read_text(encoding='utf-8'), re.M)
    assert len(rows(page)) == len(calls) > 2


# The searches over three layers and more apart, which take minutes.
@pytest.mark.slow
@pytest.mark.parametrize('long', mostly_full([False], [True]))
def test_numbers_are_what_the_calls_return(names, long):
  search = re.compile(r'plus_optimum\(task\(\), [34]|polynomial_optimum\(task\(\), 40')
  chosen = [row for row in rows(*PAGES) if bool(search.search(row[1])) == long]
  assert len(chosen) > 5
  assert_printed(chosen, names)
