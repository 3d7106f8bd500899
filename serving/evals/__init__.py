"""The evaluation gate: a candidate and the live version answer the same cases, and the difference decides."""
