"""Trains GPT-2 on in-context linear regression in PyTorch, and prints steps/s.

  python benchmarks/gpt2_pytorch.py --size=gpt2_tiny --seconds=5
  python benchmarks/gpt2_pytorch.py --device=cuda --compile

This is the usual program for the setting of Garg et al. (arXiv 2208.01066). The model
is `GPT2Model` of the library transformers between two linear layers. It reads tokens
x_1, y_1, x_2, … with d = 20 and 41 points, and Adam minimises the squared error at
every x on 64 new prompts per step. With --compile the model is compiled by
torch.compile, whose time is not counted. The program needs
benchmarks/requirements.txt, but not this library.
"""

import argparse
import time

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

  def __init__(self, num_layers: int, width: int, num_heads: int):
    super().__init__()
    self.read_in = torch.nn.Linear(NUM_FEATURES, width)
    self.body = GPT2Model(
      GPT2Config(
        n_positions=2 * NUM_POINTS,
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


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--size', choices=SIZES, default='gpt2_tiny')
  parser.add_argument('--seconds', type=float, default=5.0)
  parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
  parser.add_argument('--compile', action='store_true')
  arguments = parser.parse_args()
  torch.manual_seed(0)
  torch.set_default_device(arguments.device)
  model = Transformer(*SIZES[arguments.size])
  predict = torch.compile(model) if arguments.compile else model
  optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

  def step() -> None:
    w = torch.randn(BATCH_SIZE, NUM_FEATURES)
    x = torch.randn(BATCH_SIZE, NUM_POINTS, NUM_FEATURES)
    y = (x @ w[:, :, None])[..., 0]
    loss = ((predict(x, y) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  def wait() -> None:
    # A GPU works on after the call of a step has returned.
    if arguments.device == 'cuda':
      torch.cuda.synchronize()

  for _ in range(5):
    step()
  wait()
  start, steps = time.perf_counter(), 0
  while time.perf_counter() - start < arguments.seconds:
    step()
    steps += 1
    if steps % 10 == 0:
      wait()
  wait()
  print(steps / (time.perf_counter() - start))


if __name__ == '__main__':
  main()
