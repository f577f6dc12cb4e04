"""The command line of the language-model experiment, in real processes."""

import json
import signal
import subprocess
import sys

import pytest

from tests.launch.processes import interrupt, launch
from tests.llm import tiny
from tests.llm.pairs import Parrot, asking, lines_of, write_stsb

MODULE = 'launch.llm'
CONFIG = '--config=configs/llm/smollm2.py:smoke'


@pytest.fixture(scope='module')
def arguments(tmp_path_factory):
  """Eight prompts to a model of random weights, one at a time."""
  pytest.importorskip('transformers', reason="needs the extra 'llm'")
  folder = tmp_path_factory.mktemp('llm')
  return (
    CONFIG,
    f'--config.model.weights={tiny.save_model(folder / "model")}',
    f'--config.encoder.weights={tiny.save_encoder(folder / "encoder")}',
    '--config.model.batch_size=1',
    '--config.prompts.num_prompts=8',
    f'--data={write_stsb(folder / "csv")}',
  )


@pytest.mark.parametrize(
  ('given', 'said'),
  [
    ([], '--config is missing'),
    (['--config=configs/llm/smol.py'], 'configs/llm/smol.py does not exist'),
    ([CONFIG, '--config.prompts.num=3'], 'config.prompts.num_prompts'),
    ([CONFIG], '--data is missing'),
    ([CONFIG, '--data={}'], 'has no stsb-en-train.csv'),
    (['--config=configs/llm/own_benchmark.py'], '--data is missing'),
    (['--config=configs/llm/smollm2.py:smok'], "did you mean 'smoke'"),
    (['--config=configs/llm/ablation.py', '--data={}'], 'has no stsb-en-train.csv'),
    (
      ['--config=configs/llm/ablation.py', "--config.ablation.guesses=('cosin',)"],
      "did you mean 'cosine'",
    ),
    (
      ['--config=configs/llm/ablation.py', '--config.guess.model=cosine'],
      "unknown field 'config.guess.model'",
    ),
  ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path, call, given, said):
  (tmp_path / 'empty').mkdir()
  given = [argument.format(tmp_path / 'empty') for argument in given]
  if not any(argument.startswith('--out') for argument in given):
    given.append(f'--out={tmp_path / "out"}')
  answer = call('llm', *given)
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert line.startswith('error: ')
  assert said in line
  assert [path.name for path in tmp_path.iterdir()] == ['empty']


_MORTAL = """
import os
import signal
from launch import cli, llm
from tests.llm.pairs import Parrot, asking

class Mortal(Parrot):
  def generate(self, prompts, max_new_tokens, past=None):
    if len(self.asked) >= 18:
      os.kill(os.getpid(), signal.SIGKILL)
    return super().generate(prompts, max_new_tokens, past)

with asking(Mortal()):
  cli.run(llm.main)
"""


@pytest.mark.slow
def test_killed_while_it_asks_it_leaves_in_the_end_what_it_leaves_unkilled(
  tmp_path, call
):
  given = (
    *(CONFIG, f'--config.model.weights={tmp_path}', '--config.guess.model=constant'),
    *('--config.model.batch_size=2', '--config.prompts.num_prompts=8'),
    f'--data={write_stsb(tmp_path / "csv")}',
  )
  out, whole = tmp_path / 'out', tmp_path / 'whole'
  mortal = [sys.executable, '-c', _MORTAL, *given, f'--out={out}']
  killed = subprocess.run(mortal, capture_output=True, text=True, check=False)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  assert len(lines_of(out)) == 4  # of two calls; the third was killed
  with (out / 'prompts.jsonl').open('ab') as file:
    file.write(b'{"index": 4, "que')
  for folder, asked in (out, 16), (whole, 32):
    with asking(Parrot()) as parrot:
      answer = call('llm', *given, f'--out={folder}')
    assert answer.code == 0, answer.err
    assert len(parrot.asked) == asked  # two arms, each read in two ways
  assert lines_of(out) == lines_of(whole)
  summaries = [json.loads((of / 'summary.json').read_text()) for of in (out, whole)]
  assert {**summaries[0], 'seconds': 0} == {**summaries[1], 'seconds': 0}
  for name in 'config.json', 'guesses.json', 'figure_6.csv':
    assert (out / name).read_bytes() == (whole / name).read_bytes()


@pytest.fixture(scope='module')
def whole(tmp_path_factory, cache, arguments):
  """The folder and the answer of a call that nothing interrupted."""
  out = tmp_path_factory.mktemp('whole')
  answer = launch(*arguments, f'--out={out}', cache=cache, module=MODULE)
  assert answer.returncode == 0, answer.stderr
  assert (
    'mean squared error ± s.e. of model on 8 prompts\n2 examples each' in answer.stdout
  )
  assert answer.stdout.endswith(f'the results are in {out}\n')
  return out, answer


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
def test_stopped_and_started_again_it_asks_the_rest(
  tmp_path, cache, arguments, whole, number, code
):
  out = tmp_path / 'out'
  path = out / 'prompts.jsonl'
  interrupt(
    *arguments,
    f'--out={out}',
    cache=cache,
    module=MODULE,
    number=number,
    code=code,
    ready=lambda: path.is_file() and path.read_bytes().count(b'\n') >= 2,
  )
  assert not (out / 'summary.json').exists()
  done = path.read_bytes()
  assert 2 <= done.count(b'\n') < 8
  answer = launch(*arguments, f'--out={out}', cache=cache, module=MODULE)
  assert answer.returncode == 0, answer.stderr
  assert path.read_bytes().startswith(done[: done.rfind(b'\n') + 1])
  assert lines_of(out) == lines_of(whole[0])
  assert answer.stdout.replace(str(out), str(whole[0])) == whole[1].stdout


@pytest.mark.full
@pytest.mark.slow
def test_the_papers_report_shows_it_as_figure_6(tmp_path, cache, whole):
  answer = launch(
    *('--smoke', '--figures=1', '--seeds=1', '--objective=exact'),
    *(f'--llm={whole[0]}', f'--out={tmp_path}'),
    cache=cache,
    module='launch.paper',
  )
  assert answer.returncode == 0, answer.stderr
  for suffix in ('csv', 'png', 'svg'):
    assert (tmp_path / f'figure_6.{suffix}').is_file()
  csv = 'figure_6.csv'
  assert (tmp_path / csv).read_bytes() == (whole[0] / csv).read_bytes()
  page = (tmp_path / 'report.html').read_text()
  assert 'Figure 6. Initial guesses in a language model' in page


def test_a_folder_without_a_finished_run_is_no_figure_6(tmp_path, call):
  (tmp_path / 'run').mkdir()
  answer = call('paper', f'--llm={tmp_path / "run"}', f'--out={tmp_path / "out"}')
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert 'holds no finished run of launch.llm' in line
  assert not (tmp_path / 'out').exists()
