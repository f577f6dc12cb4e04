"""Beliefs in a small transformer, trained on the process Mess3 of Shai et al.

python -m examples.beliefs runs/mess3 runs/mess3.png

It trains a model, prints what docs/beliefs.md shows, and draws the picture of that
page: true beliefs in the simplex beside those that a linear map reads in the model. It
takes about two minutes on two cores.
"""

import sys

import numpy as np

import zoo
from zoo.probing.beliefs import at_tokens, prompts_with_beliefs
from zoo.probing.linear_maps import Ridge
from zoo.reports.style import Figure

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


def config():
  """Returns the config of a transformer that predicts each symbol from those before."""
  config = zoo.default_config('transformer', 'hidden_markov')
  config.task.process, config.task.context_length = 'mess3', 15
  config.model.tokens = 'shifted'
  config.model.num_layers, config.model.width = 2, 64
  config.objective.positions = 'every'
  config.optimizer.learning_rate = 0.003
  config.train.batch_size, config.train.num_steps = 256, 1500
  config.eval.every = config.checkpoint.every = 1500
  return config


def draw(model, untrained, task, site, num_prompts=4096) -> Figure:
  """Draws true beliefs, and those decoded in a trained and in an untrained model.

  Maps are fitted to half of the prompts, and the other half is drawn. A colour is the
  true belief of its dot: the three probabilities are red, green and blue.
  """
  prompt, belief = prompts_with_beliefs(task, num_prompts, seed=1)
  half = num_prompts // 2
  target = belief.reshape(-1, 3)
  num = half * belief.shape[1]
  panels = {'true belief': target[num:]}
  for name, of in (('decoded, trained', model), ('decoded, untrained', untrained)):
    rows = at_tokens(of, prompt, [site])[site].reshape(len(target), -1)
    panels[name] = Ridge(rows[:num])(target[:num], rows[num:])
  figure = Figure(3.1)
  colours = np.clip(target[num:], 0, 1) * 0.9
  for axes, (name, points) in zip(
    figure.subplots(1, 3, sharex=True, sharey=True), panels.items(), strict=True
  ):
    corners = _CORNERS[[0, 1, 2, 0]]
    axes.plot(*corners.T, color='0.6', linewidth=0.8)
    axes.scatter(
      *(points @ _CORNERS).T, c=colours, s=0.6, linewidths=0, rasterized=True
    )
    # Each name is beyond the dots around its corner.
    beyond = 0.24 if name == 'decoded, untrained' else 0.1
    for state, (x, y) in enumerate(_CORNERS):
      height = y + (beyond if state == 2 else -beyond)
      axes.text(x, height, f'state {state}', ha='center', va='center', fontsize=8)
    axes.set(title=name, xlim=(-0.22, 1.22), ylim=(-0.32, 1.14), aspect='equal')
    axes.axis('off')
  return figure


def main(workdir, picture=None):
  zoo.train(config(), workdir)
  saved = zoo.load(workdir)
  untrained = [saved.untrained(seed) for seed in range(1, 5)]
  print(zoo.probing.probe_beliefs(saved.model, saved.task, untrained=untrained))
  print(zoo.probing.steer(saved.model, saved.task))
  site = ['final.stream']
  print(zoo.probing.interchange(saved.model, saved.task, rank=2, sites=site))
  if picture is not None:
    draw(saved.model, untrained[0], saved.task, 'final.stream').savefig(picture)


if __name__ == '__main__':
  main(*sys.argv[1:])
