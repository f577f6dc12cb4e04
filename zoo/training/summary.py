"""The summary of a run that has ended: `summary.json`, and the closing table."""

import json
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict, cast

import jax
import jax.extend.core
import msgspec

from zoo import theory
from zoo.config.building import num_weights
from zoo.config.run import Run
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import FollowsRule
from zoo.core.tables import format_exact, format_table
from zoo.estimators.linear_prior import best_first_step
from zoo.host.files import (
  UnreadableFile,
  finite_or_null,
  read_json,
  write_atomically,
)
from zoo.measure.comparison import MODEL, Comparison, below_bayes, table_of
from zoo.measure.table import format_estimate, name_of_half
from zoo.models import TokenModel
from zoo.models.tokens import num_tokens
from zoo.storage.steps import Launch
from zoo.training.evaluation import Risks
from zoo.training.experiment import Experiment

SUMMARY = 'summary.json'  # A run that has ended has this file in its workdir.
DIVERGED = 'diverged.json'  # A point without a summary has this record.

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Summary(TypedDict):
  """The content of `summary.json`; values that are unknown or overflow are None.

  `optimal_risk` is the least risk of a learning rule of the linear family. `gd_risk` is
  the risk of one step of gradient descent from the prior mean, with the best step size.
  Both are None unless the task is one that `theory.covers`, and so is `exact_risk`.

  Points of a sweep that are trained side by side share one program. `steps_per_second`,
  `cpu_ms_per_step`, `flops_per_second`, `peak_memory_bytes` and `wall_time` are those
  of the whole program, and each of its points repeats them: their sum over the points
  counts the same work several times.

  Attributes:
    model: The name of the model.
    num_params: The number of its weights.
    step: The number of steps that it was trained for.
    eval_risk: The mean loss on held-out prompts.
    eval_risk_stderr: The standard error of `eval_risk`.
    eval_num_prompts: The number of these prompts.
    eval_accuracy: The share of correct labels on the same prompts; None unless they are
      classes.
    eval_accuracy_stderr: The standard error of `eval_accuracy`.
    eval_nll: The negative log likelihood of observed labels that are numbers, in nats.
      Only a model with a distribution has this entry.
    eval_nll_stderr: The standard error of `eval_nll`.
    exact_risk: The exact risk of the model.
    gd_risk: The exact risk of one step of gradient descent.
    optimal_risk: The exact risk of the best rule of the linear family.
    excess_risk: `exact_risk` minus `optimal_risk`; None for a model outside the linear
      family.
    metrics: The numbers of registered metrics, by `METRIC/KEY`. Only a run with such
      metrics has this entry.
    comparison: The comparison with the baselines of the task, as
      `compare_with_baselines` adds it.
    history: Each launch that has trained the model, the first one first: from which
      step to which, the fields that differ from the launch before, and the versions.
    steps_per_second: Steps per second of the last launch, without evaluation and
      saving. A step trains all models of the program.
    cpu_ms_per_step: The CPU time per step of the last launch, in ms. It counts all
      threads of this process and everything that they do, such as evaluation and
      saving.
    flops_per_second: Operations in matrix products per second of the last launch, of
      all devices and models of the program.
    tokens_per_second: The tokens that one model is trained on per second of the last
      launch; None for an objective without prompts.
    peak_memory_bytes: The peak memory of the fullest device of this process, or of the
      process itself.
    peak_memory_of: What `peak_memory_bytes` is about: `device`, or `process` on a CPU.
    wall_time: Seconds spent on the run, with evaluation and saving and without
      compiling. It includes earlier launches, up to the saved step from which the next
      one resumed.
    jax_version: The version of JAX.
    device_kind: The kind of the devices.
    num_devices: The number of devices of the mesh.
    num_processes: The number of processes.
  """

  model: str
  num_params: _Count
  step: _Count
  eval_risk: float | None
  eval_risk_stderr: float | None
  eval_num_prompts: _Count | None
  eval_accuracy: float | None
  eval_accuracy_stderr: float | None
  eval_nll: NotRequired[float | None]
  eval_nll_stderr: NotRequired[float | None]
  exact_risk: float | None
  gd_risk: float | None
  optimal_risk: float | None
  excess_risk: float | None
  metrics: NotRequired[dict[str, float | None]]
  comparison: Comparison | None
  history: list[Launch]
  steps_per_second: float | None
  cpu_ms_per_step: float | None
  flops_per_second: float | None
  tokens_per_second: float | None
  peak_memory_bytes: _Count | None
  peak_memory_of: str | None
  wall_time: float
  jax_version: str
  device_kind: str
  num_devices: int
  num_processes: int


class Divergence(TypedDict):
  """The content of `diverged.json`: why a point of a sweep has no summary.

  Attributes:
    model: The name of the model.
    num_steps: The number of steps that the point was to be trained for.
    step: The first step that is not finite. For weights of a checkpoint it is the step
      at which they were found.
    loss: The loss of this step; None if it is not finite.
    reason: The reason in words.
  """

  model: str
  num_steps: _Count
  step: _Count
  loss: float | None
  reason: str


def summarise(
  experiment: Experiment,
  risks: Risks,
  speed: tuple[float | None, float | None],
  flops: int,
  wall_time: float,
  history: list[Launch],
) -> Summary:
  """Returns the summary of a model of a program, without a comparison.

  Args:
    experiment: The experiment of the model.
    risks: What was measured after the last step.
    speed: Steps per second and CPU-ms per step of this launch, from `Loop.speed`.
    flops: The operations of a step of the program.
    wall_time: Seconds spent on the run.
    history: Each launch that has trained the model, the first one first.
  """
  config, mesh = experiment.config, experiment.mesh
  model, task = experiment.model, experiment.task.held_out()
  gd = optimal = excess = None
  if theory.covers(task):
    step = LearningRule.gradient_descent(task.mean_weights(), best_first_step(task))
    gd = float(theory.exact_risk(step, task))
    optimal = float(theory.exact_risk(theory.optimal_rule(task), task))
    # The risk of a model outside the linear family may be below the best of the family.
    if risks.exact is not None and isinstance(model, FollowsRule):
      excess = risks.exact - optimal
  tokens = tokens_per_step(experiment)
  memory, memory_of = peak_memory(mesh.local_devices)
  summary = {
    'model': config.model.name,
    'num_params': num_weights(model),
    'step': config.train.num_steps,
    'eval_risk': risks.sampled and risks.sampled.mean,
    'eval_risk_stderr': risks.sampled and risks.sampled.stderr,
    'eval_num_prompts': risks.sampled and risks.sampled.num,
    'eval_accuracy': risks.accuracy and risks.accuracy.mean,
    'eval_accuracy_stderr': risks.accuracy and risks.accuracy.stderr,
    'exact_risk': risks.exact,
    'gd_risk': gd,
    'optimal_risk': optimal,
    'excess_risk': excess,
    'comparison': None,
    'history': history,
    'steps_per_second': speed[0],
    'cpu_ms_per_step': speed[1],
    'flops_per_second': speed[0] and speed[0] * flops,
    'tokens_per_second': speed[0] and tokens and speed[0] * tokens,
    'peak_memory_bytes': memory,
    'peak_memory_of': memory_of,
    'wall_time': wall_time,
    'jax_version': jax.__version__,
    'device_kind': mesh.devices.flat[0].device_kind,
    'num_devices': mesh.devices.size,
    'num_processes': jax.process_count(),
  }
  if risks.nll is not None:
    summary['eval_nll'] = risks.nll.mean
    summary['eval_nll_stderr'] = risks.nll.stderr
  if risks.metrics:
    summary['metrics'] = risks.metrics
  return cast(Summary, finite_or_null(summary))


def matrix_products(
  jaxpr: jax.extend.core.Jaxpr,
) -> Iterator[tuple[jax.extend.core.JaxprEqn, int]]:
  """Yields the matrix products of a program, and how often each of them runs.

  A product in a scan runs as often as the scan has steps. Products in a `while` loop
  count once, since its length is unknown.
  """
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      yield equation, 1
    times = equation.params.get('length', 1)  # A scan has a length.
    for within in jax.extend.core.jaxprs_in_params(equation.params):
      for product, count in matrix_products(within):
        yield product, times * count


def product_flops(jaxpr: jax.extend.core.Jaxpr) -> int:
  """Returns the additions and multiplications of all matrix products in a program.

  Each product counts once for all devices together, and as often as `matrix_products`
  says. XLA's own cost analysis counts a loop once, and repeated work on each device.
  """
  flops = 0
  for equation, times in matrix_products(jaxpr):
    contracted, _ = equation.params['dimension_numbers'][0]
    left: Any = equation.invars[0].aval
    product: Any = equation.outvars[0].aval
    inner = math.prod(left.shape[axis] for axis in contracted)
    flops += times * 2 * inner * math.prod(product.shape)
  return flops


def tokens_per_step(experiment: Experiment) -> int | None:
  """Returns the tokens of the prompts of a step; None for an objective without prompts.

  A model without a layout of tokens has those of the embedding matrix: C + 1 for each
  prompt.
  """
  if not experiment.objective.draws_prompts:
    return None
  length, model = experiment.task.context_length, experiment.model
  tokens = length + 1
  if isinstance(model, TokenModel):
    tokens = num_tokens(model.layout, length)
  return experiment.config.train.batch_size * tokens


def peak_memory(devices: Sequence[Any]) -> tuple[int | None, str | None]:
  """Returns the most bytes in use at a time, and what uses them.

  On devices that report their memory it is the largest peak of one device, with
  'device'. On others, such as CPUs, it is the peak of the process, with 'process'. On
  Windows, which has no such count, both are None. A peak is since the process began.
  """
  peaks = [(device.memory_stats() or {}).get('peak_bytes_in_use') for device in devices]
  known = [peak for peak in peaks if peak is not None]
  if known:
    return max(known), 'device'
  if sys.platform == 'win32':
    return None, None
  import resource  # Windows lacks it.

  # getrusage counts in bytes on macOS, and in KiB on Linux.
  num_bytes = 1 if sys.platform == 'darwin' else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * num_bytes, 'process'


def write_summary(workdir: pathlib.Path, summary: Summary) -> None:
  """Writes `summary.json`, on process 0 only."""
  if jax.process_index() == 0:
    write_atomically(
      workdir / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + '\n'
    )


def read_summary(workdir: pathlib.Path) -> Summary | None:
  """Returns the `summary.json` of a run; None if it is missing or damaged."""
  path = workdir / SUMMARY
  if not path.exists():
    return None
  try:
    return read_json(path, Summary)
  except UnreadableFile:
    return None


def finished_summary(workdir: pathlib.Path, config: Run) -> Summary | None:
  """Returns the `summary.json` of a run of this config that has ended, or None."""
  summary = read_summary(workdir)
  if summary is None:
    return None
  own = config.model.name, config.train.num_steps
  return summary if (summary['model'], summary['step']) == own else None


def write_divergence(folder: pathlib.Path, divergence: Divergence) -> None:
  """Writes `diverged.json` into the folder of a point; raises OSError."""
  content = finite_or_null(divergence)
  write_atomically(
    folder / DIVERGED, json.dumps(content, indent=2, allow_nan=False) + '\n'
  )


def read_divergence(folder: pathlib.Path, config: Run) -> Divergence | None:
  """Returns the `diverged.json` of a point of this config; None if it has none.

  A record for another number of steps does not count, since the learning rate of a
  schedule depends on this number. A record that cannot be read does not count either.
  """
  path = folder / DIVERGED
  if not path.exists():
    return None
  try:
    divergence = read_json(path, Divergence)
  except UnreadableFile:
    return None
  own = config.model.name, config.train.num_steps
  return divergence if (divergence['model'], divergence['num_steps']) == own else None


def is_lost(row: Mapping[str, Any]) -> bool:
  """Returns whether a row of a sweep is of a point that has become non-finite."""
  return row['step'] is None


def with_one_loss(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Returns rows of a sweep whose sampled risk is the loss of the comparison.

  It is then the same number as that of `launch.main`, `zoo.curve` and `launch.probe`.
  If a point that is not lost has no comparison, all keep the loss of the training.
  """
  plain = [dict(row) for row in rows]
  finite = [row for row in plain if not is_lost(row)]
  if all(row['comparison'] for row in finite):
    for row in finite:
      measured = row['comparison'][MODEL]
      row['eval_risk'] = measured['mean'][-1]
      row['eval_risk_stderr'] = measured['stderr'][-1]
      row['eval_num_prompts'] = measured['num_prompts']
  return plain


def kind_of_risk(summaries: Sequence[Mapping[str, Any]]) -> str:
  """Returns the risk that all summaries have: `exact_risk`, else `eval_risk`.

  Points of a sweep that are lost have neither, and are left out.
  """
  exact = all(
    summary['exact_risk'] is not None for summary in summaries if not is_lost(summary)
  )
  return 'exact_risk' if exact else 'eval_risk'


def table(summary: Summary) -> str:
  """Returns the closing table of a run: the model, and each baseline of its task.

  The loss of a run that was compared with the baselines is that on the prompts of the
  comparison, and otherwise that on the held-out prompts of training.

  Args:
    summary: The summary that `zoo.train` returns.

  Returns:
    Lines of text for a terminal.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps = config.eval.every = 10
    >>> summary = zoo.train(config, 'runs/a')
    >>> lines = zoo.training.table(summary).splitlines()
    >>> lines[1].split()[0], lines[1].split()[-1] == f'{summary["exact_risk"]:.6f}'
    ('yq_lsa', True)
  """
  if comparison := summary['comparison']:
    return _with_baselines(summary, comparison)
  num = summary['eval_num_prompts'] or math.inf
  rows = [
    [
      summary['model'],
      format_estimate(summary['eval_risk'], summary['eval_risk_stderr'], num),
      format_exact(summary['exact_risk']),
    ]
  ]
  if summary['gd_risk'] is not None:
    gd = format_exact(summary['gd_risk'])
    rows.append(['one step of GD from the prior mean', '', gd])
  if summary['optimal_risk'] is not None:
    optimum = format_exact(summary['optimal_risk'])
    rows.append(['optimum of the linear family', '', optimum])
  if (accuracy := summary['eval_accuracy']) is not None:
    shown = format_estimate(accuracy, summary['eval_accuracy_stderr'], num)
    if accuracy in (0, 1):  # Equal prompts do not tell the error.
      shown = f'{accuracy:.4f} (all {"right" if accuracy else "wrong"})'
    rows.append(['its accuracy', shown, ''])
  if (nll := summary.get('eval_nll')) is not None:
    shown = format_estimate(nll, summary.get('eval_nll_stderr'), num)
    rows.append(['its negative log likelihood, nats', shown, ''])
  header = [f'after step {summary["step"]}', f'loss {name_of_half(num)}', 'exact']
  return format_table(rows, header=header)


def _with_baselines(summary: Summary, comparison: Comparison) -> str:
  """Returns the closing table of a run that was compared with baselines.

  The loss of the model is that of the comparison, which `zoo.curve` and `launch.probe`
  measure, too. The loss in training, `eval_risk`, is on other prompts.
  """
  (own, *baselines), (title, *columns) = table_of(comparison)
  rows = [[summary['model'], *own[1:-1], format_exact(summary['exact_risk'])]]
  rows += baselines
  if summary['optimal_risk'] is not None:
    blank = [''] * (len(own) - 2)
    optimum = format_exact(summary['optimal_risk'])
    rows.append(['optimum of the linear family', *blank, optimum])
  header = [f'after step {summary["step"]}, {title}', *columns]
  text = format_table(rows, header=header)
  if warning := below_bayes(comparison):
    text += f'\nwarning: {warning}'
  return text
