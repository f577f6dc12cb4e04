"""Training: from a config to a workdir with a trained model and its records.

A run (run.py) trains one model, and a group of points of a sweep (many.py) trains many
models in one program. Both use the loop of loop.py, the step of step.py and the
measurements of evaluation.py; many.py maps the step and the measurements over its
models. Each run and each group compiles a program of its own.
"""

from zoo.host.parts import Part as Part
from zoo.objectives.curricula import Stage as Stage
from zoo.training.experiment import Experiment as Experiment
from zoo.training.experiment import build as build
from zoo.training.experiment import validate as validate
from zoo.training.hooks import Event as Event
from zoo.training.run import train as train
from zoo.training.run import training_run as training_run
from zoo.training.summary import table as table
from zoo.training.sweeps import grid as grid
from zoo.training.sweeps import sweep as sweep
