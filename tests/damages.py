"""Files that were changed at random: JSON, and saved models."""

import copy
import io
import json
import zipfile

from tfgc import TfgcError

STRANGE = (
    None, True, False, 0, -1, 1, 3.5, 10**30, 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf"), "", "x", "-",
    "<script>\n|", [], {}, [[]], [None], {"a": 1}, [1, 2], "9" * 300, {"": {"": []}},
)  # fmt: skip


def places(data):
    """Each list and object in JSON data with each of its keys."""
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from places(data[key])


def damaged(data, rng):
    """JSON data with one to three random changes, as bytes."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not data:
            break
        box, key = rng.choice(list(places(data)))
        match rng.choice(("lose", "replace", "replace", "replace", "swap", "twice", "add", "bury")):
            case "lose":
                del box[key]
            case "replace":
                box[key] = rng.choice(STRANGE)
            case "swap":
                other, name = rng.choice(list(places(data)))
                box[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(box[key])
            case "twice" if isinstance(box, list):
                box.insert(key, copy.deepcopy(box[key]))
            case "add" if isinstance(box, dict):
                box[f"{key}x"] = box[key]
            case "bury":
                for _ in range(rng.choice((1, 30, 300))):
                    box[key] = [box[key]]
    return json.dumps(data).encode()


def broken(data, rng):
    """JSON data whose text is damaged, as bytes."""
    text = json.dumps(data).encode()
    at = rng.randrange(len(text))
    kind = rng.randrange(6)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[at : at + 40] * 2 + text[at + 40 :]
    if kind == 3:
        key = rng.choice([key for key in data if isinstance(key, str)])
        return b"{" + json.dumps(key).encode() + b": 1, " + text[1:]
    if kind == 4:
        return b"[" * 10_000 + b"]" * 10_000
    key = rng.choice(list(data))
    return json.dumps({**data, key: "HERE"}).encode().replace(b'"HERE"', b"[" * 10_000 + b"]" * 10_000)


def mutated(data, rng):
    return (damaged if rng.random() < 0.8 else broken)(data, rng)


def is_refused(work, *arguments):
    """Whether `work` raises a `TfgcError`, which is one line; all other errors are raised."""
    said = ""
    try:
        work(*arguments)
    except TfgcError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 1000
    return bool(said)


def damaged_model(contents, rng):
    """The bytes of a `.keras` file with a random change: in the archive, in its members, or in what they say."""
    match rng.choice(
        ("flip", "flip", "cut", "blank", "lose", "empty", "swap", "twice", "deep", *["json"] * 9, "weights")
    ):
        case "flip":
            return flipped(contents, rng)
        case "cut":
            return contents[: rng.randrange(len(contents))]
        case "blank":
            at = rng.randrange(len(contents))
            return contents[:at] + bytes(rng.randrange(1, 400)) + contents[at + 400 :]
        case kind:
            return rezipped(contents, kind, rng)


def flipped(contents, rng):
    """Bytes of which one to eight are others."""
    made = bytearray(contents)
    for _ in range(rng.randrange(1, 9)):
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


def rezipped(contents, kind, rng):
    """The bytes of an archive of which a member is changed."""
    with zipfile.ZipFile(io.BytesIO(contents)) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    i = rng.randrange(len(members))
    name, inside = members[i]
    if kind == "json":
        chosen = rng.choice(("config.json", "config.json", "metadata.json"))
        i = next(i for i, (name, _) in enumerate(members) if name == chosen)
        members[i] = members[i][0], mutated(json.loads(members[i][1]), rng)
    elif kind == "weights":
        i = next(i for i, (name, _) in enumerate(members) if name.endswith(".h5"))
        members[i] = members[i][0], flipped(members[i][1], rng)
    elif kind == "lose":
        del members[i]
    elif kind == "empty":
        members[i] = name, b""
    elif kind == "swap":
        members[i] = name, rng.choice(members)[1]
    elif kind == "twice":
        members.append((f"../{name}" if rng.random() < 0.5 else f"{name}x", inside))
    else:
        members[i] = name, b"[" * 10_000
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, inside in members:
            file.writestr(name, inside)
    return made.getvalue()
