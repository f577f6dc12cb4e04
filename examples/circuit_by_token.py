"""By which tokens a recurrence recalls: a circuit of a small model of the delta rule.

python -m examples.circuit_by_token runs/recall/delta docs/images/circuit.png

It trains two layers of the delta rule to recall the value of one of four keys, as
examples/recall_state.py does. The circuit is that of prompts which ask for the key of
the second example: of the 9 tokens, counted from 0, key and value are 2 and 3.
"""

import dataclasses
import sys

import numpy as np
from flax import struct

import zoo
from examples.recall_state import ASKED, trained
from zoo.models.tokens import token_names
from zoo.probing import Circuit, Node
from zoo.reports.style import Figure
from zoo.tasks import AssociativeRecall

_PARTS = 'tokens', 'mixer.state', 'mixer.out', 'network.out'


@struct.dataclass(eq=False, repr=False)
class AsksOne(AssociativeRecall):
  """Recall in which the query has the key of one example, the same in all prompts."""

  def sample_one(self, key):
    prompt = super().sample_one(key)
    asked = {'x_query': prompt.x[ASKED], 'y_query': prompt.y[ASKED]}
    return dataclasses.replace(prompt, **asked)


def draw(found: Circuit, names: list[str]) -> Figure:
  """Draws the edges of a circuit: a row for each part, and a column for each token."""
  known = {node.site for edge in found.edges for node in edge[:2]}
  layers = range(sum('mixer.out' in site for site in known))
  parts = [f'layers.{i}.{part}' for i in layers for part in _PARTS]
  parts = [part for part in (*parts, 'final.stream') if part in known]
  most = max(abs(edge.score.mean) for edge in found.kept)

  def place(node: Node) -> tuple[int, int]:
    # The readout reads the last token.
    token = len(names) - 1 if node.token is None else node.token
    return token, parts.index(node.site)

  figure = Figure(0.42 * len(parts) + 0.6)
  axes = figure.subplots()
  axes.scatter(
    *np.meshgrid(range(len(names)), range(len(parts))), s=4, color='0.8', zorder=1
  )
  for edge in found.kept:
    start, end = place(edge.sender), place(edge.receiver)
    # An edge along a row, or up a column past other parts, is bent.
    is_bent = start[1] == end[1] or (start[0] == end[0] and end[1] - start[1] > 1)
    size = abs(edge.score.mean) / most
    axes.annotate(
      '',
      end,
      start,
      arrowprops={
        'arrowstyle': '-|>',
        'color': str(round(0.7 * (1 - size**0.5), 3)),
        'linewidth': 0.6 + 1.6 * size,
        'mutation_scale': 7,
        'connectionstyle': f'arc3,rad={0.25 if is_bent else 0.0}',
        'shrinkA': 3,
        'shrinkB': 3,
      },
      zorder=2,
    )
  axes.set_xticks(range(len(names)), names)
  axes.set_yticks(range(len(parts)), parts)
  axes.set(xlabel='token', xlim=(-0.6, len(names) - 0.4), ylim=(-0.6, len(parts) - 0.4))
  return figure


def main(workdir: str, picture: str | None = None) -> None:
  model = trained('delta', workdir)
  task = zoo.load(workdir).task
  fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
  asks_one = AsksOne(**fields)
  found = zoo.probing.circuit(model, asks_one, tokens=True)
  print(found)
  if picture is not None:
    names = token_names('interleaved', task.context_length)
    draw(found, names).savefig(picture)


if __name__ == '__main__':
  main(*sys.argv[1:])
