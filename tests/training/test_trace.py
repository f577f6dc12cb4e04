"""Traces of some steps: exactly these, without an effect on what is trained."""

import collections
import logging

import pytest
from jax.profiler import ProfileData

from tests.compare import refuses
from tests.training.runs import assert_same_bits, saved_arrays, small_config
from zoo.config.validation import to_json
from zoo.core.errors import RunError
from zoo.training import train
from zoo.training.trace import steps_left


def operations(workdir, steps):
  """How often each event is in the one trace of a workdir."""
  (file,) = workdir.glob('profile/plugins/profile/*/*.xplane.pb')
  assert file.parent.name == f'steps_{steps[0]}_to_{steps[1]}'
  lines = [
    line for plane in ProfileData.from_file(str(file)).planes for line in plane.lines
  ]
  return collections.Counter(event.name for line in lines for event in line.events)


@pytest.fixture
def said(caplog):
  caplog.set_level(logging.INFO, logger='absl')
  return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.slow
def test_the_steps_are_traced_and_train_as_ever(tmp_path, said):
  config = small_config()
  train(config, tmp_path / 'plain')
  found = {}
  for steps in ((6, 6), (5, 10)):  # within a call of the loop, and over several
    workdir = tmp_path / str(steps[0])
    train(config, workdir, profile=steps)
    assert_same_bits(saved_arrays(tmp_path / 'plain', 12), saved_arrays(workdir, 12))
    found[steps] = operations(workdir, steps)
    assert f'the trace is in {workdir}/profile' in said()
  # What the trace of one step has once is in that of six steps, which end at 6, 8 and
  # 10, as often as they are steps, as calls, or as evaluations on prompts.
  dots = [name for name, times in found[6, 6].items() if times == 1 and 'dot.' in name]
  assert {found[5, 10][name] for name in dots} == {6, 3, 1}


def test_a_run_that_resumes_traces_what_is_left_of_the_steps(said):
  assert steps_left((5, 9), 0) == (5, 9)
  assert steps_left((5, 9), 6) == (7, 9)
  assert steps_left((5, 9), 9) is None
  assert said() == ['steps 5 to 9 are not traced: step 9 is done']


def test_a_finished_run_says_that_nothing_is_traced(tmp_path, said, fake):
  config = small_config()
  train(config, tmp_path)
  train(config, tmp_path, profile=(1, 2))
  assert 'steps 1 to 2 are not traced: step 12 is done' in said()
  assert not (tmp_path / 'profile').exists()


@pytest.mark.parametrize('steps', [(0, 3), (5, 4), (3, 13)])
def test_other_steps_are_refused_before_anything_is_written(tmp_path, steps):
  with refuses(f'profile is {steps[0]}:{steps[1]}', 'num_steps, which is 12'):
    train(small_config(), tmp_path / 'run', profile=steps)
  assert not (tmp_path / 'run').exists()


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path, fake):
  config = small_config()
  (tmp_path / 'config.json').write_text(to_json(config))
  (tmp_path / 'profile').write_text('a file')
  with pytest.raises(RunError, match=r'could not be written: .*exists.*profile'):
    train(config, tmp_path, profile=(1, 2))
