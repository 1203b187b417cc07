"""Files of TLS that cannot be used, at what sends for ever: it ends instead."""

import threading
from pathlib import Path

import pytest
import trustme

from reliable_mq import ReliableMQ
from reliable_mq.errors import ConfigurationError


@pytest.mark.parametrize("way", ["once", "forever"])
def test_the_scheduler_does_not_begin_with_a_certificate_that_has_no_key(
    way: str, tmp_path: Path
) -> None:
    cert = tmp_path / "cert.pem"
    trustme.CA().cert_pem.write_to_path(str(cert))
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    mq = ReliableMQ("shop", database=url, broker="127.0.0.1:1", tls_cert=str(cert))
    mq.create_tables()
    begin = mq.resend_once if way == "once" else lambda: mq.resend_forever(threading.Event())

    with pytest.raises(ConfigurationError, match=r"tls: cert .*cert\.pem cannot be used"):
        begin()
    mq.close()
