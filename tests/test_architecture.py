"""The import table of docs/ARCHITECTURE.md, read from the source, and other rules of the tree."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PACKAGES = {
    "heddle_contracts": ROOT / "contracts/heddle_contracts",
    "heddle_cli": ROOT / "cli/heddle_cli",
    "heddle_gateway": ROOT / "gateway/heddle_gateway",
    "heddle_planner": ROOT / "planner/heddle_planner",
    "heddle_shim": ROOT / "worker_shim/heddle_shim",
    "heddle_core": ROOT / "router_rs/python/heddle_core",
}

# Which of our packages a package may import.
ALLOWED_PACKAGES = {
    "heddle_contracts": set(),
    "heddle_core": set(),
    "heddle_cli": {"heddle_contracts"},
    "heddle_shim": {"heddle_contracts", "heddle_cli"},
    "heddle_planner": {"heddle_contracts", "heddle_core"},
    "heddle_gateway": {"heddle_contracts", "heddle_core"},
}

# Siblings of the gateway: none of them imports another. app.py alone joins them.
GATEWAY_SIBLINGS = ("accounting", "dialects", "fleet", "identity", "live", "plans", "store", "upstream")
# Who in the gateway may import the native module.
CORE_IMPORTERS = (
    "dialects",
    "identity",
    "journal_cli.py",
    "live",
    "serve_step.py",
    "accounting",
    "asgi",
    "telemetry",
    "upstream",
)


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def sources_of(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def first_part(path: Path, root: Path) -> str:
    """First path part below the package: the sub-package or the module's file name."""
    return path.relative_to(root).parts[0]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_packages_import_only_what_the_table_allows(package: str) -> None:
    allowed = ALLOWED_PACKAGES[package] | {package}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources_of(package)
        for name in imports_of(path)
        if name.split(".")[0] in PACKAGES and name.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_siblings_of_the_gateway_do_not_import_each_other() -> None:
    root = PACKAGES["heddle_gateway"]
    wrong = []
    for path in sources_of("heddle_gateway"):
        home = first_part(path, root)
        if home not in GATEWAY_SIBLINGS:
            continue
        for name in imports_of(path):
            parts = name.split(".")
            if (
                parts[0] == "heddle_gateway"
                and len(parts) > 1
                and parts[1] in GATEWAY_SIBLINGS
                and parts[1] != home
            ):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_only_named_parts_of_the_gateway_import_the_native_module() -> None:
    root = PACKAGES["heddle_gateway"]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources_of("heddle_gateway")
        for name in imports_of(path)
        if name.split(".")[0] == "heddle_core" and first_part(path, root) not in CORE_IMPORTERS
    ]
    assert wrong == []


def test_the_shim_imports_neither_rust_nor_torch_nor_fastapi() -> None:
    """Nor SGLang. Its part for the engine's own processes finds SGLang and torch there."""
    heavy = {"heddle_core", "torch", "fastapi", "numpy", "sglang"}
    inside = PACKAGES["heddle_shim"] / "sglang_plugin"
    there = {"torch", "sglang"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources_of("heddle_shim")
        for name in imports_of(path)
        if name.split(".")[0] in heavy - (there if path.is_relative_to(inside) else set())
    ]
    assert wrong == []


def test_no_layer_hides_hang_ups() -> None:
    """Starlette's BaseHTTPMiddleware swallows http.disconnect; every layer is plain ASGI."""
    word = "BaseHTTP" + "Middleware"
    wrong = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sources_of(package)
        for name in ast.walk(ast.parse(path.read_text()))
        if isinstance(name, ast.Name | ast.Attribute) and word in ast.dump(name)
    ]
    assert wrong == []


def test_the_environment_is_read_in_one_file_of_the_gateway() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources_of("heddle_gateway")
        if path.name != "settings.py"
        and any(word in path.read_text() for word in ("os.environ", "os.getenv"))
    ]
    assert wrong == []


def test_rust_crates_depend_downwards_only() -> None:
    allowed = {
        "core": {"serde", "serde_json", "thiserror"},
        "wire": {"httparse", "memchr", "thiserror", "xxhash-rust"},
    }
    for crate, names in allowed.items():
        manifest = tomllib.loads((ROOT / f"router_rs/crates/{crate}/Cargo.toml").read_text())
        found = set(manifest["dependencies"])
        assert found <= names, f"crates/{crate} depends on {found - names}"


def test_no_file_hides_a_missing_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    wrong = [
        str(path.relative_to(ROOT))
        for top in (*PACKAGES.values(), ROOT / "router_rs/crates", ROOT / "tests", ROOT / "benchmarks")
        for path in top.rglob("*")
        if path.suffix in {".py", ".rs"} and path.stem.lower() in vague
    ]
    assert wrong == []


def test_the_architecture_page_stays_short() -> None:
    assert len((ROOT / "docs/ARCHITECTURE.md").read_text().splitlines()) < 120
