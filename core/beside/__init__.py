"""The line between the processes of one service on one machine: a unix socket, and one connection for each process."""
