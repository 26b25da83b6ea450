# SPDX-License-Identifier: Apache-2.0
"""The module for Python gives what the command gives. Usage: orrery_test.py ORRERY"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import orrery

PROGRAM = sys.argv.pop(1)
QUESTION = dict(model="llama-2-7b", cluster="p5", nodes=1, batch=64, sequence=4096, tokens=1e11)
WORDS = ["--model", "llama-2-7b", "--cluster", "p5", "--nodes", "1", "--batch", "64", "--sequence", "4096", "--tokens",
         "1e11"]


class Module(unittest.TestCase):
    def test_plans_as_the_command_does(self):
        answer = orrery.plan(**QUESTION)
        printed = json.loads(subprocess.run([PROGRAM, "plan", "--json", *WORDS], check=True, capture_output=True).stdout)
        self.assertEqual(answer["plans"], printed["plans"])
        self.assertEqual(answer["why"], printed["why"])
        self.assertGreater(answer.best["predicted"]["mfu"], 0.2)

    def test_fields_go_over_the_scenario(self):
        scenario = {"model": "llama-2-7b", "cluster": {"topology": "p5", "nodes": 1},
                    "training": {"global_batch": 64, "sequence": 4096}}
        plain = orrery.plan(scenario)
        wide = orrery.plan(scenario, fields={"training.math": "fp8"}, batch=128)
        self.assertEqual(wide.best["global_batch"], 128)
        self.assertEqual(plain.best["global_batch"], 64)
        self.assertEqual(scenario["training"], {"global_batch": 64, "sequence": 4096})
        self.assertGreater(wide.best["predicted"]["tokens_per_s"], plain.best["predicted"]["tokens_per_s"])

    def test_simulates_the_plan_of_a_scenario(self):
        best = orrery.plan(**QUESTION).best
        fields = {k: v for k, v in best.items() if k not in ("name", "note", "global_batch", "estimate", "predicted",
                                                             "pessimistic_s", "variants",
                                                             "peak_memory_80_percent_bytes")}
        again = orrery.simulate(fields={"plan": fields}, **QUESTION)
        self.assertAlmostEqual(again["step_time_s"], best["predicted"]["step_time_s"], places=9)
        with self.assertRaisesRegex(orrery.InputError, "/plan.*is missing"):
            orrery.simulate(**QUESTION)

    def test_wrong_input_is_named(self):
        with self.assertRaisesRegex(orrery.InputError, 'did you mean "p5"'):
            orrery.plan(**{**QUESTION, "cluster": "p55"})
        with self.assertRaisesRegex(ValueError, "/training/global_batch"):
            orrery.plan(**{**QUESTION, "batch": -1})
        with self.assertRaises(orrery.InputError):
            orrery.plan({"model": "llama-2-7b", "nonsense": 1})
        with self.assertRaisesRegex(orrery.InputError, "/top"):
            orrery.plan(**QUESTION | {"top": 0})
        with self.assertRaisesRegex(orrery.InputError, "/cluster: 'p5' is no object"):
            orrery.plan({"cluster": "p5"}, nodes=1)

    def test_what_was_given_stays_as_it_was(self):
        cluster = {"topology": "p5"}
        orrery.plan(**{**QUESTION, "cluster": cluster})
        self.assertEqual(cluster, {"topology": "p5"})

    def test_shows_itself_in_a_notebook(self):
        answer = orrery.plan(**QUESTION)
        shown = answer._repr_html_()
        self.assertTrue(shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;'))
        self.assertEqual(shown.count('"'), 4)  # of two attributes; those of the page are escaped
        with tempfile.TemporaryDirectory() as folder:
            answer.report(os.path.join(folder, "r.html"))
            with open(os.path.join(folder, "r.html"), encoding="utf-8") as page:
                self.assertEqual(page.read(), answer.html)

    def test_names(self):
        self.assertIn("llama-3.1-8b", orrery.models())
        self.assertIn("p5", orrery.clusters())
        self.assertIn("megatron-core", orrery.stacks())

    def test_other_threads_go_on(self):
        ticks = []
        done = threading.Event()

        def tick():
            while not done.wait(0.005):
                ticks.append(1)

        other = threading.Thread(target=tick)
        other.start()
        orrery.plan(**{**QUESTION, "nodes": 8, "batch": 512}, threads=1)
        done.set()
        other.join()
        self.assertGreater(len(ticks), 3)


if __name__ == "__main__":
    unittest.main()
