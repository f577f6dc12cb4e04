"""What a finished run says of itself: `summary.json` and the closing table."""

from __future__ import annotations

import math
from typing import Any

import jax
from flax import nnx

from zoo.training.config import Config


def summarise(
  config: Config,
  abstract_model: Any,
  risks: dict[str, tuple[float, float]],
  steps_per_second: float | None,
  wall_time: float,
) -> dict[str, Any]:
  """The summary of a finished run; what does not exist for a model is None.

  `risks` are sampled mean squared errors with standard errors, of 'model', and where
  the task has it of one-step gradient descent, 'gd', and of their 'difference'.
  """
  parameters = nnx.to_flat_state(nnx.filter_state(abstract_model, nnx.Param))
  sampled = {}
  for name, field in (('gd', 'gd_eval_risk'), ('difference', 'eval_excess_over_gd')):
    mean, stderr = risks.get(name, (None, None))
    sampled |= {field: mean, f'{field}_stderr': stderr}
  return {
    'model': config.model.name,
    'num_params': sum(math.prod(leaf.shape) for _, leaf in parameters),
    'step': config.train.num_steps,
    'eval_risk': risks['model'][0],
    'eval_risk_stderr': risks['model'][1],
    **sampled,
    'exact_risk': None,
    'gd_risk': None,
    'optimal_risk': None,
    'excess_risk': None,
    'steps_per_second': steps_per_second,
    'wall_time': wall_time,
    'jax_version': jax.__version__,
    'device_kind': jax.devices()[0].device_kind,
    'num_devices': jax.device_count(),
    'num_processes': jax.process_count(),
  }


def table(summary: dict[str, Any]) -> str:
  """The closing table of a run: the model's risk beside one-step GD's."""

  def sampled(name: str) -> str:
    if summary[name] is None:
      return '-'
    return f'{summary[name]:.4f} ± {summary[f"{name}_stderr"]:.4f}'

  def exact(name: str) -> str:
    return '-' if summary[name] is None else f'{summary[name]:.6f}'

  rows = [
    (f'risk after step {summary["step"]}', 'sampled ± s.e.', 'exact'),
    (summary['model'], sampled('eval_risk'), exact('exact_risk')),
    ('one step of GD from the prior mean', sampled('gd_eval_risk'), exact('gd_risk')),
    ('difference, same prompts', sampled('eval_excess_over_gd'), ''),
    ('optimum over all rules', '', exact('optimal_risk')),
  ]
  return '\n'.join(
    f'{name:<36}{left:>20}{right:>14}'.rstrip() for name, left, right in rows
  )
