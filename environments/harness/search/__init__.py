"""Search in code by meaning of words: the symbols of a tree, ranked by BM25 for a question."""
