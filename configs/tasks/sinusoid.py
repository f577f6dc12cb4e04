"""Sine waves (von Oswald et al., arXiv 2212.07677)."""

import math
from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of sinusoid."""
  task: Any = ConfigDict()
  task.name = 'sinusoid'
  task.context_length = 10  # C ≥ 1, labelled examples per prompt
  task.amplitude_range = (0.1, 0.5)  # amplitudes ≥ 0 are uniform in it
  task.phase_range = (0.0, math.pi)  # phases are uniform in it; at most 2π long
  return task
