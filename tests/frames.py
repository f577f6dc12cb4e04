"""Prints the calls from a command to its model, under the gradient of a training step.

  python -m tests.frames
  python -m tests.frames configs/transformer.py:smoke

They are those of the library at the first time that the step is traced; calls inside of
JAX and Flax are left out.
"""

import pathlib
import sys
import tempfile
import traceback
from typing import Any, NamedTuple

from absl import app

ROOT = pathlib.Path(__file__).parents[1]
_OURS = str(ROOT / 'zoo'), str(ROOT / 'launch')


class Call(NamedTuple):
  """A function of the library, and the line in which it calls the next one."""

  path: str
  line: int | None
  name: str


def calls(config: str = 'configs/yq_lsa.py:smoke') -> list[Call]:
  """The calls from `launch.main` to the model's prediction, which is the last one."""
  from launch import cli, main
  from zoo.models import LinearAttention, TokenModel

  found: list[Call] = []

  def watch(cls: Any, name: str) -> None:
    method = getattr(cls, name)

    def watched(self: Any, *given: Any, **named: Any) -> Any:
      stack = traceback.extract_stack()
      if not found and any(frame.name == 'train_step' for frame in stack):
        ours = [frame for frame in stack if frame.filename.startswith(_OURS)]
        first = next(i for i, frame in enumerate(ours) if frame.name == 'main')
        code = method.__code__
        called = traceback.FrameSummary(code.co_filename, code.co_firstlineno, name)
        found.extend(
          Call(str(pathlib.Path(one.filename).relative_to(ROOT)), one.lineno, one.name)
          for one in [*ours[first:], called]
        )
      return method(self, *given, **named)

    setattr(cls, name, watched)

  watch(LinearAttention, '__call__')
  watch(LinearAttention, 'learning_rule')  # on statistics of prompts
  watch(TokenModel, 'loop_predictions')
  with tempfile.TemporaryDirectory() as folder:
    sys.argv = ['launch.main', f'--config={config}', f'--workdir={folder}/run']
    try:
      app.run(lambda argv: cli.call(main.main, argv), flags_parser=cli.parse)
    except SystemExit as ended:
      if ended.code:
        raise
  return found


def main() -> None:
  """Prints the calls and their number."""
  found = calls(*sys.argv[1:2])
  width = max(len(one.path) for one in found)
  print()
  for number, one in enumerate(found, start=1):
    print(f'{number:3}  {one.path:<{width}}  {one.line:4}  {one.name}')
  print(f'{len(found)} calls in {len({one.path for one in found})} files')


if __name__ == '__main__':
  main()
