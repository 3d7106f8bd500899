"""A program for the inside of a sandbox: listens on a port there, and carries each connection to a socket file.

    python3 relay.py PORT SOCKET

It is sent as text to whatever Python a sandbox has, and uses nothing but its library."""

import socket
import sys
import threading


def main() -> None:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print("listening", flush=True)
    while True:
        inside, _ = listener.accept()
        outside = socket.socket(socket.AF_UNIX)
        outside.connect(sys.argv[2])
        for source, sink in ((inside, outside), (outside, inside)):
            threading.Thread(target=carry, args=(source, sink), daemon=True).start()


def carry(source: socket.socket, sink: socket.socket) -> None:
    """Carry bytes until the source ends; then the sink is told so."""
    try:
        while chunk := source.recv(65536):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        sink.close()


if __name__ == "__main__":
    main()
