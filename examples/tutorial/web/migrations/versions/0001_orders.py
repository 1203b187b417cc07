"""Orders and payments."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("item", sa.String(), nullable=False),
        sa.Column("is_paid", sa.Boolean(), nullable=False),
    )
    op.create_table(
        "payments",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("order_id", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("payments")
    op.drop_table("orders")
