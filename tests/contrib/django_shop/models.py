"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order."""

    item = models.CharField(max_length=100)
    is_paid = models.BooleanField(default=False)

    class Meta:
        app_label = "django_shop"
        db_table = "shop_order"


class Payment(models.Model):
    """A payment: the effect of a message."""

    message = models.CharField(max_length=64)

    class Meta:
        app_label = "django_shop"
        db_table = "shop_payment"
