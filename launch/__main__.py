"""Runs any command: `python -m launch COMMAND` is `python -m launch.COMMAND`."""

import importlib
import sys

import __main__
from launch import cli
from zoo.core.errors import unknown_name

COMMANDS = {
  'main': 'train the model of a config, or resume a run',
  'sweep': 'train a config at many points at once',
  'plot': 'plot the in-context risk of runs',
  'probe': 'report which known algorithm a trained model is nearest to',
  'strategies': 'show which known predictors models follow while they are trained',
  'paper': 'reproduce the figures and claims of the paper',
  'atlas': 'train many architectures on many tasks, and compare them',
  'results': 'draw the pictures of the documents from the results that are kept',
  'headlines': 'measure well-known numbers of the literature again',
  'tabular': 'compare a model with methods of scikit-learn on a table',
  'llm': 'ask a language model for labels',
  'catalog': 'list models, tasks, configs and checkpoints',
  'aot': 'compile training for a TPU slice, and check whether it fits',
  'benchmark': 'measure the speed of training',
}


def main() -> None:
  """Runs the command of the first argument; exits with code 2 if it is unknown."""
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name in COMMANDS:
    command = importlib.import_module(f'launch.{name}')
    # absl's --help prints the docstring of __main__, and the flags of the module that
    # argv[0] names.
    __main__.__doc__ = command.__doc__
    sys.argv = [command.__name__, *sys.argv[2:]]
    cli.run(command.main, takes_names=name == 'headlines')
    return
  lines = [f'  {command:<11}{what}' for command, what in COMMANDS.items()]
  usage = '\n'.join(['usage: python -m launch COMMAND [--help] [FLAGS]', '', *lines])
  if name.lstrip('-') in ('help', 'h'):
    print(usage)
    return
  print(f'error: {unknown_name("command", name, COMMANDS)}', file=sys.stderr)
  sys.exit(2)


if __name__ == '__main__':
  main()
