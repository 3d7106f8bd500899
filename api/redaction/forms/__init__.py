"""What secrets look like: the public table of gitleaks, forms of our own beside it, and tokens that look drawn by lot.

`gitleaks.toml` is the table of https://github.com/gitleaks/gitleaks at b58d3f10 as it stands (MIT, `LICENSE.gitleaks`),
so that a newer one can take its place."""
