"""Training as an iteration: what is yielded, and that stopping early loses nothing."""

import io
import json
import re
import shutil
import signal
import sys

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.launch.processes import ROOT
from tests.marks import mostly_slow
from tests.training.runs import (
  assert_same_bits,
  lines_of,
  saved_arrays,
  share_programs,
  small_config,
)
from zoo.core.errors import RunError
from zoo.storage import checkpoints
from zoo.training import run

# What is yielded and saved; tests/training/test_run.py compiles each launch anew.
pytestmark = pytest.mark.usefixtures('shared_programs')


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The workdir of a finished run, its events, and the models that these had."""
  workdir, events, models = tmp_path_factory.mktemp('whole'), [], {}
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion('standard'):
    share_programs(patch)
    for event in zoo.training_run(small_config(), workdir):
      events.append(event)
      models[event.step] = event.model
  return workdir, events, models


def test_the_logged_steps_are_yielded_and_the_last_has_the_summary(whole):
  workdir, events, _ = whole
  assert [event.step for event in events] == [4, 6, 8, 12]
  assert [event.metrics for event in events] == lines_of(workdir)
  assert [event.summary for event in events[:-1]] == [None] * 3
  assert events[-1].summary == json.loads((workdir / 'summary.json').read_text())


# Between two saves, and at one.
@pytest.mark.parametrize('stop', mostly_slow([6], [6, 8]))
def test_a_break_saves_the_step_and_the_run_goes_on_to_the_same_bits(
  tmp_path, whole, stop
):
  for event in zoo.training_run(small_config(), tmp_path / 'cut'):
    if event.step == stop:
      break
  assert (tmp_path / 'cut/checkpoints' / str(stop)).is_dir()
  assert not (tmp_path / 'cut/summary.json').exists()
  rest = [event.step for event in zoo.training_run(small_config(), tmp_path / 'cut')]
  assert rest == [step for step in (8, 12) if step > stop]
  assert_same_bits(saved_arrays(tmp_path / 'cut', 12), saved_arrays(whole[0], 12))


@pytest.mark.parametrize('stopped', mostly_slow([True], [False]))
def test_two_runs_in_turn_heed_a_signal_and_leave_the_handlers_as_they_were(
  tmp_path, stopped
):
  before = signal.getsignal(signal.SIGTERM)
  first, second = (zoo.training_run(small_config(), tmp_path / name) for name in 'ab')
  next(first)
  next(second)
  if stopped:
    signal.raise_signal(signal.SIGTERM)
    assert [*first, *second] == []
    assert (tmp_path / 'b/checkpoints/4').is_dir()
  else:
    assert [event.step for event in first] == [6, 8, 12]
    second.close()
  assert signal.getsignal(signal.SIGTERM) is before


def test_a_break_leaves_an_iterator_open_that_a_variable_holds(tmp_path):
  config = small_config(checkpoint__every=12)
  events = zoo.training_run(config, tmp_path)
  for _ in events:
    break
  assert not (tmp_path / 'checkpoints/4').exists()
  with refuses('is in use'):
    next(zoo.training_run(config, tmp_path))
  events.close()
  assert (tmp_path / 'checkpoints/4').is_dir()
  assert next(zoo.training_run(config, tmp_path)).step == 6


@pytest.mark.slow
def test_a_folder_that_another_launch_has_used_since_it_was_new_gets_this_config(
  tmp_path, monkeypatch
):
  longer, prepare_new = small_config(train__num_steps=14), run.prepare_new

  def prepare_while_another_launch_trains(config):
    monkeypatch.setattr(run, 'prepare_new', prepare_new)
    assert zoo.train(small_config(), tmp_path)
    return prepare_new(config)

  monkeypatch.setattr(run, 'prepare_new', prepare_while_another_launch_trains)
  assert [event.step for event in zoo.training_run(longer, tmp_path)] == [14]
  assert json.loads((tmp_path / 'config.json').read_text())['train']['num_steps'] == 14


@pytest.fixture
def full_disk(monkeypatch):
  def fail(*arguments):
    raise OSError('disk full')

  monkeypatch.setattr(checkpoints, 'write_sums', fail)


def test_a_save_that_fails_when_a_run_is_closed_is_raised(tmp_path, full_disk):
  events = zoo.training_run(small_config(checkpoint__every=8), tmp_path)
  assert next(events).step == 4
  with pytest.raises(RunError, match=r'there is none yet; the reason: .*disk full'):
    events.close()


# Python cannot raise it.
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_save_that_fails_after_a_break_is_logged(tmp_path, full_disk, caplog):
  for event in zoo.training_run(small_config(checkpoint__every=8), tmp_path):
    assert event.step == 4
    break
  errors = [entry for entry in caplog.records if entry.levelname == 'ERROR']
  # Orbax logs the error of its thread as well.
  (record,) = [entry for entry in errors if '/orbax/' not in entry.pathname]
  assert 'disk full' in record.getMessage()


def test_a_finished_run_yields_its_last_step(whole):
  """Its events had the models that their checkpoints have."""
  workdir, _, models = whole
  (again,) = zoo.training_run(small_config(), workdir)
  assert again.step == 12
  assert again.summary == json.loads((workdir / 'summary.json').read_text())
  for step, model in {4: models[4], 8: models[8], 12: again.model}.items():
    saved = nnx.to_pure_dict(nnx.state(zoo.load(workdir, step).model))
    for name, array in nnx.to_pure_dict(nnx.state(model)).items():
      np.testing.assert_array_equal(array, saved[name])


@pytest.mark.slow
@pytest.mark.full
def test_a_run_in_float32_is_not_resumed_in_float64(tmp_path):
  for event in zoo.training_run(small_config(), tmp_path):
    if event.step == 6:
      break
  (tmp_path / 'checkpoints/6').rename(tmp_path / '6')
  lines = lines_of(tmp_path)
  with jax.enable_x64(True), refuses('as float32', 'as float64; jax_enable_x64 must'):
    zoo.train(small_config(), tmp_path)
  assert lines_of(tmp_path) == lines
  assert zoo.train(small_config(), tmp_path) is not None


def test_a_model_is_that_of_its_step_or_refused(tmp_path):
  # A save would hold the arrays of step 4 until they are written.
  events = zoo.training_run(small_config(checkpoint__every=12), tmp_path)
  first = next(events)
  kept = first.model
  next(events)
  with refuses('the model of step 4 is gone, since training has gone on'):
    first.model  # noqa: B018
  for leaf in jax.tree.leaves(nnx.state(kept)):  # a copy, which is still there
    assert np.isfinite(leaf).all()
  events.close()
  assert (tmp_path / 'checkpoints/6').is_dir()


def test_a_run_whose_folder_is_deleted_ends_in_one_line(tmp_path):
  workdir = tmp_path / 'run'
  events = zoo.training_run(small_config(checkpoint__every=12), workdir)
  assert next(events).step == 4
  shutil.rmtree(workdir)
  with pytest.raises(RunError, match=f'{workdir}.* has gone: the folder was deleted'):
    next(events)
  assert not workdir.exists()


def test_a_wrong_config_is_refused_at_the_first_step(tmp_path):
  with refuses('num_steps is 0'):
    next(zoo.training_run(small_config(train__num_steps=0), tmp_path / 'run'))
  assert not (tmp_path / 'run').exists()


def test_a_mistake_is_found_before_the_first_event(tmp_path):
  with refuses('config.train.batch_size is 0'):
    zoo.training_run(small_config(train__batch_size=0), tmp_path / 'run')
  with refuses("the path is ''"):
    zoo.training_run(small_config(), '')
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_change_of_the_working_directory_moves_nothing(tmp_path, monkeypatch):
  class Moves(zoo.Hook):
    def on_chunk(self, event):
      monkeypatch.chdir(tmp_path / 'second')

  for name in 'first', 'second':
    (tmp_path / name).mkdir()
  monkeypatch.chdir(tmp_path / 'first')
  for event in zoo.training_run(small_config(), 'run', [Moves()]):
    assert event.workdir == tmp_path / 'first' / 'run'
  monkeypatch.chdir(tmp_path / 'first')
  zoo.training.sweep(small_config(), [{'seed': 0}], 'sweep', hooks=[Moves()])
  files = 'run/summary.json', 'sweep/table.csv'
  assert all((tmp_path / 'first' / name).is_file() for name in files)
  assert not list((tmp_path / 'second').iterdir())


@pytest.mark.slow
@pytest.mark.full
def test_the_loops_on_the_page_of_training_run(tmp_path, monkeypatch, capsys):
  text = (ROOT / 'docs' / 'train.md').read_text()
  loops = re.findall(r'```python\n([^`]*training_run[^`]*)```', text)
  monkeypatch.chdir(tmp_path)
  for code in loops:
    code = code.replace("'transformer'", "'yq_lsa'")
    code = code.replace("'smoke')\n", "'smoke')\nconfig.eval.num_compared = 0\n")
    exec(compile(code, 'train.md', 'exec'), {})
  assert capsys.readouterr().out


def test_people_find_what_they_use():
  wanted = 'load save train training_run probing curve check_task check_model theory'
  assert {*wanted.split()} <= {*dir(zoo)}
  assert not {'Any', 'importlib', 'overload'} & {*dir(zoo)}
  # What completes is public: no room whose names stand in zoo, and nothing private.
  assert not {'config', 'core', 'host', 'measure', 'storage'} & {*dir(zoo)}
  assert not [name for name in dir(zoo) if name.startswith('_')]


class _Terminal(io.StringIO):
  """Output and errors of a process, as a terminal shows them."""

  def isatty(self):
    return True

  def lines(self):
    """The lines, in which what comes after a carriage return is written over it."""
    lines = []
    for line in self.getvalue().split('\n'):
      shown = ''
      for part in line.split('\r'):
        shown = part + shown[len(part) :]
      lines.append(shown.rstrip())
    return lines


@pytest.mark.slow
def test_what_is_printed_between_steps_has_lines_of_its_own(tmp_path, monkeypatch):
  terminal = _Terminal()
  for stream in ('stdout', 'stderr'):
    monkeypatch.setattr(sys, stream, terminal)
  for event in zoo.training_run(small_config(), tmp_path):
    print(f'after {event.step}')
  monkeypatch.undo()
  printed = [line for line in terminal.lines() if 'after' in line]
  assert printed == [f'after {step}' for step in (4, 6, 8, 12)]
