"""${message}

What is locked, and for how long:
"""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "..."}


def downgrade() -> None:
    ${downgrades if downgrades else "..."}
