"""Who a store is for the controller: files that Apache's broker reads, too."""

import pytest

from reliable_mq.errors import StoreError
from reliable_mq.failover.identity import (
    APPLIED_PATH,
    PATH,
    Identity,
    check_identity,
    load_identity,
)

WHO = Identity("DefaultCluster", "pair", 2)


def test_the_files_are_those_of_apaches_broker() -> None:
    applied = WHO._replace(code="127.0.0.1:10911;1700000000000")

    assert WHO.dump() == "DefaultCluster#pair#2"
    assert applied.dump() == "DefaultCluster#pair#2#127.0.0.1:10911;1700000000000"
    assert load_identity(WHO.dump(), PATH) == WHO
    assert load_identity(applied.dump(), APPLIED_PATH) == applied
    assert load_identity("", PATH) is None


@pytest.mark.parametrize("text", ["x", "a#b", "a#b#c", "a#b#0", "a#b#-1", "a#b#1#code", "#####"])
def test_a_damaged_file_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(StoreError, match="brokerIdentity is damaged: restore it from a copy"):
        load_identity(text, PATH)


def test_a_store_of_another_cluster_or_name_is_refused_by_both_names() -> None:
    check_identity(WHO, "DefaultCluster", "pair")
    for cluster, name in (("other", "pair"), ("DefaultCluster", "other")):
        with pytest.raises(StoreError, match=f"this store is broker 2 of .*{name}.*{cluster}"):
            check_identity(WHO, cluster, name)
