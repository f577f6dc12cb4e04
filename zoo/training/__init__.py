"""Training: one sharded loop for every model, from a config to a workdir."""

from zoo.config.curricula import Stage as Stage
from zoo.config.validation import validate as validate
from zoo.host.parts import Part as Part
from zoo.training.summary import table as table
from zoo.training.sweeps import grid as grid
from zoo.training.sweeps import sweep as sweep
from zoo.training.trainer import Event as Event
from zoo.training.trainer import train as train
from zoo.training.trainer import training_run as training_run
