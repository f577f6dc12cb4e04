"""What `launch.benchmark` runs and prints."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks import linear, models
from zoo.reports.style import drawing_of


def run(
  repeats: int,
  seconds: float,
  cases: Sequence[str],
  picture: pathlib.Path | None,
  names: Sequence[str] | None,
  smoke: bool,
) -> dict[str, Any]:
  """Times linear attention, its scaling if there is a file for it, or other models.

  `cases` are those of linear attention, `names` are the other models. Prints the
  results, and returns them as JSON. Raises UserError for an unknown name.
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
    results |= linear.measure(cases, variant, repeats, seconds)
    print(linear.table(results))
  else:
    results['scaling'] = linear.scale(variant, repeats, seconds, 2 if smoke else None)
    figure = drawing_of(linear.plot_scaling(results['scaling']))
    figure.savefig(picture)
    picture.with_suffix('.csv').write_text(figure.numbers)
    for label, measured in results['scaling'].items():
      print(f'{label:<18} step time ∝ size^{measured["exponent"]:.2f}')
    print(picture)
  return results
