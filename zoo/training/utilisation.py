"""Floating-point operations, tokens and memory of a step.

Only the operations of matrix products are counted: each once for all devices together,
whatever the precision, and those of a loop as often as it runs.
(XLA's own cost analysis counts a loop once, and repeated work on each device.)
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core

from zoo.config.validation import Config, build_task
from zoo.core.protocols import Model
from zoo.models import TokenModel
from zoo.models.tokens import num_tokens


def product_flops(jaxpr: jax.extend.core.Jaxpr) -> int:
  """The additions and multiplications of all matrix products in a program.

  Products in a `while` loop, whose length is not known, count once.
  """
  flops = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      contracted, _ = equation.params['dimension_numbers'][0]
      left: Any = equation.invars[0].aval
      product: Any = equation.outvars[0].aval
      inner = math.prod(left.shape[axis] for axis in contracted)
      flops += 2 * inner * math.prod(product.shape)
    times = equation.params.get('length', 1)  # of a scan
    within = jax.extend.core.jaxprs_in_params(equation.params)
    flops += times * sum(map(product_flops, within))
  return flops


def tokens_per_step(config: Config, model: Model) -> int | None:
  """The tokens of the prompts of a step; None for an objective without prompts.

  Models without a layout of tokens have those of the embedding matrix, C + 1 a prompt.
  """
  if config.objective.name != 'sampled':
    return None
  length = build_task(config).context_length
  layout = model.layout if isinstance(model, TokenModel) else 'joint'
  return config.train.batch_size * num_tokens(layout, length)


def peak_memory(devices: Sequence[Any]) -> tuple[int | None, str | None]:
  """The most bytes in use at a time, on the fullest of the devices, and 'device'.

  Where a backend does not know them, as that of CPUs, those of the process, and
  'process'; None on Windows, which has no such count. Both are since the process began.
  """
  peaks = [(one.memory_stats() or {}).get('peak_bytes_in_use') for one in devices]
  known = [peak for peak in peaks if peak is not None]
  if known:
    return max(known), 'device'
  if sys.platform == 'win32':
    return None, None
  import resource  # which Windows lacks

  unit = 1 if sys.platform == 'darwin' else 1024  # of getrusage
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, 'process'
