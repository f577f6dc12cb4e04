"""Measures the speed of training beside a plain program and sampling alone.

  python -m launch.benchmark                       # under two minutes on two cores
  python -m launch.benchmark --cases=heads,context,sweep --json=benchmark.json
  python -m launch.benchmark --cases=transformer --repeats=7 --seconds=3
  python -m launch.benchmark --scaling=scaling.png
  python -m launch.benchmark --models=gpt2_tiny,gpt2_small,delta,lstm

Use an idle machine. The ratios of the speeds also hold on a busy one, since the
programs take turns. The command needs a checkout of the repository: the installed
package does not have the folder benchmarks.
"""

import json
import pathlib
import sys

from absl import flags

from launch import cli
from launch.drawing import Drawing
from zoo.core.errors import UserError, check_number

flags.adopt_module_key_flags(cli)
_JSON = flags.DEFINE(
  cli.File(), 'json', None, 'JSON file to which all numbers are written.'
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'Number of timings of each program, which take turns.', lower_bound=1
)
_SECONDS = flags.DEFINE_float('seconds', 0.25, 'Duration of one timing in seconds.')
_CASES = flags.DEFINE_list(
  'cases',
  ['lsa', 'yq_lsa', 'ltb', 'multi_head_lsa'],
  'Cases to time. Of linear attention: `lsa`, `yq_lsa`, `ltb`, `multi_head_lsa` (11 '
  'heads), `heads` (64 heads), `context` (10,000 examples) or `sweep` (32 points). '
  '`transformer` is a transformer beside PyTorch, plain Flax and the matrix products '
  'of its step.',
)
_SCALING = flags.DEFINE(
  cli.File(),
  'scaling',
  None,
  'In place of `--cases`: picture of the time of a step against the batch size, the '
  'context length, the number of features and the number of heads. A CSV is written '
  'beside it.',
)
_MODELS = flags.DEFINE_list(
  'models',
  None,
  'In place of `--cases`: other models to time, with 20 features and 40 examples. A '
  'name is a size (`gpt2_tiny`, `gpt2_small`, `gpt2`), a mixer of `gpt2_tiny`, or a '
  'model.',
)
_SMOKE = flags.DEFINE_bool(
  'smoke', False, 'Use tiny sizes: fast, but the speeds mean nothing.'
)
_DRAWING = Drawing(has_texts=False)


def main() -> None:
  seconds = check_number('--seconds', _SECONDS.value, above=0.0)
  picture = _SCALING.value
  if picture is not None and picture.suffix not in ('.png', '.svg', '.pdf'):
    raise UserError(f'--scaling is {str(picture)!r}; it must end in .png, .svg or .pdf')
  if picture is not None and _MODELS.value is not None:
    raise UserError('--scaling and --models are two benchmarks; give one of them')
  repository = pathlib.Path(__file__).parents[1]
  if not (repository / 'benchmarks' / 'command.py').is_file():
    raise UserError(
      f'{repository} has no folder benchmarks, which is not in the installed package; '
      'run this command in a checkout of the repository'
    )
  sys.path.insert(0, str(repository))
  from benchmarks import command

  with _DRAWING.wishes():
    measured = command.run(
      _REPEATS.value, seconds, _CASES.value, picture, _MODELS.value, _SMOKE.value
    )
  if _JSON.value is not None:
    _JSON.value.write_text(json.dumps(measured, indent=2) + '\n')


if __name__ == '__main__':
  cli.run(main)
