"""Connect the ranks that torchrun or a cluster job started, also after a restart (`torchrun --max-restarts`).

torchrun keeps one key-value store (TCPStore) for all attempts. The addresses that the ranks of an earlier attempt left in
the store make the new ranks connect to processes that have ended. So the ranks first agree on a prefix for the keys of their
attempt: each rank writes a random word, and accepts the prefix only if rank 0 repeats this word with it.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from datetime import timedelta

import torch.distributed as dist

from fledge.core.errors import FledgeError
from fledge.core.terminal import make_console, say
from fledge.training.connections import choose_interface, end_silent_connections
from fledge.training.launchers import master_address

POLL_S = 0.02
NOTICE_S = 5.0  # wait this long before saying which ranks are missing
TIMEOUT = timedelta(minutes=10)


def uses_torchrun_store() -> bool:
    """Return whether torchrun hosts the TCPStore through which ranks connect (it sets TORCHELASTIC_USE_AGENT_STORE)."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def connect_store(rank: int, size: int) -> dist.Store:
    """Return the store at MASTER_ADDR:MASTER_PORT, with a prefix that only the ranks of this attempt know.

    torchrun hosts the store; if the ranks were started without torchrun, rank 0 does. After 5 s of waiting, print which
    ranks are missing.

    Raises:
        FledgeError: A rank did not connect within 10 minutes, or rank 0 cannot use the port.
    """
    host, port = master_address(rank)
    choose_interface(host, port)
    hosts = rank == 0 and not uses_torchrun_store()
    notice = threading.Timer(NOTICE_S, _say, [f"waiting for the store of rank 0 at {host}:{port}"])
    notice.daemon = True
    notice.start()
    try:
        store = dist.TCPStore(host, port, size, is_master=hosts, timeout=TIMEOUT, wait_for_workers=False)
    except (dist.DistError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise FledgeError(
            f"Rank {rank} of {size} cannot {'listen' if hosts else 'connect'} at {host}:{port} ({why}): check MASTER_ADDR "
            "and MASTER_PORT, look for errors of the other ranks, and start all of them again."
        ) from None
    finally:
        notice.cancel()
    end_silent_connections()
    return dist.PrefixStore(agree_on_prefix(store, rank, size, f"{host}:{port}"), store)


def agree_on_prefix(store: dist.Store, rank: int, size: int, place: str = "") -> str:
    """Return a random prefix that rank 0 chose and all ranks of this attempt have accepted.

    Args:
        place: Address of the store, for messages.

    Raises:
        FledgeError: A rank did not connect within 10 minutes.
    """
    own, begun, noticed = secrets.token_hex(8), time.monotonic(), False
    others = [str(other) for other in range(1, size)]
    if rank:
        store.set(f"fledge/word/{rank}", own)
    while (waited := time.monotonic() - begun) < TIMEOUT.total_seconds():
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
        if waited > NOTICE_S and not noticed:
            noticed = True
            missing = 1 if rank else sum(not store.check([f"{own}/accepted/{other}"]) for other in others)
            _say(f"waiting for {'rank 0' if rank else f'{missing} of {size} ranks'} at {place}")
        time.sleep(POLL_S)
    raise FledgeError(
        f"Rank {rank} waited {TIMEOUT.total_seconds() / 60:.0f} minutes for the other {size - 1} of {size} ranks at {place}: "
        "look for their errors, and start all of them again."
    )


def _say(text: str) -> None:
    say(make_console(stderr=True), text)
