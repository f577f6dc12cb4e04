"""A headless Chromium, driven over its debugging pipe with nothing but Python."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

CHROMIUM = next(
  filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))),
  None,
)

# Chromium reads commands from file 3 and answers into file 4.
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
  os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
  """A page that was opened, and the events that it has sent."""

  def __init__(self, commands: int, answers: int):
    self._commands, self._answers = commands, os.fdopen(answers, 'rb')
    self._count, self._session = 0, None
    self.events: list[dict[str, Any]] = []

  def call(self, method: str, **parameters: Any) -> dict[str, Any]:
    """The answer to a command of the DevTools protocol."""
    self._count += 1
    message = {'id': self._count, 'method': method, 'params': parameters}
    if self._session:
      message['sessionId'] = self._session
    os.write(self._commands, json.dumps(message).encode() + b'\0')
    while True:
      answer = self._read()
      if answer.get('id') == self._count:
        assert 'error' not in answer, answer
        return answer['result']
      self.events.append(answer)

  def open(self, url: str) -> None:
    """Opens an address and waits until it has loaded."""
    target = self.call('Target.createTarget', url='about:blank')['targetId']
    attached = self.call('Target.attachToTarget', targetId=target, flatten=True)
    self._session = attached['sessionId']
    for domain in 'Page', 'Runtime', 'Log', 'Network':
      self.call(f'{domain}.enable')
    self.call('Page.navigate', url=url)
    while not any(event['method'] == 'Page.loadEventFired' for event in self.events):
      self.events.append(self._read())

  def resize(self, width: int, dark: bool = False) -> None:
    """Shows the page as a screen of that width, in CSS pixels, would."""
    self.call(
      'Emulation.setDeviceMetricsOverride',
      width=width,
      height=900,
      deviceScaleFactor=1,
      mobile=width < 600,
    )
    scheme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
    self.call('Emulation.setEmulatedMedia', features=[scheme])

  def evaluate(self, script: str) -> Any:
    """The value of a JavaScript expression."""
    answer = self.call('Runtime.evaluate', expression=script, returnByValue=True)
    assert 'exceptionDetails' not in answer, answer
    return answer['result']['value']

  def _read(self) -> dict[str, Any]:
    text = bytearray()
    while (byte := self._answers.read(1)) != b'\0':
      assert byte, 'Chromium has ended'
      text += byte
    return json.loads(text)

  def close(self) -> None:
    os.close(self._commands)
    self._answers.close()


@contextlib.contextmanager
def opened(url: str) -> Iterator[Page]:
  """The page at an address, in a Chromium that keeps nothing."""
  assert CHROMIUM is not None
  their_commands, commands = os.pipe()
  answers, their_answers = os.pipe()
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    process = subprocess.Popen(
      [
        *(sys.executable, '-c', _LAUNCH, str(their_commands), str(their_answers)),
        *(CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu'),
        *('--remote-debugging-pipe', f'--user-data-dir={profile}'),
      ],
      pass_fds=(their_commands, their_answers),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(their_commands)
    os.close(their_answers)
    page = Page(commands, answers)
    try:
      page.open(url)
      yield page
    finally:
      process.kill()
      process.wait()
      page.close()
