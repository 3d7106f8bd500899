"""The parts that all tables are made of."""

from sqlalchemy import (
    Column,
    MetaData,
    String,
)

from core.ids import BASE

metadata = MetaData()

Name = String().with_variant(String(collation="C"), "postgresql")
"""A string ordered byte by byte, as SQLite does, whatever the locale of the database."""


def of_policy(name: str = "policy", *, primary_key: bool = False) -> "Column[str]":
    """Return the column of a version's policy: a version's key is its policy and number (`core.ids.PolicyRef`)."""
    return Column(name, Name, primary_key=primary_key, nullable=False, server_default=BASE)
