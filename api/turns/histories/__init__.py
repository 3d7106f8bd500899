"""How a request's history shows its place in a session without digests: by what it quotes and what it is for."""
