# SPDX-License-Identifier: Apache-2.0
"""Plan and simulate the training of large models on GPU clusters.

    import orrery
    answer = orrery.plan(model="llama-3.1-8b", cluster="p5", nodes=4, batch=1024, sequence=8192, tokens=15e12)
    answer["plans"][0]["predicted"]["step_time_s"]

A scenario may also be a dictionary, with the fields of a scenario file (docs/file-formats.md). In a notebook an
answer shows itself as a page with tables and charts.
"""

import html
import json
import os

from . import _orrery
from ._orrery import Error, InputError

__all__ = ["Answer", "Error", "InputError", "clusters", "models", "plan", "simulate", "stacks"]


def _data():
    """The folder with profiles and topologies; empty: the library looks for it."""
    if os.environ.get("ORRERY_DATA"):
        return os.environ["ORRERY_DATA"]
    installed = os.path.join(os.path.dirname(__file__), "..", "..", "..", "..", "share", "orrery")
    return os.path.normpath(installed) if os.path.isdir(installed) else ""


class Answer(dict):
    """The answer of `orrery plan --json`, as a dictionary."""

    def __init__(self, fields, page):
        super().__init__(fields)
        self.html = page

    @property
    def best(self):
        """The best plan with its prediction; None where no plan fits."""
        return self["plans"][0] if self["plans"] else None

    def report(self, path):
        """Writes a page of HTML with tables, charts, assumptions and sources."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)

    def _repr_html_(self):
        return ('<iframe srcdoc="%s" style="width:100%%;height:640px;border:0"></iframe>'
                % html.escape(self.html, quote=True))


def _set(scenario, field, value):
    if value is None:
        return
    *path, last = field.split(".")
    for name in path:
        scenario = scenario.setdefault(name, {})
        if not isinstance(scenario, dict):
            raise InputError("scenario: /%s: %r is no object, and \"%s\" is a field of it" % (name, scenario, last))
    scenario[last] = json.loads(json.dumps(value))


def _scenario(scenario, model, cluster, nodes, batch, sequence, tokens, stack, fields):
    out = json.loads(json.dumps(scenario)) if scenario is not None else {}
    _set(out, "model", model)
    if isinstance(cluster, str):
        _set(out, "cluster.topology", cluster)
    else:
        _set(out, "cluster", cluster)
    for field, value in (("cluster.nodes", nodes), ("training.global_batch", batch),
                         ("training.sequence", sequence), ("training.tokens", tokens), ("stack", stack)):
        _set(out, field, value)
    for field, value in (fields or {}).items():
        _set(out, field, value)
    return json.dumps(out)


def plan(scenario=None, *, model=None, cluster=None, nodes=None, batch=None, sequence=None, tokens=None, stack=None,
         fields=None, top=5, threads=0, sizes=False):
    """The best plans for a scenario, why, and what did not fit.

    scenario: a dictionary; model .. stack, and fields by their paths ({"training.math": "fp8"}), go over it.
    top: plans shown. threads: 0 for all cores. sizes: also the best plan of each number of nodes.
    Raises InputError where the scenario is wrong.
    """
    text = _scenario(scenario, model, cluster, nodes, batch, sequence, tokens, stack, fields)
    answer, page = _orrery.plan(text, top, threads, sizes, _data())
    return Answer(json.loads(answer), page)


def simulate(scenario=None, *, model=None, cluster=None, nodes=None, batch=None, sequence=None, tokens=None,
             stack=None, fields=None):
    """What the scenario's own plan (its field "plan") will do: step time, MFU, memory by stage, where time goes."""
    text = _scenario(scenario, model, cluster, nodes, batch, sequence, tokens, stack, fields)
    return json.loads(_orrery.simulate(text, _data()))


def models():
    """Names of the models that are there."""
    return _orrery.names("models", _data())


def clusters():
    """Names of the clusters that are there."""
    return _orrery.names("topologies", _data())


def stacks():
    """Names of the software stacks that are there."""
    return _orrery.names("profiles/stacks", _data())
