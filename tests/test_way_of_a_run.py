"""The page on the way of a run names the lines where its functions stand."""

import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PAGE = (_ROOT / 'CONTRIBUTING.md').read_text()
_HOPS = re.findall(r'^\| \[([\w/.]+):(\d+)\]\(\1#L\2\) \| `(\w+)` \|', _PAGE, re.M)


def test_the_page_has_the_way():
  assert len(_HOPS) >= 15


@pytest.mark.parametrize(('path', 'number', 'name'), _HOPS)
def test_a_hop_names_the_line_of_its_function(path, number, name):
  lines = (_ROOT / path).read_text().splitlines()
  starts = [
    i
    for i, line in enumerate(lines, start=1)
    if re.match(rf' *(def|class) {name}\b', line)
  ]
  assert starts == [int(number)]
