"""Frozen evaluation sets: their bits, their files, and what their prompts are."""

import logging
import shutil

import numpy as np
import pytest

from tests.marks import mostly_full
from tests.settings import isotropic
from zoo import evaluation_sets
from zoo.core.errors import RunError
from zoo.evaluation_sets import builder, sets

SPECS = {spec.name: spec for spec in evaluation_sets.SPECS}
FIELDS = ('x', 'y', 'x_query', 'y_query')


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  """A data folder of TFDS with `table_1` in it."""
  folder = tmp_path_factory.mktemp('tfds')
  evaluation_sets.load('table_1', folder)
  return folder


@pytest.fixture(scope='module')
def content(data_dir):
  built = builder.open_builder('table_1', data_dir)
  return builder.read_prompts(built, 8192)


@pytest.fixture
def read_once(content, monkeypatch):
  """To read the 8192 prompts of `table_1` takes most of the time of a load."""
  monkeypatch.setattr(builder, 'read_prompts', lambda *_: content)


@pytest.mark.parametrize('name', mostly_full(['anisotropic'], SPECS))
def test_the_prompts_are_those_recorded_and_of_the_task(name):
  spec = SPECS[name]
  drawn = sets.sample_prompts(spec)
  # Recorded on another day; see the module for how far bits depend on the machine.
  assert sets.checksum(drawn) == spec.sha256
  for field, recorded in zip(FIELDS, spec.means, strict=True):
    assert abs(drawn[field].mean(dtype=np.float64) - recorded) < 1e-8
  # The task as it is written down, once more.
  d, c = 10, 100 if name == 'long_context' else 10
  mean = np.zeros(d) if name == 'zero_mean' else np.full(d, 2.0)
  noise = 0.25 if name == 'noisy' else 0.0
  variances = np.ones(d)
  if name == 'anisotropic':
    variances = np.array([4, 4, 2, 2, 1, 1, 0.5, 0.5, 0.25, 0.25])
  x, y, x_query, y_query = (drawn[field].astype(np.float64) for field in FIELDS)
  assert (x.shape[1:], x.dtype) == ((c, d), np.float64)
  power = np.sum(variances * (1 + mean**2))  # of ŵ·x: tr Σ(Λ + w* w*ᵀ)
  within_standard_errors(np.einsum('bci,bcj->bij', x, x) / c, np.diag(variances))
  within_standard_errors(x_query[:, :, None] * x_query[:, None], np.diag(variances))
  within_standard_errors(np.mean(y**2, axis=1), power + noise)
  within_standard_errors(y_query**2, power)
  within_standard_errors(np.einsum('bc,bci->bi', y, x) / c, variances * mean)
  within_standard_errors(y_query[:, None] * x_query, variances * mean)
  # E y y_q (x·x_q) = tr Σ²(Λ + w* w*ᵀ): context and query share their weights.
  product = np.einsum('bc,bci,bi,b->b', y, x, x_query, y_query) / c
  within_standard_errors(product, np.sum(variances**2 * (1 + mean**2)))


def within_standard_errors(samples, expected):
  """The mean over the first axis is within 5 standard errors, in each of its entries.

  There are some 1,500 entries in all tests together, of which 5 would be passed by one
  in 2 million; the seed is fixed, so that this is settled once.
  """
  error = samples.mean(axis=0) - expected
  stderr = samples.std(axis=0) / np.sqrt(len(samples))
  assert (np.abs(error) <= 5 * stderr).all()


def test_what_is_read_is_what_was_drawn(data_dir):
  import tensorflow_datasets as tfds  # which takes long

  found = evaluation_sets.load('table_1', data_dir)
  drawn = sets.sample_prompts(SPECS['table_1'])
  for field in FIELDS:
    array = np.asarray(getattr(found.prompt, field))
    assert array.dtype == np.float32
    assert array.tobytes() == drawn[field].tobytes()
  assert found.same_bits
  assert found.sha256 == SPECS['table_1'].sha256
  assert found.task == isotropic(10, 10, prior_mean=2.0)
  builder = tfds.builder('icl_linear_regression/table_1', data_dir=data_dir)
  assert (str(builder.version), builder.info.splits['test'].num_examples) == (
    evaluation_sets.VERSION,
    8192,
  )


def test_other_roundings_are_told_and_another_content_is_refused(
  data_dir, read_once, monkeypatch, caplog
):
  spec = SPECS['table_1']
  # As where the machine that recorded the checksum had rounded differently.
  monkeypatch.setattr(spec, 'sha256', 64 * '0')
  with caplog.at_level(logging.WARNING, logger='absl'):
    assert not evaluation_sets.load('table_1', data_dir).same_bits
  assert 'does not have the recorded checksum' in caplog.text
  drawn = sets.sample_prompts(spec)
  one_ulp = np.nextafter(drawn['y'], np.float32(np.inf))
  monkeypatch.setattr(sets, 'sample_prompts', lambda _: {**drawn, 'y': one_ulp})
  assert not evaluation_sets.load('table_1', data_dir).same_bits
  moved = drawn['y'].copy()
  moved[5000, 3] *= 1 + 1e-6
  monkeypatch.setattr(sets, 'sample_prompts', lambda _: {**drawn, 'y': moved})
  with pytest.raises(RunError, match='its y is not what the seed gives'):
    evaluation_sets.load('table_1', data_dir)
  others = {field: array[:4096] for field, array in drawn.items()}
  monkeypatch.setattr(sets, 'sample_prompts', lambda _: others)
  with pytest.raises(RunError, match='this version of JAX does not reproduce'):
    evaluation_sets.load('table_1', data_dir)


def test_a_damaged_file_is_refused(tmp_path, data_dir):
  folder = shutil.copytree(data_dir, tmp_path / 'tfds')
  (path,) = folder.rglob('*.array_record-*')
  content = path.read_bytes()
  middle = len(content) // 2
  flipped = bytes([content[middle] ^ 1])
  said = r'is not as it was recorded.*delete the folder'
  for damaged in (
    content[:middle] + flipped + content[middle + 1 :],
    content[:middle],
    b'',
  ):
    path.write_bytes(damaged)
    with pytest.raises(RunError, match=said):
      evaluation_sets.load('table_1', folder)
  path.write_bytes(content)
  (info,) = folder.rglob('dataset_info.json')
  info.write_text('{')
  with pytest.raises(RunError, match=said):
    evaluation_sets.load('table_1', folder)


def test_the_export_needs_numpy_alone(data_dir, read_once, tmp_path):
  evaluation_sets.export('table_1', tmp_path / 'one.npz', data_dir)
  evaluation_sets.export('table_1', tmp_path / 'two.npz', data_dir)
  assert (tmp_path / 'one.npz').read_bytes() == (tmp_path / 'two.npz').read_bytes()
  drawn = sets.sample_prompts(SPECS['table_1'])
  with np.load(tmp_path / 'one.npz', allow_pickle=False) as found:
    for field in FIELDS:
      assert found[field].tobytes() == drawn[field].tobytes()
    assert str(found['name']) == 'table_1'
    assert str(found['version']) == evaluation_sets.VERSION
    assert str(found['sha256']) == SPECS['table_1'].sha256


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(RunError, match='cannot be written'):
    evaluation_sets.load('table_1', tmp_path / 'file')
