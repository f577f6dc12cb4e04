"""Few calls stand between a command and the model that it trains."""

import re
import subprocess
import sys

import pytest

from tests.launch.processes import ROOT


@pytest.mark.slow
def test_a_step_stands_on_few_calls_which_contributors_can_read():
  """CONTRIBUTING.md walks through them."""
  command = [sys.executable, '-m', 'tests.frames']
  said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
  calls = re.findall(r'^ +\d+  (\S+) +\d+  (\w+)$', said.stdout, re.MULTILINE)
  assert 5 < len(calls) <= 12
  assert len({path for path, _ in calls}) <= 5
  text = (ROOT / 'CONTRIBUTING.md').read_text()
  walk = text[text.index('## One step of') : text.index('## What we hold to')]
  told = re.findall(r'^\| .*\| `(?:\w+\.)?(\w+)` \|', walk, re.MULTILINE)
  # The last two say how a model is asked, which differs from model to model.
  assert told[:-1] == [name for _, name in calls][: len(told) - 1]
