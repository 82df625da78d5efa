"""`python -m bitwitness.ledger.cli`: the `ledger` command of this interpreter."""

import sys

from . import main

sys.exit(main())
