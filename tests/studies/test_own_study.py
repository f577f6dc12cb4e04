"""The example of a study of one's own: short, and it resumes."""

import json
import re

import pytest

import studies
import zoo
from examples import own_study
from tests.launch.processes import ROOT

FILE = ROOT / 'examples' / 'own_study.py'
TABLE = studies.CellTable(own_study.CELLS, own_study.compute, own_study.draw)


def test_it_is_one_short_file_that_the_page_shows():
  assert len(FILE.read_text().splitlines()) <= 60
  page = (ROOT / 'docs' / 'own_parts.md').read_text()
  assert '../examples/own_study.py' in page
  commands = re.findall(r'^python -m examples\.own_study .*$', page, re.MULTILINE)
  documented = own_study.__doc__ or ''
  assert len(commands) == 3
  assert all(command.split('  #')[0].strip() in documented for command in commands)


@pytest.mark.slow
def test_it_has_a_row_for_each_number_of_examples_and_goes_on(tmp_path, monkeypatch):
  trained = []

  def train(config, workdir):
    number = config.task.context_length
    if number == 10 and len(trained) == 2:
      trained.append(None)
      return None  # SIGTERM
    trained.append(number)
    return {'exact_risk': 1.1 * 110 / (11 + number), 'gd_risk': 110 / (11 + number)}

  monkeypatch.setattr(zoo, 'train', train)
  assert studies.fill(TABLE, tmp_path) is None
  assert not (tmp_path / 'figure_steps.png').exists()
  rows = studies.fill(TABLE, tmp_path)
  assert trained == [2, 5, None, 10, 20]
  assert rows is not None
  assert [row['gd_risk'] for row in rows.values()] == [
    110 / 13,
    110 / 16,
    110 / 21,
    110 / 31,
  ]
  for suffix in 'csv', 'png', 'svg':
    assert (tmp_path / f'figure_steps.{suffix}').stat().st_size > 100
  studies.fill(TABLE, tmp_path)
  assert len(trained) == 5


@pytest.mark.slow
@pytest.mark.full
def test_it_trains(tmp_path, promotion_that_optax_needs):
  few = {'examples=3': {'examples': 3, 'num_steps': 20, 'seed': 0}}
  table = studies.CellTable(few, own_study.compute)
  rows = studies.fill(table, tmp_path)
  assert rows is not None
  assert rows['examples=3']['gd_risk'] == pytest.approx(110 / 14)  # docs/theory.md
  assert rows['examples=3']['exact_risk'] > 110 / 14
  (line,) = (tmp_path / 'rows.jsonl').read_text().splitlines()
  assert json.loads(line)['row'] == rows['examples=3']
  assert zoo.load(tmp_path / 'cells' / 'examples=3' / 'run').step == 20
