"""The two nouns, `Graph` and `Plan`, as frozen data, and what is derived from them; imports no framework."""
