"""The caller of a request: its tenant, its user, its key and what that key allows."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from packhorse.define.validation import NOT_VALID, invalid, quote_short

OPERATOR = "default"
"""The tenant of those who run the deployment: of what all tenants share, and of what nobody else is known to own."""
TENANT = OPERATOR
"""Whose jobs are served where nobody needs a key."""
LOCAL_USER = "local"

GRANTS = {
    "submit": frozenset({"submit", "cancel"}),
    "cancel": frozenset({"cancel"}),
    "read": frozenset({"read"}),
    "operate": frozenset({"operate", "submit", "cancel", "read"}),
    "admin": frozenset({"admin", "operate", "submit", "cancel", "read"}),
}
"""What each scope of a key allows. ``cancel`` is for the person who waits, whose token is good for one job."""


class Caller(Struct, frozen=True):
    tenant: str
    allowed: frozenset[str]
    key_id: str = ""
    client: str = ""
    """Whom it is counted for: a rotated key, and a token, stand for the key they were made of."""
    user: str | None = None
    """The only user it may act for; None: any of its tenant."""
    default_user: str | None = None
    """For whom it submits if it does not say."""
    job_id: str | None = None
    """The only job it may see; None: any of its tenant."""
    address: str = ""
    session: str = ""
    """The id of the session, if a browser asks that has logged in."""

    @property
    def is_operator(self) -> bool:
        """Whether it may see what all tenants share."""
        return self.tenant == OPERATOR and "operate" in self.allowed

    def acting_for(self, user: str | None) -> str:
        """The user that is meant, if this caller may act for them. Raises InvalidInput."""
        found = user if user is not None else self.user or self.default_user
        if found is None:
            raise invalid(
                NOT_VALID,
                [
                    {
                        "field": "user_id",
                        "message": "For whom? This key may act for any user: say which (commands: --user)",
                    }
                ],
            )
        if self.user not in (None, found):
            said = f"This key acts for {quote_short(self.user)} only"
            raise invalid(NOT_VALID, [{"field": "user_id", "message": said}])
        return found


LOCAL = Caller(TENANT, GRANTS["admin"], default_user=LOCAL_USER)
"""Whoever is on this machine, where no key is asked for."""
NOBODY = Caller("", frozenset())
"""Who asks for what needs no key."""


def granted(scopes: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(GRANTS[scope] for scope in scopes))
