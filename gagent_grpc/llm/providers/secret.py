"""A key that shows itself to nobody by accident."""

from __future__ import annotations

from gagent_grpc.errors import ConfigurationError


class Secret:
    """A key. Its text is what `reveal` returns, and appears in no repr, log, error or pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str, name: str = "the key") -> None:
        """Keep a key, without the blanks and line ends around it that copying leaves.

        Raises:
            ConfigurationError: It is no key: empty, or with blanks, control or non-ASCII characters in it. A library would
                say so later, and show it.
        """
        text = text.strip()
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigurationError(f"{name} is no key: expected printable ASCII characters without blanks")
        self._text = text

    def reveal(self) -> str:
        """Return the key."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a key is not pickled")
