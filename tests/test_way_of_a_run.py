"""The page on the way of a run names the functions of each file."""

import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PAGE = (_ROOT / 'CONTRIBUTING.md').read_text()
_HOPS = re.findall(r'^\| \[([\w/.]+)\]\(\1\) \| `(\w+)` \|', _PAGE, re.M)


def test_the_page_has_the_way():
  assert len(_HOPS) >= 15


@pytest.mark.parametrize(('path', 'name'), _HOPS)
def test_a_hop_names_a_function_of_its_file(path, name):
  code = (_ROOT / path).read_text()
  assert len(re.findall(rf'^ *(?:def|class) {name}\b', code, re.M)) == 1
