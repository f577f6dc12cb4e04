"""A URL in place of a folder is refused in one line, and nothing is written."""

import pytest

TINY = '--config=configs/yq_lsa.py:smoke'
COMMANDS = {
  'main': (TINY, '--workdir={}'),
  'sweep': (TINY, '--sweep=seed=0,1', '--workdir={}'),
  'plot --workdir': ('--workdir={}',),
  'plot --out': ('--workdir=.', '--out={}.png'),
  'probe --checkpoint': ('--checkpoint={}',),
  'probe --out': ('--checkpoint=.', '--out={}'),
  'probe --json': ('--checkpoint=.', '--json={}'),
  'paper': ('--smoke', '--out={}'),
  'paper --llm': ('--smoke', '--llm={}'),
  'atlas': ('--out={}',),
  'headlines': ('--out={}',),
  'catalog': ('--checkpoints={}',),
  'catalog --out': ('--export=table_1', '--out={}'),
  'baselines --out': ('--out={}',),
  'baselines --values': ('--values={}',),
  'benchmark': ('--json={}',),
  'aot': (TINY, '--topology=v5e:4x8', '--json={}'),
  'llm --out': ('--config=configs/llm/smollm2.py', '--out={}'),
  'llm --data': ('--config=configs/llm/smollm2.py', '--data={}'),
}


@pytest.mark.parametrize('url', ['s3://bucket/run', 'gs://bucket/run'])
@pytest.mark.parametrize('name', COMMANDS)
def test_a_url_is_refused_in_one_line(call, name, url, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  arguments = [argument.format(url) for argument in COMMANDS[name]]
  answer = call(name.split()[0], *arguments)
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert line.startswith('error: ')
  assert url in line
  assert 'give a local' in line or 'folder that exists' in line
  assert list(tmp_path.iterdir()) == []
