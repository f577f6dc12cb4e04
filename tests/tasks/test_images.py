"""Labelled clusters of images, which are the digits of scikit-learn."""

import dataclasses
import functools
import sys
from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import chi2

import configs
import zoo
from tests.built import task_of
from tests.compare import refuses
from tests.digits import digits, write_digits
from tests.tasks import host
from zoo.config.building import with_full_path
from zoo.config.read import read
from zoo.core.errors import CONSTRAINTS


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  # Of the last the images are among those of train, as of small1 of Omniglot.
  splits = {'train': slice(1000), 'test': slice(1000, None), 'small1': slice(50)}
  return write_digits(tmp_path_factory.mktemp('tfds'), splits)


def _task(folder, **changes) -> Any:
  fields = {
    'source': 'tfds',
    'dataset': 'digits',
    'data_dir': folder,
    'image_size': 8,
    'context_length': 4,
    'num_classes': 6,
    'num_labels': 2,
    'burstiness': 2,
    'held_out_classes': 4,
  }
  return zoo.create_task('labelled_clusters', **fields | changes)


@functools.cache
def _drawn(folder: str, test: str) -> Any:
  """512 prompts of a test of the task whose classes are all different."""
  task: Any = _task(folder, burstiness=1).shifts()[test]
  return host.sample_with_latents(task, 0, 512)


def _pixels(standardised):
  """The pixels of images again, whole numbers."""
  pixels = digits()[0].astype(float)
  rounded = np.round(standardised * pixels.std() + pixels.mean())
  np.testing.assert_allclose(
    (rounded - pixels.mean()) / pixels.std(), standardised, atol=1e-4
  )
  return rounded.astype(np.uint8)


def _labels_of(x):
  """The labels of images, all of which are among the digits."""
  images, labels = digits()
  of_image = {
    image.tobytes(): label for image, label in zip(images, labels, strict=True)
  }
  flat = _pixels(x.reshape(-1, 64))
  return np.array([of_image[image.tobytes()] for image in flat]).reshape(x.shape[:-1])


def _p_value(counts, expected):
  return chi2.sf(np.sum((counts - expected) ** 2 / expected), len(counts) - 1)


def test_the_images_are_those_of_the_files_by_class(data_dir):
  task, (images, labels) = _task(data_dir), digits()
  own = task._images
  np.testing.assert_array_equal(own.counts, np.bincount(labels))
  np.testing.assert_array_equal(own.starts, np.cumsum(own.counts) - own.counts)
  assert (task.num_features, own.pixels.shape) == (64, (1797, 64))
  assert abs(own.pixels.mean()) < 1e-6 > abs(own.pixels.std() - 1)
  for label in range(10):  # TFDS shuffles
    part = _pixels(own.pixels[own.starts[label] :][: own.counts[label]])
    expected = images[labels == label].reshape(-1, 64)
    np.testing.assert_array_equal(sorted(part.tolist()), sorted(expected.tolist()))


@pytest.mark.slow
def test_images_are_scaled_by_means(data_dir):
  images, labels = digits()
  means = images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16)
  own = _task(data_dir, image_size=4)._images
  # In the units of pixels, which PIL rounds.
  pixels = own.pixels * means.std() + means.mean()
  for label in range(10):
    part = pixels[own.starts[label] :][: own.counts[label]]
    expected = means[labels == label]
    assert np.abs(part[:, None] - expected[None]).max(-1).min(1).max() < 1.5


@pytest.mark.slow
def test_prompts_have_images_of_the_first_classes_with_their_labels(data_dir):
  task = _task(data_dir)
  prompt = host.sample_with_latents(task, 0, 512)
  classes = prompt.latents
  np.testing.assert_array_equal(_labels_of(host.features(prompt)), classes)
  assert {*classes.ravel().tolist()} == {*range(6)}
  np.testing.assert_array_equal(np.argmax(host.targets(prompt), -1), classes % 2)
  same = classes[:, :-1] == classes[:, -1:]
  assert (same.sum(1) >= 2).all()


@pytest.mark.slow
@pytest.mark.full
def test_a_longer_batch_begins_with_the_shorter_one(data_dir):
  longer, shorter = (host.sample(_task(data_dir), 0, size) for size in (5, 3))
  np.testing.assert_array_equal(host.features(longer)[:3], host.features(shorter))


@pytest.mark.slow
def test_the_images_of_a_class_are_drawn_uniformly(data_dir):
  own = _task(data_dir)._images
  count = int(own.counts[3])
  classes: Any = np.full(40 * count, 3)
  drawn = np.asarray(jax.jit(own.sample)(jax.random.key(1), classes))
  # No two images of this class are the same.
  _, counts = np.unique(drawn, axis=0, return_counts=True)
  assert len(counts) == count
  assert _p_value(counts, np.full(count, 40)) > 1e-5


@pytest.mark.slow
def test_new_classes_are_those_held_out_with_any_labels(data_dir):
  prompt = _drawn(data_dir, 'in_context')
  of_example = _labels_of(host.features(prompt))
  assert {*of_example.ravel().tolist()} == {6, 7, 8, 9}
  assert all(len({*row}) == 4 for row in of_example[:, :-1].tolist())
  shown = np.argmax(host.targets(prompt), -1)
  for label in range(6, 10):  # any label, one for each class of a prompt
    counts = np.bincount(shown[:, :-1][of_example[:, :-1] == label], minlength=2)
    assert _p_value(counts, np.full(2, 256)) > 1e-5
  at = np.argmax(of_example[:, :-1] == of_example[:, -1:], 1)
  np.testing.assert_array_equal(shown[np.arange(512), at], shown[:, -1])


@pytest.mark.slow
@pytest.mark.full
def test_the_other_tests_are_as_for_points(data_dir):
  absent = _drawn(data_dir, 'in_weights').latents
  assert not (absent[:, :-1] == absent[:, -1:]).any()
  swapped = _drawn(data_dir, 'swapped')
  is_same = np.argmax(host.targets(swapped), -1) == swapped.latents % 2
  assert (is_same == is_same[:, :1]).all()
  assert abs(is_same[:, 0].mean() - 0.5) < 5 * 0.5 / np.sqrt(512)


@pytest.mark.slow
def test_baselines_claim_nothing_exact(data_dir):
  task = _task(data_dir, burstiness=1)
  for distribution in (task, *task.shifts().values()):
    assert [*distribution.baselines()] == ['nearest_neighbours', 'zero']
  test = task.shifts()['in_context']
  prompt = _drawn(data_dir, 'in_context')
  nearest = jax.jit(test.baselines()['nearest_neighbours'])(prompt)
  apart = np.square(prompt.x - prompt.x_query[:, None]).sum(-1)
  of_nearest = prompt.y[np.arange(512), apart.argmin(1)]
  np.testing.assert_array_equal(np.argmax(nearest, -1), np.argmax(of_nearest, -1))


@pytest.mark.slow
@pytest.mark.full
def test_it_keeps_the_contract_of_a_task(data_dir, unchecked):
  zoo.check_task(_task(data_dir))


def test_data_are_read_once_and_stay_with_a_task_that_changes(data_dir, monkeypatch):
  task = _task(data_dir)
  assert task == _task(data_dir, dataset='digits:1.0.0')
  monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
  assert dataclasses.replace(task, burstiness=1)._images is task._images
  leaves, structure = jax.tree.flatten(task)
  assert jax.tree.unflatten(structure, leaves) == task


def _config(data_dir, **changes) -> Any:
  config: Any = configs.get_config('transformer', 'smoke,task=labelled_clusters')
  config.task.update(
    source='tfds',
    dataset='digits',
    data_dir=data_dir,
    num_classes=6,
    num_labels=2,
    held_out_classes=4,
    context_length=4,
  )
  config.task.update(changes)
  return config


def _recorded(config):
  """The config as a run records it."""
  run = read(config)
  return with_full_path(run, task_of(run))


@pytest.mark.slow
def test_a_run_keeps_the_full_path_and_the_version(data_dir, monkeypatch):
  monkeypatch.chdir(data_dir)
  config = _recorded(_config('.'))
  assert [config.task.arguments[field] for field in ('data_dir', 'dataset')] == [
    data_dir,
    'digits:1.0.0',
  ]
  monkeypatch.chdir('/')
  assert _recorded(config) == config
  assert task_of(config).num_features == 28**2


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    (
      {'dataset': 'omniglot'},
      [
        'the data set omniglot is not in ',
        'tfds build omniglot --data_dir=',
        ' --file_format=array_record',
      ],
    ),
    ({'dataset': 'digits:2.0.0'}, ['the data set digits:2.0.0 is not in ']),
    ({'dataset': '../digits'}, ['the data set ../digits is not in ']),
    ({'dataset': None}, ['dataset is None', "such as 'omniglot'"]),
    ({'data_dir': 3}, ['data_dir is 3; it must be a folder']),
    ({'image_size': 0}, ['image_size is 0; it must be an integer ≥ 1']),
    ({'source': 'tdfs'}, ["unknown source 'tdfs'", "did you mean 'tfds'?"]),
    ({'source': 'gaussian'}, ["dataset is 'digits'; it needs source = 'tfds'"]),
    ({'held_out_classes': 1}, ['held_out_classes is 1; it must be an integer ≥ 2']),
    (
      {'num_classes': 8},
      ['num_classes is 8, and held_out_classes 4', 'at most 10, the classes of digits'],
    ),
  ],
)
def test_mistakes_are_one_line(data_dir, changes, said, unchecked):
  with refuses(*said):
    _task(data_dir, **changes)


def test_other_data_sets_are_refused_in_one_line(tmp_path):
  part = {'train': slice(10)}
  named = write_digits(tmp_path / 'named', part, label='digit')
  with refuses('cannot be used: its features are digit, image, not image and label'):
    _task(named)
  other = write_digits(tmp_path / 'other', {'small1': slice(10)})
  with refuses('cannot be used: it has no images in the splits train, validation'):
    _task(other)
  damaged = write_digits(tmp_path / 'damaged', part)
  (file,) = (tmp_path / 'damaged').rglob('*.array_record*')
  file.write_bytes(file.read_bytes()[:100])
  with refuses('the data set digits in ', 'damaged cannot be used: '):
    _task(damaged)
  (info,) = (tmp_path / 'damaged').rglob('dataset_info.json')
  info.write_text(info.read_text().replace('array_record', 'tfrecord'))
  with refuses('only TensorFlow reads; tfds build digits', '--overwrite'):
    _task(damaged)
  info.write_text('{')
  with refuses('damaged cannot be used: '):
    _task(damaged)


def test_without_the_extra_one_line_names_it(data_dir, monkeypatch):
  for module in ('tensorflow_datasets', 'tensorflow_datasets.core'):
    monkeypatch.setitem(sys.modules, module, None)
  with refuses(
    'tensorflow_datasets is not installed; images need pip install '
    f"-c {CONSTRAINTS} -e '.[data]'"
  ):
    _task(data_dir)
