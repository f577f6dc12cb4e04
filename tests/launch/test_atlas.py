"""The atlas' command line."""

import pytest


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--scale=huge'], "unknown --scale: 'huge'"),
    (['--models=gpt5'], "unknown name in --models: 'gpt5'"),
    (['--tasks=poker'], "unknown name in --tasks: 'poker'"),
    (['--guesses='], '--guesses is empty'),
    (['--seeds=0'], '--seeds is 0'),
    (['--steps=0'], '--steps is 0'),
    (['--learning_rates=fast'], "--learning_rates has 'fast'"),
    (['--learning_rates=-1'], "--learning_rates has '-1'"),
  ],
  ids=str,
)
def test_a_mistake_is_one_line(call, tmp_path, monkeypatch, arguments, said):
  monkeypatch.chdir(tmp_path)
  answer = call('atlas', *arguments)
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert said in line
  assert not [*tmp_path.iterdir()]
