"""Connect the ranks that torchrun started, also after a restart (`torchrun --max-restarts`).

torchrun keeps one store for all attempts. The addresses that the ranks of an earlier attempt left in it make the new ranks
connect to processes that have ended. So the ranks first agree on a prefix for the keys of their attempt: each rank writes a
random word, and accepts the prefix only if rank 0 repeats this word with it.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from datetime import timedelta

import torch.distributed as dist

from fledge.core.errors import FledgeError

POLL_S = 0.02
TIMEOUT = timedelta(minutes=10)


def uses_torchrun_store() -> bool:
    """Return whether torchrun hosts the TCPStore through which ranks connect (it sets TORCHELASTIC_USE_AGENT_STORE)."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def torchrun_store(rank: int, size: int) -> dist.Store:
    """Return torchrun's store with a prefix that only the ranks of this attempt know."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, size, is_master=False, timeout=TIMEOUT, wait_for_workers=False)
    return dist.PrefixStore(agree_on_prefix(store, rank, size), store)


def agree_on_prefix(store: dist.Store, rank: int, size: int) -> str:
    """Return a random prefix that rank 0 chose and all ranks of this attempt have accepted.

    Raises:
        FledgeError: A rank did not connect within 10 minutes.
    """
    own, give_up = secrets.token_hex(8), time.monotonic() + TIMEOUT.total_seconds()
    others = [str(other) for other in range(1, size)]
    if rank:
        store.set(f"fledge/word/{rank}", own)
    while time.monotonic() < give_up:
        if rank:
            found = json.loads(store.get("fledge/prefix")) if store.check(["fledge/prefix"]) else {}
            if found.get(str(rank)) == own:
                store.set(f"{found['prefix']}/accepted/{rank}", "")
                return str(found["prefix"])
        else:
            words = {other: store.get(key) for other in others if store.check([key := f"fledge/word/{other}"])}
            store.set("fledge/prefix", json.dumps({"prefix": own, **{k: word.decode() for k, word in words.items()}}))
            if store.check([f"{own}/accepted/{other}" for other in others]):
                return own
        time.sleep(POLL_S)
    raise FledgeError(
        f"Rank {rank} waited 10 minutes for the other {size - 1} ranks: look for their errors, and start again."
    )
