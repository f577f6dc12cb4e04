"""Published benchmarks and one's own, from their files."""

import pytest

from tests.compare import refuses
from tests.llm.pairs import (
  ANSWERS,
  PAIRS,
  sick_rows,
  write_jsonl,
  write_sick,
  write_stsb,
  write_trec_qa,
)
from zoo.llm import benchmarks

PUBLISHED = benchmarks.PUBLISHED


def test_what_is_read_is_what_the_files_hold_in_their_order(tmp_path):
  folder = write_stsb(tmp_path / 'csv')
  header, row = 'sentence1,sentence2,similarity_score', '"A ""new"" roof,\nred",Rot –'
  (folder / 'stsb-en-dev.csv').write_text(f'{header}\n{row},3.333\n', 'utf-8')
  read = PUBLISHED['stsb'].read(folder)
  for split in ('train', 'test'):
    assert [(*example.texts, example.label) for example in read.splits[split]] == PAIRS
  (dev,) = read.splits['dev']
  assert dev == benchmarks.Example(('A "new" roof,\nred', 'Rot –'), 3.333)


# A good file of each benchmark.
SICK = (
  'pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n'
  '1\tA.\tB.\t4.5\tNEUTRAL\n'
)
GOOD = {
  'stsb': 'sentence1,sentence2,similarity_score\nA.,B.,1.0\n',
  'sick_relatedness': SICK,
  'sick_entailment': SICK,
  'trec_qa': 'qtext,label,atext\nWho ?,1,She .\nWho ?,0,"It , too ."\n',
}
# The benchmark, the split, what is replaced, by what, and what is said.
DAMAGED = [
  ('stsb', 'train', 'A.,B.,1.0\n', '', ['stsb-en-train.csv has no examples']),
  ('stsb', 'test', GOOD['stsb'], '', ["begins with ''", 'sentence1,sentence2']),
  ('stsb', 'test', '1.0', 'high', ['line 2', "'A.,B.,high'", '0 to 5']),
  ('stsb', 'dev', '1.0', '5.1', ['line 2', '0 to 5']),
  ('stsb', 'dev', ',1.0', '', ['line 2', 'two sentences']),
  ('stsb', 'dev', 'A.', ' ', ['line 2', 'two sentences']),
  ('stsb', 'dev', 'A', 'A' * 10**6, ['line 2', 'field larger than']),
  ('stsb', 'train', 'A', '\udcff', ['is not UTF-8 text']),
  ('sick_relatedness', 'test', '\t', ',', ["begins with 'pair_ID,sentence_A"]),
  ('sick_entailment', 'dev', '4.5', 'high', ['trial.txt, line 2', 'high', '1 to 5']),
  ('sick_entailment', 'dev', 'NEUTRAL', 'MAYBE', ['line 2', 'MAYBE', 'CONTRADICTION']),
  ('sick_entailment', 'dev', '\tNEUTRAL', '', ['line 2', 'with tabs between them']),
  ('sick_entailment', 'dev', 'B.', '', ['line 2', 'two sentences']),
  ('trec_qa', 'dev', 'label,', '', ["begins with 'qtext,atext'"]),
  ('trec_qa', 'dev', '?,1', '?,yes', ['line 2', "'Who ?,yes,She .'", '1 or 0']),
  ('trec_qa', 'dev', ',She .', '', ['line 2', 'and a sentence']),
  ('trec_qa', 'train', '"It , too ."', 'It , too .', ['line 3', 'a sentence']),
  ('trec_qa', 'train', '?,1', '?,0', ['train.csv has no question with both labels']),
]


@pytest.mark.parametrize(('name', 'split', 'old', 'new', 'said'), DAMAGED)
def test_a_damaged_file_is_one_line(tmp_path, name, split, old, new, said):
  folder = tmp_path / 'files'
  folder.mkdir()
  for each, file in zip(benchmarks.SPLITS, PUBLISHED[name].files, strict=True):
    text = GOOD[name]
    if each == split:
      assert old in text
      text = text.replace(old, new)
    (folder / file).write_bytes(text.encode(errors='surrogateescape'))
  with refuses(*said):
    PUBLISHED[name].read(folder)


def test_a_file_that_is_missing_is_told(tmp_path):
  folder, names = tmp_path / 'files', PUBLISHED['stsb'].files
  read = PUBLISHED['stsb'].read
  with refuses(f'the data folder {folder} does not exist'):
    read(folder)
  write_stsb(folder)
  for name in names:
    (folder / name).rename(folder / 'away')
    with refuses(f'has no {name}', ', '.join(names)):
      read(folder)
    (folder / 'away').rename(folder / name)
  with refuses('--data is missing', *names):
    read(None)


def test_sick_is_two_benchmarks(tmp_path):
  folder = write_sick(tmp_path / 'files')
  # A quotation mark is a character like any other.
  row = '7\t"A dog\tIt\'s wet"\t3.333\tENTAILMENT'
  dev = SICK.replace('1\tA.\tB.\t4.5\tNEUTRAL', row)
  (folder / 'SICK_trial.txt').write_text(dev)
  scores = PUBLISHED['sick_relatedness'].read(folder)
  classes = PUBLISHED['sick_entailment'].read(folder)
  assert (scores.classes, scores.sha256) == ((), classes.sha256)
  assert classes.classes == ('contradiction', 'entailment', 'neutral')
  for split in ('train', 'test'):
    for row, one, other in zip(
      sick_rows(), scores.splits[split], classes.splits[split], strict=True
    ):
      assert one == benchmarks.Example(row[1:3], row[3])
      assert other == benchmarks.Example(row[1:3], row[4].lower())
  assert scores.splits['dev'] == [benchmarks.Example(('"A dog', 'It\'s wet"'), 3.333)]


def test_trec_qa_is_balanced_by_question(tmp_path):
  rows = [
    *ANSWERS,
    ('Where is the owl ?', 1, 'The owl is up there .'),
    # Questions with answers alone, or without any, have no place.
    ('Who ?', 1, 'She .'),
    ('When ?', 0, 'Here .'),
  ]
  folder = write_trec_qa(tmp_path / 'files', rows)
  found = PUBLISHED['trec_qa'].read(folder)
  assert found == PUBLISHED['trec_qa'].read(folder)
  for split, examples in found.splits.items():
    shown = [(e.texts[0], int(e.label == 'yes'), e.texts[1]) for e in examples]
    assert set(shown) <= set(rows)
    assert len(set(shown)) == len(shown)
    labels = {}
    for question, label, _ in shown:
      labels.setdefault(question, []).append(label)
    assert len(labels) == 5
    if split == 'test':
      assert [label for _, label, _ in shown] == [0, 1, 0, 1, 0]
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
    ([ROW, {'inputs': ['a'], 'label': float('nan')}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['\ud800'], 'label': 'dry'}], ['train.jsonl, line 2']),
    ([ROW, 7], ['train.jsonl, line 2', "'7'"]),
  ],
)
def test_what_is_wrong_with_ones_own_is_told_in_one_line(tmp_path, rows, said):
  with refuses(*said):
    benchmarks.read_jsonl(write_jsonl(tmp_path, rows))
