"""The command line of the headlines."""

import re

import pytest


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['oswald'], "unknown headline 'oswald'"),
    (['one_steps'], "did you mean 'one_step'?"),
    (['one_step', '--out='], '--out is empty'),
    (['one_step', '--out=taken'], 'taken cannot be the output folder'),
    (['one_step', '--out=taken/x'], 'x cannot be the output folder'),
    (['one_step', '--outt=x'], "'outt'"),
  ],
  ids=str,
)
def test_a_mistake_is_one_line(call, tmp_path, monkeypatch, arguments, said):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'taken').write_text('mine')
  answer = call('headlines', *arguments)
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert said in line
  assert [path.name for path in tmp_path.iterdir()] == ['taken']


def test_headlines_are_listed_with_their_minutes(call, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  answer = call('headlines', '--list')
  assert answer.code == 0, answer.err
  assert re.search(r'^garg_toy +5 min  A small', answer.out, re.MULTILINE)
  assert not [*tmp_path.iterdir()]


def test_other_commands_still_refuse_names(call):
  answer = call('catalog', 'lsa')
  assert answer.code == 2
  assert "unexpected argument 'lsa'" in answer.err
