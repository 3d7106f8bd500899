"""The engine of the service's first process, for the processes beside it that serve HTTP."""
