"""`python -m examples.shop.create_tables`: the shop's tables and the framework's, side by side."""

from examples.shop.app import mq
from examples.shop.models import ShopTable

if __name__ == "__main__":
    mq.create_tables()
    ShopTable.metadata.create_all(mq.database.engine)
