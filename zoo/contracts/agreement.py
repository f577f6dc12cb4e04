"""The check before training: all ways in which a model predicts must agree.

Training, evaluation and exact theory each ask a model in another way: the trained loss
may come from its loops or from its learning rule, a curve reads `predictions`, and a
probe calls the model. A class that changes one of these and inherits the others would
be trained on one function and measured on another.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo.contracts.checks import (
  Facts,
  check_close,
  check_facts,
  check_floats,
  check_sampled,
  facts_of,
  label_shape,
  with_examples,
)
from zoo.contracts.mixers import check_mixer_forms
from zoo.core import registry
from zoo.core.errors import UserError, noted
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, HasExactForm, Predictor, Task
from zoo.measure.predict import check_predictor
from zoo.models.token_model import TokenModel
from zoo.models.transformer import Transformer
from zoo.theory.trust import (
  QUICK_TO_COMPILE,
  UpdatesTokens,
  changed_weights,
  form_predictions,
  without_zeros,
)

NUM_PROMPTS = 16
_MOST_CHECKED_PROMPTS = 512  # The numbers of at most this many prompts are checked.
_NOISE = 1.0  # The other weights differ from the model's own by noise of this size.


def has_own_classes(model: nnx.Module, task: Task) -> bool:
  """Returns whether a class of a model or its task is the user's own.

  The tests of the library check the agreement of its own classes. Those of Flax count
  as them.
  """
  classes = {type(module) for _, module in nnx.iter_modules(model)}
  parts = getattr(task, 'tasks', ())  # A mixture has further tasks.
  classes |= {type(part) for part in (task, *parts)}
  return not all(
    registry.is_of_library(cls) or cls.__module__.startswith('flax.') for cls in classes
  )


def check_agreement(
  model: Predictor, task: Task, batch_size: int = NUM_PROMPTS
) -> None:
  """Checks that all ways in which a model predicts agree.

  The ways are `__call__`, `predictions`, the loops whose loss is trained, the equation
  of a layer on tokens, the learning rule, and the exact form, where the model has them.
  They must agree on 16 prompts. No prediction may change with the targets, with other
  prompts, or with later examples, and all must be finite numbers of 32 bits or more.
  The prompts of the task are checked first, up to 512 of a batch. The checks are made
  with the initial weights and again with other weights, unless these give predictions
  that are not finite: zeros or an identity may hide a mistake that appears once the
  model is trained.

  Args:
    model: A model, or any predictor.
    task: The task on whose prompts it is to be trained.
    batch_size: The number of prompts of a training step, ≥ 1.

  Raises:
    UserError: If two ways disagree, or if prompts or predictions are wrong.
  """
  check_predictor(model)
  name = type(model).__name__
  num_sampled = max(NUM_PROMPTS, min(_MOST_CHECKED_PROMPTS, batch_size))
  prompts = check_sampled(task, jax.random.key(0), num_sampled)
  prompt = jax.tree.map(lambda array: array[:NUM_PROMPTS], prompts)
  if isinstance(model, Transformer):
    check_mixer_forms(model, prompt)
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  has_form = isinstance(model, FollowsRule | HasExactForm | UpdatesTokens)

  @functools.partial(compiled, compiler_options=QUICK_TO_COMPILE)
  def predict(
    task: Task, weights: tuple[PyTree, PyTree], noise: Float[Array, ''], prompt: Prompt
  ) -> Facts:
    # Special weights, such as the identity, may hide that a form is wrong. Weights that
    # are all zero may hide that a model looks ahead.
    parameters, rest = weights
    others = changed_weights(parameters, noise)
    parameters = others if has_form else without_zeros(parameters, others)
    return predictions_of(nnx.merge(graph, parameters, rest), task, prompt)

  for noise in 0.0, _NOISE:
    run = functools.partial(predict, task, (parameters, rest), noise)
    with jax.default_matmul_precision('highest'):
      predictions = run(prompt)
      # Other weights than those of the run may be too large.
      if noise == 0 or all(map(np.all, map(np.isfinite, jax.tree.leaves(predictions)))):
        check_facts(name, predictions, run, prompt)
        for method, at_query in predictions['at_query'].items():
          check_close(
            f'{name}.{method}() does not predict the same as {name}.__call__(); change '
            'one of them to match, or do not define both',
            at_query,
            predictions['alone'],
          )
  with noted(f'{name}(prompt)', with_examples(0)):  # Curves begin with 0 examples.
    fewer = nnx.eval_shape(lambda m, p: m(p), model, prompt.prefix(0))
  check_floats(f'{name}(prompt) of 0 examples', fewer, label_shape(task, NUM_PROMPTS))


def predictions_of(model: Any, task: Task, prompt: Prompt) -> Facts:
  """Returns the predictions of a model in all of its ways, by name; it is traced.

  Raises:
    UserError: If a prediction has another shape or type than the targets, or if the
      loss is not one number for each prompt.
  """
  name = type(model).__name__
  predictions = facts_of(name, model, prompt, task)
  with noted(f'{type(task).__name__}.loss'):
    loss = jax.eval_shape(task.loss, predictions['alone'], prompt.y_query)
  if loss.shape != prompt.y_query.shape[:1]:
    raise UserError(
      f'{type(task).__name__}.loss has the shape {loss.shape}; it must be one number '
      'per prompt'
    )
  at_query = predictions['at_query'] = {}
  if isinstance(model, TokenModel):
    with noted(f'{name}.loop_predictions(prompt, every=False)'):
      at_query['loop_predictions'] = model.loop_predictions(prompt, every=False)[
        -1, :, 0
      ]
  if isinstance(model, FollowsRule):
    with noted(f'{name}.learning_rule()'):
      at_query['learning_rule'] = model.learning_rule()(prompt)
  if isinstance(model, HasExactForm) and (form := _exact_form(model)) is not None:
    at_query['exact_form'] = form_predictions(form, prompt)
  if isinstance(model, UpdatesTokens):
    at_query['forward_tokens'] = model.forward_tokens(model.embed(prompt))[:, -1, -1]
  return predictions


def _exact_form(model: HasExactForm) -> Any:
  """Returns the exact form of a model; None if its hyper-parameters have none."""
  try:
    return model.exact_form()
  except UserError:
    return None
