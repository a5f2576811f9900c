"""What the vendors' libraries have in common: imported when they are needed, one client, and errors told in one way.

Owns: a library's life, and telling what it raises. Leaves to others: requests and what comes back (one module per API).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import hashlib
import importlib
import math
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar
from urllib.parse import urlsplit

from gagent_grpc.errors import ConfigurationError
from gagent_grpc.llm.chat import ChatMessage, Completion, ToolChoice, ToolSpec
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.limiter import Limiter, shared_limiter
from gagent_grpc.llm.providers.secret import Secret

_WORD = re.compile(r"[\w.\-\[\]]{1,64}")
_TOO_LONG = re.compile(r"context|too[_ ]long|too[_ ]large|maximum.*tokens", re.IGNORECASE)
_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_error"})
_FILTERS = frozenset({"content_filter", "content_policy_violation"})
_LONGEST_WAIT = 86_400.0


class SdkProvider(abc.ABC):
    """A model behind one of the vendors' libraries. It is a `Provider`; see there."""

    package: ClassVar[str]
    key_variable: ClassVar[str]
    needs_key: ClassVar[bool] = True

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        requests_per_second: float | None = None,
    ) -> None:
        """Name a model; nothing is imported or connected yet.

        Args:
            model: Its name, as the endpoint knows it.
            api_key: Key; None for none.
            base_url: Endpoint; the vendor's own by default. Another one may need no key.
            requests_per_second: Calls that the endpoint takes, where that is known; learnt from what it refuses by default.

        Raises:
            ConfigurationError: The model has no name, the key is none, or the endpoint is no URL.
        """
        if not model:
            raise ConfigurationError("the model has no name; expected one such as gpt-4o-mini")
        self._model = model
        self._key = Secret(api_key, self.key_variable) if api_key else None
        self._base_url = _checked_url(base_url) if base_url is not None else None
        self._rate = requests_per_second
        self._limiter: Limiter | None = None
        self._client: Any = None
        self._module: Any = None
        self._users = 0
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}>"

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._model

    @property
    def endpoint(self) -> str:
        """Host of the endpoint, with its port where one is named; never what else the URL holds."""
        if self._base_url is None:
            return self.default_host
        parts = urlsplit(self._base_url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    @property
    @abc.abstractmethod
    def default_host(self) -> str:
        """Host of the vendor's own endpoint."""

    @property
    def label(self) -> str:
        """Model and endpoint, for people."""
        return f"{self._model} at {self.endpoint}"

    @property
    def limiter(self) -> Limiter | None:
        """As `Provider.limiter`: one for everybody who calls this endpoint with this key."""
        return self._limiter

    # ---- life ------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """As `Provider.open`."""
        async with self._opening:
            if self._client is None:
                # Seconds of work the first time: heartbeats must not wait for it.
                self._module, self._client = await asyncio.to_thread(self._load)
                key = hashlib.sha256(self._key.reveal().encode()).digest() if self._key is not None else b""
                self._limiter = shared_limiter((self._base_url or self.default_host, self._model, key), self._rate)
            self._users += 1

    async def aclose(self) -> None:
        """As `Provider.aclose`."""
        async with self._opening:
            self._users = max(0, self._users - 1)
            client = self._client
            if self._users == 0 and client is not None:
                self._client = None
                await client.close()

    def _load(self) -> tuple[Any, Any]:
        try:
            module = importlib.import_module(self.package)
        except ImportError as error:
            text = f"The {self.package} package is missing. Install it: pip install 'gagent-grpc[llm]'"
            raise ConfigurationError(text) from error
        # A key is always said, so that the library looks for none in places of its own.
        key = self._key.reveal() if self._key is not None else "none"
        return module, self._connect(module, key)

    @abc.abstractmethod
    def _connect(self, module: Any, key: str) -> Any:
        """Return a client that tries everything once."""

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: ToolChoice = "auto",
        max_tokens: int,
        timeout: float,
    ) -> Completion:
        """As `Provider.complete`."""
        client = self._ready()
        with self._told():
            return await self._complete(client, messages, tools, tool_choice, max_tokens, timeout)

    async def stream(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: ToolChoice = "auto",
        max_tokens: int,
        timeout: float,
    ) -> AsyncGenerator[str | Completion, None]:
        """As `Provider.stream`."""
        client = self._ready()
        with self._told():
            parts = self._stream(client, messages, tools, tool_choice, max_tokens, timeout)
            async with contextlib.aclosing(parts) as stream:
                async for part in stream:
                    yield part

    @abc.abstractmethod
    async def _complete(
        self,
        client: Any,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        timeout: float,
    ) -> Completion: ...

    @abc.abstractmethod
    def _stream(
        self,
        client: Any,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        timeout: float,
    ) -> AsyncGenerator[str | Completion, None]: ...

    def _ready(self) -> Any:
        if self._key is None and self._base_url is None:
            raise ModelError(Trouble.NO_KEY, f"{self.endpoint} needs a key; set {self.key_variable}")
        if self._client is None:
            raise ModelError(Trouble.UNREACHABLE, f"{self.label} is not open")
        return self._client

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tell what the library raises. Its words are left out: they may hold a part of the key, or of the question."""
        module = self._module
        try:
            yield
        except ModelError:
            raise
        except module.APITimeoutError:
            raise ModelError(Trouble.TIMEOUT, f"{self.label} gave no whole answer in time") from None
        except module.APIConnectionError:
            raise ModelError(Trouble.UNREACHABLE, f"nobody answers at {self.endpoint}; is it running?") from None
        except module.APIStatusError as error:
            raise self._of_status(error) from None
        except module.APIError as error:
            # Told in the middle of a stream.
            raise self._of_words(_words(error), 500, None) from None
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            text = f"{self.endpoint} does not answer as its API says; is the base URL right?"
            raise ModelError(Trouble.BAD_ANSWER, text) from None
        except Exception as error:
            # A stream that breaks raises the errors of the HTTP library, which is another one from version to version.
            if type(error).__module__.partition(".")[0] not in {"httpx", "httpx2", "httpcore", "httpcore2", "anyio"}:
                raise
            if "Timeout" in type(error).__name__:
                raise ModelError(Trouble.TIMEOUT, f"{self.label} gave no whole answer in time") from None
            raise ModelError(Trouble.UNREACHABLE, f"the connection to {self.endpoint} was lost") from None

    def _of_status(self, error: Any) -> ModelError:
        after = retry_after_of(error.response.headers, time.time())
        return self._of_words(_words(error), error.status_code, after, text=str(error))

    def _of_words(self, words: list[str], status: int, after: float | None, *, text: str = "") -> ModelError:
        """Return the error for what an endpoint says; of ``text`` nothing is shown."""
        said = f"{self.endpoint} says {status}" + (f" ({', '.join(words)})" if words else "")
        kinds = set(words)
        if kinds & _CREDIT or status == 402:
            return ModelError(Trouble.NO_CREDIT, f"{said}: the account has no credit left; look at its billing")
        if kinds & _FILTERS:
            return ModelError(Trouble.CONTENT_FILTER, f"{said}: the question was filtered; ask in other words")
        if status == 401 or "authentication_error" in kinds:
            what = f"the key in {self.key_variable} is refused" if self._key is not None else "a key is needed"
            return ModelError(Trouble.KEY_REFUSED, f"{said}: {what}; set {self.key_variable}")
        if status == 403:
            return ModelError(Trouble.KEY_REFUSED, f"{said}: the key may not use {self._model}")
        if status == 404:
            return ModelError(
                Trouble.NO_SUCH_MODEL, f"{said}: there is no model {self._model}, or the base URL is wrong"
            )
        if status == 429 or "rate_limit_error" in kinds or "rate_limit_exceeded" in kinds:
            text = f"{said}: too many requests; ask less often, or have the limit raised"
            return ModelError(Trouble.RATE_LIMITED, text, retry_after=after)
        if status == 413 or (status == 400 and ("context_length_exceeded" in kinds or _TOO_LONG.search(text))):
            return ModelError(
                Trouble.CONTEXT_TOO_LONG, f"{said}: the question is too long for {self._model}; ask a shorter one"
            )
        if status == 408 or status >= 500 or kinds & {"server_error", "overloaded_error", "api_error"}:
            return ModelError(Trouble.SERVER_ERROR, f"{said}: the endpoint failed; try again later", retry_after=after)
        return ModelError(Trouble.REQUEST_REFUSED, f"{said}: it does not take the request for {self._model}")


def _words(error: Any) -> list[str]:
    """Return what an error says in words of the API, as `invalid_request_error`; nothing that is a sentence."""
    body = error.body if isinstance(error.body, Mapping) else {}
    nested = body.get("error")
    inner = nested if isinstance(nested, Mapping) else body
    found: list[str] = []
    for name in ("type", "code", "param"):
        word = inner.get(name)
        if isinstance(word, str) and _WORD.fullmatch(word) and word not in found:
            found.append(word)
    return found


def _checked_url(text: str) -> str:
    """Return a base URL without the blanks and line ends around it that copying leaves.

    Raises:
        ConfigurationError: It is none. What it holds is not shown: it may be a key.
    """
    text = text.strip()
    try:
        parts = urlsplit(text)
        # The port is not read before it is asked for; a name that has no form on the wire is an error, too.
        is_one = parts.scheme in {"http", "https"} and parts.port != 0 and bool((parts.hostname or "").encode("idna"))
    except ValueError:
        is_one = False
    if not is_one or not text.isprintable() or " " in text:
        raise ConfigurationError("the base URL is none; expected http://HOST[:PORT]/PATH, or https://")
    return text


def retry_after_of(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that response headers ask to wait; None where they say nothing that can be read.

    `retry-after-ms` is in milliseconds; `Retry-After` in seconds, or an HTTP date (RFC 9110 §10.2.3).

    Args:
        headers: Of the response, looked up without regard to case.
        now: Seconds since 1970.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with contextlib.suppress(TypeError, ValueError):
            seconds = float(headers.get(name, "")) * unit
            if math.isfinite(seconds):
                return min(max(seconds, 0.0), _LONGEST_WAIT)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        at = parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
        return min(max(at - now, 0.0), _LONGEST_WAIT)
    return None
