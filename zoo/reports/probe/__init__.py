"""The report of a probe: its sentences, tables and pictures."""

from zoo.reports.probe.algorithm_words import (
  name_layer_algorithms as name_layer_algorithms,
)
from zoo.reports.probe.summaries import summary as summary
