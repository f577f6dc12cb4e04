"""`zoo.load`: any mesh, any folder, no code, clear faults."""

import json
import os
import pathlib
import pickle
import shutil
import sys
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import zoo
from tests.built import abstract_of
from tests.checkpoints.states import files_of, zeros_of
from tests.compare import refuses
from tests.compiled import predict
from tests.launch.processes import ROOT, run
from tests.marks import mostly_full
from tests.training.runs import small_config
from zoo.config.read import to_content
from zoo.storage import loading
from zoo.storage.checkpoints import Checkpoints
from zoo.storage.steps import damage_of

CONFIG = small_config('multi_head_lsa', model__num_heads=4, mesh__data=4, mesh__model=2)
WEIGHTS = {
  **{
    f'w_{name}': np.random.default_rng(i).normal(size=(4, 4, 4)).astype('f')
    for i, name in enumerate('kqvp')
  },
  'guess': np.array([0.5, -1.0, 2.0], 'f'),
  'bias': np.array(0.25, 'f'),
}


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run on 4 × 2 devices that has saved its steps 4, 8 and 12."""
  folder = tmp_path_factory.mktemp('run') / 'heads'
  folder.mkdir()
  mesh = jax.make_mesh((4, 2), ('data', 'model'), (AxisType.Auto,) * 2)
  state = nnx.state(abstract_of(CONFIG))

  def put(path, variable):
    array = WEIGHTS[path[-1]]
    axes = ('model',) if array.ndim == 3 else ()
    return variable.replace(jax.device_put(array, NamedSharding(mesh, P(*axes))))

  state = nnx.map_state(put, state)
  optimizer = {'count': jax.device_put(np.int32(0))}
  with Checkpoints(folder, 3, to_content(CONFIG)) as checkpoints:
    for step in (4, 8, 12):
      checkpoints.save(step, {'model': state, 'optimizer': optimizer})
  return folder


@pytest.fixture
def step_folder(workdir, tmp_path):
  """A copy of one step, to be damaged."""
  return pathlib.Path(shutil.copytree(workdir / 'checkpoints' / '12', tmp_path / 'one'))


def arrays(model):
  return {path: np.asarray(v[...]) for path, v in nnx.to_flat_state(nnx.state(model))}


def assert_same(model, expected):
  assert arrays(model).keys() == arrays(expected).keys()
  for path, array in arrays(model).items():
    np.testing.assert_array_equal(array, arrays(expected)[path])


@pytest.mark.parametrize('step', [4.0, '4', True, -1])
def test_a_step_that_is_no_integer_is_refused(workdir, step, unchecked):
  with refuses(f'step is {step!r}; it must be an integer ≥ 0'):
    zoo.load(workdir, step)


def test_what_is_no_folder_of_a_run_is_said(tmp_path, unchecked):
  nothing: Any
  for nothing in (None, '', 3):
    with refuses(f'the path is {nothing!r}; it must be the name of a folder'):
      zoo.load(nothing)
  (tmp_path / 'points' / 'seed=0').mkdir(parents=True)
  for folder in (tmp_path, tmp_path / 'points'):
    with refuses('is a sweep; give the folder of one of its points', 'seed=0'):
      zoo.load(folder)


def test_a_run_is_opened_by_its_folder_alone(workdir):
  saved = zoo.load(workdir)
  assert saved.step == 12
  assert saved.config.model.num_heads == saved.model.num_heads == 4
  assert saved.task.num_features == 3
  for (name,), array in arrays(saved.model).items():
    np.testing.assert_array_equal(array, WEIGHTS[str(name)])
  assert_same(saved.model, zoo.load(workdir / 'checkpoints').model)
  assert_same(saved.model, zoo.load(str(workdir / 'checkpoints' / '12')).model)
  assert zoo.load(workdir, step=8).step == 8


def test_a_model_is_opened_whatever_became_of_the_optimizer(step_folder):
  next((step_folder / 'optimizer').glob('d/*')).unlink()
  assert zoo.load(step_folder).step == 12
  shutil.rmtree(step_folder / 'optimizer')
  assert zoo.load(step_folder).step == 12
  assert 'optimizer' in str(damage_of(step_folder))  # no run goes on from it


# Where there is no fcntl, as on Windows.
_FRESH = """
import json, sys
sys.modules['fcntl'] = None
import jax, zoo
saved = zoo.load(sys.argv[1])
print(json.dumps([jax.device_count(), saved.model.w_k[...].tolist()]))
"""


@pytest.mark.slow
def test_4_by_2_devices_to_one_in_a_fresh_process_without_fcntl(
  workdir, tmp_path, cache
):
  os.symlink(workdir, tmp_path / 'linked')
  words = [sys.executable, '-c', _FRESH, 'linked']
  answer = run(words, cache, tmp_path, PYTHONPATH=str(ROOT))
  assert answer.returncode == 0, answer.stderr
  assert json.loads(answer.stdout) == [1, WEIGHTS['w_k'].tolist()]


@pytest.mark.parametrize(
  ('shape', 'names'),
  mostly_full(
    [((2, 4), ('data', 'model')), ((3,), ('other',))],
    [(shape, ('data', 'model')) for shape in ((1, 1), (8, 1), (1, 8))],
  ),
)
def test_any_mesh_will_do(workdir, shape, names):
  devices = jax.devices()[: int(np.prod(shape))]
  mesh = jax.make_mesh(shape, names, (AxisType.Auto,) * len(shape), devices=devices)
  with jax.set_mesh(mesh):
    saved = zoo.load(workdir)
    if shape == (2, 4):
      predict(saved.model, saved.task.sample(jax.random.key(0), 4))
  np.testing.assert_array_equal(saved.model.w_k[...], WEIGHTS['w_k'])
  heads = saved.model.w_k[...].sharding.shard_shape((4, 4, 4))[0]
  # Four heads are split over 4 devices, and stay whole over 8.
  assert heads == (1 if shape == (2, 4) else 4)


def test_a_wrong_folder_or_step_is_named(workdir, tmp_path):
  with refuses('nowhere does not exist'):
    zoo.load(tmp_path / 'nowhere')
  (tmp_path / 'file').touch()
  with refuses('is not a folder'):
    zoo.load(tmp_path / 'file')
  with refuses('holds no checkpoint', 'the workdir of a run'):
    zoo.load(tmp_path)
  for folder in tmp_path / 'new', tmp_path / 'new' / 'checkpoints':
    folder.mkdir()
    (tmp_path / 'new' / 'config.json').write_text('{}')
    with refuses('the run in', 'has saved no step yet; train it further'):
      zoo.load(tmp_path / 'new')
  (tmp_path / 'new' / 'tensorboard').mkdir()
  with refuses('holds no checkpoint'):
    zoo.load(tmp_path / 'new' / 'tensorboard')
  with refuses('has no step 5', '[4, 8, 12]'):
    zoo.load(workdir, step=5)
  with refuses('has no step 5', '[12]'):
    zoo.load(workdir / 'checkpoints' / '12', step=5)


def test_damage_is_named_and_a_good_step_with_it(workdir, tmp_path):
  copy = pathlib.Path(shutil.copytree(workdir, tmp_path / 'run'))
  step = copy / 'checkpoints' / '12'
  name = [file for file in files_of(step) if file.startswith('model/')][-1]
  content = (step / name).read_bytes()
  (step / name).write_bytes(content[:-1])
  with pytest.raises(zoo.RunError, match='is damaged') as info:
    zoo.load(copy)
  assert f'{name} is not as it was written' in str(info.value)
  assert f'step 8 is good: delete {step} and give the same' in str(info.value)
  # Nothing is moved.
  assert [path.name for path in copy.iterdir()] == ['checkpoints']
  (step / name).write_bytes(content)
  assert zoo.load(copy).step == 12


@pytest.fixture
def run_beside(tmp_path):
  """A run of one step that saves another, and deletes that one, amid each load."""
  config = small_config('lsa')
  zeros = zeros_of(config)
  with Checkpoints(tmp_path, 1, to_content(config)) as checkpoints:

    def save(step):
      checkpoints.save(step, {'model': zeros})
      checkpoints.wait()

    save(1)
    yield save


@pytest.mark.parametrize(
  'reader', mostly_full(['saved_arrays'], ['damage_of', '_abstract'])
)
def test_a_step_that_is_deleted_meanwhile_is_left_for_a_newer(
  tmp_path, run_beside, monkeypatch, reader
):
  read, steps = getattr(loading, reader), iter([2, 3])

  def read_late(*arguments, **named):
    if (step := next(steps, None)) is not None:
      run_beside(step)
    return read(*arguments, **named)

  monkeypatch.setattr(loading, reader, read_late)
  assert zoo.load(tmp_path).step == 3
  steps = iter([4])
  with refuses('has no step 3; it has'):
    zoo.load(tmp_path, step=3)


class Trap:
  """Unpickling it makes a file."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self.path,)


def test_a_pickle_or_a_foreign_file_is_never_opened(step_folder, tmp_path):
  """Python tells of every file that it opens; a pickle that is run leaves a mark."""
  opened, listening = [], [True]

  def listen(event, arguments):
    if listening and event in ('open', 'pickle.find_class'):
      opened.append(str(arguments[0]))

  sys.addaudithook(listen)
  trap = pickle.dumps(Trap(tmp_path / 'sprung'))
  names = 'foreign.pkl', 'model.pkl', 'checkpoint.safetensors', 'foreign.bin'
  for name in names:
    (step_folder / name).write_bytes(trap)
  opened.clear()
  assert zoo.load(step_folder).step == 12
  within = [path for path in opened if str(step_folder) in path]
  assert any('data.json' in path for path in within)  # the hook hears
  for name in names:
    assert not [path for path in within if path.endswith(name)]
  # Among the arrays it is refused, and is not opened either.
  (step_folder / 'model' / 'foreign.pkl').write_bytes(trap)
  opened.clear()
  with pytest.raises(zoo.RunError, match=r'model/foreign.pkl is not in SHA256SUMS'):
    zoo.load(step_folder)
  assert not [path for path in opened if path.endswith('foreign.pkl')]
  listening.clear()
  assert not (tmp_path / 'sprung').exists()
