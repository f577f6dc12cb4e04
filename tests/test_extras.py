"""What importing zoo needs: without an extra all else works, and one line names it."""

import subprocess
import sys

import pytest

from tests.launch.processes import ROOT
from zoo.core.errors import CONSTRAINTS

PROGRAM = """
import sys
sys.modules['transformers'] = sys.modules['sklearn'] = None
import zoo
assert 'scipy' not in sys.modules  # takes a fifth of a second
import studies.llm.experiment
import zoo.probing
import zoo.reports
assert 'jinja2' not in sys.modules  # what renders imports it
try:
  studies.llm.load_model('model.gguf')
except zoo.UserError as error:
  print(error)
try:
  zoo.Classifier
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
  # Where nothing of the extra is installed, another package is missing first.
  of_llm, of_sklearn = done.stdout.splitlines()
  name, _, rest = of_llm.partition(' ')
  assert name in ('torch', 'transformers', 'gguf')
  command = f'pip install -c {CONSTRAINTS} -e'
  assert rest == f"is not installed; language models need {command} '.[llm]'"
  assert of_sklearn == (
    'scikit-learn is not installed; zoo.Regressor and zoo.Classifier need '
    f"{command} '.[baselines]'"
  )
