"""Which engine `heddle fleet stop` means."""

import pytest
from heddle_contracts.fleet import EngineState, HostEngine, HostStatus
from heddle_planner.fleet.cli import one_engine
from heddle_planner.fleet.shape import ShapeError


def host(name: str, *ids: str) -> HostStatus:
    engines = [
        HostEngine(id=id_, degree=1, gpus=(gpu,), state=EngineState.READY) for gpu, id_ in enumerate(ids)
    ]
    return HostStatus(name=name, gpus=8, engines=tuple(engines))


def test_an_id_is_enough_where_one_host_has_it() -> None:
    hosts = {"a": host("a", "e1", "e2"), "b": host("b", "e2", "e3")}
    assert one_engine(hosts, "e3") == ("b", "e3")
    assert one_engine(hosts, "a/e2") == ("a", "e2")
    with pytest.raises(ShapeError, match="several hosts have it; write a/e2 or b/e2"):
        one_engine(hosts, "e2")
    with pytest.raises(ShapeError, match="no engine e9"):
        one_engine(hosts, "e9")
