"""Print bytes and seconds the way people read them. Decimal: 1 GB = 10**9 bytes."""


def format_bytes(count):
    """
    >>> format_bytes(0), format_bytes(999), format_bytes(2_621_000_000)
    ('0 B', '999 B', '2.62 GB')
    """
    return _scaled(count, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)))


def format_seconds(seconds):
    """
    >>> format_seconds(0), format_seconds(0.0123), format_seconds(73.4)
    ('0 s', '12.3 ms', '73.4 s')
    """
    return _scaled(seconds, (("s", 1), ("ms", 1e-3), ("us", 1e-6)))


def _scaled(value, units):
    base = next(unit for unit in units if unit[1] == 1)
    name, size = next((unit for unit in units if abs(value) >= unit[1]), units[-1]) if value else base
    return f"{value / size:.3g} {name}"
