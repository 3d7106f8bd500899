"""Live state of several processes on one machine: the first one keeps it in memory, and the others ask it."""
