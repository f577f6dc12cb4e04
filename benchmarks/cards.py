"""Cards: the descriptions of checkpoints that ship."""

import os
import pathlib
from typing import TypedDict

from zoo.core.errors import UserError
from zoo.host.files import read_json

CARD = 'card.json'  # its name in the folder of a checkpoint

# The columns of lists of cards, in this order, and their formats.
COLUMNS = {
  'num_heads': 'd',
  'num_params': 'd',
  'exact_risk': '.6f',
  'lowest_known': '.6f',
  'relative_excess': '.0e',
}


class Card(TypedDict):
  """What lists show of a card, which also says how the model was trained."""

  name: str
  model: str
  num_heads: int
  num_params: int
  exact_risk: float | None  # None: it is sampled, and the card has what was found
  # Of models with the same guess and number of heads, or of Bayes; None: not known.
  lowest_known: float | None
  relative_excess: float | None


def read_cards(folder: str | os.PathLike[str]) -> list[Card]:
  """The cards of the checkpoints in a folder; raises UserError for a damaged one."""
  cards = []
  for path in pathlib.Path(folder).glob(f'*/{CARD}'):
    try:
      cards.append(read_json(path, Card))
    except UserError as error:
      raise UserError(f'{path} is not a card: {error}') from error
  return sorted(
    cards, key=lambda card: (card['model'], card['num_heads'], card['name'])
  )


def card_row(card: Card) -> list[str]:
  """The name and the figures of a card, as they are shown."""
  figures = [
    '–' if card[name] is None else format(card[name], form)
    for name, form in COLUMNS.items()
  ]
  return [card['name'], *figures]
