"""Published benchmarks as TensorFlow Datasets without TensorFlow, and one's own."""

import shutil
import sys

import pytest

from tests.compare import refuses
from tests.llm.pairs import (
  ANSWERS,
  PAIRS,
  SICK_HEADER,
  sick_rows,
  write_jsonl,
  write_sick,
  write_stsb,
  write_trec_qa,
)
from zoo.core.errors import RunError
from zoo.llm import benchmarks, datasets
from zoo.llm.published import SOURCES

WRITE = {'stsb': write_stsb, 'sick': write_sick, 'trec_qa': write_trec_qa}
BENCHMARK_OF = {'stsb': 'stsb', 'sick': 'sick_entailment', 'trec_qa': 'trec_qa'}


def test_what_is_read_is_what_the_files_hold_in_their_order(tmp_path):
  folder = write_stsb(tmp_path / 'csv')
  header, row = 'sentence1,sentence2,similarity_score', '"A ""new"" roof,\nred",Rot –'
  (folder / 'stsb-en-dev.csv').write_text(f'{header}\n{row},3.333\n', 'utf-8')
  built = datasets.load('stsb', folder, tmp_path / 'tfds')
  for split in ('train', 'test'):
    assert [(*example.texts, example.label) for example in built.splits[split]] == PAIRS
  (dev,) = built.splits['dev']
  assert dev == benchmarks.Example(('A "new" roof,\nred', 'Rot –'), 3.333)
  # Once built, the files are not needed; the folder is ArrayRecord.
  again = datasets.load('stsb', None, tmp_path / 'tfds')
  assert again == built
  assert list((tmp_path / 'tfds').rglob('*.array_record*'))
  assert 'tensorflow' not in sys.modules


def test_other_files_than_those_it_was_built_from_are_refused(tmp_path):
  datasets.load('stsb', write_stsb(tmp_path / 'csv'), tmp_path / 'tfds')
  other = write_stsb(tmp_path / 'other', PAIRS[:5])
  with refuses('was built from other files', str(other), 'TFDS_DATA_DIR'):
    datasets.load('stsb', other, tmp_path / 'tfds')


def test_a_damaged_build_is_told(tmp_path):
  datasets.load('stsb', write_stsb(tmp_path / 'csv'), tmp_path / 'tfds')
  for path in (tmp_path / 'tfds').rglob('*.array_record*'):
    path.write_bytes(path.read_bytes()[:-700])
  with pytest.raises(RunError, match=r'damaged.*delete its folder'):
    datasets.load('stsb', None, tmp_path / 'tfds')


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  """A data folder of TFDS with the twelve pairs in it."""
  base = tmp_path_factory.mktemp('built')
  datasets.load('stsb', write_stsb(base / 'csv'), base / 'tfds')
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
    datasets.load('stsb', None, folder)


# A good file of each source, and ten that are damaged, with what is said of each.
GOOD = {
  'stsb': 'sentence1,sentence2,similarity_score\nA.,B.,1.0\n',
  'sick': f'{SICK_HEADER}\n1\tA.\tB.\t4.5\tNEUTRAL\n',
  'trec_qa': 'qtext,label,atext\nWho ?,1,She .\nWho ?,0,"It , too ."\n',
}
# The source, the split, what is replaced, by what, and what is said.
DAMAGED = [
  ('stsb', 'train', 'A.,B.,1.0\n', '', ['stsb-en-train.csv has no examples']),
  ('stsb', 'test', GOOD['stsb'], '', ["begins with ''", 'sentence1,sentence2']),
  ('stsb', 'test', GOOD['stsb'], 'a,b\nA.,B.\n', ["begins with 'a,b'"]),
  ('stsb', 'test', '1.0', 'high', ['line 2', "'A.,B.,high'", '0 to 5']),
  ('stsb', 'dev', '1.0', '7', ['line 2', '0 to 5']),
  ('stsb', 'dev', '1.0', 'nan', ['line 2', '0 to 5']),
  ('stsb', 'dev', ',1.0', '', ['line 2', 'two sentences']),
  ('stsb', 'dev', 'A.', ' ', ['line 2', 'two sentences']),
  ('stsb', 'dev', 'A', 'A' * 10**6, ['line 2', 'field larger than']),
  ('stsb', 'train', 'A', '\udcff', ['is not UTF-8 text']),
  ('sick', 'train', '1\tA.\tB.\t4.5\tNEUTRAL\n', '', ['train.txt has no examples']),
  ('sick', 'test', GOOD['sick'], '', ["begins with ''", 'pair_ID']),
  ('sick', 'test', '\t', ',', ["begins with 'pair_ID,sentence_A"]),
  ('sick', 'dev', '4.5', 'high', ['SICK_trial.txt, line 2', 'high', '1 to 5']),
  ('sick', 'dev', '4.5', '0.5', ['line 2', '1 to 5']),
  ('sick', 'dev', '4.5', 'inf', ['line 2', '1 to 5']),
  ('sick', 'dev', 'NEUTRAL', 'MAYBE', ['line 2', 'MAYBE', 'CONTRADICTION']),
  ('sick', 'dev', '\tNEUTRAL', '', ['line 2', 'with tabs between them']),
  ('sick', 'dev', 'B.', '', ['line 2', 'two sentences']),
  ('sick', 'train', 'A.', '\udcff', ['is not UTF-8 text']),
  ('trec_qa', 'test', GOOD['trec_qa'][18:], '', ['test.csv has no examples']),
  ('trec_qa', 'test', GOOD['trec_qa'], '', ["begins with ''", 'qtext,label,atext']),
  ('trec_qa', 'dev', 'label,', '', ["begins with 'qtext,atext'"]),
  ('trec_qa', 'dev', '?,1', '?,yes', ['line 2', "'Who ?,yes,She .'", '1 or 0']),
  ('trec_qa', 'dev', '?,1', '?,', ['line 2', '1 or 0']),
  ('trec_qa', 'dev', ',She .', '', ['line 2', 'and a sentence']),
  ('trec_qa', 'train', 'Who ?,1', ',1', ['line 2', 'a question']),
  ('trec_qa', 'train', '"It , too ."', 'It , too .', ['line 3', 'a sentence']),
  ('trec_qa', 'train', '?,1', '?,0', ["no question in 'train'", 'one that does not']),
  ('trec_qa', 'train', 'Who', '\udcff', ['is not UTF-8 text']),
]


@pytest.mark.parametrize(('source', 'split', 'old', 'new', 'said'), DAMAGED)
def test_a_damaged_file_is_one_line_and_nothing_is_built(
  tmp_path, source, split, old, new, said
):
  assert sum(row[0] == source for row in DAMAGED) == 10
  folder = tmp_path / 'files'
  folder.mkdir()
  for each, file in SOURCES[source].files.items():
    text = GOOD[source]
    if each == split:
      assert old in text
      text = text.replace(old, new)
    (folder / file).write_bytes(text.encode(errors='surrogateescape'))
  with refuses(*said):
    datasets.load(BENCHMARK_OF[source], folder, tmp_path / 'tfds')
  assert not list((tmp_path / 'tfds').rglob('*.array_record*'))


@pytest.mark.parametrize('source', SOURCES)
def test_a_file_that_is_missing_is_told(tmp_path, source):
  folder, names = tmp_path / 'files', [*SOURCES[source].files.values()]
  with refuses(f'the data folder {folder} does not exist'):
    datasets.load(BENCHMARK_OF[source], folder, tmp_path / 'tfds')
  WRITE[source](folder)
  for name in names:
    (folder / name).rename(folder / 'away')
    with refuses(f'has no {name}', ', '.join(names)):
      datasets.load(BENCHMARK_OF[source], folder, tmp_path / 'tfds')
    (folder / 'away').rename(folder / name)
  with refuses(f'there is no {SOURCES[source].title}', '--data must name a folder'):
    datasets.load(BENCHMARK_OF[source], None, tmp_path)


def test_sick_is_two_benchmarks_of_one_build(tmp_path):
  folder = write_sick(tmp_path / 'files')
  # A quotation mark is a character like any other.
  dev = f'{SICK_HEADER}\n7\tA "dog\tIt\'s wet\t3.333\tENTAILMENT\n'
  (folder / 'SICK_trial.txt').write_text(dev)
  scores = datasets.load('sick_relatedness', folder, tmp_path / 'tfds')
  classes = datasets.load('sick_entailment', None, tmp_path / 'tfds')
  assert (scores.classes, scores.sha256) == ((), classes.sha256)
  assert classes.classes == ('contradiction', 'entailment', 'neutral')
  for split in ('train', 'test'):
    for row, one, other in zip(
      sick_rows(), scores.splits[split], classes.splits[split], strict=True
    ):
      assert one == benchmarks.Example(row[1:3], row[3])
      assert other == benchmarks.Example(row[1:3], row[4].lower())
  assert scores.splits['dev'] == [benchmarks.Example(('A "dog', "It's wet"), 3.333)]


def test_trec_qa_is_balanced_by_question(tmp_path):
  rows = [
    *ANSWERS,
    ('Where is the owl ?', 'The owl is up there .', 1),
    # Questions with answers alone, or without any, have no place.
    ('Who ?', 'She .', 1),
    ('When ?', 'Here .', 0),
  ]
  folder = write_trec_qa(tmp_path / 'files', rows)
  found = datasets.load('trec_qa', folder, tmp_path / 'tfds')
  assert found == datasets.load('trec_qa', None, tmp_path / 'tfds')
  for split, examples in found.splits.items():
    shown = [(*e.texts, int(e.label == 'yes')) for e in examples]
    assert set(shown) <= set(rows)
    assert len(set(shown)) == len(shown)
    labels = {}
    for question, _, label in shown:
      labels.setdefault(question, []).append(label)
    assert len(labels) == 5
    if split == 'test':
      assert [label for _, _, label in shown] == [0, 1, 0, 1, 0]
    else:
      for question, of in labels.items():
        assert sorted(of) == ([0, 0, 1, 1] if 'owl' in question else [0, 1])


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
