"""The page on the way of a run names the functions of each file, in their order."""

import json
import re
import sys

import pytest

from tests.launch.processes import ROOT, run

_PAGE = (ROOT / 'CONTRIBUTING.md').read_text()
_HOPS = re.findall(r'^\| \[([\w/.]+)\]\(\1\) \| `(\w+)` \|', _PAGE, re.M)
# Runs a command, and writes which functions of the repository it calls, each once.
# `sys.setprofile` is about this thread alone: another one compiles the evaluation.
_PROGRAM = """
import inspect, json, os, runpy, sys

root, out, *sys.argv[1:] = sys.argv[1:]
called, paths, ours = {}, {}, ('configs/', 'launch/', 'zoo/')

def note(frame, event, _):
  code = frame.f_code
  if event == 'call' and code.co_flags & inspect.CO_OPTIMIZED:  # no body of a class
    if code.co_filename not in paths:
      path = os.path.relpath(code.co_filename, root)
      paths[code.co_filename] = path.startswith(ours) and path
    if path := paths[code.co_filename]:
      called.setdefault((path, code.co_qualname))

sys.setprofile(note)
try:
  runpy.run_module('launch.main', run_name='__main__', alter_sys=True)
finally:
  sys.setprofile(None)
  with open(out, 'w') as file:
    json.dump([*called], file)
"""


def test_the_page_has_the_way():
  assert len(_HOPS) >= 15


@pytest.mark.parametrize(('path', 'name'), _HOPS)
def test_a_hop_names_a_function_of_its_file(path, name):
  found = re.findall(rf'^( *)(?:def|class) {name}\b', (ROOT / path).read_text(), re.M)
  # A function of the module, or else the only method of this name.
  assert found.count('') == 1 or len(found) == 1


def _name(qualified: str) -> str:
  """The name on the page: of a constructor the class, else the function's own."""
  *outer, name = qualified.split('.')
  return outer[-1] if outer and name == '__init__' else name


@pytest.mark.slow
def test_the_page_has_the_order_of_the_first_calls(cache, tmp_path):
  out = tmp_path / 'called.json'
  flags = '--config=configs/yq_lsa.py:smoke', f'--workdir={tmp_path / "run"}'
  answer = run([sys.executable, '-c', _PROGRAM, str(ROOT), str(out), *flags], cache)
  assert answer.returncode == 0, answer.stderr
  called = [(path, _name(name)) for path, name in json.loads(out.read_text())]
  assert [*dict.fromkeys(hop for hop in called if hop in _HOPS)] == _HOPS
