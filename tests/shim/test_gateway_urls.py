"""A gateway that is no URL would be asked in vain for ever: it is refused before anything starts."""

import pytest
import typer
from heddle_shim.cli import app as shim
from heddle_shim.gateway_urls import gateway_urls
from heddle_shim.host.cli import app as host
from typer.testing import CliRunner


@pytest.mark.parametrize("url", ["gateway", "gateway:8000", "ftp://gateway", "http://", "http://g:port"])
def test_what_is_no_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no URL such as http://gateway:8000") as refused:
        gateway_urls(["http://good:8000", url])
    assert repr(url) in str(refused.value)


def test_urls_are_taken_without_a_slash_at_the_end() -> None:
    assert gateway_urls(["http://a:8000/", "https://b"]) == ["http://a:8000", "https://b"]
    assert gateway_urls(None) is None


def test_shim_and_host_ask_for_it() -> None:
    for app, options in ((shim, ["--engine-url", "http://127.0.0.1:9"]), (host, ["--gpus", "1"])):
        done = CliRunner().invoke(app, [*options, "--gateway", "foo"])
        assert done.exit_code == 2
        assert "is no URL" in done.output
