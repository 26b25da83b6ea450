# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for Python packages: any name can be imported from them, and their objects do nothing.

With stand-ins for PyTorch and Triton, a launcher's own parser runs where neither is installed.
"""
import importlib.abc
import importlib.machinery
import types
import typing


class Nothing(typing._ProtocolMeta):
    """A class whose every name is such a class, and whose objects do nothing."""

    def __getattr__(cls, name):
        if name.startswith(("__", "_is_", "_abc", "_non_")):
            raise AttributeError(name)
        type.__setattr__(cls, name, nothing(name))
        return type.__getattribute__(cls, name)

    def __call__(cls, *args, **kwargs):
        if not cls.__dict__.get("stand_in"):
            return super().__call__(*args, **kwargs)
        decorated = len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType)
        return args[0] if decorated else object.__new__(cls)

    def __or__(cls, other):
        return cls

    __ror__ = __or__
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


def nothing(name):
    call = lambda self, *args, **kwargs: args[0] if len(args) == 1 and isinstance(args[0], (types.FunctionType, type)) else self
    return type.__new__(Nothing, name, (), {
        "stand_in": True, "_is_protocol": False, "__call__": call, "__hash__": object.__hash__,
        "__class_getitem__": classmethod(lambda cls, item: cls), "__init__": lambda self, *args, **kwargs: None})


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, nothing(name))
        return self.__dict__[name]


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, *packages):
        self.packages = packages

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass
