"""`python -m benchmarks` as a user calls it."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("chosen", "left"), [(None, "None"), ("PASSIVE", "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_a_benchmark_gives_baselines_their_own_openmp_unless_the_user_chose(chosen: str | None, left: str) -> None:
    """Waiting threads sleep wherever Fledge is imported; a baseline must not be slowed down by that."""
    code = "import os, benchmarks.commands as c; print(os.environ['OMP_WAIT_POLICY']); c.let_threads_spin(); "
    code += "print(os.environ.get('OMP_WAIT_POLICY'))"
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | (
        {"OMP_WAIT_POLICY": chosen} if chosen else {}
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [chosen or "PASSIVE", left]
