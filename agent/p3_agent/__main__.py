"""`python -m p3_agent`: the same as `p3-agent`."""

import sys

from p3_agent.cli import main

sys.exit(main())
