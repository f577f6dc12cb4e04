"""Published benchmarks and one's own, from their files."""

import pytest

from studies.llm.benchmarks import SPLITS, Example, read_benchmark
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


def test_what_is_read_is_what_the_files_hold_in_their_order(tmp_path):
  folder = write_stsb(tmp_path / 'csv')
  header, row = 'sentence1,sentence2,similarity_score', '"A ""new"" roof,\nred",Rot –'
  (folder / 'stsb-en-dev.csv').write_text(f'{header}\n{row},3.333\n', 'utf-8')
  read = read_benchmark('stsb', folder)
  for split in ('train', 'test'):
    assert [(*example.texts, example.label) for example in read.splits[split]] == PAIRS
  (dev,) = read.splits['dev']
  assert dev == Example(('A "new" roof,\nred', 'Rot –'), 3.333)


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
FILES = {
  'stsb': ('stsb-en-train.csv', 'stsb-en-dev.csv', 'stsb-en-test.csv'),
  'sick_relatedness': ('SICK_train.txt', 'SICK_trial.txt', 'SICK_test_annotated.txt'),
  'sick_entailment': ('SICK_train.txt', 'SICK_trial.txt', 'SICK_test_annotated.txt'),
  'trec_qa': ('train.csv', 'dev.csv', 'test.csv'),
}
# The benchmark, the split, what is replaced, by what, and what is said.
DAMAGED = [
  ('stsb', 'train', 'A.,B.,1.0\n', '', ['stsb-en-train.csv has no examples']),
  ('stsb', 'test', GOOD['stsb'], '', ['begins with ()', "'sentence1', 'sentence2'"]),
  ('stsb', 'test', '1.0', 'high', ['line 2', 'similarity_score', 'float']),
  ('stsb', 'dev', '1.0', '5.1', ['line 2', 'similarity_score', '<= 5']),
  ('stsb', 'dev', '1.0', 'nan', ['line 2', 'similarity_score', '>= 0']),
  ('stsb', 'dev', ',1.0', '', ['line 2', 'similarity_score']),
  ('stsb', 'dev', ',1.0', ',1.0,2.0', ['line 2', '`key`']),
  ('stsb', 'dev', 'A.', ' ', ['line 2', 'sentence1']),
  ('stsb', 'dev', 'A', 'A' * 10**6, ['line 2', 'field larger than']),
  ('stsb', 'train', 'A', '\udcff', ['is not UTF-8 text']),
  ('sick_relatedness', 'test', '\t', ',', ["begins with ('pair_ID,sentence_A"]),
  ('sick_entailment', 'dev', '4.5', 'high', ['trial.txt, line 2', 'relatedness']),
  ('sick_relatedness', 'dev', '4.5', '0.9', ['line 2', 'relatedness_score', '>= 1']),
  ('sick_entailment', 'dev', 'NEUTRAL', 'MAYBE', ['line 2', 'MAYBE', 'judgment']),
  ('sick_entailment', 'dev', '\tNEUTRAL', '', ['line 2', 'entailment_judgment']),
  ('sick_entailment', 'dev', 'B.', '', ['line 2', 'sentence_B']),
  ('trec_qa', 'dev', 'label,', '', ["begins with ('qtext', 'atext')"]),
  ('trec_qa', 'dev', '?,1', '?,yes', ['line 2', "'yes'", 'label']),
  ('trec_qa', 'dev', ',She .', '', ['line 2', 'atext']),
  ('trec_qa', 'train', '"It , too ."', 'It , too .', ['line 3', '`key`']),
  ('trec_qa', 'train', '?,1', '?,0', ['train.csv has no examples of both labels']),
]


@pytest.mark.parametrize(('name', 'split', 'old', 'new', 'said'), DAMAGED)
def test_a_damaged_file_is_one_line(tmp_path, name, split, old, new, said):
  folder = tmp_path / 'files'
  folder.mkdir()
  for part, file in zip(SPLITS, FILES[name], strict=True):
    text = GOOD[name]
    if part == split:
      assert old in text
      text = text.replace(old, new)
    (folder / file).write_bytes(text.encode(errors='surrogateescape'))
  with refuses(*said):
    read_benchmark(name, folder)


def test_a_file_that_is_missing_is_told(tmp_path):
  folder, names = tmp_path / 'files', FILES['stsb']
  with refuses(f'there is no {folder}', *names):
    read_benchmark('stsb', folder)
  write_stsb(folder)
  for name in names:
    (folder / name).rename(folder / 'away')
    with refuses(f'there is no {folder / name}', ', '.join(names)):
      read_benchmark('stsb', folder)
    (folder / 'away').rename(folder / name)
  with refuses('--data is missing', *names):
    read_benchmark('stsb', None)


def test_sick_is_two_benchmarks(tmp_path):
  folder = write_sick(tmp_path / 'files')
  # A quotation mark is a character like any other.
  row = '7\t"A dog\tIt\'s wet"\t3.333\tENTAILMENT'
  dev = SICK.replace('1\tA.\tB.\t4.5\tNEUTRAL', row)
  (folder / 'SICK_trial.txt').write_text(dev)
  scores = read_benchmark('sick_relatedness', folder)
  classes = read_benchmark('sick_entailment', folder)
  assert (scores.classes, scores.sha256) == ((), classes.sha256)
  assert classes.classes == ('contradiction', 'entailment', 'neutral')
  for split in ('train', 'test'):
    for row, scored, judged in zip(
      sick_rows(), scores.splits[split], classes.splits[split], strict=True
    ):
      assert scored == Example(row[1:3], row[3])
      assert judged == Example(row[1:3], row[4].lower())
  assert scores.splits['dev'] == [Example(('"A dog', 'It\'s wet"'), 3.333)]


def test_trec_qa_is_balanced_by_question(tmp_path):
  rows = [
    *ANSWERS,
    ('Where is the owl ?', 1, 'The owl is up there .'),
    # Questions with answers alone, or without any, have no place.
    ('Who ?', 1, 'She .'),
    ('When ?', 0, 'Here .'),
  ]
  folder = write_trec_qa(tmp_path / 'files', rows)
  read = read_benchmark('trec_qa', folder)
  assert read == read_benchmark('trec_qa', folder)
  for split, examples in read.splits.items():
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
  read = read_benchmark('jsonl', write_jsonl(tmp_path / 'classes', rows))
  assert read.classes == ('dry', 'wet')
  assert read.splits['test'][0] == Example(('It rains.',), 'wet')
  numbers = [{'inputs': ['a', 'b'], 'label': 3}, {'inputs': ['c', 'd'], 'label': -0.5}]
  read = read_benchmark('jsonl', write_jsonl(tmp_path / 'numbers', numbers))
  assert (read.classes, read.splits['train'][1].label) == ((), -0.5)


@pytest.mark.parametrize(
  ('rows', 'said'),
  [
    ([], ['train.jsonl has no examples']),
    ([ROW], ["has only the class 'wet'"]),
    ([ROW, {'inputs': ['a'], 'label': 'Wet'}], ['upper and lower case']),
    ([ROW, {'inputs': ['a'], 'label': 1}], ["'wet' and numbers"]),
    (
      [ROW, {'inputs': ['a', 'b'], 'label': 'dry'}],
      ['differ in their number of inputs'],
    ),
    ([ROW, {'inputs': 'a', 'label': 'dry'}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['a'], 'label': True}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['a'], 'label': float('nan')}], ['train.jsonl, line 2']),
    ([ROW, {'inputs': ['\ud800'], 'label': 'dry'}], ['train.jsonl, line 2']),
    ([ROW, 7], ['train.jsonl, line 2', '`object`, got `int`']),
  ],
)
def test_what_is_wrong_with_ones_own_is_told_in_one_line(tmp_path, rows, said):
  with refuses(*said):
    read_benchmark('jsonl', write_jsonl(tmp_path, rows))
