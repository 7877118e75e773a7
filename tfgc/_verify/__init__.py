"""Prove that planned steps train as plain ones do."""
