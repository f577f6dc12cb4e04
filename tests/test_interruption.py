"""Signals become requests to stop, unless they are ignored."""

import signal

import pytest

from zoo.host.interruption import Interruption


@pytest.fixture
def ignored(request):
  """A signal that is ignored, as nohup or a shell script makes it."""
  before = signal.signal(request.param, signal.SIG_IGN)
  yield request.param
  signal.signal(request.param, before)


@pytest.mark.parametrize('ignored', [signal.SIGHUP, signal.SIGINT], indirect=True)
def test_a_signal_that_is_ignored_stays_so(ignored):
  with Interruption() as interruption:
    signal.raise_signal(ignored)
    assert not interruption.due()
    assert signal.getsignal(ignored) is signal.SIG_IGN
    # The others still ask to stop.
    signal.raise_signal(signal.SIGTERM)
    assert interruption.due()
  assert signal.getsignal(ignored) is signal.SIG_IGN
