"""Floating-point operations per second, and their share of the devices' peak; memory.

Only matrix products are counted, as in the definition of a peak: each once for all
devices together, whatever the precision, and those of a loop as often as it runs.
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

# Peak of dense bfloat16 products, in floating-point operations per second of one JAX
# device, by `device_kind`. TPUs: cloud.google.com/tpu/docs/system-architecture-tpu-vm,
# the page of each version, "peak compute per chip". GPUs: NVIDIA's data sheets of A100,
# H100 and H200, where the figures with sparsity are twice as high.
PEAKS = {
  'TPU v4': 275e12,  # both cores of a chip are one device
  'TPU v5 lite': 197e12,  # v5e
  'TPU v5': 459e12,  # v5p
  'TPU v6 lite': 918e12,  # v6e
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA H100 80GB HBM3': 989e12,  # SXM
  'NVIDIA H200': 989e12,
}


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


def share_of_peak(
  flops_per_second: float, device_kind: str, num_devices: int
) -> float | None:
  """The share of the bfloat16 peak that devices reach; None if the peak is unknown."""
  peak = PEAKS.get(device_kind)
  return None if peak is None else flops_per_second / (num_devices * peak)


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


def describe(flops_per_second: float, device_kind: str, num_devices: int) -> str:
  """The speed of devices in one line, with its share of the peak if that is known."""
  share = share_of_peak(flops_per_second, device_kind, num_devices)
  text = f'{flops_per_second / 1e9:,.1f} GFLOP/s in products of matrices'
  if share is None:
    return text
  return f'{text}, {share:.2%} of the peak of {num_devices} × {device_kind} in bfloat16'
