"""The code in studies/paper/README.md does what the page says."""

import re

from tests.launch.processes import ROOT


def test_the_code_on_the_paper_runs_as_it_stands(tmp_path, monkeypatch, capsys):
  text = (ROOT / 'studies' / 'paper' / 'README.md').read_text()
  code, _ = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  monkeypatch.chdir(tmp_path)
  exec(compile(code, 'README.md', 'exec'), {})
  said = capsys.readouterr().out
  assert re.fullmatch(r'holds 6\.0224\d+\ntheorem_2_finite\n', said)
