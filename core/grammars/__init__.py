"""Grammars that answers follow: compiled within bounds, and the masks that they make, token by token.

A mask is a function of the grammar, the model's tokenizer, the tokens before it and the library's version. So the
engine that samples and the learner that scores make it by the same code, here, and compare a digest."""
