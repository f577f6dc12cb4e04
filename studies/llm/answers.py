"""The parser of answers, which finds the label that a text states."""

import re
from collections.abc import Sequence

from studies.llm.guesses import LabelScale
from studies.llm.prompts import Wording

# A number that does not follow a letter, a digit, a point or a comma, and that is not
# followed by a percent sign or further digits.
_NUMBER = r'(?<![\w.,])[-−]?\d+(?:\.\d+|,\d{1,2})?(?![\d%]|[.,]\d|\s*%)'
# The text between a name and its value, such as "is", a colon or "of the last item".
_BETWEEN = r'[^\d\n.;−-]'
_LINK = rf'{_BETWEEN}{{0,60}}?'
# A number at the start may be a count, or number an item of a list. Only a number that
# fills its line is an answer.
_LINE_END = r'[\s*_"\'`).]*?(?:\n|$)'
_OTHERS = (
  'first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|previous|other'
)
# "My refined guess: 3.4" is an answer, "initial guess: 3.5" is not.
_OLD = ''.join(
  rf'(?<!{word}\s)' for word in ('refined', 'revised', 'updated', 'final', 'new')
)


def parse_answer(
  answer: str, wording: Wording, texts: Sequence[str]
) -> float | str | None:
  """Finds the label that a free answer states for the query.

  Models repeat the prompt, and continue it with items that they invent. The parser
  therefore looks for an answer in the text before the first item. If that has none, it
  looks in the first item that repeats the query. It ignores inputs, the bounds of the
  scale, guesses, the list of classes and statements about other items. In the remaining
  text the answer is the first of these that exists:

  - a value at the start that fills a line,
  - the first value after the name of the label,
  - the only value.

  A value out of bounds is no answer, and neither are two different values without the
  name of the label.

  Args:
    answer: The text that the model generated.
    wording: The wording of the prompts.
    texts: The texts of the query.

  Returns:
    A number or the name of a class. None if no answer is found.
  """
  before, *items = re.split(rf'(?im)^(?={_start_of(wording.inputs[0])})', answer)
  label = _parse_part(before, wording)
  restated = [item for item in items if _restates(item, wording, texts)]
  return _parse_part(restated[0], wording) if label is None and restated else label


def _parse_part(part: str, wording: Wording) -> float | str | None:
  text, scale = _without_echoes(part, wording), wording.scale
  value, name = f'({_value(scale)})', _name(wording.label)
  first = re.match(rf'[\s*_"\'`(]*{value}{_LINE_END}', text, re.I)
  if first is not None:
    return _read(first[1], scale)
  if (named := re.search(rf'{name}{_LINK}{value}', text, re.I)) is not None:
    return _read(named[1], scale)
  labels = {_read(said, scale) for said in re.findall(value, text, re.I)}
  return labels.pop() if len(labels) == 1 else None


def parse_forced(answer: str, wording: Wording) -> float | str | None:
  """Returns the label at the start of the text after an answer's prefix, or None."""
  start = re.match(rf'[\s*]*({_value(wording.scale)})', answer, re.I)
  return None if start is None else _read(start[1], wording.scale)


def _restates(item: str, wording: Wording, texts: Sequence[str]) -> bool:
  """Returns whether an item repeats the inputs of the query."""
  for name, text in zip(wording.inputs, texts, strict=True):
    input_line = re.search(rf'(?im)^{_start_of(name)}(.*)$', item)
    if input_line is None or _plain(input_line[1]) != _plain(text):
      return False
  return True


def _start_of(name: str) -> str:
  return rf'[ \t*>#-]*{re.escape(name)}[ \t*]*:'


def _plain(text: str) -> str:
  return ' '.join(text.casefold().split()).strip(' *"\'')


def _value(scale: LabelScale) -> str:
  """Returns the pattern of a number, or of the names of classes, longest first."""
  if not scale.classes:
    return _NUMBER
  longest_first = sorted(scale.classes, key=len, reverse=True)
  words = (rf'(?<!\w){re.escape(name)}(?!\w)' for name in longest_first)
  return f'(?:{"|".join(words)})'


def _read(value: str, scale: LabelScale) -> float | str | None:
  """Returns the label that a match of `_value` states; None for one out of bounds."""
  if scale.classes:
    said = re.escape(value)
    return next(known for known in scale.classes if re.fullmatch(said, known, re.I))
  number = float(value.replace(',', '.').replace('−', '-'))
  return number if scale.low <= number <= scale.high else None


def _without_echoes(answer: str, wording: Wording) -> str:
  for name in wording.inputs:
    # A repeated input ends with its line. Elsewhere the name of an input is removed,
    # since it may contain a digit.
    answer = re.sub(rf'(?im)^{_start_of(name)}.*$', '', answer)
    answer = re.sub(rf'(?i)\b{re.escape(name)}\b', '', answer)
  scale, value = wording.scale, _value(wording.scale)
  if scale.classes:
    choice = rf'{value}(?:\s*(?:,|/|\bor\b|,\s*or\b)\s*{value})+'
    answer = re.sub(choice, '', answer, flags=re.I)
    # "Not a contradiction" names a class that is not the answer.
    answer = re.sub(rf'\bnot\s+(?:an?|the)\s+{value}', '', answer, flags=re.I)
  else:
    bounds = (re.escape(f'{bound:g}') for bound in (scale.low, scale.high))
    low, high = (rf'{bound}(?:\.0+)?(?!\.?\d)' for bound in bounds)
    whole = rf'(?<![\d.]){low}\s*(?:to|and|through)\s*{high}'
    answer = re.sub(whole, '', answer, flags=re.I)
    answer = re.sub(r'\d[\d.,]*\s*[-–—]\s*\d[\d.,]*', '', answer)  # other ranges
    answer = re.sub(rf'\s*(?:/|\bout\s+of\b)\s*{high}', '', answer, flags=re.I)
    # In "from 3.5 to 3.4" the first number is not the answer.
    answer = re.sub(rf'\bfrom\s+{value}(?=\s+to\s+{value})', '', answer, flags=re.I)
  # A value for the first item is not an answer for the last one.
  other = (
    rf'\b(?:of|for)\s+(?:the\s+)?(?:{_OTHERS})\b(?:(?!\band\b){_BETWEEN}){{0,60}}?'
  )
  answer = re.sub(rf'{other}{value}', '', answer, flags=re.I)
  before_value = rf'(?:(?!\bto\b|{_name(wording.label)}){_BETWEEN}){{0,60}}?'
  guess = rf'{_OLD}\bguess(?:es)?\b{before_value}{value}'
  return re.sub(guess, '', answer, flags=re.I)


def _name(label: str) -> str:
  """Returns the pattern of the label's name, or of its last word alone."""
  last = label.split()[-1]
  return rf'\b(?:{re.escape(label)}|{re.escape(last)})\b'
