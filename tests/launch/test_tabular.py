"""A model beside methods of scikit-learn, on tables from files."""

import csv
import json
from typing import Any

import numpy as np
import pytest
from flax import nnx
from scipy import stats

import zoo
from tests.compare import refuses
from tests.compiled import built

pytest.importorskip('sklearn', reason="needs the extra 'baselines'")

from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from studies.tabular import scores, tables

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')
NUMBERS = [
  *('ridge', 'Gaussian process', 'random forest', 'gradient boosting'),
  'nearest neighbours',
]
CLASSES = [
  *('logistic regression', 'random forest', 'gradient boosting', 'nearest neighbours'),
]


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """The path of a small model of up to 4 features, with random weights."""
  sizes: Any = {
    'num_classes': 10,
    'num_layers': 1,
    'num_heads': 2,
    'width': 8,
    'num_bars': 8,
  }
  small = built(lambda: zoo.models.Tabular(4, **sizes, rngs=nnx.Rngs(0)))
  task = {'name': 'tabular', 'num_features': 4, 'context_length': 15}
  path = tmp_path_factory.mktemp('saved') / 'small'
  zoo.save(small, path, {'model': {'name': 'tabular', **sizes}, 'task': task})
  return path


def write(path, columns):
  """A CSV file of columns by name."""
  with path.open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
  return path


def features(rows=40) -> dict[str, Any]:
  """Three features."""
  x = np.random.default_rng(0).normal(size=(rows, 3)).round(4)
  return {'a': x[:, 0], 'b': x[:, 1], 'c': x[:, 2]}


def priced(offset) -> dict[str, Any]:
  """Features, and a price that is almost linear in them."""
  columns = features()
  price = offset + 40 * columns['a'] - 20 * columns['b'] + columns['c']
  return columns | {'price': price.round(3)}


@pytest.fixture
def houses(tmp_path):
  return write(tmp_path / 'houses.csv', priced(300))


def run(call, path, model, target, *flags):
  answer = call(
    'tabular',
    *(f'--data={path}', f'--target={target}', f'--model={model}'),
    *(f'--workdir={path.parent / "out"}', '--splits=2', *flags),
  )
  assert answer.code == 0, answer.err
  return answer


def split(path, seed) -> Any:
  """Features and prices of 15 rows of the context, then those of the queries."""
  table = np.genfromtxt(path, delimiter=',', skip_header=1)
  parts: Any = train_test_split(table, train_size=15, random_state=seed)
  return [columns for part in parts for columns in (part[:, :3], part[:, 3])]


def results(path):
  with (path.parent / 'out' / 'results.csv').open() as file:
    return {row['method']: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_numbers_are_compared_on_random_splits(call, houses, model):
  answer = run(call, houses, model, 'price', '--rows=15')
  found, out = results(houses), houses.parent / 'out'
  assert [*found] == ['small', *NUMBERS]
  assert '15 rows of the context and 25 queries' in answer.out
  has_nll = {name for name, row in found.items() if row['nll']}
  assert has_nll == {'small', 'Gaussian process'}
  assert (out / 'calibration.png').read_bytes().startswith(b'\x89PNG')
  assert 'calibrated' in (out / 'calibration.csv').read_text()
  page = (out / 'report.html').read_text()
  for text in ('gradient boosting', 'random_state 0 to 1', '300', 'price'):
    assert text in page
  # The likelihood is that of the estimator, whose mean is taken in float32 here.
  saved = zoo.load(model)
  losses = []
  for seed in 0, 1:
    x, y, queries, prices = split(houses, seed)
    estimator = zoo.Regressor(saved.model, saved.task).fit(x, y)
    label = estimator.predict_distribution(queries)
    losses.append(-np.mean(label.log_prob(prices.astype(np.float32))))
  assert float(found['small']['nll']) == pytest.approx(np.mean(losses), 1e-5)


@pytest.mark.slow
@pytest.mark.full
def test_scores_do_not_depend_on_an_offset_beyond_float32(call, houses, model):
  run(call, houses, model, 'price')
  plain = results(houses)['small']
  write(houses, priced(100_000_000))
  run(call, houses, model, 'price')
  far = results(houses)['small']
  for name in 'r2', 'rmse', 'nll':
    # The model is given the same labels but for rounding in float64.
    assert float(far[name]) == pytest.approx(float(plain[name]), rel=1e-4)


@pytest.mark.slow
@pytest.mark.full
def test_the_same_command_goes_on_where_it_was_interrupted(
  call, houses, model, monkeypatch
):
  first = run(call, houses, model, 'price')
  rows = houses.parent / 'out' / 'rows.jsonl'
  lines = rows.read_text().splitlines(keepends=True)
  assert len(lines) == 12
  rows.write_text(''.join(lines[:9]))
  computed = []
  compute = scores._scores

  def count(trial, method, split):
    computed.append(split)
    return compute(trial, method, split)

  monkeypatch.setattr(scores, '_scores', count)
  assert run(call, houses, model, 'price').out == first.out
  assert computed == [1, 1, 1]
  assert run(call, houses, model, 'price').out == first.out
  assert len(computed) == 3
  # Rows of another number of rows are computed again.
  run(call, houses, model, 'price', '--rows=10')
  assert len(computed) == 15
  assert json.loads(rows.read_text().splitlines()[-1])['cell'].startswith('split=1/')


@pytest.mark.slow
def test_classes_are_compared_where_values_are_missing(call, tmp_path, model):
  columns = features()
  sick = np.where(columns['a'] + columns['b'] > 0, 'sick', 'well')
  columns['c'] = np.where(columns['c'] > 1, 'NA', columns['c'].astype(str))
  columns['d'] = np.where(columns['b'] > 0, 'True', 'false')
  path = write(tmp_path / 'patients.csv', columns | {'state': sick})
  answer = run(call, path, model, 'state')
  found = results(path)
  assert [*found] == ['small', *CLASSES]
  assert all(0.5 <= float(found[name]['auc']) <= 1 for name in CLASSES)
  assert 'missing in 1 of 4 features: small reads them as missing' in answer.out
  assert 'stratified by class' in answer.out
  page = (tmp_path / 'out' / 'report.html').read_text()
  assert 'expected calibration error is' in page
  assert float(found['logistic regression']['accuracy']) > 0.8
  assert 'log_loss' in answer.out


@pytest.mark.slow
@pytest.mark.full
def test_three_classes_have_no_auc_and_integers_may_be_classes(call, tmp_path, model):
  columns = features(60)
  columns['kind'] = np.digitize(columns['a'], [-0.5, 0.5])
  path = write(tmp_path / 'kinds.csv', columns)
  answer = run(call, path, model, 'kind', '--task=classification', '--rows=0.4')
  assert 'log_loss' in answer.out
  assert ' auc' not in answer.out
  assert 'into 24 rows of the context and 36 queries' in answer.out
  assert float(results(path)['random forest']['accuracy']) > 0.8


def test_scores_are_means_over_splits(call, houses):
  """The model has no distribution, so that there is no likelihood and no picture."""
  run(call, houses, 'checkpoints/yq_lsa', 'price', '--rows=15')
  found = results(houses)
  assert [*found] == ['yq_lsa', *NUMBERS]
  expected = []
  for seed in 0, 1:
    x, y, queries, prices = split(houses, seed)
    ridge = make_pipeline(StandardScaler(), RidgeCV()).fit(x, y)
    expected.append(r2_score(prices, ridge.predict(queries)))
  assert float(found['ridge']['r2']) == pytest.approx(np.mean(expected))
  error = abs(expected[0] - expected[1]) / 2
  assert float(found['ridge']['r2_stderr']) == pytest.approx(error)
  assert found['yq_lsa']['nll'] == ''
  assert not [*(houses.parent / 'out').glob('calibration*')]


@pytest.mark.slow
@pytest.mark.full
def test_a_table_of_scikit_learn_has_a_name(call, tmp_path, model, monkeypatch):
  monkeypatch.chdir(tmp_path)
  answer = call('tabular', '--dataset=iris', f'--model={model}', '--splits=2')
  assert answer.code == 0, answer.err
  assert 'into 75 rows of the context and 75 queries' in answer.out
  folder = tmp_path / 'checkpoints' / 'runs' / 'tabular-iris-rows=0.5'
  assert (folder / 'report.html').exists()


# What a table is.


@pytest.mark.parametrize(
  ('values', 'task', 'kind', 'labels'),
  [
    (['x', 'y', 'x', 'y'], None, 'classification', ['x', 'y', 'x', 'y']),
    (['True', 'false'] * 2, None, 'classification', ['True', 'false'] * 2),
    (['True', 'false'] * 2, 'regression', 'regression', [1.0, 0.0, 1.0, 0.0]),
    ([0, 1, 1, 0], None, 'classification', [0, 1, 1, 0]),
    ([0, 1, 1, 0], 'regression', 'regression', [0.0, 1.0, 1.0, 0.0]),
    ([1, 2, 3, 1, 2, 3], 'classification', 'classification', [1, 2, 3, 1, 2, 3]),
    ([0.5, 1, 2, 3], None, 'regression', [0.5, 1.0, 2.0, 3.0]),
    ([0.5, 1.5] * 2, 'classification', 'classification', ['0.5', '1.5'] * 2),
    (range(21), None, 'regression', [float(number) for number in range(21)]),
  ],
)
def test_the_kind_follows_from_the_target(tmp_path, values, task, kind, labels):
  path = write(tmp_path / 't.csv', {'a': range(len(labels)), 'y': values})
  table = tables.read_table(path, 'y', task)
  assert table.kind == kind
  assert table.y.tolist() == labels


def test_cells_may_be_missing_or_truths_and_stand_between_semicolons(tmp_path):
  path = tmp_path / 't.csv'
  path.write_text('\ufeffa; b;y\n1,5;;x\n', encoding='utf-8')
  with refuses("text in the column 'a'", 'encode text first'):
    tables.read_table(path, 'y')
  # Python's `float` reads these as 11, 12 and 1.5.
  for text in '1_1', '١٢', '１.５':
    path.write_text('a;b;y\n' + f'{text};1;x\n11;1;x\n' * 2, encoding='utf-8')
    with refuses("text in the column 'a'"):
      tables.read_table(path, 'y')
    path.write_text('a;b\n' + f'{text};1\n11;1\n' * 2, encoding='utf-8')
    assert tables.read_table(path, 'a').classes == ['11', text]
  path.write_text('a; b;y\n1.5;;x\n\n-2e3; TRUE;x\n?;n/a;z\n 3 ;false;z\n')
  table = tables.read_table(path, 'y')
  assert table.columns == ('a', 'b')
  nan = np.nan
  expected = [[1.5, nan], [-2000, 1], [nan, nan], [3, 0]]
  np.testing.assert_array_equal(table.x, expected)
  assert table.incomplete == ['a', 'b']


def test_tables_of_scikit_learn_are_those_of_their_loaders():
  sizes = {'diabetes': (442, 10), 'iris': (150, 4), 'wine': (178, 13)}
  for name, size in sizes.items():
    table = tables.shipped(name)
    assert table.x.shape == size
    assert len(table.columns) == size[1]
  assert tables.shipped('diabetes').kind == 'regression'
  assert tables.shipped('breast_cancer').classes == ['benign', 'malignant']


# Calibration.


def test_calibration_is_averaged_over_splits():
  counts = np.array([[10.0] * 10, [20.0] + [80 / 9] * 9])
  found = scores._pit_histogram(counts)
  share = found.bins[0].share
  # Student's t has the quantile 12.7062 with one degree of freedom.
  assert (share.mean, share.half) == pytest.approx((0.15, 0.05 * 12.7062))
  assert found.num_prompts == 200
  # In the mean 15 of 100 prompts are in the first bin, and 85/9 in each of the others.
  chi_squared = (5**2 + 9 * (10 - 85 / 9) ** 2) / 10
  assert found.p_value == pytest.approx(stats.chi2.sf(chi_squared, df=9))
  bins = np.zeros((2, 10, 3))
  bins[:, 9] = [[50, 48, 45], [50, 47, 44]]  # queries, confidence, hits
  bins[:, 5] = [[50, 27, 30], [50, 27, 28]]
  result = scores._reliability(bins)
  assert result.ece == pytest.approx((3 + 2) / 100)
  assert [each.num_prompts for each in result.rows] == [100, 100]
  assert result.rows[0].confidence == pytest.approx(0.54)
  accuracy = result.rows[1].accuracy
  assert accuracy is not None
  assert (accuracy.mean, accuracy.half) == pytest.approx((0.89, 0.01 * 12.7062))
  # Of 100 labels, the error of a calibrated predictor is some hundredths.
  assert 0.05 < result.null < 0.2


# Mistakes.

MISTAKES = {
  '': 'give either --data=FILE.csv with --target=COLUMN, or --dataset=diabetes',
  '--data=h.csv --dataset=iris': 'give either --data',
  '--dataset=irs': "did you mean 'iris'?",
  '--dataset=iris --target=class': '--target belongs to --data',
  '--dataset=iris --task=regression': '--task belongs to --data',
  '--dataset=iris --rows=1': '--rows=1: it must be a number of rows ≥ 2, or a share',
  '--dataset=iris --rows=half': '--rows=half: it must be',
  '--dataset=iris --rows=149': '--rows gives 149 of the 150 rows of iris',
  '--dataset=iris --splits=1': '--splits=1',
  '--dataset=iris --model=nowhere': 'nowhere',
  '--dataset=iris --workdir=taken': "taken', which is not a folder",
  '--data=wide.csv --target=y --model=checkpoints/yq_lsa': (
    *('X has 11 features', 'takes at most 10'),
  ),
  '--dataset=iris --model=checkpoints/yq_lsa': 'zoo.Classifier predicts classes',
  '--data=nofile.csv --target=y': 'nofile.csv cannot be read',
  '--data=h.csv': '--target is missing; the columns of h.csv are a, text, y',
  '--data=h.csv --target=txet': ("unknown column of h.csv 'txet'", "mean 'text'?"),
  '--data=h.csv --target=y': "h.csv has text in the column 'text'; features must be",
  '--data=gaps.csv --target=missing': 'misses 1 of 4 values, the first in row 2',
  '--data=gaps.csv --target=one': "'one' has one class, 5",
  '--data=h.csv --target=text --task=regression': "has text, such as 'u'",
  '--data=number.csv --target=a': "'a' has one value, 1.5",
  '--data=few.csv --target=y': 'has 11 different integers, which may be classes or num',
  '--data=few.csv --target=y --task=classification': (
    'y has 11 classes; Tabular takes at most 10'
  ),
  '--data=lonely.csv --target=y': '1 of 3 classes have one row: z',
  '--data=nan.csv --target=y --model=checkpoints/yq_lsa': 'a miss values, which YqLSA',
  '--data=inf.csv --target=y': "infinite numbers in the column 'a'",
  '--dataset=iris --rows=٣٠': 'it must be a number of rows ≥ 2',
  '--data=empty.csv --target=y': 'empty.csv is empty',
  '--data=header.csv --target=y': 'header.csv has a header and no rows',
  '--data=alone.csv --target=y': "no column beside the target 'y'",
  '--data=ragged.csv --target=y': 'line 3 has 3 cells, and the header has 2',
  '--data=index.csv --target=y': 'column 1 of index.csv has no name',
  '--data=twice.csv --target=y': "has the column 'a' more than once",
  '--data=short.csv --target=y': 'the table short has 3 rows; it needs 4',
}
FILES = {
  'wide': 'a,b,c,d,e,f,g,h,i,j,k,y\n'
  + ''.join(f'{"1," * 11}{i}.5\n' for i in range(4)),
  'h': 'a,text,y\n1,u,0.5\n2,v,1\n3,w,2\n4,x,3\n',
  'gaps': 'a,one,missing\n1,5,1\n2,5,\n3,5,2\n4,5,3\n',
  'number': 'a,b\n1.5,2\n1.5,3\n',
  'few': 'a,y\n' + ''.join(f'1,{i}\n2,{i}\n' for i in range(11)),
  'lonely': 'a,y\n1,x\n2,x\n3,y\n4,y\n5,z\n',
  'nan': 'a,y\n' + '1,0.5\n,1\n2,2\n' * 3,
  'inf': 'a,y\ninf,0.5\n1,1\n',
  'empty': '',
  'header': 'a,y\n',
  'alone': 'y\n1\n',
  'ragged': 'a,y\n1,2\n1,2,3\n',
  'index': ',a,y\n0,1,2\n',
  'twice': 'a,a,y\n0,1,2\n',
  'short': 'a,y\n1,0.5\n2,1\n3,2\n',
}


@pytest.mark.parametrize('line', MISTAKES)
def test_a_mistake_is_one_line_before_anything_is_written(call, folder, line):
  for name, text in FILES.items():
    (folder / f'{name}.csv').write_text(text)
  before = sorted(folder.rglob('*'))
  default = [] if '--model' in line else ['--model=checkpoints/tabular']
  answer = call('tabular', *line.split(), *default)
  assert answer.code == 2, answer
  (error,) = answer.err.splitlines()
  assert error.startswith('error: ')
  assert answer.out == ''
  said = MISTAKES[line]
  for part in (said,) if isinstance(said, str) else said:
    assert part in error
  assert sorted(folder.rglob('*')) == before
