"""The part of Cloud Storage's JSON API that the agent needs."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlencode

from startup.agent.clock import Patience
from startup.agent.http_client import HttpResponse, Unreachable, repeat_request, send_request
from startup.agent.metadata import Metadata
from startup.agent.spec import PhaseTiming


class StorageError(Exception):
    """An object could not be stored or listed: unreachable for too long, or refused."""


class AgentStorage:
    """One bucket. Every method raises only StorageError."""

    def __init__(self, base_url: str, bucket: str, metadata: Metadata, timing: PhaseTiming) -> None:
        self.base_url = base_url
        self.bucket = bucket
        self.metadata = metadata
        self.timing = timing
        self.generations: dict[str, int] = {}
        """The generation of each object that this writer replaces, as far as it knows."""

    @staticmethod
    def name_of(run_id: str, name: str) -> str:
        """The full name of an object of a run."""
        return f"runs/{run_id}/{name}"

    def create(self, name: str, body: bytes, content_type: str, patience: Patience) -> bool:
        """Stores an object unless there is one of that name.

        True when it was stored, False when there is one already: that is success too, for the usual reason is that an
        earlier try arrived and only its answer was lost.
        """
        answer = self.upload(name, body, content_type, patience, 0)
        if answer.status == 412:
            return False
        self.expect(answer, "store " + name)
        return True

    def replace(self, name: str, body: bytes, content_type: str, patience: Patience) -> None:
        """Stores an object over whatever is there.

        A request that was given up may still arrive later, after a newer one. So each request replaces only the
        generation that was there when it was sent: once a newer one has been stored, an older one is refused. One
        thread at a time may replace an object.
        """
        what, looked = "store " + name, False
        while True:
            answer = self.upload(name, body, content_type, patience, self.generations.get(name, 0))
            if answer.status != 412:
                break
            # An earlier request has arrived meanwhile, or another attempt of this run has stored the object.
            if looked and not patience.pause(self.timing.retry_first_s):
                raise StorageError(f"could not {what} in bucket {self.bucket}: others replace it all the time")
            there, looked = self.get(name, patience), True
            self.generations[name] = there[1] if there is not None else 0
            if there is not None and there[0] == body:
                return
        self.expect(answer, what)
        self.generations[name] = self.generation_of(answer, what)

    def swap(self, name: str, body: bytes, generation: int, patience: Patience) -> int | None:
        """Replaces a JSON object if it has this generation (0: if it is not there). Returns its new generation; None
        when it has another by now. A replacement whose answer was lost is recognised by its bytes."""
        answer = self.upload(name, body, "application/json", patience, generation)
        if answer.status == 412:
            there = self.get(name, patience)
            return there[1] if there is not None and there[0] == body else None
        self.expect(answer, "store " + name)
        return self.generation_of(answer, "store " + name)

    def get(self, name: str, patience: Patience) -> tuple[bytes, int] | None:
        """An object and its generation; None when there is none of that name."""
        url = f"{self.base_url}/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}?alt=media"
        answer = self.persist(lambda: self.request("GET", url, patience), patience, "read " + name)
        if answer.status == 404:
            return None
        self.expect(answer, "read " + name)
        return answer.body, int(answer.headers.get("x-goog-generation", "0"))

    def generation_of(self, answer: HttpResponse, what: str) -> int:
        """The generation that an upload made."""
        try:
            return int(json.loads(answer.body)["generation"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{what}: the answer names no generation") from error

    def upload(self, name: str, body: bytes, content_type: str, patience: Patience, generation: int) -> HttpResponse:
        """Sends an object that is to replace this generation of it; 0: there must be none yet."""
        boundary = uuid.uuid4().hex
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        resource = json.dumps({"name": name, "contentType": content_type, "md5Hash": digest})
        payload = b"".join(
            [
                f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{resource}\r\n".encode(),
                f"--{boundary}\r\nContent-Type: {content_type}\r\n\r\n".encode(),
                body,
                f"\r\n--{boundary}--\r\n".encode(),
            ]
        )
        query = {"uploadType": "multipart", "ifGenerationMatch": str(generation)}
        url = f"{self.base_url}/upload/storage/v1/b/{self.bucket}/o?{urlencode(query)}"
        content = f"multipart/related; boundary={boundary}"
        return self.persist(lambda: self.request("POST", url, patience, payload, content), patience, "store " + name)

    def names(self, prefix: str, patience: Patience) -> list[str]:
        """The names of all objects whose name begins with `prefix`."""
        names: list[str] = []
        token = ""
        while True:
            query = {"prefix": prefix, "fields": "items(name),nextPageToken"}
            if token:
                query["pageToken"] = token
            url = f"{self.base_url}/storage/v1/b/{self.bucket}/o?{urlencode(query, quote_via=quote)}"
            what = "list " + prefix
            answer = self.persist(lambda url=url: self.request("GET", url, patience), patience, what)  # type: ignore[misc]
            self.expect(answer, what)
            try:
                page = json.loads(answer.body)
                names += [str(item["name"]) for item in page.get("items", [])]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StorageError(f"{what}: the answer is not a page of objects") from error
            token = page.get("nextPageToken", "")
            if not token:
                return names
            if not patience.left():
                raise StorageError(f"{what}: its list of pages does not end")

    def skew_s(self, patience: Patience) -> float | None:
        """The seconds by which the server's clock is ahead of ours, to about one second; None when it does not say."""
        url = f"{self.base_url}/storage/v1/b/{self.bucket}/o?{urlencode({'prefix': 'runs/', 'maxResults': '1'})}"
        clock = self.metadata.clock
        asked = answered = clock.now()

        def ask() -> HttpResponse:
            nonlocal asked, answered
            asked = clock.now()
            answer = self.request("GET", url, patience)
            answered = clock.now()
            return answer

        answer = self.persist(ask, patience, "ask the time")
        self.expect(answer, "ask the time")
        try:
            theirs = parsedate_to_datetime(answer.headers["date"])
            # Date has whole seconds, rounded down: on average it is half a second late.
            return (theirs - asked).total_seconds() + 0.5 - (answered - asked).total_seconds() / 2
        except (KeyError, TypeError, ValueError, IndexError):
            return None

    def request(
        self, method: str, url: str, patience: Patience, body: bytes | None = None, content_type: str = ""
    ) -> HttpResponse:
        headers = {"Authorization": "Bearer " + self.metadata.token()}
        if content_type:
            headers["Content-Type"] = content_type
        timeout_s = min(self.timing.request_timeout_s, max(1.0, patience.left()))
        answer = send_request(method, url, headers, body, timeout_s)
        if answer.status == 401:
            self.metadata.forget_token()
            headers["Authorization"] = "Bearer " + self.metadata.token()
            answer = send_request(method, url, headers, body, timeout_s)
        return answer

    def persist(self, attempt: Callable[[], HttpResponse], patience: Patience, what: str) -> HttpResponse:
        try:
            return repeat_request(attempt, patience, self.timing.retry_first_s, self.timing.retry_max_s)
        except Unreachable as error:
            raise StorageError(f"could not {what} in bucket {self.bucket}: {error}") from error

    def expect(self, answer: HttpResponse, what: str) -> None:
        if answer.status not in (200, 201):
            reason = answer.body[:200].decode("utf-8", "replace")
            raise StorageError(f"could not {what} in bucket {self.bucket}: HTTP {answer.status} {reason}")
