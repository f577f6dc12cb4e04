"""The command line of the language-model experiment, in real processes."""

import json
import signal
import subprocess
import sys

import pytest

from tests.llm.pairs import Parrot, asking, lines_of, write_stsb

CONFIG = '--config=configs/llm/smollm2.py:smoke'


_MORTAL = """
import os
import signal
from launch import cli, llm
from tests.llm.pairs import Parrot, asking

class Mortal(Parrot):
  def generate(self, prompts, max_new_tokens):
    if len(self.asked) >= 18:
      os.kill(os.getpid(), signal.SIGKILL)
    return super().generate(prompts, max_new_tokens)

with asking(Mortal()):
  cli.run(llm.main)
"""


@pytest.mark.slow
def test_killed_while_it_asks_it_leaves_in_the_end_what_it_leaves_unkilled(
  tmp_path, call
):
  arguments = (
    *(CONFIG, f'--config.model.weights={tmp_path}', '--config.guess.model=constant'),
    *('--config.model.batch_size=2', '--config.prompts.num_prompts=8'),
    f'--data={write_stsb(tmp_path / "csv")}',
  )
  out, whole = tmp_path / 'out', tmp_path / 'whole'
  mortal = [sys.executable, '-c', _MORTAL, *arguments, f'--out={out}']
  killed = subprocess.run(mortal, capture_output=True, text=True, check=False)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  assert len(lines_of(out)) == 4  # of two calls; the third was killed
  with (out / 'rows.jsonl').open('ab') as file:
    file.write(b'{"cell": "prompt=4", "dig')
  for folder, asked in (out, 16), (whole, 32):
    with asking(Parrot()) as parrot:
      answer = call('llm', *arguments, f'--out={folder}')
    assert answer.code == 0, answer.err
    assert len(parrot.asked) == asked  # two arms, each read in two ways
  assert lines_of(out) == lines_of(whole)
  summaries = [json.loads((of / 'summary.json').read_text()) for of in (out, whole)]
  assert {**summaries[0], 'seconds': 0} == {**summaries[1], 'seconds': 0}
  for name in 'config.json', 'figure_6.csv':
    assert (out / name).read_bytes() == (whole / name).read_bytes()
