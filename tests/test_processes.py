"""What one process can show of several; tests/launch/test_processes.py has the rest."""

import socket

import jax
import pytest

from tests.compare import refuses
from zoo import UserError
from zoo.host import processes


def test_a_run_of_one_process_asks_nobody():
  result = object()
  assert processes.run_on_main(lambda: result) is result
  with pytest.raises(UserError, match='mine'), processes.propagate_errors():
    raise UserError('mine')
  assert processes.end_together(2)
  assert (processes.index(), processes.count()) == (0, 1)


@pytest.mark.parametrize('error', [AssertionError, RuntimeError])
def test_a_process_without_a_device_is_still_one_of_several(error, monkeypatch):
  def fail():
    raise error

  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: True)
  monkeypatch.setattr(jax, 'process_count', fail)
  monkeypatch.setattr(jax, 'process_index', fail)
  assert processes.count() > 1
  monkeypatch.setattr(processes, '_joined', {'count': 3, 'index': 2})
  assert (processes.index(), processes.count()) == (2, 3)


def test_a_port_that_is_taken_is_not_shared():
  with socket.socket() as taken:
    taken.bind(('', 0))
    taken.listen()
    port = taken.getsockname()[1]
    with refuses(f'port {port}', 'another process 0'):
      processes.join(10, 10, f'127.0.0.1:{port}', num_processes=2, process_id=0)


@pytest.mark.parametrize(
  'address',
  ['localhost:1', '10.0.0.2:8476', 'tpu-host_3.zone.internal:65535', '[::1]:80'],
)
def test_addresses(address):
  assert processes.check_address('--coordinator', address) == address


@pytest.mark.parametrize(
  'address',
  [
    *('here', ':80', 'here:', 'here:0', 'here:65536', 'here:-1', 'here:8 ', '', None),
    *(':::1', '::1:80', '[::g]:80', '[]:80', '[10.0.0.2]:80', 'a b:80', 'a/b:80'),
    'localhost:٣٣٣٣',  # digits, of which gRPC crashes
    'ｌocalhost:80',
  ],
)
def test_what_is_no_address_is_refused(address):
  with refuses('--coordinator is', 'HOST:PORT', '[::1]:8476'):
    processes.check_address('--coordinator', address)
