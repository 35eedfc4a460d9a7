"""Two workers share two cores: one thread each, also in the processes that tests start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
