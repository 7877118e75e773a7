"""Entry point of the command line; the only place that makes exit codes.

0: success. 1: a `TfgcError` or a full disk, reported in one line. 2: wrong usage. 130: interrupted.
"""

import errno
import os
import sys

from tfgc import _user_modules


def main() -> None:
    """Run the `tfgc` command."""
    import click

    from tfgc._cli import group
    from tfgc._errors import TfgcError

    try:
        code = group.cli.main(prog_name="tfgc", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except TfgcError as error:
        print(f"tfgc: {error}", file=sys.stderr)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Python would try once more to write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"tfgc: cannot write the output: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        print("tfgc: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    _user_modules.leave()
    main()
