"""Users of brokers with access control on an event loop: `client.admin.accounts`."""

from collections.abc import Collection, Mapping, Sequence

from reliable_mq.client.administering import accounts
from reliable_mq.client.administering.accounts import Account
from reliable_mq.client.administering.cluster_reply import AdminTarget, ClusterReply
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.checked import checked_verbs


@checked_verbs
class AsyncAccounts:
    """Users of brokers with access control, and their policies."""

    def __init__(self, engine: AsyncEngine, cluster: AdminTarget) -> None:
        self._engine = engine
        self._cluster = cluster

    async def all(self) -> ClusterReply[dict[str, list[Account]]]:
        """Return the users of each broker with their policies, by broker name.

        Raises:
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker answers.
        """
        return await self._engine.run(accounts.accounts(self._cluster))

    async def add(
        self,
        username: str,
        secret: str,
        *,
        is_super: bool = False,
        policies: Sequence[Mapping[str, object]] = (),
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Add a user with policies at all masters; return where, by broker name.

        A broker that has the user keeps it. It gets the policies only if the user has none there.

        Args:
            username: the user's name.
            secret: its secret.
            is_super: whether it may do everything.
            policies: rows as in the answer to `mqadmin getAcl`: policyType and entries.
            brokers: names of brokers; empty: all.
            dry_run: return where it would be added, but add nothing.

        Raises:
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker adds it.
        """
        flow = accounts.add(
            self._cluster,
            username,
            secret,
            is_super=is_super,
            policies=policies,
            only=brokers,
            dry_run=dry_run,
        )
        return await self._engine.run(flow)

    async def change(
        self,
        username: str,
        *,
        secret: str = "",
        is_enabled: bool | None = None,
        is_super: bool | None = None,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Change a user at all masters that have it; return where, by broker name.

        Args:
            username: the user's name.
            secret: its new secret; "": as it was.
            is_enabled: whether it may do anything; None: as it was.
            is_super: whether it may do everything; None: as it was.
            brokers: names of brokers; empty: all.
            dry_run: return where it would be done, but do nothing.

        Raises:
            NotFound: when no broker has the user.
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker does it.
        """
        flow = accounts.change(
            self._cluster,
            username,
            secret=secret,
            is_enabled=is_enabled,
            is_super=is_super,
            only=brokers,
            dry_run=dry_run,
        )
        return await self._engine.run(flow)

    async def grant(
        self,
        username: str,
        policies: Sequence[Mapping[str, object]],
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Give a user policies at all masters that have it; return where, by broker name.

        Args:
            username: the user's name.
            policies: as in `add`; a policy on the same resource is replaced.
            brokers: names of brokers; empty: all.
            dry_run: return where it would be done, but do nothing.

        Raises:
            NotFound: when no broker has the user.
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker does it.
        """
        flow = accounts.grant(self._cluster, username, policies, only=brokers, dry_run=dry_run)
        return await self._engine.run(flow)

    async def revoke(
        self,
        username: str,
        resource: str,
        *,
        brokers: Collection[str] = (),
        dry_run: bool = False,
    ) -> ClusterReply[list[str]]:
        """Remove a user's policy on a resource at all masters that have it; return where.

        Args:
            username: the user's name.
            resource: the resource of the policy, such as "Topic:orders".
            brokers: names of brokers; empty: all.
            dry_run: return where it would be done, but do nothing.

        Raises:
            NotFound: when no broker has the policy.
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker does it.
        """
        flow = accounts.revoke(self._cluster, username, resource, only=brokers, dry_run=dry_run)
        return await self._engine.run(flow)

    async def remove(
        self, username: str, *, brokers: Collection[str] = (), dry_run: bool = False
    ) -> ClusterReply[list[str]]:
        """Remove a user and its policies at all masters; return where it was, by broker name.

        Args:
            username: the user's name.
            brokers: names of brokers; empty: all.
            dry_run: return where it would be done, but do nothing.

        Raises:
            NotFound: when no broker has the user.
            NoRoute: when the name servers know no broker.
            RemoteError, Unavailable, ProtocolError: when no broker does it.
        """
        flow = accounts.remove(self._cluster, username, only=brokers, dry_run=dry_run)
        return await self._engine.run(flow)
