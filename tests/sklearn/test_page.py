"""The code of docs/scikit_learn.md prints what the page says."""

import contextlib
import io
import re
import warnings

import pytest

from tests.launch.processes import ROOT
from tests.marks import mostly_full

pytest.importorskip('sklearn', reason="needs the extra 'baselines'")

PAGE = (ROOT / 'docs' / 'scikit_learn.md').read_text()
PARTS = re.findall(r'```python\n(.*?)```\n\n```\n(.*?)```', PAGE, re.DOTALL)


def test_each_code_of_the_page_has_its_output():
  assert len(PARTS) == PAGE.count('```python') == 5


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs', 'unchecked')
@pytest.mark.parametrize(('code', 'said'), mostly_full(PARTS[:3], PARTS))
def test_the_code_of_the_page_prints_what_it_says(code, said, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed), warnings.catch_warnings(action='ignore'):
    exec(compile(code, 'scikit_learn.md', 'exec'), {})
  assert printed.getvalue() == said
