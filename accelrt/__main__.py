"""python -m accelrt."""

import sys

from accelrt.tools.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
