"""How model families write their answers: thinking, calls of tools, and text. One file for each form."""
