# SPDX-License-Identifier: Apache-2.0
"""Brings together what MkDocs makes the documentation site of: a copy of docs/, the generated reference, and the
files outside docs/ that pages link to (a site has no other files). Links to folders outside docs/ become text.

Usage: site_pages.py ORRERY FOLDER
"""

import os
import re
import shutil
import sys

import reference

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
FENCE = re.compile(r"^ *(```|~~~)")

STYLE = """\
.wy-nav-content { max-width: 1100px; }
.rst-content table.docutils td, .rst-content table.docutils th,
.wy-table-responsive table td, .wy-table-responsive table th { white-space: normal !important; vertical-align: top; }
.rst-content code.name { white-space: nowrap; }
.rst-content pre code { font-size: 12px; }
.rst-content h2, .rst-content h3 { margin-top: 1.5em; }
"""

# Debian's theme names two scripts that it does not have: jQuery under another version's name, and one that gives
# tables their style.
JQUERY, JQUERY_NAME = "/usr/share/javascript/jquery/jquery.min.js", "jquery-3.6.0.min.js"
TABLES = "$('div.rst-content table').addClass('docutils');\n"


def brought(text, page, folder):
    """The page's text, where links that leave docs/ lead to copies of the files, or are text."""

    def link(match):
        words, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if re.match(r"[a-z]+:", target):
            return match.group(0)
        path = os.path.normpath(os.path.join("docs", os.path.dirname(page), target))
        if path.startswith("docs/") or path == "docs":
            return match.group(0)
        if not os.path.isfile(os.path.join(SOURCE, path)):
            if not os.path.isdir(os.path.join(SOURCE, path)):
                sys.exit(f"docs/{page}: {target} is not there")
            return words
        copy = os.path.join("files", path + (".txt" if path.endswith(".md") else ""))
        os.makedirs(os.path.join(folder, os.path.dirname(copy)), exist_ok=True)
        shutil.copyfile(os.path.join(SOURCE, path), os.path.join(folder, copy))
        return f"[{words}]({os.path.relpath(copy, os.path.dirname(page) or '.')}{anchor})"

    lines, fence = [], False
    for line in text.split("\n"):
        if FENCE.match(line):
            fence = not fence
        lines.append(line if fence else LINK.sub(link, line))
    return "\n".join(lines)


def bring(program, folder):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(SOURCE, "docs"), folder)
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            if name.endswith(".md"):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                with open(path, "w", encoding="utf-8") as file:
                    file.write(brought(text, os.path.relpath(path, folder), folder))
    with open(os.path.join(folder, "site.css"), "w", encoding="utf-8") as file:
        file.write(STYLE)
    os.makedirs(os.path.join(folder, "js"), exist_ok=True)
    with open(os.path.join(folder, "js", "theme_extra.js"), "w", encoding="utf-8") as file:
        file.write(TABLES)
    if os.path.exists(JQUERY):
        shutil.copyfile(JQUERY, os.path.join(folder, "js", JQUERY_NAME))
    return reference.write(program, os.path.join(folder, "reference"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bring(sys.argv[1], sys.argv[2])
