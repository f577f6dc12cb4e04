"""A URL in place of a folder is refused in one line, and nothing is written."""

import sys

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
  'results': ('--docs={}',),
  'catalog --out': ('--export=table_1', '--out={}'),
  'benchmarks.baselines --out': ('--out={}',),
  'benchmarks.baselines --values': ('--values={}',),
  'benchmark': ('--json={}',),
  'aot': (TINY, '--topology=v5e:4x8', '--json={}'),
  'llm --out': ('--config=configs/llm/smollm2.py', '--out={}'),
  'llm --data': ('--config=configs/llm/smollm2.py', '--data={}'),
}


# These take a bucket; tests/training/test_buckets.py has what they refuse.
IN_BUCKETS = (
  'main',
  'plot --workdir',
  'probe --checkpoint',
  'sweep',
  'atlas',
  'paper',
  'headlines',
)


@pytest.mark.parametrize('name', COMMANDS)
def test_a_url_is_refused_in_one_line(call, name, tmp_path, monkeypatch):
  url = f'{"s3" if name in IN_BUCKETS else "gs"}://bucket/run'
  monkeypatch.chdir(tmp_path)
  arguments = [argument.format(url) for argument in COMMANDS[name]]
  answer = call(name.split()[0], *arguments)
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert line.startswith('error: ')
  assert url in line
  assert 'give a local' in line or 'folder that exists' in line
  assert list(tmp_path.iterdir()) == []


def test_without_the_extra_a_bucket_is_refused_in_one_line(call, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in [*sys.modules]:  # also of earlier tests
    if name.split('.')[0] == 'gcsfs' or name == 'zoo.host.gcs':
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'gcsfs', None)
  answer = call('main', TINY, '--workdir=gs://bucket/run')
  assert answer.code == 2
  assert answer.err == (
    "error: gcsfs is not installed; gs:// needs pip install 'icl-zoo[gcs]'\n"
  )
  assert list(tmp_path.iterdir()) == []
