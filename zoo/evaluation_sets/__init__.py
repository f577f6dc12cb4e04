"""Frozen evaluation sets: the same prompts for everyone, as TensorFlow Datasets.

found = zoo.evaluation_sets.load('table_1')
found.prompt, found.task

Loading needs the extra `data`. `import zoo.evaluation_sets.builder` registers the sets
as configs of the TFDS builder `icl_linear_regression`.
"""

from zoo.evaluation_sets.sets import SETTINGS as SETTINGS
from zoo.evaluation_sets.sets import VERSION as VERSION
from zoo.evaluation_sets.sets import EvaluationSet as EvaluationSet
from zoo.evaluation_sets.sets import Setting as Setting
from zoo.evaluation_sets.sets import export as export
from zoo.evaluation_sets.sets import load as load
from zoo.evaluation_sets.sets import setting_of as setting_of
