"""The shell: options, files, and one file for each command."""
