"""The tables of the shop."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first one."""

    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("item", models.CharField(max_length=100)),
                ("is_paid", models.BooleanField(default=False)),
            ],
            options={"db_table": "shop_order"},
        ),
        migrations.CreateModel(
            "Payment",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("message", models.CharField(max_length=64)),
            ],
            options={"db_table": "shop_payment"},
        ),
    ]
