"""Text for a terminal, which obeys some characters instead of showing them."""

_KEPT = "\n\N{NO-BREAK SPACE}"


def printable(text: str) -> str:
    """The text with what moves the cursor, deletes, or reorders other text written as in Python's strings.

    >>> print(printable("conv\\x1b[2J, \\u202esize"))
    conv\\x1b[2J, \\u202esize
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _KEPT else repr(sign)[1:-1] for sign in text)
