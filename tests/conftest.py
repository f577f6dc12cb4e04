"""What holds for the whole test run; set before JAX starts and zoo is imported."""

import gc
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request
from typing import Any

import hypothesis
import jax
import jaxtyping
import pytest

# Later releases of jaxlib end at a flag that they do not know.
_HAS_OLDER = jax.__version_info__ < (0, 11)
_OLDER = '--xla_cpu_use_fusion_emitters=false'

if 'zoo' in sys.modules:
  raise RuntimeError('zoo was imported too early for its annotations to be checked')

# JAX keeps a million objects, which Python would go through again and again in search
# of cycles: a tenth of the time of all tests.
gc.set_threshold(50_000, 20, 10)
if not jax.config.values['jax_platforms']:  # tolerances are those of CPU arithmetic
  jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
# What is not spelled out is refused: a silent float64 or a silent broadcast is a bug.
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Where in the source each operation is from is no part of what tests ask of programs.
jax.config.update('jax_include_full_tracebacks_in_locations', False)
jax.config.update('jax_traceback_in_locations_limit', 0)
# In the background of a shell script Ctrl-C is ignored, here and in what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)
# Checks the annotations of shapes, by the import hook that jaxtyping documents.
jaxtyping.install_import_hook(['zoo', 'studies', 'docs.programs'], 'beartype.beartype')

# The first example of each shape compiles; the same examples in every run.
hypothesis.settings.register_profile(
  'zoo', deadline=None, max_examples=20, derandomize=True, database=None
)
hypothesis.settings.load_profile('zoo')


def pytest_addoption(parser):
  parser.addoption(
    '--slow',
    action='store_true',
    help='run the tests that are marked slow too, which take several times as long',
  )
  parser.addoption(
    '--compile_fast',
    action='store_true',
    help='with --slow, compile with little effort, as the quick tests do: where most '
    'time goes into compiling',
  )
  parser.addoption(
    '--full',
    action='store_true',
    help='start up to 8 processes instead of 2, kill some 20 times and stop some 10 '
    'times instead of once, corrupt each file 1000 times instead of 40, and with '
    '--slow run the slowest tests',
  )


def pytest_configure(config):
  if config.getoption('--full'):  # also for what is no test, in the workers as well
    os.environ['ZOO_FULL_TESTS'] = '1'
  if config.getoption('--compile_fast') or not config.getoption('--slow'):
    compile_fast()


def compile_fast() -> None:
  """Lets XLA compile with little effort, here and in the processes that tests start.

  Most of the time of most tests goes into compiling small programs. The newer
  emitters of XLA take a third longer for one than those that they replace.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  if _HAS_OLDER and _OLDER not in flags:  # pytest's workers inherit it
    os.environ['XLA_FLAGS'] = f'{flags} {_OLDER}'.strip()
  os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'
  jax.config.update('jax_disable_most_optimizations', True)


def pytest_collection_modifyitems(config, items):
  """Leaves out tests marked slow without --slow, and tests marked full without --full.

  If the command names a test with `::`, all tests that it selects run. A slow test may
  take 20 minutes, since machines differ, unless it has a limit of its own.
  """
  for item in items:
    if item.get_closest_marker('slow') and not item.get_closest_marker('timeout'):
      item.add_marker(pytest.mark.timeout(1200))
  if any('::' in argument for argument in config.args):
    return
  for marker in 'slow', 'full':
    if not config.getoption(f'--{marker}'):
      left_out = [item for item in items if item.get_closest_marker(marker)]
      config.hook.pytest_deselected(items=left_out)
      items[:] = [item for item in items if not item.get_closest_marker(marker)]


def pytest_collection_finish():
  """What has been imported stays, and is not searched for cycles."""
  gc.freeze()


def pytest_sessionfinish():
  """What warns when it is deleted is searched for until nothing is left.

  Pytest does so five times in any case, which is quick with what is frozen.
  """
  for _ in range(5):
    if not gc.collect():
      break
  gc.freeze()


@pytest.fixture(scope='session')
def full(pytestconfig):
  """Whether faults are repeated as often as is promised."""
  return pytestconfig.getoption('--full')


@pytest.fixture(scope='session', autouse=True)
def compile_once(cache):
  """What one test or one of pytest's workers has compiled the others find."""
  jax.config.update('jax_compilation_cache_dir', str(cache))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


@pytest.fixture(scope='module', autouse=True)
def forget_programs():
  """Programs are dropped after a file of tests, once there are many.

  Each maps some ten pieces of memory. Beyond 65530, which is Linux's limit for a
  process, the next compilation ends in a segmentation fault. Files of tests share what
  is traced and compiled until there are a third of them, and some 2 GB of memory.
  """
  yield
  maps = pathlib.Path('/proc/self/maps')
  if not maps.exists() or len(maps.read_bytes().splitlines()) > 20_000:
    from zoo.core import programs  # after the hook for annotations

    programs._executables.clear()
    jax.clear_caches()


@pytest.fixture
def compiled_well():
  """XLA optimises as it does for users, for a test that runs programs for long."""
  little = jax.config.values['jax_disable_most_optimizations']
  jax.config.update('jax_disable_most_optimizations', False)
  yield
  jax.config.update('jax_disable_most_optimizations', little)


@pytest.fixture
def float64():
  """The test runs in float64."""
  with jax.enable_x64(True):
    yield


@pytest.fixture
def unchecked():
  """Annotations are not enforced, as for a user; zoo's own checks must answer."""
  jaxtyping.config.update('jaxtyping_disable', True)
  yield
  jaxtyping.config.update('jaxtyping_disable', False)


@pytest.fixture
def promotion_that_optax_needs():
  """Optax raises a float to an int32 array, which strict promotion refuses."""
  jax.config.update('jax_numpy_dtype_promotion', 'standard')
  yield
  jax.config.update('jax_numpy_dtype_promotion', 'strict')


@pytest.fixture(scope='session')
def cache():
  """The folder of compiled programs, which later test runs on this machine use."""
  from launch import compiled

  caches = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(caches, 'icl_zoo_tests', compiled.this_machine())
  if os.environ.get('PYTEST_XDIST_WORKER', 'gw0') == 'gw0':
    compiled.delete_least_used(folder, 2 * 2**30)
  return folder


@pytest.fixture(scope='session')
def emulator():
  """Google Cloud Storage on this machine, for the whole test run; its process."""
  for package in 'gcsfs', 'gcp_storage_emulator':
    if importlib.util.find_spec(package) is None:  # zoo sets it up before its import
      pytest.skip(f'{package} is not installed')
  words = [sys.executable, '-m', 'tests.gcs_emulator']
  root = pathlib.Path(__file__).parents[1]
  with (
    subprocess.Popen(
      words,
      cwd=root,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,  # what clients that are killed leave unread
      text=True,
    ) as process,
    pytest.MonkeyPatch.context() as patch,
  ):
    assert process.stdout is not None
    address = f'http://127.0.0.1:{process.stdout.readline().strip()}'
    for name in 'STORAGE_EMULATOR_HOST', 'TENSORSTORE_GCS_HTTP_URL':
      patch.setenv(name, address)
    patch.setenv('GOOGLE_AUTH_TOKEN_FOR_TESTING', 'token')  # or TensorStore warns
    yield process
    process.kill()


@pytest.fixture
def faults(emulator):
  """Lets a share of the requests to the emulator fail: `faults(0.3, 503)`."""

  def set_faults(share, status=503):
    body = json.dumps({'share': share, 'status': status}).encode()
    address = os.environ['STORAGE_EMULATOR_HOST']
    urllib.request.urlopen(f'{address}/faults', body, timeout=10).close()

  yield set_faults
  set_faults(0.0)


@pytest.fixture
def bucket(emulator, request):
  """The URL of a folder in a bucket that this test alone has."""
  return f'gs://bucket/{abs(hash(request.node.nodeid))}'


@pytest.fixture
def register():
  """Registers models for one test, and forgets all else that it registers, too."""
  import zoo
  from zoo.core.registry import MIXERS, MODELS, TASKS
  from zoo.objectives.curricula import CURRICULA
  from zoo.objectives.functions import OBJECTIVES
  from zoo.training.metrics import METRICS
  from zoo.training.optimizers import OPTIMIZERS

  of_runs: list[dict[str, Any]] = [OPTIMIZERS, CURRICULA, METRICS, OBJECTIVES]
  tables: list[dict[str, Any]] = [MODELS, TASKS, MIXERS, *of_runs]
  before = [dict(table) for table in tables]
  yield zoo.register_model
  for table, entries in zip(tables, before, strict=True):
    table.clear()
    table.update(entries)
