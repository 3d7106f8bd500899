"""What a request's history shows of its place, where its digests do not: what it quotes, and what it is for."""
