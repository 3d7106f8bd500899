"""The forms in which model families write thinking, calls of tools, and text. One file for each form."""
