"""The paper's command line, in real processes."""

import pytest


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--figures=9'], "unknown figure '9'"),
    (['--figures=contxt'], "did you mean 'context'?"),
    (['--figures='], 'no figure is named'),
    (['--seeds=0'], '--seeds is 0'),
    (['--part=0/4'], "the part is '0/4'"),
    (['--seeds=two'], "'two'"),
    (['--objective=exakt'], "did you mean 'exact'?"),
    (['--out='], '--out is empty'),
    (['--out=README.md'], 'README.md cannot be the output folder'),
    (['--out=README.md/x'], 'cannot be the output folder'),
  ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
  tmp_path, monkeypatch, call, arguments, said
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'README.md').write_text('mine')
  answer = call('paper', *arguments)
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert line.startswith('error: ')
  assert said in line
  assert [path.name for path in tmp_path.iterdir()] == ['README.md']
