# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site as scripts/site.sh does, strictly, and holds it against the program: every field of
every schema and every option of every command stands on its page. All pages are in the navigation, every link leads
to something, and no page loads anything from a network. Without MkDocs the exit code is 77.

Usage: site.py ORRERY SOURCE SCRATCH
"""

import glob
import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import urllib.parse

PROGRAM, SOURCE, SCRATCH = (os.path.abspath(a) for a in sys.argv[1:4]) if len(sys.argv) > 3 else sys.exit(__doc__)
del sys.argv[1:4]
sys.path.insert(0, os.path.join(SOURCE, "scripts"))
import reference  # pylint: disable=wrong-import-position
import site_pages  # pylint: disable=wrong-import-position

PAGES, SITE = os.path.join(SCRATCH, "build/site-pages"), os.path.join(SCRATCH, "build/site")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def printed(*arguments):
    return subprocess.run([PROGRAM, *arguments], check=True, capture_output=True, text=True).stdout


def built():
    return subprocess.run(["mkdocs", "build", "--quiet", "--strict", "--clean", "-f", os.path.join(SCRATCH, "mkdocs.yml")],
                          capture_output=True, text=True, check=False)


def fields_of(schema, at=""):
    """Pointers of all fields of a JSON Schema; those of reference.py are not asked."""
    found = set()
    for key, value in schema.items():
        if key == "properties":
            for name, field in value.items():
                if name not in ("$schema", "schema", "comment"):
                    found |= {f"{at}/{name}"} | fields_of(field, f"{at}/{name}")
        elif key in ("anyOf", "oneOf", "allOf"):
            for other in value:
                found |= fields_of(other, at)
        elif key == "items":
            found |= fields_of(value, at + "/*")
        elif key == "additionalProperties" and isinstance(value, dict):
            found |= fields_of(value, at + "/NAME")
    return found


def missing_fields(schema, page):
    return sorted(p for p in fields_of(schema) if f"<code>{html.escape(p, quote=False)}</code>" not in page)


def commands_of(*path):
    """{command: its options}, as --help prints them."""
    shown = printed(*path, "--help")
    listed = shown.split("\nSubcommands:\n")
    out = {path: set(re.findall(r"^  (?:-\w,)?(--[a-z][a-z0-9-]*)", shown, re.MULTILINE))}
    for name in re.findall(r"^  ([a-z][a-z-]*)", listed[1], re.MULTILINE) if len(listed) > 1 else []:
        out.update(commands_of(*path, name))
    return out


def missing_options(commands, page):
    sections = {re.sub(r"<.*", "", s).strip(): s for s in re.split(r"<h2 id=\"[^\"]*\">", page)[1:]}
    out = []
    for path, options in commands.items():
        name = " ".join(("orrery",) + path)
        section = sections.get(name)
        if section is None:
            out.append(name)
            continue
        named = set(re.findall(r"--[a-z][a-z0-9-]*", " ".join(re.findall(r"<tr>\s*<td><code[^>]*>(.*?)</code>", section))))
        out += [f"{name} {o}" for o in sorted(options - named)]
    return out


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and the places in it that links may name."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.places = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.places |= {attributes[k] for k in ("id", "name") if attributes.get(k)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if attributes.get("src"):
            self.loads.append(attributes["src"])
        if tag == "link" and attributes.get("href") and attributes.get("rel") != "canonical":
            self.loads.append(attributes["href"])


def from_a_network(text):
    """What an HTML or CSS text loads from another place."""
    found = [u for u in Page(text).loads if re.match(r"(https?:)?//", u)]
    return found + re.findall(r"(?:url\(|@import )\s*['\"]?((?:https?:)?//[^)'\"]*)", text)


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        os.makedirs(SCRATCH)
        shutil.copyfile(os.path.join(SOURCE, "mkdocs.yml"), os.path.join(SCRATCH, "mkdocs.yml"))
        site_pages.bring(PROGRAM, PAGES)
        done = built()
        assert done.returncode == 0, done.stdout + done.stderr
        cls.pages = {os.path.relpath(p, SITE): Page(read(p)) for p in glob.glob(SITE + "/**/*.html", recursive=True)}

    def test_every_field_is_on_its_page(self):
        formats = reference.formats(PROGRAM)
        self.assertEqual(len(formats), 11, formats)
        for name in formats:
            schema = json.loads(printed("schema", name))
            page = read(os.path.join(SITE, "reference", name + ".html"))
            self.assertGreater(len(fields_of(schema)), 10, name)
            self.assertEqual(missing_fields(schema, page), [], name)
        # A row that is missing is noticed, and so is a field that the program has and the page has not.
        page = read(os.path.join(SITE, "reference/scenario.html"))
        schema = json.loads(printed("schema", "scenario"))
        row = re.search(r"<tr>\s*<td><code>/search/recompute_first</code>.*?</tr>", page, re.DOTALL).group(0)
        self.assertEqual(missing_fields(schema, page.replace(row, "")), ["/search/recompute_first"])
        schema["properties"]["training"]["properties"]["new"] = {"type": "string"}
        self.assertEqual(missing_fields(schema, page), ["/training/new"])

    def test_every_option_is_in_its_command(self):
        commands, page = commands_of(), read(os.path.join(SITE, "reference/commands.html"))
        del commands[()]  # what every command has, and --version
        self.assertIn("--deadline", commands[("plan",)])
        self.assertIn(("topology", "import"), commands)
        self.assertEqual(missing_options(commands, page), [])
        row = re.search(r"<tr>\s*<td><code[^>]*>--budget</code>.*?</tr>", page, re.DOTALL).group(0)
        self.assertIn("orrery plan --budget", missing_options(commands, page.replace(row, "")))

    def test_all_pages_are_in_the_navigation(self):
        named = set(re.findall(r": (\S+\.md)$", read(os.path.join(SOURCE, "mkdocs.yml")), re.MULTILINE))
        there = {os.path.relpath(p, PAGES) for p in glob.glob(PAGES + "/**/*.md", recursive=True)}
        self.assertEqual(named ^ there, set())

    def test_links_lead_somewhere(self):
        self.assertEqual(self.dead_links(self.pages), [])
        wrong = {"index.html": Page('<a href="tutorial.html#nowhere">a</a><a href="none.html">b</a><img src="none.png">')}
        self.assertEqual(len(self.dead_links({**self.pages, **wrong})), 3)

    @staticmethod
    def dead_links(pages):
        out = []
        for at, page in pages.items():
            for link in page.links + page.loads:
                url = urllib.parse.urlsplit(link)
                if url.scheme or url.netloc or at in ("404.html", "search.html"):
                    continue
                target = os.path.normpath(os.path.join(os.path.dirname(at), urllib.parse.unquote(url.path))) if url.path else at
                if not os.path.exists(os.path.join(SITE, target)):
                    out.append(f"{at}: {link}")
                elif url.fragment and target in pages and urllib.parse.unquote(url.fragment) not in pages[target].places:
                    out.append(f"{at}: {link}")
        return out

    def test_nothing_comes_from_a_network(self):
        texts = glob.glob(SITE + "/**/*.html", recursive=True) + glob.glob(SITE + "/**/*.css", recursive=True)
        self.assertGreater(len(texts), 40)
        for path in texts:
            self.assertEqual(from_a_network(read(path)), [], path)
        for text in ('<script src="https://x.org/a.js"></script>', '<link rel="stylesheet" href="//x.org/a.css">',
                     '<img src="http://x.org/a.png">', "@font-face { src: url('https://x.org/a.woff') }"):
            self.assertEqual(len(from_a_network(text)), 1, text)

    def test_the_build_is_strict(self):
        page = os.path.join(PAGES, "index.md")
        text = read(page)
        with open(page, "a", encoding="utf-8") as file:
            file.write("\n[nowhere](nowhere.md)\n")
        try:
            self.assertNotEqual(built().returncode, 0)
        finally:
            with open(page, "w", encoding="utf-8") as file:
                file.write(text)
            built()

    def test_links_out_of_the_docs(self):
        folder = os.path.join(SCRATCH, "links")
        text = site_pages.brought("[a](../../README.md#x) [b](../gui.md) [c](../../scenarios) ![d](../loop.svg)\n```\n[e](../../f)\n```",
                                  "how-to/page.md", folder)
        self.assertEqual(text, "[a](../files/README.md.txt#x) [b](../gui.md) c ![d](../loop.svg)\n```\n[e](../../f)\n```")
        self.assertTrue(os.path.exists(os.path.join(folder, "files/README.md.txt")))
        with self.assertRaises(SystemExit):
            site_pages.brought("[a](../../nowhere.md)", "how-to/page.md", folder)


if __name__ == "__main__":
    if not shutil.which("mkdocs"):
        print("there is no mkdocs here")
        sys.exit(77)
    unittest.main()
