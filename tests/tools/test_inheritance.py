"""What the classes of the server do is said once: no ladders of classes that each add a little to the one below."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import statestore_client.server


def server_classes() -> list[type]:
    """All classes that modules of the server define, private ones included."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(statestore_client.server.__path__, "statestore_client.server.")
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def own_bases(of: type) -> list[type]:
    """The class and the classes of the project that it inherits from; protocols, which have no code, aside."""
    return [base for base in of.__mro__ if "_client." in base.__module__ and not getattr(base, "_is_protocol", False)]


def test_no_method_is_written_three_times_down_one_line_of_classes() -> None:
    """To find out what a call does, a reader opens two classes at most. What only hears of it is a part of its own."""
    classes = server_classes()
    assert len(classes) > 150
    ladders = [
        f"{found.__qualname__}.{name}: {' -> '.join(base.__qualname__ for base in writers)}"
        for found in classes
        for name in vars(found)
        if not name.startswith("__")
        and inspect.isfunction(vars(found)[name])
        and len(writers := [base for base in own_bases(found) if name in vars(base)]) > 2
    ]
    assert not ladders, "\n".join(ladders)


def test_no_class_of_the_broker_is_another_one_with_something_added() -> None:
    """In the broker, what may be there or not, such as a receiver of events, is an attribute that may be None.

    The heirs that there are do something else: one holds back what goes out until it is durable, others have bounds.
    """
    heirs = {
        f"{found.__qualname__}({found.__mro__[1].__qualname__})"
        for found in server_classes()
        if ".server.broker." in found.__module__ and len(own_bases(found)) > 1
    }
    assert heirs == {
        "MessageDelivery(Delivery)",
        "MessageQueue(Waiting)",
        "BoundedOutbound(Outbound)",
        "OutputCommitConnection(Connection)",
    }
