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


def format_change(ratio):
    """A ratio as the change that it is.

    >>> format_change(1.17), format_change(0.42), format_change(1.0)
    ('+17 %', '-58 %', '0 %')
    """
    percent = round((ratio - 1) * 100)
    return f"{percent:+d} %" if percent else "0 %"


def _scaled(value, units):
    for name, size in units:
        if abs(value) >= size:
            break
    else:
        name, size = next(unit for unit in units if unit[1] == 1) if not value else units[-1]
    return f"{value / size:.3g} {name}"
