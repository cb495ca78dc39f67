"""Every error packhorse raises, once: its docstring is its message, its facts are keywords, its status is beside it.

PackhorseError
├── Refused                 the caller asked for something that cannot be had
│   ├── InvalidInput        ├── UnknownPipeline  ├── TooLarge  ├── UnsupportedMedia  ├── KeyReused
│   ├── Malformed           the request cannot be read at all
│   ├── TooSlow  ├── WrongMethod  ├── Foreign  ├── Unauthorized  ├── Forbidden  ├── RangeNotSatisfiable
│   ├── TooMany             ├── TooManyDownloads  ├── TooManyStreams  ├── RateExceeded  ├── QuotaExceeded
│   ├── NotFound            ├── JobNotFound  ├── ArtifactNotFound  ├── KeyNotFound  ├── WebhookNotFound
│   │                       ├── QueueNotFound  ├── ScheduleNotFound  ├── VersionNotFound
│   │                       ├── FailureNotFound  ├── FailureGroupNotFound  └── OrderNotFound
│   ├── VersionNeeded       an edit must say which version it is of
│   ├── EditedMeanwhile     and that must be the one there is
│   ├── NoSecretKey         a webhook cannot be signed
│   ├── NotAllowed          the job's status does not admit the verb
│   │   └── NotFinished
│   ├── SlotTaken           the user has an active job already
│   └── WouldOverwrite      a file is there that `packhorse init` would write
├── Conflict                the state moved between deciding and committing; look again
│   ├── LeaseLost           another attempt has taken over, or the job was ended
│   └── AlreadySubmitted    this idempotency key has a job
├── DefinitionError         a pipeline in the user's file cannot work
├── SettingError            a setting is unknown or malformed
│   └── PortTaken
├── StoreError
│   ├── StoreUnavailable    ├── UnknownOutcome  ├── SchemaTooNew  └── CorruptRecord
├── BlobError
│   ├── BlobUnavailable     ├── BlobNotFound  ├── BlobExists  ├── PathRefused
│   └── PromoteFailed       a permanent place did not take a copy
├── OutboundFailed          an address that a user chose could not be called; `code` says why
│   └── BlockedAddress      and must not be
└── Unreachable             the client got no answer from the server
    └── NoneNamed           and was not told which one is meant
"""

from __future__ import annotations

import string
from typing import Any, ClassVar


class PackhorseError(Exception):
    """Something went wrong inside packhorse."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    hint: str = ""
    """The next thing a person can do about it; the CLI prints it last. Facts are filled in as in the message."""
    retry_after: float | None = None
    """Seconds after which the server that answered with it wants to be asked again."""

    def __init__(self, message: str | None = None, /, **facts: Any) -> None:
        self.facts = facts
        self.message = message or _Lenient().format(_first_line(type(self)), **facts)
        self.hint = _Lenient().format(type(self).hint, **facts)
        super().__init__(self.message)

    @classmethod
    def type(cls) -> str:
        """The stable word for this error in problems, JSON output and docs: ``slot-taken``."""
        return "".join("-" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("-")

    @classmethod
    def title(cls) -> str:
        """The same for people: ``Slot taken``."""
        return cls.type().replace("-", " ").capitalize()


class Refused(PackhorseError):
    """The request was refused."""

    status = 400
    exit_code = 3


class InvalidInput(Refused):
    """The input is not valid."""

    status = 422

    def __init__(self, message: str | None = None, /, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.errors: list[dict[str, str]] = facts.get("errors") or (
            [{"field": str(facts["field"]), "message": self.message}] if "field" in facts else []
        )


class UnknownPipeline(InvalidInput):
    """There is no pipeline named {pipeline!r}."""

    hint = "A worker publishes its pipelines when it starts: is one running with the file that defines it?"


class TooLarge(InvalidInput):
    """{field} is larger than the {limit} bytes allowed."""

    status = 413


class UnsupportedMedia(InvalidInput):
    """The body must be JSON or multipart/form-data."""

    status = 415
    hint = "Say which it is: `Content-Type: application/json`, or a form, whose boundary goes with it."


class KeyReused(InvalidInput):
    """This idempotency key was used for a different request."""

    hint = "Use a new key for a new request; repeat the first body to get the first job."


class Malformed(Refused):
    """The request cannot be read: {reason}."""


class TooSlow(Refused):
    """The body came too slowly to go on waiting for it."""

    status = 408


class WrongMethod(Refused):
    """This address does not take {method}."""

    status = 405


class Foreign(Refused):
    """Only this machine's own addresses are served: {name} was {value!r}."""

    status = 403
    hint = "Use http://localhost or http://127.0.0.1 with the port the server listens on."


class Unauthorized(Refused):
    """This needs a key: {reason}."""

    status = 401
    hint = "Send it as `Authorization: Bearer ph_…`, or set PACKHORSE_KEY. Make one with: packhorse keys create"


class Forbidden(Refused):
    """This needs a key with the scope {scope}."""

    status = 403


class TooMany(Refused):
    """This is more than is allowed: {reason}."""

    status = 429


class TooManyDownloads(TooMany):
    """{limit} downloads are under way, and more may not be at a time."""


class RateExceeded(TooMany):
    """Only {limit} of these may begin in {window} seconds."""


class TooManyStreams(TooMany):
    """{limit} streams of events are open with this key, and more may not be."""


class QuotaExceeded(TooMany):
    """Only {limit} bytes may be downloaded in {window} seconds, and this would be more."""

    hint = "A file that is larger than that can be fetched in parts, with Range."


class RangeNotSatisfiable(Refused):
    """The file has {size} bytes, and none where the range begins."""

    status = 416


class NotFound(Refused):
    """There is nothing here."""

    status = 404


class JobNotFound(NotFound):
    """There is no job {job_id!r}."""

    hint = "See the jobs there are with: packhorse jobs"


class KeyNotFound(NotFound):
    """There is no key {key_id!r}."""


class ArtifactNotFound(NotFound):
    """Job {job_id} has no artifact {name!r}."""


class WebhookNotFound(NotFound):
    """There is no webhook {webhook_id!r}."""

    hint = "See those there are with: packhorse webhooks"


class ScheduleNotFound(NotFound):
    """There is no schedule {schedule_id}."""

    hint = "See them with: packhorse schedules"


class VersionNotFound(NotFound):
    """Schedule {schedule_id} has no version {version}, or does not keep it any more."""


class VersionNeeded(Refused):
    """There is a schedule {schedule_id} already: say which version you have seen, with If-Match."""

    status = 428
    hint = "Look at it, and send the ETag you were given as If-Match."


class EditedMeanwhile(Refused):
    """The schedule {schedule_id} is not at the version you have seen: it is at version {version}."""

    status = 412
    hint = "Look at it again, and decide anew: what the other has changed would be lost."


class FailureNotFound(NotFound):
    """There is no failure {failure_id!r}."""

    hint = "See those there are with: packhorse failures"


class FailureGroupNotFound(NotFound):
    """There is no group of failures {fingerprint!r}."""

    hint = "See those there are with: packhorse failures groups"


class OrderNotFound(NotFound):
    """There is no order {order_id!r}."""

    hint = "See those there are with: packhorse failures orders"


class NoSecretKey(Refused):
    """There is no secret key here to sign webhooks and encrypt secrets with."""

    status = 409
    hint = "Set PACKHORSE_SECRET_KEY to the same 32 random bytes for every server and worker: openssl rand -base64 32"


class SecretUnreadable(PackhorseError):
    """A secret parameter cannot be read: {reason}."""

    hint = "Give every server and worker the PACKHORSE_SECRET_KEY that the job was submitted with, or submit it again."


class QueueNotFound(NotFound):
    """No pipeline and no worker uses a queue named {queue!r}."""

    hint = "See the queues there are with: packhorse queues"


class NotAllowed(Refused):
    """A {status} job cannot be asked to {verb}."""

    status = 409


class NotFinished(NotAllowed):
    """Job {job_id} is {status}; it has no result."""

    hint = "See how it stands with: packhorse show {job_id}"


class SlotTaken(Refused):
    """Job {active_job_id} is still active, and only one may be at a time."""

    status = 409
    hint = "Wait for it, or cancel it: packhorse cancel {active_job_id}"


class WouldOverwrite(Refused):
    """{path} is there already, and nothing is overwritten."""

    status = 409
    hint = "Name another folder: packhorse init FOLDER"


class Conflict(PackhorseError):
    """The job changed in the meantime."""

    status = 409


class LeaseLost(Conflict):
    """This attempt no longer holds the lease of {stage}."""


class AlreadySubmitted(Conflict):
    """This idempotency key has job {job_id}."""


class DefinitionError(PackhorseError):
    """The pipeline cannot work as written."""

    status = 500
    exit_code = 2


class SettingError(PackhorseError):
    """The setting {name} cannot be {value!r}."""

    exit_code = 2
    hint = "See every setting and where its value comes from: packhorse config"


class PortTaken(SettingError):
    """Port {port} of {host} is taken: something else listens there."""

    hint = "Choose another port with --port, or end what listens there."


class StoreError(PackhorseError):
    """The store failed."""

    status = 503
    exit_code = 5


class StoreUnavailable(StoreError):
    """The store does not answer."""

    hint = "Look at it with: packhorse doctor"


class UnknownOutcome(StoreError):
    """The store's answer was lost: the change may or may not have been made."""


class SchemaTooNew(StoreError):
    """The store has schema {found}, made by a newer packhorse; this one knows {known}."""

    hint = "Upgrade packhorse here, or point PACKHORSE_STORE at another store."


class CorruptRecord(StoreError):
    """The {what} of job {job_id} cannot be read: {reason}."""

    status = 500
    exit_code = 1
    hint = "Trying again will not help. The other jobs are not touched by it."


class BlobError(PackhorseError):
    """The object store failed."""

    status = 502
    exit_code = 5


class BlobUnavailable(BlobError):
    """The object store does not answer: {reason}."""


class BlobNotFound(BlobError):
    """There is no object {key!r}."""

    status = 404


class BlobExists(BlobError):
    """The object {key!r} is already there, and objects are never overwritten."""

    status = 409


class PathRefused(BlobError):
    """{key!r} is not a name an object may have."""

    status = 422


class PromoteFailed(BlobError):
    """The files could not be copied: {reason}."""

    hint = "Nothing was recorded. Ask again: what has been copied already is not copied twice."


class OutboundFailed(PackhorseError):
    """{host} could not be called: {reason}."""

    status = 502
    exit_code = 5

    def __init__(self, message: str | None = None, /, *, code: str = "UNREACHABLE", **facts: Any) -> None:
        super().__init__(message, code=code, **facts)
        self.code = code  # a stable word, such as TIMEOUT, TOO_LARGE or HTTP_404


class BlockedAddress(OutboundFailed):
    """{host} must not be called: {reason}."""

    status = 422
    exit_code = 3
    hint = "Use a public address. An operator can allow another with PACKHORSE_OUTBOUND_ALLOW."

    def __init__(self, message: str | None = None, /, *, code: str = "BLOCKED_ADDRESS", **facts: Any) -> None:
        super().__init__(message, code=code, **facts)


class Unreachable(PackhorseError):
    """No packhorse answers at {url}."""

    status = 503
    exit_code = 5
    hint = "Start one with: packhorse dev (or set PACKHORSE_URL)"


class NoneNamed(Unreachable):
    """No packhorse answers at {url}, where `packhorse dev` listens; no other address was named."""

    hint = "Start one with: packhorse dev. If packhorse serve runs, say so: --url {serve}, or PACKHORSE_URL={serve}"


class _Lenient(string.Formatter):
    """A message whose fact was left out names the gap instead of failing while an error is being raised."""

    def get_value(self, key: int | str, _args: Any, kwargs: Any) -> Any:
        return kwargs.get(str(key), "?")


def _first_line(cls: type[PackhorseError]) -> str:
    return (cls.__doc__ or cls.__name__).strip().splitlines()[0]
