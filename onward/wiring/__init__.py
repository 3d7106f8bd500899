"""The composition root: the only place that knows which adapter stands behind which port, and which stages there are.

Heavy imports (torch) happen inside the functions that need them, so that `onward --help` and the light stages stay
light.
"""
