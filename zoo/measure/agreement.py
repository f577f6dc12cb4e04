"""The check before training: what a model predicts in several ways is the same.

Training, evaluation and exact theory each ask a model in another way: the loss may be
that of its loops or of its learning rule, a curve reads `predictions`, and a probe
calls it. A class that changes one of them and inherits the others would be trained on
one function and measured on another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, HasExactForm, Predictor, Task
from zoo.measure.contracts.checks import (
  Facts,
  check_close,
  check_facts,
  check_floats,
  check_loss,
  check_sampled,
  facts_of,
  label_shape,
  noted,
)
from zoo.measure.contracts.mixers import check_mixer_forms
from zoo.models.token_model import TokenModel
from zoo.theory.trust import (
  QUICK_TO_COMPILE,
  UpdatesTokens,
  changed_weights,
  form_predictions,
  token_predictions,
  without_zeros,
)

NUM_PROMPTS = 16
_NUM_SAMPLED = 512  # prompts whose numbers are looked at
_NOISE = 1.0  # of the other weights


def check_agreement(
  model: Predictor, task: Task, batch_size: int = NUM_PROMPTS
) -> None:
  """Raises UserError if the ways in which a model predicts do not agree.

  On 16 prompts and with the model's weights, `__call__`, `predictions`, the loops whose
  loss is trained, the layer's equation on tokens, the learning rule and the exact form
  agree where the model has them; no prediction moves with the targets, with other
  prompts, or with later examples; and all of them are finite float32. The prompts of
  the task are checked first, up to 512 of a batch. Weights that are special hide what a
  model does once it is trained, so that the same is asked with others in their place.

  Args:
    model: a model, or any predictor.
    task: the task on whose prompts it is to be trained.
    batch_size: prompts of a training step, ≥ 1.
  """
  name = type(model).__name__
  num_sampled = max(NUM_PROMPTS, min(_NUM_SAMPLED, batch_size))
  prompts = check_sampled(task, jax.random.key(0), num_sampled)
  prompt = jax.tree.map(lambda array: array[:NUM_PROMPTS], prompts)
  check_mixer_forms(model)
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)

  @functools.partial(jax.jit, compiler_options=QUICK_TO_COMPILE)
  def predict(
    task: Task,
    parameters: PyTree,
    rest: PyTree,
    noise: Float[Array, ''],
    prompt: Prompt,
  ) -> Facts:
    parameters = _with_noise(model, parameters, noise)
    return _all_predictions(nnx.merge(graph, parameters, rest), task, prompt)

  def run(prompt: Prompt, noise: float = 0.0) -> Facts:
    with jax.default_matmul_precision('highest'):
      return jax.device_get(predict(task, parameters, rest, noise, prompt))

  predictions = run(prompt)
  _check_all(name, predictions, run, prompt)
  with noted(f'{name}(prompt) of 0 examples'):  # as curves ask for
    fewer = nnx.eval_shape(lambda m, p: m(p), model, prompt.prefix(0))
  check_floats(f'{name}(prompt) of 0 examples', fewer, label_shape(task, NUM_PROMPTS))
  run_others = functools.partial(run, noise=_NOISE)
  predictions = run_others(prompt)
  if all(np.isfinite(array).all() for array in jax.tree.leaves(predictions)):
    _check_all(name, predictions, run_others, prompt)


def _all_predictions(model: Any, task: Task, prompt: Prompt) -> Facts:
  """The predictions of a model in all ways that it has, by name."""
  name = type(model).__name__
  predictions = facts_of(name, model, prompt, task, lengths=[])
  check_loss(task, predictions['alone'], prompt)
  at_query = {}
  if isinstance(model, TokenModel):
    with noted(f'{name}.loop_predictions(prompt, every=False)'):
      loops = model.loop_predictions(prompt, every=False)
    at_query['loop_predictions'] = loops[-1, :, 0]
  if isinstance(model, FollowsRule):
    with noted(f'{name}.learning_rule()'):
      rule = model.learning_rule()
    at_query['learning_rule'] = form_predictions(rule, prompt)
  if isinstance(model, HasExactForm) and (form := _exact_form(model)) is not None:
    at_query['exact_form'] = form_predictions(form, prompt)
  at_query |= token_predictions(model, prompt)
  return predictions | {'at_query': at_query}


def _exact_form(model: HasExactForm) -> Any:
  """The exact form of a model; None if its hyper-parameters have none."""
  try:
    return model.exact_form()
  except UserError:
    return None


def _check_all(
  name: str, predictions: Facts, run: Callable[[Prompt], Facts], prompt: Prompt
) -> None:
  check_facts(name, predictions, run, prompt)
  for method, at_query in predictions['at_query'].items():
    check_close(
      f'{name}.{method}() does not predict the same as {name}.__call__(); change one '
      'of them to match, or do not define both',
      at_query,
      predictions['alone'],
    )


def _with_noise(
  model: Predictor, parameters: PyTree, noise: Float[Array, '']
) -> PyTree:
  """The weights, changed by waves of the size `noise`; to be traced.

  Those of a model with a rule, an exact form or tokens all change, since special ones
  such as the identity may hide that these are wrong. Otherwise those that are all zero
  do, by waves of the size of a kernel.
  """
  waves = changed_weights(parameters, noise)
  if isinstance(model, FollowsRule | HasExactForm | UpdatesTokens):
    return waves
  return without_zeros(parameters, waves)
