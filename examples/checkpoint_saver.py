"""AsyncCheckpointSaver in a plain PyTorch loop, which may be killed at any moment and goes on exactly.

    python examples/checkpoint_saver.py --folder run --kill-at 170     dies in step 170, without a word
    python examples/checkpoint_saver.py --folder run                   "resumed at step 150": the last one on disk
    python examples/checkpoint_saver.py --folder other                 the same last line, without ever having died

A regression on synthetic data, a checkpoint every 50 steps. What the loop needs to go on lies in one dict: weights,
optimiser, step, and the generator that draws the batches. `save_async` returns at once; the file is written behind it.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import nn

from fledge.storage import AsyncCheckpointSaver, load_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint_saver_run"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kill-at", type=int, default=-1)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = torch.Generator().manual_seed(1)
    first = 0

    newest = newest_checkpoint(args.folder)
    if newest is not None:
        state = load_checkpoint(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        batches.set_state(state["batches"])
        first = state["step"]
        print(f"resumed at step {first}")

    loss = torch.zeros(())
    with AsyncCheckpointSaver(max_queue_size=3) as saver:  # leaving the block waits until all is on disk
        saver.attach(optimizer)  # then its next step() waits until what it changes has been copied
        for step in range(first, args.steps):
            x = torch.randn(1024, 8, generator=batches)
            loss = (model(x) - x.prod(-1, keepdim=True).tanh() - x.sum(-1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if step == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)  # a power cut, as far as this process can tell
            optimizer.step()
            if (step + 1) % 50 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"step": step + 1, "batches": batches.get_state()}
                saver.save_async(state, args.folder / f"step_{step + 1:06d}")
        stats = saver.get_stats()
    print(f"saving took {stats['stall_p50_ms']:.2f} ms of the loop's time, per checkpoint (median)")
    weights = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    print(f"step {args.steps}: loss {float(loss.detach()):.6f}, weights {weights:.9f}")


def newest_checkpoint(folder: Path) -> Path | None:
    """The last file that is complete: a file appears under its name only when all of it is on disk."""
    found = sorted(folder.glob("step_*.fledge"))
    return found[-1] if found else None


if __name__ == "__main__":
    main()
