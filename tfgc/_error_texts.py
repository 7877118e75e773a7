"""What errors of users' code say, under what Keras and TensorFlow write around it."""

import ast
import re
import textwrap

_OF_A_LAYER = "Exception encountered when calling"
# Of AutoGraph: a traceback, and after an empty line the error that was raised, all of it indented.
_TRACED = re.compile(r"in user code:\n\n.*?\n\n {4}([\w.]+): ?(.*)", flags=re.DOTALL)


def one_line(error: BaseException) -> str:
    """The message of an error in one line. Keras prints what went wrong in bold, below a line that says where.

    >>> one_line(ValueError("no luck\\nat all"))
    'ValueError: no luck'
    >>> one_line(TypeError("Exception encountered when calling Dense.call().\\n\\n\\x1b[1mno length\\x1b[0m\\n..."))
    'no length, in Dense.call()'
    >>> one_line(ValueError("in user code:\\n\\n    File ..., line 3, in step  *\\n\\n    KeyError: 'x'\\n"))
    "KeyError: 'x'"
    """
    kind, text = type(error).__name__, str(error).strip()
    traced = _TRACED.match(text)
    if traced:
        kind, text = traced[1], textwrap.dedent(f"    {traced[2]}").strip()
    if kind == "KeyError" and text[1:].startswith(_OF_A_LAYER):  # it quotes its message
        text = ast.literal_eval(text)
    found = re.match(rf"{_OF_A_LAYER} (.*?)\.\n.*?\x1b\[1m(.*?)\x1b\[0m", text, flags=re.DOTALL)
    if found:
        return f"{found[2].strip().partition(chr(10))[0].rstrip('.')}, in {found[1]}"
    text = re.sub(r"^\{\{\w+ \S+\}\} ", "", text)  # a place in TensorFlow
    return f"{kind}: {text}".partition("\n")[0].rstrip(" .:")
