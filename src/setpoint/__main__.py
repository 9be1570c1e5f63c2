"""``python -m setpoint`` is the ``setpoint`` command."""

from __future__ import annotations

import sys

from setpoint.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
