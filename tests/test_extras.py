"""What importing zoo needs: without an extra all else works, and one line names it."""

import subprocess
import sys

import pytest

from tests.launch.processes import ROOT
from zoo import evaluation_sets

PROGRAM = """
import sys
for package in 'transformers', 'tensorflow_datasets':
  sys.modules[package] = None
import zoo
import zoo.llm.experiment
import zoo.probing
import zoo.reports
assert 'jinja2' not in sys.modules  # what renders imports it
print([spec.name for spec in zoo.evaluation_sets.SPECS])
for use in (
  lambda: zoo.llm.load_model('model.gguf'),
  lambda: zoo.evaluation_sets.load('table_1'),
  lambda: __import__('zoo.evaluation_sets.builder'),
):
  try:
    use()
  except zoo.UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_extras_one_line_says_how_to_get_them():
  done = subprocess.run(
    [sys.executable, '-W', 'error', '-c', PROGRAM],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  listed, model, *data = done.stdout.splitlines()
  assert listed == str([spec.name for spec in evaluation_sets.SPECS])
  # Where nothing of the extra is installed, another package is missing first.
  name, _, rest = model.partition(' ')
  assert name in ('torch', 'transformers', 'gguf')
  assert rest == "is not installed; language models need pip install 'icl-zoo[llm]'"
  assert data == 2 * [
    'tensorflow_datasets is not installed; evaluation sets need pip install '
    "'icl-zoo[data]'"
  ]
