"""Entry point of the command line; the only place that makes exit codes.

0: done. 1: a `TfgcError`, told in one line. 2: wrong usage. 130: interrupted.
"""

import sys

import click


def main():
    """Run the `tfgc` command."""
    from tfgc import _cli
    from tfgc._errors import TfgcError

    try:
        sys.exit(_cli.cli.main(prog_name="tfgc", standalone_mode=False))
    except TfgcError as error:
        print(f"tfgc: {error}", file=sys.stderr)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("tfgc: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
