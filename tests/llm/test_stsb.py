"""STS-B as a TensorFlow Dataset, without TensorFlow; benchmarks of one's own."""

import shutil
import sys

import pytest

from tests.compare import refuses
from tests.llm.pairs import PAIRS, write_jsonl, write_stsb
from zoo.errors import RunError
from zoo.llm import benchmarks, stsb


def test_what_is_read_is_what_the_files_hold_in_their_order(tmp_path):
  folder = write_stsb(tmp_path / 'csv')
  header, row = 'sentence1,sentence2,similarity_score', '"A ""new"" roof,\nred",Rot –'
  (folder / 'stsb-en-dev.csv').write_text(f'{header}\n{row},3.333\n', 'utf-8')
  built = stsb.load(folder, tmp_path / 'tfds')
  for split in ('train', 'test'):
    assert [(*example.texts, example.label) for example in built.splits[split]] == PAIRS
  (dev,) = built.splits['dev']
  assert dev == benchmarks.Example(('A "new" roof,\nred', 'Rot –'), 3.333)
  # Once built, the files are not needed; the folder is ArrayRecord.
  again = stsb.load(None, tmp_path / 'tfds')
  assert again == built
  assert list((tmp_path / 'tfds').rglob('*.array_record*'))
  assert 'tensorflow' not in sys.modules


def test_other_files_than_those_it_was_built_from_are_refused(tmp_path):
  stsb.load(write_stsb(tmp_path / 'csv'), tmp_path / 'tfds')
  other = write_stsb(tmp_path / 'other', PAIRS[:5])
  with refuses('was built from other files', str(other), 'TFDS_DATA_DIR'):
    stsb.load(other, tmp_path / 'tfds')


def test_a_damaged_build_is_told(tmp_path):
  stsb.load(write_stsb(tmp_path / 'csv'), tmp_path / 'tfds')
  for path in (tmp_path / 'tfds').rglob('*.array_record*'):
    path.write_bytes(path.read_bytes()[:-700])
  with pytest.raises(RunError, match=r'damaged.*delete its folder'):
    stsb.load(None, tmp_path / 'tfds')


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  """A data folder of TFDS with the twelve pairs in it."""
  base = tmp_path_factory.mktemp('built')
  stsb.load(write_stsb(base / 'csv'), base / 'tfds')
  return base / 'tfds'


@pytest.mark.parametrize(
  ('file', 'old', 'new'),
  [
    ('metadata.json', None, None),
    ('metadata.json', 'sha256', 'md5'),
    ('metadata.json', '"sha256": "', '"sha256": 7, "x": "'),
    ('metadata.json', '{', '{' + 2**20 * ' '),
    ('dataset_info.json', '"12"', f'"{10**12}"'),
    ('dataset_info.json', '"12"', '"12", "0"'),
    ('dataset_info.json', '"dev"', '"validation"'),
    ('dataset_info.json', '{', 9999 * '['),
  ],
)
def test_damaged_metadata_are_told(built, tmp_path, file, old, new):
  folder = shutil.copytree(built, tmp_path / 'tfds')
  (path,) = folder.rglob(file)
  if old is None:
    path.unlink()
  else:
    path.write_text(path.read_text().replace(old, new, 1))
  with pytest.raises(RunError, match=r'damaged.*delete its folder'):
    stsb.load(None, folder)


GOOD = 'sentence1,sentence2,similarity_score\nA.,B.,1.0\n'


@pytest.mark.parametrize(
  ('files', 'said'),
  [
    (None, ['does not exist']),
    ({}, ['has no stsb-en-train.csv', 'stsb-en-dev.csv, stsb-en-test.csv']),
    ({'dev': None}, ['has no stsb-en-dev.csv']),
    ({'test': 'a,b\nA.,B.\n'}, ["begins with 'a,b'", 'sentence1,sentence2']),
    ({'test': GOOD.replace('1.0', 'high')}, ['line 2', "'A.,B.,high'", '0 to 5']),
    ({'dev': GOOD + 'A.,B.,7\n'}, ['line 3', '0 to 5']),
    ({'dev': GOOD + 'A.,B.\n'}, ['line 3', 'two sentences']),
    ({'dev': GOOD.replace('A', 'A' * 10**6)}, ['line 2', 'field larger than']),
    ({'train': GOOD.splitlines()[0]}, ['stsb-en-train.csv has no examples']),
    ({'train': GOOD.replace('A', '\udcff')}, ['is not UTF-8 text']),
  ],
)
def test_a_folder_of_other_content_is_refused_in_one_line(tmp_path, files, said):
  folder = tmp_path / 'csv'
  if files is not None:
    folder.mkdir()
    for split in ('train', 'dev', 'test') if files else ():
      text = files.get(split, GOOD)
      if text is not None:
        content = text.encode(errors='surrogateescape')
        (folder / f'stsb-en-{split}.csv').write_bytes(content)
  with refuses(*said):
    stsb.load(folder, tmp_path / 'tfds')
  assert not list((tmp_path / 'tfds').rglob('*.array_record*'))


def test_without_a_build_the_folder_is_asked_for(tmp_path):
  with refuses('there is no STS-B', '--data must name a folder'):
    stsb.load(None, tmp_path)


ROW = {'inputs': ['It rains.'], 'label': 'wet'}


def test_a_benchmark_of_ones_own(tmp_path):
  rows = [ROW, {'inputs': ['The sun shines.'], 'label': 'dry'}]
  read = benchmarks.read_jsonl(write_jsonl(tmp_path / 'classes', rows))
  assert read.classes == ('dry', 'wet')
  assert read.splits['test'][0] == benchmarks.Example(('It rains.',), 'wet')
  numbers = [{'inputs': ['a', 'b'], 'label': 3}, {'inputs': ['c', 'd'], 'label': -0.5}]
  read = benchmarks.read_jsonl(write_jsonl(tmp_path / 'numbers', numbers))
  assert (read.classes, read.splits['train'][1].label) == ((), -0.5)


@pytest.mark.parametrize(
  ('rows', 'said'),
  [
    ([], ["the split 'train'", 'is empty']),
    ([ROW], ["has only the class 'wet'"]),
    ([ROW, {'inputs': ['a'], 'label': 'Wet'}], ['upper and lower case']),
    ([ROW, {'inputs': ['a'], 'label': 1}], ["'wet' and 1.0"]),
    ([ROW, {'inputs': ['a', 'b'], 'label': 'dry'}], ['2 inputs', 'another one 1']),
    ([ROW, {'inputs': 'a', 'label': 'dry'}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['a'], 'label': True}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['a']}], ['train.jsonl, line 2', '"label"']),
    ([ROW, {'inputs': ['a'], 'label': float('nan')}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['\ud800'], 'label': 'dry'}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': [['a']], 'label': 'dry'}], ['train.jsonl, line 2']),
    ([ROW, 7], ['train.jsonl, line 2', "'7'"]),
  ],
)
def test_what_is_wrong_with_ones_own_is_told_in_one_line(tmp_path, rows, said):
  with refuses(*said):
    benchmarks.read_jsonl(write_jsonl(tmp_path, rows))
