"""Which token's state carries the answer in a recurrence that recalls an association.

python examples/recall_state.py mamba2
python examples/recall_state.py rwkv7 runs/rwkv7

It trains two layers of a mixer to recall the value of one of four keys, and asks for
the key of the second example. Of the 9 tokens, counted from 0, these are 2 and 3. The
state after each token is replaced by that of a prompt with the same keys and other
values, or the prompt is cut before an example.
"""

import dataclasses
import sys

import jax
import numpy as np

import zoo
from zoo.core.prompt import Prompt
from zoo.measure.intervals import estimate

ASKED = 1  # the example whose value is asked for, from 0


def trained(mixer: str, workdir: str, num_steps: int = 2000) -> zoo.Model:
  """A model that recalls; trained once, and then read from its folder."""
  config = zoo.default_config('transformer', task='associative_recall')
  config.task.update(num_keys=8, num_values=8, context_length=4, num_pairs=4)
  config.model.update(mixer=mixer, num_layers=2, width=32, positions='none')
  config.train.update(num_steps=num_steps, batch_size=64)
  config.optimizer.learning_rate = 3e-3
  summary = zoo.train(config, workdir)
  if summary is None:  # after SIGTERM; the same command goes on
    sys.exit(1)
  print(f'accuracy {summary["eval_accuracy"]:.3f}')
  return zoo.load(workdir).model


def asked_for(task: zoo.Task, num_prompts: int) -> Prompt:
  """Prompts that ask for the value of one example."""
  prompt = task.sample(jax.random.key(0), 8 * num_prompts)
  is_asked = np.all(prompt.x[:, ASKED] == prompt.x_query, axis=-1)
  chosen = np.flatnonzero(is_asked)[:num_prompts]
  return jax.tree.map(lambda array: array[chosen], prompt)


def main(mixer: str, workdir: str, num_steps: int = 2000) -> None:
  model = trained(mixer, workdir, num_steps)
  task = zoo.load(workdir).task
  clean = asked_for(task, 256)
  corrupt = task.redraw(jax.random.key(1), clean, keep='inputs')
  states = [site for site in zoo.probing.sites(model) if '.state.' in site]
  table = zoo.probing.effects(
    model, task, clean, corrupt, states, kinds=['recovered'], tokens=True
  )
  print(table)
  for first in range(task.context_length):
    cut = dataclasses.replace(clean, x=clean.x[:, first:], y=clean.y[:, first:])
    is_right = np.argmax(model(cut), -1) == np.argmax(clean.y_query, -1)
    accuracy = estimate(is_right)
    print(f'from example {first + 1}: {accuracy.mean:.3f} ± {accuracy.half:.3f} right')


if __name__ == '__main__':
  main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else f'runs/recall/{sys.argv[1]}')
