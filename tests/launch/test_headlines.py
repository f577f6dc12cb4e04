"""The command line of the headlines."""

import re


def test_headlines_are_listed_with_their_minutes(call, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  answer = call('headlines', '--list')
  assert answer.code == 0, answer.err
  assert re.search(r'^garg_toy +5 min  A small', answer.out, re.MULTILINE)
  assert not [*tmp_path.iterdir()]
