"""The wording of the published benchmarks, by name."""

from typing import Any

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


def section(name: str) -> dict[str, Any]:
  """The fields of the section `benchmark` of a config."""
  return {'name': name, **BENCHMARKS[name]}
