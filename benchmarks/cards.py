"""Cards: files that describe the checkpoints that ship."""

import os
import pathlib
from typing import TypedDict

from zoo.core.errors import UserError
from zoo.host.files import read_json

CARD = 'card.json'  # This is its name in the folder of a checkpoint.

# The columns of a list of cards, and the format of each.
COLUMNS = {
  'num_heads': 'd',
  'num_params': 'd',
  'exact_risk': '.6f',
  'lowest_known': '.6f',
  'relative_excess': '.2g',
}


class Card(TypedDict):
  """The fields of a card that lists show.

  A card also has the config, the command and the seed by which the model was trained.

  Attributes:
    name: The name of the checkpoint.
    model: The registered name of the model.
    num_heads: Number of heads of a layer.
    num_params: Number of trained weights.
    exact_risk: The risk by a formula. None if there is no formula; the card then has a
      sampled risk or other scores.
    lowest_known: The lowest known risk: that of Bayes, or for linear attention that of
      models with the same guess and number of heads. None if no such risk is known.
    relative_excess: (risk − lowest_known) / lowest_known; None if that is not known.
  """

  name: str
  model: str
  num_heads: int
  num_params: int
  exact_risk: float | None
  lowest_known: float | None
  relative_excess: float | None


def read_cards(folder: str | os.PathLike[str]) -> list[Card]:
  """Returns the cards of the checkpoints in a folder, sorted by model and heads.

  Raises:
    UserError: If a card is damaged.
  """
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
  """Returns the name and the figures of a card as texts, in the order of COLUMNS."""
  figures = [
    '–' if card[name] is None else format(card[name], form)
    for name, form in COLUMNS.items()
  ]
  return [card['name'], *figures]
