"""The atlas' command line."""

import pytest

from zoo.studies import atlas


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--scale=huge'], "unknown --scale: 'huge'"),
    (['--models=gpt5'], "unknown name in --models: 'gpt5'"),
    (['--tasks=poker'], "unknown name in --tasks: 'poker'"),
    (['--guesses='], '--guesses is empty'),
    (['--context_lengths=10,0'], "--context_lengths has '0'"),
    (['--context_lengths=ten'], "--context_lengths has 'ten'"),
    (['--context_lengths='], '--context_lengths is empty'),
    (['--part=5/4'], "the part is '5/4'"),
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


def test_each_task_is_trained_at_each_context_length(call, tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(atlas, 'run', lambda *given: calls.append(given))
  arguments = ['--tasks=prior', '--models=gru,yq_lsa', '--guesses=zero,residual']
  arguments += ['--import=json', '--context_lengths=20,1', f'--out={tmp_path}']
  call('atlas', *arguments)
  ((grid, _, _, command, _),) = calls
  assert command.startswith('python -m launch.atlas --import=json --scale=laptop ')
  names = [cell.name for cell in grid.cells]
  assert names == [
    *('gru,prior,zero,1', 'gru,prior,residual,1', 'yq_lsa,prior,1'),
    *('gru,prior,zero,20', 'gru,prior,residual,20', 'yq_lsa,prior,20'),
  ]
