"""The composition root and the command line."""

import core.stages.start_steps  # noqa: F401  # its clock begins with the program
