"""Mistakes on the command line: one line, exit code 2, and nothing is written."""

import pytest

_SWEEP = 'sweep --config=configs/multi_head_lsa.py:smoke --workdir=x'
_AOT = 'aot --config=configs/lsa.py'
# Those of other commands are in their own files. Each command has what it alone reads;
# what several share stands with one of them. `taken` is a file that exists.
_MISTAKES = {
  _AOT: '--topology is missing',
  f'{_AOT} --topology=v5e:2x2 --json=no/where.json': "--json is 'no/where.json'",
  'atlas --scale=huge': "unknown --scale: 'huge'",
  'atlas --models=gpt5': "unknown name in --models: 'gpt5'",
  'atlas --tasks=poker': "unknown name in --tasks: 'poker'",
  'atlas --guesses=': '--guesses is empty',
  'atlas --context_lengths=10,0': "--context_lengths has '0'",
  'atlas --context_lengths=ten': "--context_lengths has 'ten'",
  'atlas --part=5/4': "the part is '5/4'",
  'atlas --seeds=0': '--seeds is 0',
  'atlas --steps=100': '--steps is 100; it must be an integer ≥ 200',
  'atlas --search_steps=0': '--search_steps is 0',
  'atlas --minutes=0': '--minutes is 0',
  'benchmark --repeats=0': '--repeats is 0',
  'benchmark --seconds=-1': '--seconds is -1',
  'benchmark --json=': "--json is ''; it must name a file",
  'benchmark --scaling=.': "--scaling is '.'",
  'benchmark --models=nobody': "unknown --models 'nobody'",
  'benchmark --models=gru --scaling=a.png': 'give one of them',
  'benchmark --scaling=picture.txt': 'must end in .png, .svg or .pdf',
  'catalog --export=tabel_1': "unknown evaluation set 'tabel_1'; known: anisotropic",
  'catalog --export=table_1 --out=set.txt': 'it must end in .npz',
  'catalog --export=table_1 --out=no/set.npz': 'its folder does not exist',
  'catalog --out=set.npz': '--export, which is missing',
  'catalog --exprot': 'exprot',
  'catalog lsa': "unexpected argument 'lsa'",
  'headlines one_steps': "did you mean 'one_step'?",
  'headlines one_step --out=taken': 'taken cannot be the output folder',
  'headlines one_step --out=taken/x': 'x cannot be the output folder',
  'paper --figures=7': "unknown figure '7'",
  'paper --figures=': 'no figure is named',
  'paper --seeds=0': '--seeds is 0',
  'paper --seeds=two': "'two'",
  'paper --part=0/4': "the part is '0/4'",
  'paper --objective=exakt': "did you mean 'exact'?",
  'paper --out=taken': 'taken cannot be the output folder',
  'paper --llm=. --out=out': 'holds no finished run of launch.llm',
  _SWEEP: '--sweep is missing',
  f'{_SWEEP} --sweep=task.prior_men=1': "did you mean 'task.prior_mean'?",
  f'{_SWEEP} --sweep=seed=1 --sweep=seed=2': 'twice',
  f'{_SWEEP} --sweep=model.num_heads=0': 'num_heads',
  f'{_SWEEP} --sweep=seed=1 --workdir=': '--workdir is empty',
  f'{_SWEEP} --sweep=seed=1 --part=a/b': "'a/b'",
  f'{_SWEEP} --sweep=seed=0..9999 --sweep=task.noise_std=0,1,2,3,4,5,6,7,8,9,10': '110',
}


@pytest.mark.parametrize('line', _MISTAKES)
def test_a_mistake_is_one_line(call, tmp_path, monkeypatch, line):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'taken').write_text('mine')
  answer = call(*line.split())
  assert answer.code == 2, answer.err
  (said,) = answer.err.splitlines()
  assert said.startswith('error: ')
  assert _MISTAKES[line] in said
  assert [path.name for path in tmp_path.iterdir()] == ['taken']
