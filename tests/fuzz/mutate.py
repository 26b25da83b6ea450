#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `orrery` on valid files that were changed, and asserts what holds of every input:

  * it ends by itself, within a time and an amount of memory, with one of its own exit codes;
  * what it prints is UTF-8 without control characters, and no text of a library's exception;
  * invalid input (3) is answered with the name of a file or the command line, and nothing is written then.

  mutate.py ORRERY ROOT [--cases N] [--seed S] [--case K] [--format NAME] [--keep FOLDER] [--sanitized]

Case K of seed S is always the same. A case that fails is printed with the command that repeats it; with --case its
files stay in FOLDER.
"""
import argparse
import collections
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import mutators
import seeds

EXIT_CODES = (0, 1, 2, 3, 4, 5)
CPU_SECONDS, WALL_SECONDS = 30, 120
PEAK_MIB, ADDRESS_MIB = 1536, 6144
RAW = re.compile(rb"json\.exception|what\(\)|terminate called|std::|basic_string|_M_|vector::|bad_alloc|bad_optional|"
                 rb"boost::|syntax error while|type_error|out_of_range|runtime error:|Sanitizer|Assertion|stoi|stod|"
                 rb"filesystem error")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def snapshot(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def limits(sanitized):
    def apply():
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not sanitized:  # a sanitizer reserves terabytes of addresses
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_MIB << 20, ADDRESS_MIB << 20))
    return apply


def run(command, folder, environment, sanitized):
    """Exit code (negative: a signal; None: out of time), output, errors and peak memory in MiB."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                   env=environment, preexec_fn=limits(sanitized))
        end = time.monotonic() + WALL_SECONDS
        pid = 0
        while pid == 0 and time.monotonic() < end:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid == 0:
                time.sleep(0.002)
        if pid == 0:
            process.kill()
            _, status, used = os.wait4(process.pid, 0)
            code = None
        else:
            code = os.waitstatus_to_exitcode(status)
        process.returncode = code
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read())
    return code, *texts, used.ru_maxrss / 1024


def problems(code, out, errors, peak, before, after, mutates_arguments, sanitized):
    found = []
    if code is None:
        found.append(f"still runs after {WALL_SECONDS} s")
    elif code == -signal.SIGXCPU:
        found.append(f"takes more than {CPU_SECONDS} s")
    elif code not in EXIT_CODES:
        found.append(f"exit code {code}")
    if code == 2 and not mutates_arguments:
        found.append("a usage error (2) for a file")
    if peak > PEAK_MIB * (4 if sanitized else 1):
        found.append(f"takes {peak:.0f} MiB of memory")
    for name, text in (("standard output", out), ("standard error", errors)):
        if match := RAW.search(text):
            found.append(f"{name} has text of a library: {match.group().decode()}")
        try:
            if match := CONTROL.search(text.decode()):
                found.append(f"{name} has the control character {match.group()!r}")
        except UnicodeDecodeError as e:
            found.append(f"{name} is not UTF-8: {e}")
    if code == 3:
        if before != after:
            found.append("invalid input, and yet it wrote " +
                         ", ".join(n for n in after if before.get(n) != after[n]))
        message = re.search(rb"^orrery: ([^:]*): (<[^>]*>|[^:]*): \S", errors, re.M)  # an element names its attribute
        names = {"command line", *(pathlib.Path(n).name for n in before)}
        if not mutates_arguments and (not message or pathlib.Path(message.group(1).decode()).name not in names):
            found.append("invalid input, and no file and place of it")
    if code not in (0, None) and code >= 0 and not errors and code not in (4, 5) and b"findings" not in out and \
            b"tried" not in out:
        found.append("fails without a word")
    return found


class Cases:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.formats = seeds.formats(options.orrery, options.root, folder)
        if options.format:
            self.formats = [f for f in self.formats if f.name == options.format]

    def lay_out(self, name, f, data):
        """A folder with the format's files, and `data` as the one that is read."""
        at = self.folder / name
        shutil.rmtree(at, ignore_errors=True)
        for file, content in {**f.beside, **({f.file: data} if f.file else {})}.items():
            (at / file).parent.mkdir(parents=True, exist_ok=True)
            (at / file).write_bytes(content)
            (at / file).chmod(0o600)  # files with secrets are refused otherwise
        return at

    def run(self, at, f, arguments):
        environment = dict(os.environ, ORRERY_DATA=self.options.root, **f.environment)
        return run([self.options.orrery, *arguments], at, environment, self.options.sanitized)

    def check_seeds(self):
        """Changes to files that are refused as they are would test nothing."""
        wrong = []
        for f in self.formats:
            for arguments in f.arguments:
                code, _, errors, _ = self.run(self.lay_out("seed", f, f.seed), f, arguments)
                if code != f.exit_code:
                    wrong.append(f"the seed of {f.name}: {arguments} exits with {code}: {errors[:300]}")
        return wrong

    def make(self, number):
        """The folder of a case, its format and its command."""
        rng = random.Random(f"{self.options.seed}/{number}")
        f = rng.choices(self.formats, [f.weight for f in self.formats])[0]
        arguments, data = rng.choice(f.arguments), f.seed
        if f.kind == "arguments":
            arguments = mutators.mutate_arguments(rng, arguments)
        else:
            data = mutators.MUTATORS[f.kind](rng, f.seed)
        return self.lay_out(f"case-{number}", f, data), f, arguments

    def check(self, number):
        at, f, arguments = self.make(number)
        before = snapshot(at)
        code, out, errors, peak = self.run(at, f, arguments)
        found = problems(code, out, errors, peak, before, snapshot(at), f.kind == "arguments",
                         self.options.sanitized)
        if found or self.options.case is not None:
            print(f"case {number} ({f.name}): orrery {' '.join(map(repr, arguments))}\n  exit code {code}, {peak:.0f} MiB")
            for problem in found:
                print("  PROBLEM:", problem)
            print("  " + errors.decode(errors="backslashreplace")[:600].strip().replace("\n", "\n  "))
        if self.options.case is None:
            shutil.rmtree(at)
        return f.name, code, peak, bool(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("orrery")
    parser.add_argument("root")
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    parser.add_argument("--format")
    parser.add_argument("--keep")
    parser.add_argument("--sanitized", action="store_true")
    options = parser.parse_args()
    options.orrery, options.root = os.path.abspath(options.orrery), os.path.abspath(options.root)
    numbers = range(options.cases) if options.case is None else [options.case]
    print(f"seed {options.seed}, {len(numbers)} cases")
    kept = pathlib.Path(options.keep) if options.keep else None
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
    folder = kept or pathlib.Path(tempfile.mkdtemp(prefix="orrery-mutate-"))
    try:
        cases = Cases(options, folder)
        if wrong := cases.check_seeds():
            print("\n".join(wrong))
            return 1
        codes, failed, worst = collections.defaultdict(collections.Counter), [], 0
        for number in numbers:
            name, code, peak, bad = cases.check(number)
            codes[name][code] += 1
            worst = max(worst, peak)
            if bad:
                failed.append(number)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    for name, counts in sorted(codes.items()):
        print(f"  {name:<24}", ", ".join(f"{n} x {code}" for code, n in sorted(counts.items(), key=str)))
    print(f"{len(numbers)} cases, {len(failed)} failed; at most {worst:.0f} MiB")
    if failed:
        print(f"repeat one: {sys.argv[0]} {options.orrery} {options.root} --seed {options.seed} --case {failed[0]} "
              "--keep FOLDER")
    # Mutations that are all refused, or all accepted, test nothing.
    total = sum((c for c in codes.values()), collections.Counter())
    if options.case is None and not options.format and (total[0] < len(numbers) / 50 or total[3] < len(numbers) / 4):
        print(f"too few cases are accepted or refused: {dict(total)}")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
