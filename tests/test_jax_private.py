"""What the library needs of JAX's private parts is there, and does what it should.

If one of these fails with a new release of JAX, `zoo/host/jax_private.py` is the place
to mend: read the release's `jax/_src/distributed.py`.
"""

import ast
import inspect
import subprocess
import sys

import jax
import pytest
from jax._src import distributed

from tests.launch.processes import ROOT
from zoo.host import jax_private


def test_the_release_of_jax_is_the_one_that_was_tested():
  assert jax.__version__ == jax_private.TESTED_VERSION, (
    'run the tests that need several processes (pytest --slow tests/launch), and '
    'change TESTED_VERSION in zoo/host/jax_private.py'
  )


def test_the_state_of_a_run_has_what_is_read_of_it():
  state = distributed.State()
  assert (state.num_processes, state.process_id) == (1, 0)
  assert state.client is None
  assert state.coordinator_address is None
  assert isinstance(distributed.global_state, distributed.State)
  # The client is made by this function, which is looked up when it is called.
  source = inspect.getsource(distributed.State.initialize)
  assert '_jax.get_distributed_runtime_client(' in source


def test_jax_has_the_methods_that_are_called():
  extension, protocol = vars(distributed)['_jax'], jax_private.CoordinationClient
  methods = [name for name in vars(protocol) if not name.startswith('_')]
  assert methods
  for name in methods:
    assert hasattr(extension.DistributedRuntimeClient, name)


# Calls a callback of JAX's kind, which cannot be given its argument, from C++.
LOST = """
import ctypes, os
from zoo.host import jax_private

def ends():
  os.write(1, b'lost')
  os._exit(7)

with jax_private.lost_run_handler(ends):
  pass
ctypes.CDLL('libstdc++.so.6')['_ZSt9terminatev']()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason="GNU's C++ library is on Linux")
def test_an_exception_that_nothing_catches_in_cpp_calls_the_handler():
  ended = subprocess.run(
    [sys.executable, '-c', LOST],
    cwd=ROOT,
    capture_output=True,
    check=False,
    timeout=120,
  )
  assert (ended.returncode, ended.stdout) == (7, b'lost'), ended.stderr


def test_the_original_is_put_back(monkeypatch):
  extension = vars(distributed)['_jax']
  before = extension.get_distributed_runtime_client
  # Else the handler would stay for the whole process.
  monkeypatch.setattr(jax_private, '_set_terminate', lambda on_lost: None)
  lost = []
  with jax_private.lost_run_handler(lambda: lost.append('lost')):
    changed = extension.get_distributed_runtime_client
    assert changed is not before
  assert extension.get_distributed_runtime_client is before
  # Should a release of JAX be able to call it, this must end the process, too.
  changed.keywords['missed_heartbeat_callback']('a status')
  assert lost == ['lost']


def test_nothing_else_uses_private_parts_of_jax():
  for path in [*(ROOT / 'zoo').rglob('*.py'), *(ROOT / 'launch').rglob('*.py')]:
    if path.name == 'jax_private.py':
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      names = []
      if isinstance(node, ast.ImportFrom):
        names = [f'{node.module}.{alias.name}' for alias in node.names]
      elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      for name in names:
        assert not name.startswith(('jax._src', 'jaxlib._jax')), path
