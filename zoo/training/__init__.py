"""Training: from a config to a workdir with a trained model and its records.

A run (run.py) and a group of a sweep (many.py) go through the same loop (loop.py), the
same compiled steps (step.py) and the same evaluation (evaluation.py).
"""

from zoo.config.curricula import Stage as Stage
from zoo.config.validation import validate as validate
from zoo.host.parts import Part as Part
from zoo.training.hooks import Event as Event
from zoo.training.run import train as train
from zoo.training.run import training_run as training_run
from zoo.training.summary import table as table
from zoo.training.sweeps import grid as grid
from zoo.training.sweeps import sweep as sweep
