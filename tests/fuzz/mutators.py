# SPDX-License-Identifier: Apache-2.0
"""Changes to valid files that keep most of their structure, so that they come far into the program."""
import json
import math
import re
import struct


class Raw(str):
    """Text that stands in a JSON file as it is: what no JSON library would write."""


class Object(list):
    """An object as pairs, in which keys may stand twice."""


NUMBERS = [0, 1, -1, 2, 3, 7, 255, 65536, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63,
           -(1 << 63), (1 << 64) - 1, 0.5, -0.5, 1e-9, 1e-300, 1e9, 1e17, 1e18, 1e300, -1e300, 10000, 1000000]
RAW = [Raw(t) for t in ("NaN", "Infinity", "-Infinity", "2e999", "1e400", "-1e400", "0x10", "1e", "01", "+1", "nul",
                        "'x'", "[", "}", "", "1 2", "\"\\ud800\"", "\"\\u0000\"", "//", "truth", "-", "\"",
                        "123456789012345678901234567890", "0." + "0" * 400 + "1")]
TEXTS = ["", " ", "x", "0", "null", "nan", "-1", "1e999", "no/such/file", "/dev/null", ".", "cluster.json",
         "\x1b[31mred\x1b[0m", "line\nbreak", "tab\t", "\"quotes\"", "back\\slash", "%s%n{}{0}", "\u202eabc", "\u009b31m",
         "a" * 300, "b" * 100_000, "é漢🚀", "\x00", "\x7f", "<b>&amp;</b>", "port0.0", "gpu0", "portx", "leafA"]
QUANTITIES = ["0 s", "-1 s", "1 ps", "100 h", "2562 h", "1e9 s", "nan s", "inf s", "1e400 s", "1 fortnight",
              "0 B", "-80 GiB", "1 B", "4e18 B", "9.2e18 B", "1e19 B", "80 gib", "80", "80 GiB extra",
              "0 B/s", "-1 GB/s", "1 B/s", "9e18 B/s", "1e30 GB/s", "0 FLOP/s", "1 FLOP/s", "-1 TFLOP/s", "1e300 PFLOP/s",
              "1e-300 TFLOP/s", "$0", "$-1", "$1e300", "$9e12", "$", "€5", "1 MB/s", "1 GFLOP/s", "1000 TB/s", "1024 TiB"]


def from_json(text):
    return json.loads(text, object_pairs_hook=Object)


def to_json(value):
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Object):
        return "{" + ",".join(to_json(k) + ":" + to_json(v) for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    return json.dumps(value)


def places(value, found):
    """All (container, index) whose element is a value below `value`."""
    if isinstance(value, list):
        for i, element in enumerate(value):
            found.append((value, i))
            places(element[1] if isinstance(value, Object) else element, found)
    return found


def get(place):
    container, i = place
    return container[i][1] if isinstance(container, Object) else container[i]


def put(place, value):
    container, i = place
    container[i] = (container[i][0], value) if isinstance(container, Object) else value


def plausible(random, old):
    """A value of the same type and perhaps in range, so that it comes further than the parser; None if there is none."""
    factor = random.choice([0, 0.5, 0.9, 1.1, 2, 3, 10, 1000, 1e-3, 1e6, 1e-6, 1e9])
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return random.choice([0, 1, 2, 4, 16, 64, 1000, old + 1, old * 2, old * 3, old // 2, int(old * factor)])
    if isinstance(old, float):
        return random.choice([0.0, 1.0, 0.5, old * factor])
    number = re.match(r"(\$?)(-?\d+(?:\.\d*)?(?:e-?\d+)?)( *[A-Za-z/]+)?$", old) if isinstance(old, str) else None
    if number:
        return f"{number[1]}{float(number[2]) * factor:g}{number[3] or ''}"
    return None


def scalar(random, old):
    """Another scalar, most often of the same type."""
    value = plausible(random, old) if random.random() < 0.6 else None
    if value is not None:
        return value
    kind = random.random()
    if isinstance(old, str) and kind < 0.6:
        return random.choice(QUANTITIES if any(c.isdigit() for c in old) and kind < 0.4 else TEXTS)
    if isinstance(old, bool) and kind < 0.3:
        return not old
    if isinstance(old, (int, float)) and kind < 0.7:
        if kind < 0.25:
            return random.choice([-old, old + 1, old - 1, old * 2, old // 2 if isinstance(old, int) else old / 2,
                                  old * 1000])
        return random.choice(NUMBERS)
    return random.choice([random.choice(NUMBERS), random.choice(RAW), random.choice(TEXTS), random.choice(QUANTITIES),
                          None, True, False, [], Object(), [1, "a", None], Object([("a", 1)])])


def change_json(random, root):
    """One change of the value [root]; places above it stay."""
    all_places = places(root, [])
    place = random.choice(all_places)
    container, i = place
    old = get(place)
    what = random.randrange(16)
    if what <= 4 or what >= 12:
        put(place, scalar(random, old))
    elif what == 5 and container is not root:
        del container[i]
    elif what == 6 and container is not root:  # twice, or many times
        container[i:i] = [container[i]] * random.choice([1, 1, 2, 50, 3000])
    elif what == 7:
        put(place, Raw(to_json(get(random.choice(all_places)))))
    elif what == 8 and isinstance(container, Object):
        key = container[i][0]
        container[i] = (random.choice([key[:-1], key + "s", key[::-1], key.upper(), "", random.choice(TEXTS)]),
                        container[i][1])
    elif what == 9:
        depth = random.choice([1, 2, 60, 70, 5000])
        put(place, Raw("[" * depth + to_json(old) + "]" * depth))
    elif what == 10 and isinstance(container, Object):
        container.append((random.choice(TEXTS), scalar(random, None)))
    else:
        put(place, Object([(str(n), scalar(random, 1)) for n in range(random.choice([0, 1, 3000]))]))


def mutate_json(random, text):
    root = [from_json(text)]
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        change_json(random, root)
    out = to_json(root[0]).encode("utf-8", "surrogatepass")
    return mutate_bytes(random, out) if random.random() < 0.1 else out


def mutate_lines(random, text):
    lines = text.split(b"\n")
    for _ in range(random.choice([1, 1, 2, 3])):
        i = random.randrange(len(lines))
        words = lines[i].split(b" ")
        w = random.randrange(len(words))
        what = random.randrange(9)
        if what == 0:
            del lines[i]
        elif what == 1:
            lines[i:i] = [lines[i]] * random.choice([1, 2, 100, 10_000])
        elif what == 2:
            lines[i] = b" ".join(words[:w] + [random.choice(TEXTS + QUANTITIES).encode("utf-8", "replace")] +
                                 words[w + 1:])
        elif what == 3:  # a number of the line becomes another
            digits = [k for k, c in enumerate(lines[i]) if 48 <= c < 58]
            if digits:
                k = random.choice(digits)
                end = k + 1
                while end < len(lines[i]) and 48 <= lines[i][end] < 58:
                    end += 1
                number = random.choice(NUMBERS + list(RAW[:6]))
                lines[i] = lines[i][:k] + str(number).encode() + lines[i][end:]
        elif what == 4:
            words[w:w] = [words[w]] * random.choice([1, 3, 2000])
            lines[i] = b" ".join(words)
        elif what == 5:
            lines[i] = b" ".join(words[:w] + words[w + 1:])
        elif what == 6:
            other = random.randrange(len(lines))
            lines[i], lines[other] = lines[other], lines[i]
        elif what == 7:
            lines[i] = random.choice([b"", b"\x1b[2J", b"\xff\xfe\x80", b"#", b"<", b"\x00", b"a" * 100_000])
        else:
            lines = mutate_bytes(random, b"\n".join(lines)).split(b"\n")
        if not lines:
            lines = [b""]
    return b"\n".join(lines)


def mutate_bytes(random, data):
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 8])):
        if not data:
            return bytes(data)
        i = random.randrange(len(data))
        what = random.randrange(7)
        if what == 0:
            data[i] ^= 1 << random.randrange(8)
        elif what == 1:
            data[i] = random.choice([0, 0xff, 0x80, 0x7f, random.randrange(256)])
        elif what == 2:
            del data[i:]
        elif what == 3:
            del data[i:i + random.choice([1, 4, 64])]
        elif what == 4:
            data[i:i] = random.choice([b"\xff", b"\x00" * 8, b"\xff" * 16, b"\x1b[", bytes(data[:50])])
        elif what == 5:
            data[i:i + 4] = struct.pack("<i", random.choice([0, -1, 1 << 30, -(1 << 31), 1, 2]))
        else:
            data[i:i + 8] = struct.pack("<q", random.choice([0, -1, 1 << 62, -(1 << 63), 1 << 40]))
    return bytes(data)


def mutate_headed(random, data, end):
    """From `end` on, a head in JSON behind its length; what follows is numbers."""
    size = struct.unpack_from("<q", data, end)[0]
    head, body = data[end + 8:end + 8 + size], data[end + 8 + size:]
    if random.random() < 0.5:
        head = mutate_json(random, head)
    else:
        body = mutate_bytes(random, body)
    length = len(head) if random.random() < 0.9 else random.choice([0, -1, 1 << 62, len(head) + 1, len(head) - 1])
    return data[:end] + struct.pack("<q", length) + head + body


def mutate_timeline(random, data):
    return mutate_headed(random, data, data.index(b"\n") + 1)


def mutate_safetensors(random, data):
    return mutate_headed(random, data, 0)


def mutate_arguments(random, arguments):
    """The values of options and the positional arguments, not the names of commands."""
    out = list(arguments)
    for _ in range(random.choice([1, 1, 2])):
        i = random.randrange(1, len(out))
        what = random.randrange(8)
        if what == 0:
            out[i] = str(random.choice(NUMBERS))
        elif what == 1:
            out[i] = random.choice(QUANTITIES)
        elif what == 2:
            out[i] = random.choice(TEXTS).replace("\x00", "")[:4000]
        elif what == 3:
            out[i] = random.choice(["nan", "inf", "-inf", "1e400", "0x10", "", "-0", "1:nan", "3:1e300", "9:2", "-1:2",
                                    "5s:1s", "1h:", ":", "0s:-1s"])
        elif what == 4:
            out.insert(i, out[i])
        elif what == 5 and len(out) > 2:
            del out[i]
        elif what == 6:
            out.append(random.choice(["--json", "--help", "--no-such", "-o", "--top", "--"]))
        else:
            j = random.randrange(1, len(out))
            out[i], out[j] = out[j], out[i]
        if len(out) < 2:
            break
    return out


MUTATORS = {"json": mutate_json, "lines": mutate_lines, "bytes": mutate_bytes, "timeline": mutate_timeline,
            "safetensors": mutate_safetensors}
