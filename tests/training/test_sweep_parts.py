"""Parts of a sweep, which processes train that share nothing but the folder."""

import json

import pytest

from tests.compare import refuses
from tests.training.runs import of_each_launch, signal_at_step_4, small_config
from zoo.config.read import read
from zoo.host.parts import Part, parse_part
from zoo.storage.workdir import locked
from zoo.training import sweeps
from zoo.training.sweeps import points_of
from zoo.training.sweeps.points import build_points

# Six points of one program, the first of which is the config itself.
_POINTS = [{'seed': i % 3, 'task.prior_mean': 2 + i / 4} for i in range(6)]
_TWO = [{'seed': 0}, {'seed': 1}]  # where it does not matter how many there are


def _config():
  return small_config()


def _sweep(workdir, part=None, points=_POINTS):
  return sweeps.sweep(_config(), points, workdir, part)


def _configs(points):
  return build_points(read(_config()), points)


def _assert_same_table(workdir, expected):
  """Equal but for rounding, as sums depend on how many models a program trains."""
  tables = [
    [*map(of_each_launch, json.loads((folder / 'table.json').read_text()))]
    for folder in (workdir, expected)
  ]
  for row, other in zip(*tables, strict=True):
    assert row.keys() == other.keys()
    for name, value in other.items():
      if value is not None and name.endswith(('risk', 'stderr')):
        # In float32 a mean over prompts, or the risk of weights 1e-5 apart.
        assert row[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
      else:
        assert row[name] == value, name


def test_each_group_is_cut_into_pieces_of_neighbours_which_are_dealt():
  points = [{'seed': i} for i in range(6)]
  points += [{'train.batch_size': 8, 'seed': i} for i in range(2)]
  configs = _configs(points)  # of one model and task, which are traced once
  parts = [points_of(Part(i, 3), configs) for i in (1, 2, 3)]
  assert parts == [[0, 1, 6], [2, 3, 7], [4, 5]]
  for number in (2, 9):  # each point is in one part
    parts = [points_of(Part(i + 1, number), configs) for i in range(number)]
    assert sorted(i for part in parts for i in part) == [*range(len(points))]
  # Programs of one point each are dealt, too.
  configs = _configs([{'train.batch_size': 8 + i} for i in range(5)])
  assert [points_of(Part(i, 2), configs) for i in (1, 2)] == [[0, 2, 4], [1, 3]]


@pytest.mark.slow
@pytest.mark.usefixtures('shared_programs')
@pytest.mark.full
def test_parts_of_which_some_are_stopped_end_at_the_table_of_the_whole(
  tmp_path, monkeypatch
):
  _sweep(tmp_path / 'whole')
  divided = tmp_path / 'divided'
  for i, stopped in ((1, False), (2, True), (3, True)):
    with monkeypatch.context() as patch:
      if stopped:
        signal_at_step_4(patch)
      rows = _sweep(divided, Part(i, 3))
    assert (rows is None) == stopped
  assert len([*divided.glob('programs/*/checkpoints/[0-9]*')]) == 2
  # The second is called again, and what is left of the third is done by the whole.
  rows = _sweep(divided, Part(2, 3))
  assert rows is not None
  assert [row['task.prior_mean'] for row in rows] == [2.5, 2.75]
  assert not (divided / 'table.json').exists()
  _sweep(divided)
  _assert_same_table(divided, tmp_path / 'whole')
  assert not (divided / 'programs').exists()


@pytest.mark.usefixtures('shared_programs')
def test_a_part_is_trained_by_one_process_and_excludes_the_whole(tmp_path):
  assert _sweep(tmp_path, Part(3, 3), _TWO) == []  # a part without points is done
  with locked(tmp_path, part=Part(2, 3)):
    (row,) = _sweep(tmp_path, Part(1, 3), _TWO) or []
    with refuses('is in use'):
      _sweep(tmp_path, Part(2, 3), _TWO)
    # A part of another division would train the same points.
    for other in None, Part(1, 2):
      with refuses('is in use'):
        _sweep(tmp_path, other, _TWO)
  assert {name: row[name] for name in _TWO[0]} == _TWO[0]
  with locked(tmp_path), refuses('is in use'):
    _sweep(tmp_path, Part(2, 3), _TWO)


@pytest.mark.slow
@pytest.mark.full
def test_a_part_names_the_points_that_it_has_lost(tmp_path, no_step):
  rate = 'optimizer.learning_rate'
  points = [{rate: value} for value in (1e-3, 1e30, 2e-3)]
  with pytest.raises(sweeps.LostPointsError, match=r'1 of 2 points .*1e\+30') as info:
    _sweep(tmp_path, Part(1, 2), points)
  assert [row[rate] for row in info.value.rows] == [1e-3]
  # Neither this part nor the whole trains the point again.
  _sweep(tmp_path, Part(2, 2), points)
  no_step()
  for part in Part(1, 2), None:
    with pytest.raises(sweeps.LostPointsError, match='is not finite') as again:
      _sweep(tmp_path, part, points)
    assert len(again.value.rows) == (1 if part else 2)


@pytest.mark.parametrize(
  'text', ['0/4', '5/4', '0/0', 'a/b', '1', '1/', '-1/4', '1/4 ']
)
def test_what_names_no_part_is_refused(text):
  with refuses(f'the part is {text!r}', '1 ≤ I ≤ N'):
    parse_part(text)


def test_a_part_is_read():
  assert parse_part('4/4') == Part(4, 4)
