"""Every error packhorse raises: its docstring is the message, keywords are facts, HTTP status and hint are beside it.

PackhorseError
├── Refused           the caller asked for something packhorse cannot or will not do
├── Conflict          the job changed between read and commit; read it again
├── DefinitionError   a pipeline in the user's code is not valid
├── SettingError      a setting is unknown or malformed
├── StoreError        the store failed
├── BlobError         the object store failed
├── OutboundFailed    a request to an address that a user chose failed; `code` says why
└── Unreachable       the server does not answer the client
"""

from __future__ import annotations

import string
from typing import Any, ClassVar


class PackhorseError(Exception):
    """Something went wrong inside packhorse."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    hint: str = ""
    """What a person can do next. The CLI prints it last; facts are filled in as in the message."""
    retry_after: float | None = None
    """Seconds after which the caller may retry."""

    def __init__(self, message: str | None = None, /, **facts: Any) -> None:
        self.facts = facts
        sentence = (type(self).__doc__ or type(self).__name__).partition("\n")[0]
        self.message = message or _Lenient().format(sentence, **facts)
        self.hint = _Lenient().format(type(self).hint, **facts)
        super().__init__(self.message)

    @classmethod
    def type(cls) -> str:
        """The stable name of this error in problems, JSON output and docs: ``slot-taken``."""
        return "".join("-" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("-")

    @classmethod
    def title(cls) -> str:
        """The name for people: ``Slot taken``."""
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

    hint = "Workers publish their pipelines when they start. Start one with the file that defines this pipeline."


class TooLarge(InvalidInput):
    """{field} is too large (limit {limit} bytes)."""

    status = 413


class UnsupportedMedia(InvalidInput):
    """The body must be JSON or multipart/form-data."""

    status = 415
    hint = "Set Content-Type to application/json, or to multipart/form-data with its boundary."


class HeadersTooLarge(Refused):
    """The request's headers are too large (limit {limit} bytes)."""

    status = 431
    hint = "Send fewer headers. In a browser, delete the cookies of this site."


class AddressTooLong(Refused):
    """The address is too long (limits: path {path} characters, query {query} bytes and {parameters} parameters)."""

    status = 414


class KeyReused(InvalidInput):
    """This idempotency key was used for a different request."""

    hint = "Use a new key for a new request. To get the first job again, repeat the first request unchanged."


class Malformed(Refused):
    """The request cannot be read: {reason}."""


class TooSlow(Refused):
    """The request body arrived too slowly."""

    status = 408
    hint = "Send the request again over a faster connection."


class WrongMethod(Refused):
    """Method {method} is not allowed for this address."""

    status = 405


class Foreign(Refused):
    """Without keys, only requests to this machine's own addresses are served: {name} was {value!r}."""

    status = 403
    hint = "Use http://localhost or http://127.0.0.1 with the server's port."


class Unauthorized(Refused):
    """A valid API key is required: {reason}."""

    status = 401
    hint = "Send it as `Authorization: Bearer ph_…` or set PACKHORSE_KEY. Create one with: packhorse keys create"


class TokenRefused(Unauthorized):
    """The token is missing, has ended, or is not for this schedule."""

    hint = "Create one with POST /api/v1/schedules/{id}/token, and send it as ?token=…"


class Forbidden(Refused):
    """This request needs a key with the scope {scope}."""

    status = 403


class TooMany(Refused):
    """A limit was exceeded: {reason}."""

    status = 429


class TooManyDownloads(TooMany):
    """Too many concurrent downloads for {who} (limit {limit}). Retry when one has finished."""


class RateExceeded(TooMany):
    """Too many {what} for {who} (limit {limit} in {window} s). Retry in {retry_after} s."""


class TooManyStreams(TooMany):
    """Too many open event streams for this key (limit {limit}). Close one first."""


class QuotaExceeded(TooMany):
    """This download would exceed {limit} bytes in {window} s for {who}. Retry in {retry_after} s."""

    hint = "Retry later, or fetch the file in parts with Range requests."


class TooManyJobs(TooMany):
    """Tenant {tenant} has reached its limit of unfinished jobs ({used} of {limit})."""

    hint = "Submit again when some of them have ended, or cancel some. The operator sets PACKHORSE_TENANT_JOBS."


class StorageFull(TooMany):
    """Tenant {tenant} has used {used} bytes of its limit of {limit}, and these files would exceed it."""

    hint = "Delete jobs that you no longer need, or wait until they expire. The operator sets PACKHORSE_TENANT_BYTES."


class TooManySchedules(TooMany):
    """Tenant {tenant} has reached its limit of schedules ({limit})."""

    hint = "Delete a schedule that you no longer need. The operator sets PACKHORSE_TENANT_SCHEDULES."


class RangeNotSatisfiable(Refused):
    """The range starts past the end of the file ({size} bytes)."""

    status = 416


class NotFound(Refused):
    """There is nothing at this address."""

    status = 404


class JobNotFound(NotFound):
    """There is no job {job_id!r}."""

    hint = "List the jobs with: packhorse jobs"


class KeyNotFound(NotFound):
    """There is no key {key_id!r}."""


class SessionNotFound(NotFound):
    """There is no session {session_id}."""


class ArtifactNotFound(NotFound):
    """Job {job_id} has no artifact {name!r}."""


class WebhookNotFound(NotFound):
    """There is no webhook {webhook_id!r}."""

    hint = "List the webhooks with: packhorse webhooks"


class ScheduleNotFound(NotFound):
    """There is no schedule {schedule_id}."""

    hint = "List the schedules with: packhorse schedules"


class VersionNotFound(NotFound):
    """Schedule {schedule_id} has no version {version}, or the version was purged."""


class VersionNeeded(Refused):
    """Schedule {schedule_id} already exists. To change it, send the version you have read as If-Match."""

    status = 428
    hint = "Read the schedule, and send its ETag as If-Match."


class EditedMeanwhile(Refused):
    """Schedule {schedule_id} was changed since you read it: it is now at version {version}."""

    status = 412
    hint = "Read it again and repeat your change, so that the other change is not lost."


class FailureNotFound(NotFound):
    """There is no failure {failure_id!r}."""

    hint = "List the failures with: packhorse failures"


class FailureGroupNotFound(NotFound):
    """There is no failure group {fingerprint!r}."""

    hint = "List the failure groups with: packhorse failures groups"


class OrderNotFound(NotFound):
    """There is no order {order_id!r}."""

    hint = "List the orders with: packhorse failures orders"


class NoSecretKey(Refused):
    """No secret key is configured to sign webhooks and encrypt secrets with."""

    status = 409
    hint = "Set PACKHORSE_SECRET_KEY to the same 32 random bytes on every server and worker: openssl rand -base64 32"


class SecretUnreadable(PackhorseError):
    """A secret parameter cannot be decrypted: {reason}."""

    hint = "Give every server and worker the PACKHORSE_SECRET_KEY that the job was submitted with, or resubmit the job."


class QueueNotFound(NotFound):
    """No pipeline or worker uses a queue named {queue!r}."""

    hint = "List the queues with: packhorse queues"


class LimitNotFound(NotFound):
    """No pipeline has a limit named {name!r}."""

    hint = "List the limits with: packhorse limits"


class NotAllowed(Refused):
    """Cannot {verb} a {status} job."""

    status = 409


class NotFinished(NotAllowed):
    """Job {job_id} is {status} and has no result."""

    hint = "Check its progress with: packhorse show {job_id}"


class SlotTaken(Refused):
    """Job {active_job_id} is still active, and only one is allowed at a time."""

    status = 409
    hint = "Wait until it has ended, or cancel it: packhorse cancel {active_job_id}"


class WouldOverwrite(Refused):
    """{path} already exists. packhorse init does not overwrite files."""

    status = 409
    hint = "Choose another folder: packhorse init FOLDER"


class Conflict(PackhorseError):
    """The job was changed in the meantime."""

    status = 409


class LeaseLost(Conflict):
    """This attempt no longer holds the lease of {stage}."""


class AlreadySubmitted(Conflict):
    """This idempotency key already belongs to job {job_id}."""


class DefinitionError(PackhorseError):
    """The pipeline definition is not valid."""

    status = 500
    exit_code = 2


class SettingError(PackhorseError):
    """Setting {name} cannot be {value!r}."""

    exit_code = 2
    hint = "List every setting and where its value comes from with: packhorse config"


class PortTaken(SettingError):
    """Port {port} on {host} is already in use."""

    hint = "Choose another port with --port, or stop the process that uses this one."


class AppMissing(SettingError):
    """No app is given: a worker needs to know which pipelines it runs."""

    hint = (
        "Name the file or module that defines them: packhorse worker pipelines.py. Or set it for every command: "
        "app = 'pipelines.py' under [tool.packhorse] in pyproject.toml, or PACKHORSE_APP. For the built-in sample: "
        "packhorse worker packhorse.sample"
    )


class SeveralApps(SettingError):
    """Several files in this folder make an App: {files}."""

    hint = "Name the one to run: packhorse dev FILE.py. Or name several: each gets its own worker."


class WrongDeployment(SettingError):
    """The files in the object store belong to deployment {theirs}, and the store to deployment {ours}."""

    hint = (
        "No file is deleted until this is resolved. Check PACKHORSE_STORE and PACKHORSE_BLOBS. A second deployment "
        "needs a folder or prefix of its own, such as s3://bucket/staging. To make this store the owner of the files, "
        "for example because the old store is lost: packhorse adopt"
    )


class StoreError(PackhorseError):
    """The store failed."""

    status = 503
    exit_code = 5


class StoreUnavailable(StoreError):
    """The store does not answer."""

    hint = "Check it with: packhorse doctor"


class UnknownOutcome(StoreError):
    """The store's reply was lost: the change may or may not have been made."""


class SchemaTooNew(StoreError):
    """The store has schema {found}, which is newer than this packhorse supports ({known})."""

    hint = "Upgrade packhorse here, or point PACKHORSE_STORE at another store."


class CorruptRecord(StoreError):
    """The {what} of job {job_id} cannot be read: {reason}."""

    status = 500
    exit_code = 1
    hint = "Retrying does not help. Other jobs are not affected."


class BlobError(PackhorseError):
    """The object store failed."""

    status = 502
    exit_code = 5


class BlobUnavailable(BlobError):
    """The object store does not answer: {reason}."""


class NoDestination(BlobError):
    """The files of this job cannot be published: {reason}."""

    hint = (
        "Set PACKHORSE_PUBLISH_TO to the same address for every server and worker, until the last job that was "
        "submitted with it is deleted. Two deployments need two destinations."
    )


class BlobNotFound(BlobError):
    """There is no object {key!r}."""

    status = 404


class BlobExists(BlobError):
    """Object {key!r} already exists, and objects are never overwritten."""

    status = 409


class PathRefused(BlobError):
    """{key!r} is not a valid object key."""

    status = 422


class PromoteFailed(BlobError):
    """The files could not be copied: {reason}."""

    hint = "Nothing was recorded. Retry: files that were already copied are not copied again."


class OutboundFailed(PackhorseError):
    """The request to {host} failed: {reason}."""

    status = 502
    exit_code = 5

    def __init__(self, message: str | None = None, /, *, code: str = "UNREACHABLE", **facts: Any) -> None:
        super().__init__(message, code=code, **facts)
        self.code = code  # a stable code, such as TIMEOUT, TOO_LARGE or HTTP_404


class BlockedAddress(OutboundFailed):
    """Requests to {host} are not allowed: {reason}."""

    status = 422
    exit_code = 3
    hint = "Use a public address. An operator can allow this one with PACKHORSE_OUTBOUND_ALLOW."

    def __init__(self, message: str | None = None, /, *, code: str = "BLOCKED_ADDRESS", **facts: Any) -> None:
        super().__init__(message, code=code, **facts)


class Unreachable(PackhorseError):
    """No packhorse server answers at {url}."""

    status = 503
    exit_code = 5
    hint = "Start one with: packhorse dev. If one runs at another address, set PACKHORSE_URL."


class NoneNamed(Unreachable):
    """No packhorse server answers at {url}, the address of `packhorse dev`. No other address is configured."""

    hint = "Start one with: packhorse dev. If packhorse serve runs, use --url {serve} or set PACKHORSE_URL={serve}"


class _Lenient(string.Formatter):
    """Writes ? for a missing fact: formatting must not fail while an error is raised."""

    def get_value(self, key: int | str, _args: Any, kwargs: Any) -> Any:
        return kwargs.get(str(key), "?")
