"""``python -m tools.study``."""

import sys

from epp.lab.simulation import quiet_logs
from tools.study.main import main

if __name__ == "__main__":
    quiet_logs()
    sys.exit(main())
