"""The measurements that `launch.benchmark` makes and prints."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks import linear, models, transformer
from zoo.core.errors import check_name
from zoo.reports.style import drawing_of


def run(
  repeats: int,
  seconds: float,
  cases: Sequence[str],
  picture: pathlib.Path | None,
  names: Sequence[str] | None,
  smoke: bool,
) -> dict[str, Any]:
  """Times cases, the scaling of linear attention, or models; prints the results.

  Args:
    repeats: Number of timings of each program (≥ 1).
    seconds: Duration of a timing (> 0).
    cases: Cases of linear attention, or `transformer`, used if `picture` and `names`
      are None.
    picture: The file for a picture of the scaling with the sizes, which is measured if
      it is given.
    names: Other models, which are timed if they are given.
    smoke: Whether sizes are tiny, so that the speeds mean nothing.

  Returns:
    The results, which can be written as JSON.

  Raises:
    UserError: If a case or a model is unknown.
  """
  variant = 'smoke' if smoke else 'paper'
  results: dict[str, Any] = {
    'jax_version': jax.__version__,
    'device_kind': jax.devices()[0].device_kind,
    'num_devices': jax.device_count(),
    'variant': variant,
  }
  if names is not None:
    by_name = {name: models.model_config(name, smoke) for name in names}
    results['models'] = models.measure(by_name, repeats, seconds)
    print(models.table(results['models']))
  elif picture is None:
    for case in cases:
      check_name('--cases:', case, (*linear.NAMES, transformer.NAME))
    of_linear = [case for case in cases if case != transformer.NAME]
    if of_linear:
      results |= linear.measure(of_linear, variant, repeats, seconds)
      print(linear.table(results))
    if transformer.NAME in cases:
      results['transformer'] = transformer.measure(repeats, seconds, smoke)
      print(transformer.table(results['transformer']))
  else:
    results['scaling'] = linear.scale(variant, repeats, seconds, 2 if smoke else None)
    figure = drawing_of(linear.plot_scaling(results['scaling']))
    figure.savefig(picture)
    picture.with_suffix('.csv').write_text(figure.numbers)
    for label, measured in results['scaling'].items():
      print(f'{label:<18} step time ∝ size^{measured["exponent"]:.2f}')
    print(picture)
  return results
