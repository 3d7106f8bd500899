"""Fidelity: whether the tools of the simulation answer as those of production did."""
