# SPDX-License-Identifier: Apache-2.0
"""Writes the reference of the documentation site, in Markdown: a page for each file format, from `orrery schema`,
and a page with all commands, from `orrery man`. Both print the declarations that the program reads files and
options with, so these pages say what the program does.

Usage: reference.py ORRERY FOLDER
"""

import glob
import html
import json
import os
import re
import subprocess
import sys
import tempfile

# Every object of every file may have these; pages say so once.
EVERYWHERE = ("$schema", "schema", "comment")

TITLES = {
    "scenario": "what is trained, where, and what is asked",
    "plan": "a scenario, its plan, and what was predicted of it",
    "cluster": "nodes, their devices, links, network and price",
    "device": "what a GPU or a processor does",
    "links": "the links inside a node, and collectives measured over them",
    "stack": "the software that runs a plan",
    "model": "a model, given by its fields",
    "reliability": "failures, restarts, checkpoints and prices",
    "jobs": "a queue of jobs of several tenants",
    "life": "where the time of a run went",
    "fit": "constants fitted to published runs",
}

# The unit of a field that is text, by the example in its schema.
UNITS = {
    "80 GiB": "bytes, as `80 GiB`",
    "400 Gb/s": "bandwidth, as `400 Gb/s`",
    "312 TFLOP/s": "arithmetic, as `312 TFLOP/s`",
    "2 us": "time, as `2 us`",
    "20 days": "time, as `20 days`",
    "$32.77": "dollars, as `$32.77`",
}


def printed(program, *arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def formats(program):
    """The names that `orrery schema` takes, as its help lists them."""
    line = re.search(r"^ *format TEXT REQUIRED\s+(.*)$", printed(program, "schema", "--help"), re.MULTILINE)
    return re.split(r", | or ", line.group(1))


def cell(text):
    """Text that stands in a cell of a table and means nothing to Markdown."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(str(text), quote=False)).replace("\n", " ")


def code(text):
    text = str(text)
    if "|" not in text and "`" not in text:
        return f"`{text}`"
    escaped = "".join(c if c.isalnum() or c in " .-/" else f"&#{ord(c)};" for c in text)
    return f"<code>{escaped}</code>"


def table(head, rows):
    """Without columns that have nothing in any row."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [[head[i] for i in kept], ["---"] * len(kept)] + [[row[i] for i in kept] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def number(value):
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def default_text(value):
    """A default as one would write it: the program keeps times in picoseconds and sizes in bytes."""
    if isinstance(value, bool):
        return code(json.dumps(value))
    if isinstance(value, (int, float)):
        return number(value)
    if not isinstance(value, str):
        return code(json.dumps(value))
    if value == "":
        return "empty"
    quantity = re.fullmatch(r"(\d+) (ps|s|B)", value)
    if quantity:
        n, unit = int(quantity.group(1)), quantity.group(2)
        for size, name in {"ps": ((10**6, "us"), (10**3, "ns")), "s": ((86400, "days"), (3600, "h"), (60, "min")),
                           "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))}[unit]:
            if n >= size and n * 10 % size == 0:
                return code(f"{number(n / size)} {name}")
    return code(value)


def shown_default(schema):
    """Nothing where the default is no value that may be written: it then stands for an absent field."""
    value = schema.get("default")
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and
                         not schema.get("minimum", value) <= value <= schema.get("maximum", value)):
        return ""
    return default_text(value)


def alternatives(schema):
    return schema.get("anyOf", [schema])


def type_text(schema):
    kinds = []
    for s in alternatives(schema):
        if "enum" in s:
            kind = "name"
        elif s.get("type") == "array":
            kind = "list" + (" of " + plural(type_text(s["items"])) if isinstance(s.get("items"), dict) else "")
        elif s.get("type") == "object":
            kind = "object"
        elif s.get("type") == "string":
            kind = "text with a unit" if s.get("examples") else "text"
        else:
            kind = {"integer": "whole number", "number": "number", "boolean": "true or false"}.get(s.get("type"), "any")
        if kind not in kinds:
            kinds.append(kind)
    return " or ".join(kinds)


def plural(kind):
    return {"name": "names", "object": "objects", "text": "texts", "whole number": "whole numbers", "number": "numbers",
            "text with a unit": "texts with a unit", "text or object": "texts or objects"}.get(kind, kind)


def allowed_text(schema):
    parts = []
    for s in alternatives(schema):
        if "enum" in s:
            parts.append(", ".join(code(v) for v in s["enum"]))
        low, high = s.get("minimum"), s.get("maximum")
        if low is not None and high is not None:
            parts.append(f"{number(low)} to {number(high)}")
        elif low is not None:
            parts.append(f"at least {number(low)}")
        elif high is not None:
            parts.append(f"at most {number(high)}")
        if "maxLength" in s:
            parts.append(f"at most {number(s['maxLength'])} bytes of text")
        if "maxItems" in s:
            parts.append(f"at most {number(s['maxItems'])} elements" + (", all different" if s.get("uniqueItems") else ""))
        if "maxProperties" in s:
            parts.append(f"at most {number(s['maxProperties'])} entries")
        for inner in (s.get("items"), s.get("additionalProperties")):
            if isinstance(inner, dict) and not properties_of(inner) and allowed_text(inner):
                parts.append("each " + allowed_text(inner))
    found = re.search(r" \(((?:at least|at most) [^()]*)\)$", schema.get("description", ""))
    if found:
        parts.append(cell(found.group(1)))
    return "; ".join(parts)


def unit_text(schema):
    found = []
    for s in alternatives(schema):
        for inner in (s, s.get("items"), s.get("additionalProperties")):
            if isinstance(inner, dict):
                found += [UNITS.get(e, "as " + code(e)) for e in inner.get("examples", [])]
    return " or ".join(dict.fromkeys(found))


def description_text(schema):
    return cell(re.sub(r" \((?:at least|at most) [^()]*\)$", "", schema.get("description", "")))


def properties_of(schema):
    """[(name, schema, required)] of an object, also where it is one of several alternatives."""
    return [(name, field, name in s.get("required", []))
            for s in alternatives(schema) for name, field in s.get("properties", {}).items() if name not in EVERYWHERE]


def objects(schema, at="", title=""):
    """[(pointer, description, fields)] of every object in a schema, from the outside in."""
    out = []
    if properties_of(schema):
        out.append((at, title, properties_of(schema)))
    for s in alternatives(schema):
        for name, field in s.get("properties", {}).items():
            if name not in EVERYWHERE:
                out += objects(field, at + "/" + name, field.get("description", ""))
        if isinstance(s.get("items"), dict):
            out += objects(s["items"], at + "/*", "each element of the list")
        if isinstance(s.get("additionalProperties"), dict):
            out += objects(s["additionalProperties"], at + "/NAME", "each entry")
    return out


def format_page(name, schema):
    lines = [f"# {name.capitalize()}", "",
             f"A file of this format says: {TITLES.get(name, name)}. `orrery schema {name}` prints the same as a JSON "
             "Schema. Both are made from the declarations that the program reads files with.", "",
             "A pointer names the place of a field: `*` stands for each element of a list, and `NAME` for a name of "
             "your own. Fields in **bold** must be there. Every object may also have `$schema`, `schema` (name and "
             "version of the format) and `comment`. Units are described in [file formats](../file-formats.md).", ""]
    for at, title, fields in objects(schema):
        if at:
            lines += [f"## `{at}`", ""]
            if title:
                lines += [cell(title[:1].upper() + title[1:]) + ".", ""]
        rows = []
        for field, s, required in fields:
            pointer = code(f"{at}/{field}")
            rows.append([f"**{pointer}**" if required else pointer, type_text(s), allowed_text(s), unit_text(s),
                         shown_default(s), description_text(s)])
        lines += table(["field", "type", "allowed", "unit", "default", "meaning"], rows) + [""]
    return "\n".join(lines)


# --- commands ---

def plain(text):
    """A line of a manual page without its requests."""
    text = re.sub(r"\\f[BIRP]", "", text)
    return text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def manual_page(text):
    """{section: [(term, description)]}; text without a term has the term ''."""
    sections, name, term, expects_term = {}, "", "", False
    for line in text.splitlines():
        if line.startswith(".TH"):
            continue
        if line.startswith(".SH "):
            name, term, expects_term = plain(line[4:]), "", False
            sections[name] = []
        elif line.startswith(".TP"):
            expects_term = True
        elif expects_term:
            term, expects_term = plain(re.sub(r"^\.[A-Z]+ ", "", line)), False
            sections[name].append((term, ""))
        else:
            words = plain(re.sub(r"^\.[A-Z]+ ", "", line))
            if term:
                sections[name][-1] = (term, (sections[name][-1][1] + " " + words).strip())
            else:
                sections[name].append(("", words))
    return sections


def option_row(term, description):
    """Name, value, allowed, default, meaning of an option or an argument."""
    names = re.match(r"(-[\w-]+(?:, -[\w-]+)*|\S+)\s*(.*)$", term)
    name, value = names.group(1), names.group(2)
    allowed = ""
    bounds = re.search(r":(?:U?INT|FLOAT) in \[(\S+) - (\S+)\]", value)
    if bounds:
        allowed = " to ".join(f"{int(n):,}" if re.fullmatch(r"-?\d+", n) else n for n in bounds.groups())
        value = value.replace(bounds.group(0), "")
    listed = re.search(r"\{([^}]*)\}", value)
    if listed:
        allowed = ", ".join(code(v) for v in listed.group(1).split(","))
        value = value.replace(listed.group(0), "NAME")
    for theirs, ours in (("UINT", "whole number"), ("INT", "whole number"), ("FLOAT", "number"), ("TEXT", "text"), ("NAME", "name")):
        value = re.sub(rf"\b{theirs}\b", ours, value)
    value = value.replace(" ...", ", several")
    default = re.search(r" Without it: (.*)\.$", description)
    if default:
        description = description[:default.start()]
    return [f'<code class="name">{html.escape(name)}</code>', cell(value), allowed, code(default.group(1)) if default else "",
            cell(description)]


def command_section(page):
    name, summary = page["NAME"][0][1].split(" - ", 1)
    name = page["SYNOPSIS"][0][1] if page.get("SYNOPSIS") else name
    lines = [f"## {name}", "", cell(summary[:1].upper() + summary[1:]) + ".", ""]
    synopsis = " ".join(words for _, words in page.get("SYNOPSIS", []))
    if synopsis:
        lines += [code(synopsis), ""]
    for section in ("COMMANDS", "ARGUMENTS", "OPTIONS"):
        rows = [r for r in page.get(section, []) if r[0]]
        if not rows:
            continue
        if section == "COMMANDS":
            lines += table(["command", "does"], [[code(t), cell(d)] for t, d in rows])
        else:
            lines += table([section.lower()[:-1], "value", "allowed", "without it", "meaning"], [option_row(t, d) for t, d in rows])
        lines.append("")
    return lines


def commands_page(program):
    with tempfile.TemporaryDirectory() as folder:
        printed(program, "man", "--folder", folder)
        pages = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.1"))):
            with open(path, encoding="utf-8") as file:
                pages[os.path.basename(path)[:-2]] = manual_page(file.read())
    lines = ["# Commands and options", "",
             "Every command with its arguments and options, as `orrery COMMAND --help` and the manual pages have them. "
             "[Command line](../cli.md) explains how they work together.", ""]
    for name, page in pages.items():
        lines += command_section(page)
    ends = next((p["EXIT STATUS"] for p in pages.values() if p.get("EXIT STATUS")), [])
    if ends:
        lines += ["## Exit status", ""] + table(["status", "means"], [[t, cell(d)] for t, d in ends]) + [""]
    return "\n".join(lines)


def write(program, folder):
    os.makedirs(folder, exist_ok=True)
    pages = {name: format_page(name, json.loads(printed(program, "schema", name))) for name in formats(program)}
    pages["commands"] = commands_page(program)
    for name, text in pages.items():
        with open(os.path.join(folder, name + ".md"), "w", encoding="utf-8") as file:
            file.write(text)
    return sorted(pages)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(f"reference: {len(write(sys.argv[1], sys.argv[2]))} pages")
