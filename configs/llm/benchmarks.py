"""The wording of the published benchmarks, by name."""

from typing import Any

from ml_collections import ConfigDict, FieldReference

BENCHMARKS: dict[str, dict[str, Any]] = {
  'stsb': {
    'instruction': (
      'Rate how similar in meaning two sentences are, from 0 (nothing in common) to 5 '
      '(the same meaning).'
    ),
    'inputs': ('Sentence 1', 'Sentence 2'),
    'label': 'Similarity score',
    'low': 0.0,
    'high': 5.0,
  },
  'sick_relatedness': {
    'instruction': (
      'Rate how related in meaning two sentences are, from 1 (unrelated) to 5 (very '
      'closely related).'
    ),
    'inputs': ('Sentence 1', 'Sentence 2'),
    'label': 'Relatedness score',
    'low': 1.0,
    'high': 5.0,
  },
  'sick_entailment': {
    'instruction': (
      'Decide whether the second sentence follows from the first (entailment), cannot '
      'be true if the first is (contradiction), or neither (neutral).'
    ),
    'inputs': ('Sentence 1', 'Sentence 2'),
    'label': 'Relation',
    'low': None,
    'high': None,
  },
  'trec_qa': {
    'instruction': 'Decide whether a sentence answers a question.',
    'inputs': ('Question', 'Sentence'),
    'label': 'Verdict',
    'low': None,
    'high': None,
  },
}


def section(name: str) -> ConfigDict:
  """The section `benchmark` of a config."""
  config: Any = ConfigDict()
  config.name = name  # one of BENCHMARKS, or jsonl: the user's own
  config.instruction = BENCHMARKS[name]['instruction']
  config.inputs = BENCHMARKS[name]['inputs']  # a name for each text
  # The name of the label, after which the answer is expected.
  config.label = BENCHMARKS[name]['label']
  # The lowest and the highest score; None if labels are classes.
  config.low = FieldReference(BENCHMARKS[name]['low'], field_type=float)
  config.high = FieldReference(BENCHMARKS[name]['high'], field_type=float)
  return config
