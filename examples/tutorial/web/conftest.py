"""Before any module of the shop is imported: its database is a file in a folder of its own."""

import os
from pathlib import Path
from tempfile import mkdtemp

os.environ["RELIABLE_MQ_DATABASE"] = f"sqlite:///{Path(mkdtemp()) / 'shop.db'}"
