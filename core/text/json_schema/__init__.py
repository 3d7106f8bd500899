"""JSON Schema (2020-12) for schemas that others write: within a bound of steps, and without looking anywhere else.

`Schema` reads one and says whether a value is of it: yes, no, or that nobody can tell. Nothing that a schema or a value
says makes it take long, fetch anything, or raise anything but `NoSchema` when the schema is read.
"""

from core.text.json_schema.document import NoSchema
from core.text.json_schema.schema import Schema, StepBudget

__all__ = ["NoSchema", "Schema", "StepBudget"]
