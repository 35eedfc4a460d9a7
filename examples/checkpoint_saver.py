"""AsyncCheckpointSaver in a plain PyTorch loop that can be killed at any moment and resumes exactly.

    python examples/checkpoint_saver.py --folder run --kill-at 170     is killed in step 170
    python examples/checkpoint_saver.py --folder run                   "resumed at step 150": the last checkpoint on disk
    python examples/checkpoint_saver.py --folder other                 the same last line, without interruption

A regression on synthetic data with a checkpoint every 50 steps. One dict holds all that the loop needs to resume: weights,
optimiser, step, and the generator that draws the batches. `save_async` returns at once; the file is written in the
background.
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
    with AsyncCheckpointSaver(max_queue_size=3) as saver:  # the end of the block waits until all files are on disk
        saver.attach(optimizer)  # then its next step() waits until the weights have been copied
        for step in range(first, args.steps):
            x = torch.randn(1024, 8, generator=batches)
            loss = (model(x) - x.prod(-1, keepdim=True).tanh() - x.sum(-1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if step == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)  # like a power failure for this process
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
    """Return the newest checkpoint, None without one; a file gets its name only when it is complete on disk."""
    found = sorted(folder.glob("step_*.fledge"))
    return found[-1] if found else None


if __name__ == "__main__":
    main()
