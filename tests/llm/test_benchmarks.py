"""STS-B and benchmarks of one's own, from their files."""

import pytest

from tests.compare import refuses
from tests.llm.pairs import PAIRS, write_jsonl, write_stsb
from zoo.llm import benchmarks

FILES = [f'stsb-en-{split}.csv' for split in benchmarks.SPLITS]


def test_what_is_read_is_what_the_files_hold_in_their_order(tmp_path):
  folder = write_stsb(tmp_path / 'csv')
  header, row = 'sentence1,sentence2,similarity_score', '"A ""new"" roof,\nred",Rot –'
  (folder / 'stsb-en-dev.csv').write_text(f'{header}\n{row},3.333\n', 'utf-8')
  read = benchmarks.read_stsb(folder)
  for split in ('train', 'test'):
    assert [(*example.texts, example.label) for example in read.splits[split]] == PAIRS
  (dev,) = read.splits['dev']
  assert dev == benchmarks.Example(('A "new" roof,\nred', 'Rot –'), 3.333)


GOOD = 'sentence1,sentence2,similarity_score\nA.,B.,1.0\n'
# The split, what is replaced, by what, and what is said.
DAMAGED = [
  ('train', 'A.,B.,1.0\n', '', ['stsb-en-train.csv has no examples']),
  ('test', GOOD, '', ["begins with ''", 'sentence1,sentence2']),
  ('test', '1.0', 'high', ['line 2', "'A.,B.,high'", '0 to 5']),
  ('dev', '1.0', '5.1', ['line 2', '0 to 5']),
  ('dev', ',1.0', '', ['line 2', 'two sentences']),
  ('dev', 'A.', ' ', ['line 2', 'two sentences']),
  ('dev', 'A', 'A' * 10**6, ['line 2', 'field larger than']),
  ('train', 'A', '\udcff', ['is not UTF-8 text']),
]


@pytest.mark.parametrize(('split', 'old', 'new', 'said'), DAMAGED)
def test_a_damaged_file_is_one_line(tmp_path, split, old, new, said):
  for each, file in zip(benchmarks.SPLITS, FILES, strict=True):
    text = GOOD
    if each == split:
      assert old in text
      text = text.replace(old, new)
    (tmp_path / file).write_bytes(text.encode(errors='surrogateescape'))
  with refuses(*said):
    benchmarks.read_stsb(tmp_path)


def test_a_file_that_is_missing_is_told(tmp_path):
  folder = tmp_path / 'files'
  with refuses(f'the data folder {folder} does not exist'):
    benchmarks.read_stsb(folder)
  write_stsb(folder)
  for name in FILES:
    (folder / name).rename(folder / 'away')
    with refuses(f'has no {name}', ', '.join(FILES)):
      benchmarks.read_stsb(folder)
    (folder / 'away').rename(folder / name)
  with refuses('--data is missing', *FILES):
    benchmarks.read_stsb(None)


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
    ([ROW, {'inputs': ['a'], 'label': float('nan')}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['\ud800'], 'label': 'dry'}], ['train.jsonl, line 2']),
    ([ROW, 7], ['train.jsonl, line 2', "'7'"]),
  ],
)
def test_what_is_wrong_with_ones_own_is_told_in_one_line(tmp_path, rows, said):
  with refuses(*said):
    benchmarks.read_jsonl(write_jsonl(tmp_path, rows))
