import sys

from fledge_runtime.cli import main

sys.exit(main())
