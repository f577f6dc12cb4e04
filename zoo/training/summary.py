"""What a finished run says of itself: `summary.json` and the closing table."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import jax
from flax import nnx

from zoo.config import Config, build_model
from zoo.files import UnreadableFile, is_finite_number, read_json, write_atomically
from zoo.training.evaluation import Evaluation, Risks

SUMMARY = 'summary.json'  # its name in a workdir

_SAMPLED = 'eval_risk', 'gd_eval_risk', 'eval_excess_over_gd'
_EXACT = 'exact_risk', 'gd_risk', 'optimal_risk', 'excess_risk'
_RISKS = *_SAMPLED, *(f'{name}_stderr' for name in _SAMPLED), *_EXACT


def summarise(
  config: Config,
  evaluation: Evaluation,
  point: int,
  risks: Risks,
  speed: tuple[float | None, float | None],
  wall_time: float,
) -> dict[str, Any]:
  """The summary of a finished run; what does not exist for a model is None.

  `point` counts the tasks of the evaluation.
  """
  model = nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0)))
  parameters = nnx.to_flat_state(nnx.state(model, nnx.Param))
  unknown = None, None
  risk, risk_stderr = risks.sampled or unknown
  gd, gd_stderr = risks.sampled_gd or unknown
  difference, difference_stderr = risks.sampled_difference or unknown
  optimum = evaluation.optimal_risks[point]
  excess = None
  if risks.exact is not None and optimum is not None:
    excess = risks.exact - optimum
  return {
    'model': config.model.name,
    'num_params': sum(math.prod(leaf.shape) for _, leaf in parameters),
    'step': config.train.num_steps,
    'eval_risk': risk,
    'eval_risk_stderr': risk_stderr,
    'gd_eval_risk': gd,
    'gd_eval_risk_stderr': gd_stderr,
    'eval_excess_over_gd': difference,
    'eval_excess_over_gd_stderr': difference_stderr,
    'exact_risk': risks.exact,
    'gd_risk': evaluation.gd_risks[point],
    'optimal_risk': optimum,
    'excess_risk': excess,
    'steps_per_second': speed[0],
    'cpu_ms_per_step': speed[1],
    'wall_time': wall_time,
    'jax_version': jax.__version__,
    'device_kind': jax.devices()[0].device_kind,
    'num_devices': jax.device_count(),
    'num_processes': jax.process_count(),
  }


def write_summary(workdir: pathlib.Path, summary: dict[str, Any]) -> None:
  """Writes `summary.json`; only process 0 does."""
  if jax.process_index() == 0:
    write_atomically(workdir / SUMMARY, json.dumps(summary, indent=2) + '\n')


def read_summary(path: pathlib.Path) -> dict[str, Any] | None:
  """A `summary.json`, or None if there is none, or a damaged one."""
  try:
    summary = read_json(path)
  except UnreadableFile:
    return None
  return summary if _is_whole(summary) else None


def _is_whole(summary: Any) -> bool:
  """Whether a summary has all that `table` and tables of sweeps show."""
  if not isinstance(summary, dict) or not {'model', 'step', *_RISKS} <= summary.keys():
    return False
  known = {name for name in _RISKS if summary[name] is not None}
  return (
    isinstance(summary['model'], str)
    and all(is_finite_number(summary[name]) for name in ('step', *known))
    # A sampled risk comes with its standard error, or not at all.
    and all((name in known) == (f'{name}_stderr' in known) for name in _SAMPLED)
  )


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
