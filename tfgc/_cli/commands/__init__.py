"""The shell commands, one a file with a click command named `command`, found by listing this folder.

Each imports what it needs when it runs, so help is instant.
"""
