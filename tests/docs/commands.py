# SPDX-License-Identifier: Apache-2.0
"""Runs what the documentation tells readers to type: every block of sh, console and Python in README.md and
docs/, document by document, each in a scratch folder that looks like a clone, with the program first in PATH.

A comment in the line before a block says what differs:

    <!-- not run: needs a GPU -->           it is not run, and counted under this reason
    <!-- nightly -->                        it takes long: run with --nightly alone
    <!-- needs: orrery-gui -->              it is run where this program is found
    <!-- exits with 4 -->                   the last command's exit code; 0 without this
    <!-- output varies: measured times -->  what a console block shows is not compared

What a console block shows is compared with what is printed: words and their order, not line ends, and numbers within
2 % or a unit of their last digit. A line "...", or one that ends in it, stands for lines that were left out. A
console block without a command shows more of what the last one printed.
Names of commands and options are looked up in the program's own help, in text too. JSON has to be JSON.

Usage: commands.py ORRERY SOURCE [--nightly] [DOCUMENT...]
"""

import collections
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

LANGUAGES = ("sh", "console", "python", "json", "text", "cmake", "cpp", "yaml")
CLONE = ("bench", "docs", "examples", "profiles", "scenarios", "scripts", "tests/data", "topologies", "README.md")
# Options that text names of other programs.
FOREIGN = {
    "--case", "--component", "--enable-recovery", "--overlap-moe-expert-parallel-comm", "--preset", "--prefix",
    "--recompute-method", "--switches",
}
LONGEST_S = 600

Block = collections.namedtuple("Block", "document line language marks text")


class Failure(Exception):
    pass


# --- documents ---

def blocks_of(text, document):
    """Fenced blocks with the comments before them, and the lines outside of fences."""
    blocks, prose, marks = [], [], {}
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        fence = re.match(r"^( *)```(.*)$", lines[at])
        mark = re.match(r"^ *<!-- (not run|nightly|needs|exits with|output varies)(?::)? ?(.*?) ?-->$", lines[at])
        if fence:
            end = at + 1
            while end < len(lines) and not re.match(r"^ *```\s*$", lines[end]):
                end += 1
            indent = len(fence.group(1))
            body = "\n".join(line[indent:] for line in lines[at + 1:end])
            blocks.append(Block(document, at + 1, fence.group(2).strip(), marks, body))
            at, marks = end + 1, {}
            continue
        marks = {**marks, mark.group(1): mark.group(2)} if mark else {}
        prose.append((at + 1, lines[at]))
        at += 1
    return blocks, prose


def commands_of(text):
    """Commands of a shell's text, with the lines that go on with them and the documents that they read."""
    out, lines = [], text.split("\n")
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        command = [lines[at]]
        while command[-1].endswith("\\") and at + 1 < len(lines):
            at += 1
            command.append(lines[at])
        here = re.search(r"<<-?\s*['\"]?(\w+)", "\n".join(command))
        while here and at + 1 < len(lines):
            at += 1
            command.append(lines[at])
            if lines[at].strip() == here.group(1):
                break
        out.append("\n".join(command))
        at += 1
    return out


def console_of(text):
    """[(command, what is shown of its output)] of a block of console; the command '' is the last one before it."""
    out, lines = [], text.split("\n")
    at = 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            out = out or [("", [])]
            out[-1][1].append(lines[at])
            at += 1
            continue
        rest = commands_of("\n".join([lines[at][2:]] + lines[at + 1:]))[0]
        out.append((rest, []))
        at += len(rest.split("\n"))
    return [(command, "\n".join(shown)) for command, shown in out]


# --- what is shown against what was printed ---

def words_of(text):
    text = re.sub(r"=+", "=", text)
    return re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|[^\s\d]+", text)


def alike(shown, printed):
    if shown == printed:
        return True
    try:
        a, b = float(shown.replace(",", "")), float(printed.replace(",", ""))
    except ValueError:
        return False
    digits = re.search(r"\.(\d+)", shown)
    unit = 10.0 ** -len(digits.group(1)) if digits else 0
    return abs(a - b) <= max(0.02 * abs(b), 1.001 * unit)


def check_output(shown, printed):
    """Each run of lines that is shown was printed, one after the other."""
    parts = re.split(r"(?:(?<=\s)|^)\.\.\.(?=\s|$)", shown)
    theirs, at = words_of(printed), 0
    for part in parts:
        ours = words_of(part)
        if not ours:
            continue
        best = 0
        for begin in range(at, len(theirs) - len(ours) + 1):
            same = 0
            while same < len(ours) and alike(ours[same], theirs[begin + same]):
                same += 1
            best = max(best, same)
            if same == len(ours):
                at = begin + same
                break
        else:
            raise Failure(f'is not printed: "{" ".join(ours[max(0, best - 8):best + 4])}", from its word "{ours[min(best, len(ours) - 1)]}"'
                          f" on; printed:\n{printed[:6000]}")


# --- names ---

class Names:
    """Commands and options that the program's help has."""

    def __init__(self, program):
        self.options, self.commands = {}, {}
        self.read(program, ())
        self.all_options = set().union(*self.options.values()) | FOREIGN
        self.gui = self.gui_options(os.path.join(os.path.dirname(program), "orrery-gui"))

    def read(self, program, path):
        help_text = subprocess.run([program, *path, "--help"], capture_output=True, text=True, check=True).stdout
        self.options[path] = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", "\n".join(
            line for line in help_text.split("\n") if re.match(r"^  -", line)))) | {"--help"}
        listed = help_text.split("\nSubcommands:\n")
        names = re.findall(r"^  ([a-z][a-z-]*)", listed[1], re.MULTILINE) if len(listed) > 1 else []
        self.commands[path] = set(names)
        for name in names:
            self.read(program, path + (name,))

    @staticmethod
    def gui_options(program):
        if not os.path.exists(program):
            return None
        shown = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
        return set(re.findall(r"--[a-z][a-z-]*", shown))

    def check(self, text):
        """Problems with the calls of orrery in a text."""
        for call in re.split(r"\n|(?:^|(?<=[\s(`'\"]))(?=orrery(?:-gui)?\s)", re.sub(r"(?<!\S)#.*", "", text)):
            words = call.split()
            if not words or words[0] not in ("orrery", "orrery-gui"):
                continue
            options = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", call)
            if words[0] == "orrery-gui":
                for option in options:
                    if self.gui is not None and option not in self.gui:
                        yield f"orrery-gui has no option {option}"
                continue
            path, known = (), set(self.options[()])
            for word in words[1:]:
                word = word.strip("[]();,.`")
                if not self.commands[path] or word.startswith("-") or not re.fullmatch(r"[a-z][a-z-]*", word):
                    break
                if word not in self.commands[path]:
                    yield f'"{" ".join(("orrery",) + path)}" has no command "{word}"'
                    break
                path += (word,)
                known |= self.options[path]
            for option in options:
                if option not in known and not self.below(path, option):
                    yield f'"{" ".join(("orrery",) + path)}" has no option {option}'

    def below(self, path, option):
        return any(option in o for p, o in self.options.items() if p[:len(path)] == path) and bool(self.commands[path])


def check_prose(names, document, prose):
    text = "\n".join(line for _, line in prose)
    for span in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", text):
        words, line = span.group(1), prose[text.count("\n", 0, span.start())][0]
        first = words.split()[0] if words.split() else ""
        problems = []
        if first in ("orrery", "orrery-gui"):
            problems = names.check(words)
        elif first in names.commands[()] and " --" in words:
            problems = names.check("orrery " + words)
        elif first.startswith("--"):
            option = re.match(r"--[a-z][a-z0-9-]*", first)
            if option and option.group(0) not in names.all_options | (names.gui or set()):
                problems = [f"there is no option {option.group(0)}"]
        for problem in problems:
            yield f"{document}:{line}: `{words}`: {problem}"


# --- running ---

class Scratch:
    """A folder that looks like a clone, and a shell whose variables and folder last from block to block."""

    def __init__(self, program, source):
        self.folder = tempfile.mkdtemp(prefix="orrery-docs-")
        self.printed = None
        self.clone = os.path.join(self.folder, "orrery")
        for name in CLONE:
            path, copy = os.path.join(source, name), os.path.join(self.clone, name)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            if os.path.isdir(path):
                shutil.copytree(path, copy)
            elif os.path.exists(path):
                shutil.copyfile(path, copy)
        self.state = os.path.join(self.folder, "state")
        home = os.path.join(self.folder, "home")
        os.makedirs(home)
        self.environment = {k: v for k, v in os.environ.items() if k not in ("ORRERY_DATA", "BASH_ENV", "DISPLAY")}
        self.environment.update(PATH=os.path.dirname(program) + os.pathsep + os.environ["PATH"], HOME=home,
                                XDG_RUNTIME_DIR=home, QT_QPA_PLATFORM="offscreen", LC_ALL="C.UTF-8", COLUMNS="80",
                                # Open MPI refuses root, and more processes than cores.
                                OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                OMPI_MCA_rmaps_base_oversubscribe="1")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, arguments, exit_code):
        try:
            done = subprocess.run(arguments, cwd=self.clone, env=self.environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired:
            raise Failure(f"takes more than {LONGEST_S} s") from None
        printed = done.stdout.decode("utf-8", "replace")
        if done.returncode != exit_code:
            raise Failure(f"exit code {done.returncode}, not {exit_code}:\n{printed[-3000:]}")
        return printed

    def shell(self, script, exit_code=0):
        state = self.state
        return self.run(["bash", "-c", f"set -euo pipefail; [ ! -f {state} ] || . {state}\n"
                         f"trap 'code=$?; {{ export -p; printf \"cd %q\\n\" \"$PWD\"; }} >{state}; exit $code' EXIT\n{script}\n"],
                        exit_code)


def lacking(block, scratch):
    """A program that the block needs and that is not here, or nothing."""
    if block.language == "python":
        found = subprocess.run([sys.executable, "-c", "import orrery"], env=scratch.environment, capture_output=True, check=False)
        if found.returncode != 0:
            return "the Python module"
    for name in block.marks.get("needs", "").split(","):
        if name.strip() and not shutil.which(name.strip(), path=scratch.environment["PATH"]):
            return name.strip()
    return ""


def run_block(block, scratch):
    """Runs a block; gives how many commands it has."""
    exit_code = int(block.marks.get("exits with", 0))
    if block.language == "python":
        scratch.run([sys.executable, "-c", block.text], exit_code)
        return 1
    if block.language == "sh":
        scratch.shell(block.text, exit_code)
        return len(commands_of(block.text))
    pairs = console_of(block.text)
    for n, (command, shown) in enumerate(pairs):
        if command:
            scratch.printed = scratch.shell(command, exit_code if n + 1 == len(pairs) else 0)
        elif scratch.printed is None:
            raise Failure('shows output without a command: a command stands behind "$ "')
        if "output varies" not in block.marks:
            check_output(shown, scratch.printed)
    return sum(1 for command, _ in pairs if command)


def shell_text(block):
    """What a shell would be given of a block, to look names up in it."""
    if block.language == "console":
        return "\n".join(command for command, _ in console_of(block.text))
    if block.language in ("sh", "text", ""):
        return re.sub(r"\n[ \t]+", " ", block.text.replace("\\\n", " "))
    return ""


def check_block(block, names):
    """What is wrong with a block as it is written."""
    if block.language not in LANGUAGES:
        yield f'its language is "{block.language}"; allowed: ' + ", ".join(LANGUAGES)
        return
    if block.language == "json":
        try:
            json.loads(block.text if block.text.lstrip().startswith(("{", "[")) else "{" + block.text + "}")
        except ValueError as e:
            yield f"no JSON: {e}"
    if "not run" in block.marks and not block.marks["not run"]:
        yield '"not run" gives no reason'
    if block.language == "text" and "not run" not in block.marks and re.search(r"^(\$ )?orrery(-gui)? ", block.text, re.MULTILINE):
        yield 'commands in a block of text: say sh or console, or why they are "not run"'
    if block.language in ("sh", "console", "text"):
        yield from names.check(shell_text(block))


class Report:
    def __init__(self):
        self.problems, self.run, self.commands, self.slow = [], 0, 0, []
        self.left_out = collections.defaultdict(list)


def check_document(path, document, names, program, source, nightly, report):
    with open(path, encoding="utf-8") as file:
        blocks, prose = blocks_of(file.read(), document)
    report.problems += check_prose(names, document, prose)
    scratch = None
    try:
        for block in blocks:
            where = f"{document}:{block.line}"
            try:
                wrong = list(check_block(block, names))
            except Failure as e:
                wrong = [str(e)]
            report.problems += [f"{where}: {w}" for w in wrong]
            if wrong or block.language not in ("sh", "console", "python"):
                continue
            if "not run" in block.marks:
                report.left_out[block.marks["not run"]].append(where)
                continue
            if "nightly" in block.marks and not nightly:
                report.left_out["takes long: at night"].append(where)
                continue
            scratch = scratch or Scratch(program, source)
            lacks = lacking(block, scratch)
            if lacks:
                report.left_out[f"needs {lacks}, which is not here"].append(where)
                continue
            began = time.monotonic()
            try:
                report.commands += run_block(block, scratch)
                report.run += 1
            except Failure as e:
                report.problems.append(f"{where}: {e}")
            report.slow.append((time.monotonic() - began, where))
    finally:
        if scratch:
            scratch.__exit__()


# --- negative controls: each mistake is noticed, and what is right passes ---

CONTROLS = [
    ("```sh\norrery --version\n```", ""),
    ("```sh\norrery plan nowhere.json\n```", "exit code 3"),
    ("<!-- exits with 3 -->\n```sh\norrery plan nowhere.json\n```", ""),
    ("<!-- exits with 3 -->\n```sh\norrery --version\n```", "exit code 0, not 3"),
    ("<!-- not run: needs a GPU -->\n```sh\nfalse\n```", ""),
    ("<!-- not run: -->\n```sh\nfalse\n```", "gives no reason"),
    ("<!-- not run: needs a GPU -->\n\n```sh\nfalse\n```", "exit code 1"),
    ("<!-- not run: needs a GPU -->\n```sh\norrery plan x.json --goall time\n```", "no option --goall"),
    ("```sh\nfalse\ntrue\n```", "exit code 1"),
    ("```sh\nfalse | true\n```", "exit code 1"),
    ("```sh\nexport A=b\nmkdir f\ncd f\n```\n```sh\n[ $A = b ]\n[ $(basename $PWD) = f ]\n```", ""),
    ("```\norrery --version\n```", "its language"),
    ("```text\norrery --version\n```", "commands in a block of text"),
    ("```json\n\"a\": 1, \"b\": [2]\n```", ""),
    ("```json\n\"a\": 1, \"b\": [2\n```", "no JSON"),
    ("```console\n$ printf 'a 100 b\\nc 5.0 d\\ne\\n'\na 101\nb c 5.1\n...\ne\n```", ""),
    ("```console\n$ printf 'a 100 b\\nc 5.0 d\\n'\na 103 b\n```", "is not printed"),
    ("```console\n$ printf 'a 100 b\\nc 5.0 d\\n'\na 100 b\nd\n```", "is not printed"),
    ("```console\n$ printf 'a\\nb\\n'\nb\n...\na\n```", "is not printed"),
    ("<!-- output varies: time -->\n```console\n$ printf 'a\\n'\nb\n```", ""),
    ("```console\n$ cat <<EOF\na\nEOF\na\n```", ""),
    ("```console\na\n```", "output without a command"),
    ("```console\n$ printf 'a\\nb\\n'\na\n```\ntext\n```console\nb\n```", ""),
    ("```console\n$ printf 'a\\nb\\n'\na\n```\ntext\n```console\nc\n```", "is not printed"),
    ("<!-- needs: no-such-program -->\n```sh\nno-such-program\n```", ""),
    ("`orrery plan --top 3`, `orrery model show`, `plan --top`, `--goal`, `orrery plan SCENARIO`", ""),
    ("`orrery plam`", 'no command "plam"'),
    ("`orrery plan --topp 3`", "no option --topp"),
    ("`plan --topp 3`", "no option --topp"),
    ("`--gaol`", "no option --gaol"),
    ("`orrery model shew`", 'no command "shew"'),
    ("<!-- not run: synopsis -->\n```text\norrery plan [A] [--top K]\n     [--gaol x]\n```", "no option --gaol"),
]


def check_controls(names, program, source):
    with tempfile.TemporaryDirectory() as folder:
        for text, wanted in CONTROLS:
            path = os.path.join(folder, "control.md")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            report = Report()
            check_document(path, "control", names, program, folder, False, report)
            found = "\n".join(report.problems)
            if (wanted == "") != (found == "") or wanted not in found:
                sys.exit(f"control: {text!r} should give {wanted!r}, and gives {found!r}")


def main():
    arguments = sys.argv[1:]
    nightly = "--nightly" in arguments
    arguments = [a for a in arguments if a != "--nightly"]
    if len(arguments) < 2:
        sys.exit(__doc__)
    program, source = os.path.abspath(arguments[0]), os.path.abspath(arguments[1])
    documents = arguments[2:] or ["README.md"] + sorted(
        os.path.relpath(p, source) for p in glob.glob(os.path.join(source, "docs/**/*.md"), recursive=True))
    names = Names(program)
    check_controls(names, program, source)
    began, report = time.monotonic(), Report()
    for document in documents:
        check_document(os.path.join(source, document), document, names, program, source, nightly, report)
    left_out = sum(len(v) for v in report.left_out.values())
    print(f"docs: {len(documents)} documents; {report.run} blocks with {report.commands} commands run in "
          f"{time.monotonic() - began:.0f} s, {left_out} not run")
    for reason, places in sorted(report.left_out.items()):
        print(f"  not run, {reason}: {len(places)}: {', '.join(places)}")
    print("  longest: " + ", ".join(f"{where} {seconds:.1f} s" for seconds, where in sorted(report.slow)[:-6:-1]))
    for problem in report.problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
