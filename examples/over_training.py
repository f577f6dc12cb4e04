"""When does gradient descent appear in training?

python -m examples.over_training

Trains three seeds of a layer of linear attention, and reads at each kept step which
share of the variation over contexts the nearest step of gradient descent leaves. It
takes about a minute on two cores, and writes runs/over_training/share.png.
"""

import pathlib

import zoo
from configs import yq_lsa
from zoo.core.protocols import Predictor, Task
from zoo.probing import over_training
from zoo.reports.probe.over_training import plot_over_training

FOLDER = pathlib.Path('runs/over_training')
SEEDS = 3


def train() -> list[pathlib.Path]:
  """Trains the seeds, and returns their folders."""
  config = yq_lsa.get_config()
  config.task.num_features, config.task.context_length = 3, 12
  config.train.num_steps, config.train.batch_size = 2048, 256
  config.checkpoint.steps = 'log'
  folders = []
  for seed in range(SEEDS):
    config.seed = seed
    folders.append(FOLDER / str(seed))
    zoo.train(config, folders[-1])
  return folders


def share(model: Predictor, task: Task, seed: int) -> dict[str, float | None]:
  """An instrument: what the nearest step of gradient descent leaves, by a formula."""
  del seed  # A formula draws no prompts.
  nearest = zoo.probing.implicit_algorithm(model, task).nearest_gd
  return {'one step of gradient descent': nearest.unexplained}


def main() -> None:
  found = over_training(train(), share, file=FOLDER / 'share.json')
  print(found)
  axes = plot_over_training(found, 'unexplained share of the variation over contexts')
  axes.figure.savefig(FOLDER / 'share.png')


if __name__ == '__main__':
  main()
