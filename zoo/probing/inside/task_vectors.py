"""Task vectors: what the state at the query knows of the function of its prompt."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.predict import Programs, loss_of
from zoo.measure.rows import Rows, Tabular
from zoo.measure.statistics import Estimate, estimate, estimate_of_neighbours
from zoo.probing.inside.activations import recorded, sites
from zoo.probing.inside.edits import edited
from zoo.tasks.base import FunctionClass, Loss, make_prompt


class TaskVector(NamedTuple):
  """The losses of queries without examples whose state at a site is changed.

  A vector is the mean, over prompts of one function, of the state at the query's token.
  Standard errors are over functions.
  """

  site: str
  set: Estimate  # to the vector (Hendel et al., arXiv 2310.15916)
  set_other: Estimate  # to the vector of the next function: a control
  # By what the examples add to the state, on average over prompts; the query's own
  # state stays (in the manner of Todd et al., arXiv 2310.15213, who add to a layer the
  # mean outputs of chosen heads).
  added: Estimate
  added_other: Estimate  # by that of the next function
  set_gain: Estimate  # `set_other` minus `set`, function by function
  added_gain: Estimate  # `added_other` minus `added`, likewise


class _TaskVectors(NamedTuple):
  in_context: Estimate
  without: Estimate
  rows: Rows[TaskVector]


class TaskVectors(_TaskVectors, Tabular):
  """Task vectors by layer, between the losses with all examples and with none.

  Attributes:
    in_context: The loss with all examples.
    without: The loss without examples.
    rows: The task vectors by site.
  """

  def __str__(self) -> str:
    said = f'loss {self.in_context.mean:.4g} ± {self.in_context.half:.2g} in context, '
    said += f'{self.without.mean:.4g} ± {self.without.half:.2g} without'
    return f'{said}\n{self.rows}'


def task_vectors(
  model: Predictor,
  task: Task,
  num_functions: int = 64,
  num_prompts: int = 64,
  seed: int = 0,
) -> TaskVectors:
  """What a layer's state at the query, averaged over prompts, is worth as a context.

  For each of `num_functions` draws of a function, the vectors are means over
  `num_prompts` prompts of it, and are put into the prompts of as many other queries
  without examples, before each layer (the sites that end in `.tokens`). Such prompts
  are possible for every layout and mixer, while examples with labels of 0 would be
  evidence for another function. A model trained with `objective.positions='every'` has
  also learned to predict without examples. One trained with `'query'`, the default, has
  not, unless `objective.min_examples` is 0: for it `without` is a loss on prompts of a
  length that it was never trained on, and so are the losses with its vectors.

  The query is then the only token, and it holds x_q in all layouts of this library:
  with a state set there the prediction is the same for all queries of a function.

  - Quantity: `set_gain` and `added_gain`, by how much the loss with the vector of the
    function is below that with another function's, over functions.
  - Null: 0 for a model whose states do not depend on the function.
  - Counterfactual: the vector of the next function that was drawn.

  Squared losses of a few functions are skewed: with 64 functions the 95 % intervals
  contain the truth in 90 % of draws, with 256 in 94 %.

  Raises UserError for a task that is no `zoo.tasks.base.FunctionClass`, for a model
  without such sites, and for one that calls them in loops.
  """
  check_count('num_functions', num_functions, minimum=2)
  check_count('num_prompts', num_prompts)
  held_out = _with_functions(task)
  known = [site for site in sites(model) if site.endswith('.tokens')]
  if not known:
    raise UserError(f'{type(model).__name__} has no sites that end in .tokens')
  key = stream_of(check_count('seed', seed, minimum=0), CURVE_STREAM)
  seen, tested = _prompts(held_out, key, num_functions, num_prompts)
  alone = _without(tested)
  reader, programs = _Reader(tuple(known)), Programs()

  def read(prompt: Prompt) -> tuple[np.ndarray, np.ndarray]:
    states, losses = programs.run(reader.states, [model], prompt, loss_of(task))
    return np.asarray(states), np.asarray(losses, np.float64)

  own, without = read(alone)
  vectors = _means(read(seen)[0], num_functions)
  moves = vectors - _means(read(_without(seen))[0], num_functions)
  set_to, set_to_other, moved, moved_other = (
    np.repeat(means, num_prompts, axis=1)
    for means in (
      vectors,
      np.roll(vectors, -1, axis=1),
      moves,
      np.roll(moves, -1, axis=1),
    )
  )
  values = np.stack([set_to, set_to_other, own + moved, own + moved_other])
  losses = programs.run(reader.losses, [model], alone, values, loss_of(task))
  set_losses, set_other, added, added_other = np.asarray(losses, np.float64)
  kinds = [
    [_over_functions(row, num_functions, shared) for row in kind]
    for kind, shared in (
      (set_losses, False),
      (set_other, True),
      (added, False),
      (added_other, True),
      (set_other - set_losses, True),
      (added_other - added, True),
    )
  ]
  return TaskVectors(
    _over_functions(read(tested)[1], num_functions),
    _over_functions(without, num_functions),
    Rows(TaskVector(*row) for row in zip(known, *kinds, strict=True)),
  )


def _with_functions(task: Task) -> FunctionClass:
  """The task on whose prompts a model is measured; UserError if it has no functions."""
  held_out = task.held_out()
  if not isinstance(held_out, FunctionClass):
    raise UserError(
      f'the task is of type {type(task).__name__}; task vectors need prompts that '
      'share a function, as those of a zoo.tasks.base.FunctionClass'
    )
  return held_out


class _Reader(NamedTuple):
  """Functions of a compiled program that read and set the sites of a model."""

  sites: tuple[str, ...]

  def states(
    self, models: Sequence[Any], prompt: Prompt, loss: Loss
  ) -> tuple[Float[Array, 's b w'], Float[Array, ' b']]:
    """The states at the query's token, and the losses there."""
    values, prediction = recorded(models[0], prompt, self.sites)
    if looped := [name for name in values if '@' in name]:
      raise UserError(
        f'the model calls {looped[0].partition("@")[0]!r} in a loop; task vectors need '
        'sites that are called once'
      )
    states = [values[site][:, -1] for site in self.sites]
    return jnp.stack(states), loss(prediction, prompt.y_query)

  def losses(
    self,
    models: Sequence[Any],
    prompt: Prompt,
    values: Float[Array, 'k s b w'],
    loss: Loss,
  ) -> Float[Array, 'k s b']:
    """The losses with the state at the query's token set at one site after another."""
    (model,) = models

    def patched(chosen: Int[Array, ''], state: Float[Array, 'b w']) -> Array:
      def change(value: Array, number: int) -> Array:
        return jnp.where(chosen == number, value.at[:, -1].set(state), value)

      edits = {
        site: functools.partial(change, number=number)
        for number, site in enumerate(self.sites)
      }
      return loss(edited(model, edits)(prompt), prompt.y_query)

    rows = jnp.arange(len(self.sites))
    return jax.lax.map(
      lambda kind: jax.lax.map(lambda row: patched(*row), (rows, kind)), values
    )


def _prompts(
  task: FunctionClass, key: Key[Array, ''], num_functions: int, num_prompts: int
) -> tuple[Prompt, Prompt]:
  """Two batches of prompts with the same functions, one after the other."""

  def prompt(function: PyTree, key: Key[Array, '']) -> Prompt:
    features_key, labels_key = jax.random.split(key)
    x = task.sample_features(features_key)
    targets = task.evaluate(function, x)
    labels = task.sample_labels(labels_key, targets)
    return make_prompt(x, labels, targets)

  def of_function(key: Key[Array, '']) -> Prompt:
    function_key, prompts_key = jax.random.split(key)
    function = task.sample_function(function_key)
    keys = jax.random.split(prompts_key, 2 * num_prompts)
    return jax.vmap(prompt, (None, 0))(function, keys)

  # In one program; eagerly each operation would be compiled by itself.
  prompts = compiled(jax.vmap(of_function))(jax.random.split(key, num_functions))
  halves = slice(num_prompts), slice(num_prompts, None)
  seen, tested = (
    jax.tree.map(lambda array, at=at: _joined(array[:, at]), prompts) for at in halves
  )
  return seen, tested


def _joined(array: Array) -> Array:
  return array.reshape(-1, *array.shape[2:])


def _without(prompt: Prompt) -> Prompt:
  """The queries of prompts, without their examples."""
  return Prompt(prompt.x[:, :0], prompt.y[:, :0], prompt.x_query, prompt.y_query)


def _means(
  states: Float[np.ndarray, 's b w'], num_functions: int
) -> Float[np.ndarray, 's f w']:
  num_sites, _, width = states.shape
  return states.reshape(num_sites, num_functions, -1, width).mean(axis=2)


def _over_functions(
  losses: Float[np.ndarray, ' b'], num_functions: int, with_next: bool = False
) -> Estimate:
  """The mean over functions, of which losses may also depend on the next one."""
  of_functions = losses.reshape(num_functions, -1).mean(axis=1)
  return (estimate_of_neighbours if with_next else estimate)(of_functions)
