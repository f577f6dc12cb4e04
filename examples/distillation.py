"""A metric, an objective and a hook of one's own: distillation towards Bayes.

python -m launch.main --import=examples.distillation \
    --config=configs/transformer.py:smoke --config.objective.name=distilled \
    --config.objective.positions=query --config.eval.metrics="('norm',)"

`python -m examples.distillation` trains the same with the hook.
"""

import jax.numpy as jnp
import optax
from flax import nnx

import zoo


@zoo.register_metric('norm')
def norm(model, task, key):
  """The norm of all weights."""
  return {'weights': optax.tree.norm(nnx.as_pure(nnx.state(model, nnx.Param)))}


@zoo.register_objective('distilled')
def distilled(model, prompt, task, key):
  """The squared distance from the Bayes predictor, for each prompt."""
  return jnp.square(model(prompt) - task.baselines()['bayes'](prompt))


class Largest(zoo.Hook):
  """Records the largest weight, computed on the host."""

  def on_evaluation(self, event):
    leaves = nnx.to_flat_state(nnx.state(event.model, nnx.Param))
    return {'largest': max(float(abs(weight[...]).max()) for _, weight in leaves)}


if __name__ == '__main__':
  import configs

  config = configs.get_config('transformer', 'smoke')
  config.objective.name, config.objective.positions = 'distilled', 'query'
  config.eval.metrics = ('norm',)
  zoo.train(config, 'runs/distilled', hooks=[Largest()])
