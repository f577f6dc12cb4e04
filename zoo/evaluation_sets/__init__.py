"""Frozen evaluation sets: the same prompts for everyone, as TensorFlow Datasets.

found = zoo.evaluation_sets.load('table_1')
found.prompt, found.task

Loading needs the extra `data`. `import zoo.evaluation_sets.builder` registers the sets
as configs of the TFDS builder `icl_linear_regression`.
"""

from zoo.evaluation_sets.sets import SPECS as SPECS
from zoo.evaluation_sets.sets import VERSION as VERSION
from zoo.evaluation_sets.sets import EvaluationSet as EvaluationSet
from zoo.evaluation_sets.sets import SetSpec as SetSpec
from zoo.evaluation_sets.sets import export as export
from zoo.evaluation_sets.sets import find_spec as find_spec
from zoo.evaluation_sets.sets import load as load
