"""The page on the way of a run names the functions of each file, in their order."""

import pathlib
import re
import sys

import pytest

import zoo
from configs import yq_lsa

_ROOT = pathlib.Path(__file__).parents[1]
_PAGE = (_ROOT / 'CONTRIBUTING.md').read_text()
_HOPS = re.findall(r'^\| \[([\w/.]+)\]\(\1\) \| `(\w+)` \|', _PAGE, re.M)


def test_the_page_has_the_way():
  assert len(_HOPS) >= 15


@pytest.mark.parametrize(('path', 'name'), _HOPS)
def test_a_hop_names_a_function_of_its_file(path, name):
  code = (_ROOT / path).read_text()
  assert len(re.findall(rf'^ *(?:def|class) {name}\b', code, re.M)) == 1


@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_the_page_has_the_order_of_the_first_calls(tmp_path):
  """Only this thread is profiled: another one compiles the evaluation meanwhile."""
  first = {}

  def note(frame, event, _):
    code = frame.f_code
    if event == 'call' and code.co_filename.startswith(f'{_ROOT}/'):
      path = pathlib.PurePath(code.co_filename).relative_to(_ROOT).as_posix()
      *outer, name = code.co_qualname.split('.')
      hop = path, outer[-1] if name == '__init__' else name
      if hop in _HOPS:
        first.setdefault(hop, len(first))

  before = sys.getprofile()
  sys.setprofile(note)
  try:
    zoo.train(yq_lsa.get_config('smoke'), tmp_path / 'run', compare=True)
  finally:
    sys.setprofile(before)
  assert [('launch/main.py', 'main'), *first] == _HOPS
