"""What one process can show of several; tests/launch/test_processes.py has the rest."""

import socket

import pytest

from tests.compare import refuses
from zoo import UserError, processes


def test_a_run_of_one_process_asks_nobody():
  result = object()
  assert processes.on_first(lambda: result) is result
  with pytest.raises(UserError, match='mine'), processes.agreed():
    raise UserError('mine')
  assert processes.end_together(2)
  assert (processes.index(), processes.count()) == (0, 1)


def test_a_port_that_is_taken_is_not_shared():
  with socket.socket() as taken:
    taken.bind(('', 0))
    taken.listen()
    port = taken.getsockname()[1]
    with refuses(f'port {port}', 'another process 0'):
      processes.join(10, 10, f'127.0.0.1:{port}', num_processes=2, process_id=0)
