"""A study of one's own: does training find the best step for each number of examples?

  python -m examples.own_study runs/steps             # two minutes on two cores
  python -m examples.own_study runs/steps --part=1/2  # and 2/2, in another process
  python -m examples.own_study runs/steps --only=examples=5 --again

Rerun the same command to resume. `rows.jsonl` has a row for each number of examples.
"""

import argparse

import studies
import zoo
from zoo.host.parts import parse_part
from zoo.reports.plots import Panel, Plot, series, write_plot
from zoo.reports.style import BLACK, BLUE

# All that a row depends on: after a change of a number its row is stale.
CELLS = {
  f'examples={number}': {'examples': number, 'num_steps': 2000, 'seed': 0}
  for number in (2, 5, 10, 20)
}


def compute(parameters, folder):
  """Trains a layer with a trained guess, and returns its risk beside that of theory."""
  config = zoo.default_config('yq_lsa')
  config.task.context_length = parameters['examples']
  config.train.num_steps = parameters['num_steps']
  config.seed = parameters['seed']
  summary = zoo.train(config, folder / 'run')
  if summary is None:  # SIGTERM has stopped it
    return None
  return {'exact_risk': summary['exact_risk'], 'gd_risk': summary['gd_risk']}


def draw(rows, folder):
  """Draws both risks against the number of examples."""
  numbers = [CELLS[cell]['examples'] for cell in rows]
  trained, theory = (
    [row[name] for row in rows.values()] for name in ('exact_risk', 'gd_risk')
  )
  line = series('one step of gradient descent', 'line', BLACK, numbers, theory)
  dots = series('trained', 'dots', BLUE, numbers, trained)
  panel = Panel('a', 'examples', 'exact in-context risk', (line, dots))
  write_plot(Plot('steps', (panel,)), folder)


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('out')
  parser.add_argument('--part', type=parse_part)
  parser.add_argument('--only', nargs='*', default=[])
  parser.add_argument('--again', action='store_true')
  given = parser.parse_args()
  table = studies.CellTable(CELLS, compute, draw)
  rows = studies.fill(table, given.out, given.part, given.only, again=given.again)
  print(*(rows or {}).items(), sep='\n')
