"""The paper's command line, in real processes."""

import signal

import pytest

from tests.launch.processes import interrupt, launch

MODULE = 'launch.paper'
# On sampled prompts, where each seed is a program of its own.
ARGUMENTS = '--smoke', '--figures=2', '--seeds=2', '--objective=sampled'


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--figures=9'], "unknown figure '9'"),
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


@pytest.fixture(scope='module')
def whole(tmp_path_factory, cache):
  """The folder and the answer of a call that nothing interrupted."""
  out = tmp_path_factory.mktemp('whole')
  answer = launch(*ARGUMENTS, f'--out={out}', cache=cache, module=MODULE)
  assert answer.returncode == 0, answer.stderr
  assert 'Fig. 2 ' in answer.stdout
  assert f'{out}/report.html' in answer.stdout
  return out, answer


def finished(out):
  return {
    path: path.stat().st_mtime_ns
    for path in out.glob('runs/sampled/*/points/*/summary.json')
  }


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
  ('number', 'code'),
  [
    (signal.SIGKILL, -9),
    (signal.SIGTERM, 143),
    (signal.SIGINT, 130),
  ],
)
def test_stopped_and_started_again_it_goes_on_to_the_same_figure(
  tmp_path, cache, whole, number, code
):
  interrupt(
    *ARGUMENTS,
    f'--out={tmp_path}',
    cache=cache,
    module=MODULE,
    number=number,
    code=code,
    # All of one seed is done; the other one may end before the signal is there.
    ready=lambda: len(finished(tmp_path)) >= 16,
  )
  assert not (tmp_path / 'figure_2.csv').exists()
  done = finished(tmp_path)
  assert 16 <= len(done) <= 32
  answer = launch(*ARGUMENTS, f'--out={tmp_path}', cache=cache, module=MODULE)
  assert answer.returncode == 0, answer.stderr
  assert answer.stdout.replace(str(tmp_path), str(whole[0])) == whole[1].stdout
  plotted = [(out / 'figure_2.csv').read_bytes() for out in (tmp_path, whole[0])]
  assert plotted[0] == plotted[1]
  assert done.items() <= finished(tmp_path).items()
