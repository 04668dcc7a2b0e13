"""`python -m neuralfunctionals.cli`, the same as `nf`."""

import sys

from neuralfunctionals.cli import main

if __name__ == "__main__":
    sys.exit(main())
