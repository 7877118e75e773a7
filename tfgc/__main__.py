"""Entry point of the command line; the only place that makes exit codes.

0: done. 1: a `TfgcError`, told in one line. 2: wrong usage. 130: interrupted.
"""

import sys


def main():
    """Run the `tfgc` command."""
    from tfgc import _cli
    from tfgc._errors import TfgcError

    try:
        _cli.cli.main(prog_name="tfgc", standalone_mode=True)
    except TfgcError as error:
        print(f"tfgc: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
