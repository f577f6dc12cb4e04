"""Trains GPT-2 on in-context linear regression in PyTorch, and prints steps/s.

  python benchmarks/gpt2_pytorch.py --size=gpt2_tiny --seconds=5
  python benchmarks/gpt2_pytorch.py --device=cuda --compile

This is the usual program for the setting of Garg et al. (arXiv 2208.01066). The model
is `GPT2Model` of the library transformers between two linear layers. It reads tokens
x_1, y_1, x_2, … with d = 20 and 41 points, and Adam minimises the squared error at
every x on 64 new prompts per step. With --compile the model is compiled by
torch.compile, whose time is not counted. The program needs torch and transformers,
which the extra `llm` installs, but not this library.
"""

import argparse
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2Model

# Number of layers, width and number of heads of each size.
SIZES = {
  'gpt2_tiny': (3, 64, 2),
  'gpt2_small': (6, 128, 4),
  'gpt2': (12, 256, 8),
}
NUM_FEATURES, NUM_POINTS, BATCH_SIZE = 20, 41, 64


class Transformer(torch.nn.Module):
  """GPT-2 between a linear embedding of the tokens and a linear readout."""

  def __init__(
    self,
    num_layers: int,
    width: int,
    num_heads: int,
    num_features: int,
    num_points: int,
  ):
    super().__init__()
    self.read_in = torch.nn.Linear(num_features, width)
    self.body = GPT2Model(
      GPT2Config(
        n_positions=2 * num_points,
        n_embd=width,
        n_layer=num_layers,
        n_head=num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
      )
    )
    self.read_out = torch.nn.Linear(width, 1)

  def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns predictions `[b, n]` at all points, for `x [b, n, d]` and `y [b, n]`."""
    labels = torch.zeros_like(x)
    labels[..., 0] = y
    tokens = torch.stack([x, labels], dim=2).flatten(1, 2)[:, :-1]
    body = self.body(inputs_embeds=self.read_in(tokens)).last_hidden_state
    return self.read_out(body[:, ::2])[..., 0]


def make_run(
  num_layers: int,
  width: int,
  num_heads: int,
  num_features: int = NUM_FEATURES,
  num_points: int = NUM_POINTS,
  batch_size: int = BATCH_SIZE,
  *,
  device: str = 'cpu',
  is_compiled: bool = False,
) -> Callable[[int], None]:
  """Returns a function that takes a number of training steps and waits for them."""
  torch.manual_seed(0)
  with torch.device(device):
    model = Transformer(num_layers, width, num_heads, num_features, num_points)
  predict = torch.compile(model) if is_compiled else model
  optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

  def step() -> None:
    w = torch.randn(batch_size, num_features, device=device)
    x = torch.randn(batch_size, num_points, num_features, device=device)
    y = (x @ w[:, :, None])[..., 0]
    loss = ((predict(x, y) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  def run(steps: int) -> None:
    for _ in range(steps):
      step()
    # A GPU works on after the call of a step has returned.
    if device == 'cuda':
      torch.cuda.synchronize()

  return run


def main() -> None:
  parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
  parser.add_argument('--size', choices=SIZES, default='gpt2_tiny')
  parser.add_argument('--seconds', type=float, default=5.0)
  parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
  parser.add_argument('--compile', action='store_true')
  arguments = parser.parse_args()
  run = make_run(
    *SIZES[arguments.size], device=arguments.device, is_compiled=arguments.compile
  )
  run(5)
  start, steps = time.perf_counter(), 0
  while time.perf_counter() - start < arguments.seconds:
    run(10)
    steps += 10
  print(steps / (time.perf_counter() - start))


if __name__ == '__main__':
  main()
