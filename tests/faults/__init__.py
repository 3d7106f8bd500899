"""A package, so that its stack ends with the last of its own tests rather than with the last of all."""
