import pytest
from heddle_gateway.fleet.address import check_allowed_host, check_resolved, parse_worker_url
from heddle_gateway.fleet.errors import AddressRefused, Unreachable


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("http://gpu1:30000", "http://gpu1:30000"),
        (" HTTP://GPU1:30000/ ", "http://gpu1:30000"),
        ("http://gpu1:80", "http://gpu1"),
        ("https://gpu1:443/v1/", "https://gpu1"),
        ("http://gpu1:8000/v1", "http://gpu1:8000"),
        ("http://gpu1/pool/a/v1", "http://gpu1/pool/a"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("http://[0:0:0:0:0:0:0:1]:30000/", "http://[::1]:30000"),
        ("http://[2001:DB8::1]", "http://[2001:db8::1]"),
        ("http://10.0.0.7:30000", "http://10.0.0.7:30000"),
        ("http://bücher.example:1", "http://xn--bcher-kva.example:1"),
    ],
)
def test_a_worker_url_has_one_canonical_form(written: str, canonical: str) -> None:
    assert parse_worker_url(written).url == canonical
    assert parse_worker_url(canonical).url == canonical


def test_an_ipv6_worker_keeps_its_brackets_in_its_name() -> None:
    address = parse_worker_url("http://[fd00::7]:30000")
    assert (address.host, address.port, address.host_port) == ("fd00::7", 30000, "[fd00::7]:30000")


@pytest.mark.parametrize(
    "written",
    [
        "",
        "gpu1:30000",
        "//gpu1:30000",
        "ftp://gpu1",
        "file:///etc/passwd",
        "unix:///run/worker.sock",
        "http://",
        "http://:30000",
        "http://gpu1:0",
        "http://gpu1:99999",
        "http://gpu1:abc",
        "http://user@gpu1",
        "http://user:secret@gpu1",
        "http://gpu1@169.254.169.254/",
        "http://gpu1?x=1",
        "http://gpu1/#@evil",
        "http://gpu1/?",
        "http://gpu1\\@evil",
        "http://gpu1/a b",
        "http://gpu1\r\nHost: evil",
        "http://gpu1/../admin",
        "http://[::1",
        "http://[::g]",
        "http://[fe80::1%25eth0]:1",
        "http://gpu1:30000@1",
        "http://" + "a" * 3000,
    ],
)
def test_a_malformed_worker_url_is_refused(written: str) -> None:
    with pytest.raises(AddressRefused):
        parse_worker_url(written)


@pytest.mark.parametrize(
    "written",
    [
        "http://169.254.169.254",
        "http://169.254.0.1:30000",
        "http://[fe80::1]",
        "http://[::ffff:169.254.169.254]",
        "http://[::ffff:a9fe:a9fe]",
        "http://[2002:a9fe:a9fe::]",
        "http://[64:ff9b::a9fe:a9fe]",
        "http://[fd00:ec2::254]",
        "http://100.100.100.200",
        "http://168.63.129.16",
        "http://metadata.google.internal",
        "http://METADATA.google.internal./computeMetadata",
        "http://0.0.0.0:30000",
        "http://[::]:30000",
        "http://224.0.0.1",
        "http://255.255.255.255",
    ],
)
def test_link_local_metadata_and_non_host_addresses_are_refused(written: str) -> None:
    with pytest.raises(AddressRefused):
        parse_worker_url(written)


@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518"])
async def test_odd_spellings_of_the_metadata_address_are_refused_when_resolved(host: str) -> None:
    """These are no literals to a URL parser, but the system's resolver takes them for 169.254.169.254."""
    with pytest.raises(AddressRefused):
        await check_resolved(parse_worker_url(f"http://{host}/"))


async def test_a_name_that_resolves_to_this_machine_is_allowed() -> None:
    await check_resolved(parse_worker_url("http://localhost:30000"))


async def test_a_name_that_does_not_resolve_is_unreachable_not_refused() -> None:
    with pytest.raises(Unreachable):
        await check_resolved(parse_worker_url("http://worker.invalid:30000"))


def test_the_refusal_never_repeats_a_password() -> None:
    with pytest.raises(AddressRefused) as refused:
        parse_worker_url("http://user:s3cret@gpu1:30000")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("allowed", "url", "passes"),
    [
        ([], "http://gpu1:1", True),
        (["gpu1"], "http://gpu1:1", True),
        (["GPU1:1"], "http://gpu1:1", True),
        (["gpu1:2"], "http://gpu1:1", False),
        (["gpu1"], "http://gpu10:1", False),
        ([".pool.example"], "http://a.pool.example:1", True),
        ([".pool.example"], "http://pool.example:1", False),
        ([".pool.example"], "http://evilpool.example:1", False),
        (["[fd00::7]:1"], "http://[fd00::7]:1", True),
        (["fd00::7"], "http://[fd00::7]:1", True),
    ],
)
def test_only_listed_hosts_pass_when_there_is_a_list(allowed: list[str], url: str, passes: bool) -> None:
    address = parse_worker_url(url)
    if passes:
        check_allowed_host(address, allowed)
    else:
        with pytest.raises(AddressRefused, match="allowed worker hosts"):
            check_allowed_host(address, allowed)
