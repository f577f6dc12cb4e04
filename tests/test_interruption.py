"""Signals become requests to stop, unless they are ignored."""

import signal
import threading

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


@pytest.fixture
def sigterm():
  """The handler of SIGTERM, which does nothing; the test must leave it as it was."""

  def handler(*_):
    pass

  before = signal.signal(signal.SIGTERM, handler)
  yield handler
  assert signal.signal(signal.SIGTERM, before) is handler


def test_all_that_are_open_get_a_request_and_so_does_one_that_opens_then(sigterm):
  with Interruption() as outer:
    with Interruption() as inner:
      pass
    with Interruption() as inner:
      signal.raise_signal(signal.SIGTERM)
      # The second signal would have its usual effect.
      assert signal.getsignal(signal.SIGTERM) is sigterm
    assert outer.requested == inner.requested == signal.SIGTERM
    with Interruption() as later:
      assert later.due()
  with Interruption() as other:
    assert not other.due()


def test_handlers_are_put_back_by_the_last_to_close_in_any_order(sigterm):
  first, second = Interruption().__enter__(), Interruption().__enter__()
  first.__exit__()
  signal.raise_signal(signal.SIGTERM)
  assert (first.requested, second.requested) == (None, signal.SIGTERM)
  second.__exit__()
  assert signal.getsignal(signal.SIGTERM) is sigterm


@pytest.mark.parametrize('is_raised_within', [False, True])
def test_the_request_of_an_iterator_that_is_held_is_for_itself(is_raised_within):
  before = signal.getsignal(signal.SIGINT)
  held = Interruption(of_iterator=True).__enter__()
  if is_raised_within:
    with Interruption(of_iterator=True) as first:
      signal.raise_signal(signal.SIGINT)
      with pytest.raises(KeyboardInterrupt):
        first.raise_if_ctrl_c()
  else:
    signal.raise_signal(signal.SIGINT)
  with Interruption() as second:
    assert not second.due()
    signal.raise_signal(signal.SIGINT)
    assert second.due()
  assert held.due()
  held.__exit__()
  assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_has_its_usual_effect_after_the_last_was_closed_in_a_thread(sigterm):
  calls = []
  signal.signal(signal.SIGTERM, lambda *_: calls.append('usual'))
  held = Interruption(of_iterator=True).__enter__()
  thread = threading.Thread(target=held.__exit__)
  thread.start()
  thread.join()
  signal.raise_signal(signal.SIGTERM)
  assert calls == ['usual']
  signal.signal(signal.SIGTERM, sigterm)


def test_an_error_while_handlers_are_set_leaves_nothing_open(monkeypatch, sigterm):
  def fails(number):
    raise KeyboardInterrupt

  monkeypatch.setattr(signal, 'getsignal', fails)
  with pytest.raises(KeyboardInterrupt):
    Interruption().__enter__()
  monkeypatch.undo()
  with Interruption() as interruption:
    assert signal.getsignal(signal.SIGTERM) is not sigterm
    assert not interruption.due()


def test_one_outside_the_main_thread_leaves_signals_alone(sigterm):
  def look():
    with Interruption() as interruption:
      handlers.append((signal.getsignal(signal.SIGTERM), interruption.due()))

  handlers = []
  thread = threading.Thread(target=look)
  thread.start()
  thread.join()
  assert handlers == [(sigterm, False)]
