"""A package, so that its stack ends with the last of its tests and not with the last of all."""
