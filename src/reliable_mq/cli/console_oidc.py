"""The options of `reliable-mq console` for a log-in at a provider of OpenID Connect."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from reliable_mq.cli.credentials import FORMS, credential, variable
from reliable_mq.errors import UsageError
from reliable_mq.extras import extra_missing

if TYPE_CHECKING:
    from reliable_mq.console.http_oidc import OidcSettings
    from reliable_mq.console.users import Role

SECRET_VARIABLE = "RELIABLE_MQ_CONSOLE_OIDC_SECRET"  # noqa: S105 - the name of a variable
CLAIM, NAME = "groups", "preferred_username"


class OidcOptions(NamedTuple):
    """The options as they were typed; "" and None: not given."""

    issuer: str
    client_id: str
    secret: str
    public_url: str
    roles: list[str]
    claim: str
    name_claim: str

    def __repr__(self) -> str:
        return f"OidcOptions({self.issuer!r}, {self.client_id!r})"

    def settings(self) -> "OidcSettings | None":
        """Return the settings; None: nobody logs in at a provider.

        Raises:
            UsageError: an option is missing.
            ConfigurationError: an address is not HTTPS.
            ExtraMissing: the extra `oidc` is not installed.
        """
        if not self.issuer:
            if self.client_id or self.roles or self.secret or self.public_url:
                raise UsageError("--oidc-issuer is missing: the address of the provider")
            return None
        needed = {"--oidc-client": self.client_id, "--public-url": self.public_url}
        for option, value in needed.items():
            if not value:
                raise UsageError(f"--oidc-issuer needs {option}")
        for module in ("joserfc", "httpx2"):  # this extra brings that of the console, too
            if find_spec(module) is None:
                raise extra_missing(module)
        from reliable_mq.console.http_oidc import OidcSettings  # noqa: PLC0415 - an extra

        return OidcSettings(
            issuer=self.issuer,
            client_id=self.client_id,
            client_secret=self.secret or variable(SECRET_VARIABLE),
            public_url=self.public_url,
            roles=_roles(self.roles),
            claim=self.claim,
            name_claim=self.name_claim,
        )


def _roles(texts: list[str]) -> "dict[str, Role]":
    from reliable_mq.console.users import Role  # noqa: PLC0415 - an extra

    found: dict[str, Role] = {}
    for text in texts:
        value, sign, role = text.rpartition("=")
        if not sign or not value or role not in list(Role):
            raise UsageError(f"--oidc-role takes VALUE=ROLE ({', '.join(Role)}), not {text!r}")
        found[value] = Role(role)
    if not found:
        raise UsageError(
            "--oidc-issuer needs --oidc-role VALUE=ROLE: nobody without a role gets in"
        )
    return found


def oidc_options(
    *,
    oidc_issuer: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Let people log in at this provider of OpenID Connect; extra [oidc].",
            show_default=False,
        ),
    ] = "",
    oidc_client: Annotated[
        str,
        typer.Option(
            metavar="ID", help="What the provider calls this console.", show_default=False
        ),
    ] = "",
    oidc_secret: Annotated[
        str,
        typer.Option(
            metavar="@FILE",
            callback=credential,
            help=f"The console's secret at the provider; default: {SECRET_VARIABLE}. {FORMS}",
            show_default=False,
        ),
    ] = "",
    public_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="The address of this console for browsers: the provider sends them back to"
            " /log-in/oidc/back below it.",
            show_default=False,
        ),
    ] = "",
    oidc_role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE=ROLE",
            help="A value of the claim, and the role that it gives; repeat it. Nobody without one"
            " gets in.",
            show_default=False,
        ),
    ] = None,
    oidc_claim: Annotated[
        str, typer.Option(help="The claim of the ID token with these values.")
    ] = CLAIM,
    oidc_name: Annotated[str, typer.Option(help="The claim with the name for the audit.")] = NAME,
) -> OidcOptions:
    """Return the options of a log-in at a provider."""
    return OidcOptions(
        *(oidc_issuer, oidc_client, oidc_secret, public_url),
        *(oidc_role or [], oidc_claim, oidc_name),
    )
