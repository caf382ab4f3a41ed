"""The rules of the house, read off the source: each takes a ``Module`` and yields what is wrong with it.

``test_architecture.py`` applies them to every file, and feeds each rule a bad snippet to see it caught.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {"build", "dist", "docs", "deploy"}
OUTSIDE = {"tests", "benchmarks", "examples"}
"""Folders that are no part of the package: only sizes and clean syntax are asked of them."""

MAX_FUNCTION, MAX_FILE = 70, 400

SHELL = re.compile(
    r"stepwell\.core\.(build|engine|clock|registry|catalogue|introspect|config|metrics|testing|journal_file|shadow|streams|placement|worker|fleet)"
)
"""Modules of ``core`` (and those whose names go on with ``_``) that may touch the world; all others are pure."""

IMPURE = frozenset(
    """asyncio concurrent datetime gc getpass glob importlib inspect io locale logging multiprocessing os pathlib
    platform queue random resource sched secrets select selectors shutil signal socket ssl subprocess sys tempfile
    threading time urllib uuid weakref""".split()
)
_IMPURE_CALLS = ("hash", "id", "open", "print", "input", "exec", "eval")
MAY_USE: dict[str, set[str]] = {
    "root": {"root", "pure", "shell"},
    "pure": {"pure"},
    "shell": {"pure", "shell", "root"},
    "policies": {"pure", "policies"},
    "memory": {"pure", "memory"},
    "backends": {"pure", "backends"},
    "transports": {"pure", "shell", "transports", "root"},
    "sim": {"pure", "shell", "sim", "root"},
    "cli": {"root", "pure", "shell", "policies", "memory", "backends", "transports", "sim", "cli"},
    "main": {"root", "cli"},
}
THIRD_PARTY: dict[str, set[str]] = {
    "root": set(),
    "pure": {"msgspec"},
    "shell": {"msgspec", "anyio", "structlog", "prometheus_client"},
    "policies": {"msgspec"},
    "memory": {"msgspec"},
    "backends": {
        *("msgspec", "torch", "triton", "numpy", "numba", "safetensors", "gguf", "tokenizers"),
        "llguidance",
    },
    "transports": {
        *("msgspec", "anyio", "structlog", "starlette", "uvicorn", "websockets", "jinja2"),
        *("python_multipart", "opentelemetry"),
    },
    "sim": {"msgspec", "numpy", "structlog"},
    "main": set(),
}
"""Beyond the standard library; ``cli`` may use anything."""
EXTRAS = {"sim": {"matplotlib", "polars", "pyarrow", "ray"}}
"""Optional ones, only inside functions."""


@dataclass(frozen=True)
class Module:
    """One source file; ``name`` is dotted, as it is imported."""

    name: str
    path: str
    source: str
    tree: ast.Module = field(repr=False)

    @property
    def room(self) -> str:
        parts = self.name.split(".")
        if self.name in ("stepwell", "stepwell.__main__"):
            return "root" if len(parts) == 1 else "main"
        if parts[1] == "core":
            return "shell" if is_shell(self.name) else "pure"
        return parts[1]


def module(name: str, source: str, path: str = "snippet.py") -> Module:
    return Module(name, path, source, ast.parse(source))


def read(path: Path) -> Module:
    relative = path.relative_to(ROOT)
    parts = ["stepwell", *relative.with_suffix("").parts]
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return module(name, path.read_text(encoding="utf-8"), str(relative))


def sources() -> list[Path]:
    """Every Python file of the repository that is not generated."""
    files: list[Path] = []
    for folder in [ROOT, *(each for each in ROOT.iterdir() if each.is_dir())]:
        if folder != ROOT and (folder.name.startswith(".") or folder.name in SKIPPED or ".egg" in folder.name):
            continue
        files += folder.glob("*.py") if folder == ROOT else folder.rglob("*.py")
    return sorted(files)


def packages() -> list[str]:
    """The folders that are packages, as the wheel must list them."""
    folders = {path.parent for path in sources() if path.name == "__init__.py"}
    return sorted(".".join(["stepwell", *folder.relative_to(ROOT).parts]) for folder in folders)


def is_shell(name: str) -> bool:
    match = SHELL.match(name)
    return match is not None and name[match.end() : match.end() + 1] in ("", "_", ".")


# ------------------------------------------------------------------------------------------------ imports


@dataclass(frozen=True)
class Import:
    """One imported module, fully named; ``node`` is where, ``inside`` whether a function runs it."""

    target: str
    node: ast.Import | ast.ImportFrom
    inside: bool


def imports(it: Module, known: set[str] | None = None) -> Iterator[Import]:
    """Every import.  ``from a import b`` counts as ``a.b`` where that is a module in ``known``, otherwise as ``a``."""
    is_package = it.path.endswith("__init__.py")
    for node, inside in _statements(it.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node, inside)
        elif isinstance(node, ast.ImportFrom):
            home = it.name.split(".")
            home = home[: len(home) - node.level + is_package] if node.level else []
            base = ".".join([*home, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield Import(whole if whole in (known or set()) else base, node, inside)


def _statements(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All below, and whether a function runs them."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child, inside
            yield from _statements(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def rooms(it: Module, known: set[str], standard: frozenset[str]) -> Iterator[str]:
    """Who may import whom."""
    for each in imports(it, known):
        top = each.target.split(".")[0]
        where = f"{it.path}:{each.node.lineno}"
        if top == "stepwell":
            there = module(each.target, "").room if each.target.split(".")[-1] else ""
            if there not in MAY_USE.get(it.room, set()):
                yield f"{where}: {it.room} may not import {each.target} ({there})"
        elif top in standard or it.room == "cli":
            continue
        elif top in EXTRAS.get(it.room, set()):
            if not each.inside:
                yield f"{where}: {top} is an optional extra: import it inside the function that needs it"
        elif top == "hypothesis" and it.name.startswith("stepwell.core.testing"):
            continue
        elif top not in THIRD_PARTY.get(it.room, set()):
            yield f"{where}: {it.room} may not import {top}"


def lazy(it: Module) -> Iterator[str]:
    """An import inside a function says why, and start-up cost is a reason while a cycle is not."""
    lines = it.source.splitlines()
    for each in imports(it):
        if not each.inside:
            continue
        text = "\n".join(lines[each.node.lineno - 1 : each.node.end_lineno])
        reason = re.search(r"# lazy: *(\S.*)", text)
        if reason is None:
            yield f"{it.path}:{each.node.lineno}: an import inside a function needs a comment `# lazy: reason`"
        elif re.search(r"cycl|circular", reason[1], re.IGNORECASE):
            yield f"{it.path}:{each.node.lineno}: {reason[1]!r} is no reason: untie the cycle"


def cycles(modules: list[Module]) -> Iterator[str]:
    """Import cycles, imports inside functions and for type checking included."""
    known = {it.name for it in modules}
    graph = {it.name: {each.target for each in imports(it, known)} & known - {it.name} for it in modules}
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> Iterator[str]:
        if name in trail:
            yield "import cycle: " + " -> ".join([*trail[trail.index(name) :], name])
        elif name not in done:
            for target in sorted(graph[name]):
                yield from walk(target, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        yield from walk(name, [])


# ------------------------------------------------------------------------------------------------ purity


def pure(it: Module) -> Iterator[str]:
    """No clock, no randomness, no world, and nothing whose result differs from process to process."""
    if it.room not in ("pure", "policies", "memory"):
        return
    for each in imports(it):
        top = each.target.split(".")[0]
        if top in IMPURE or (top == "math" and it.room != "pure"):
            yield f"{it.path}:{each.node.lineno}: {it.name} is pure and may not import {top}"
    for node in ast.walk(it.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _IMPURE_CALLS:
            yield f"{it.path}:{node.lineno}: {it.name} is pure and may not call {node.func.id}()"


def repeatable(it: Module) -> Iterator[str]:
    """What must be the same at any PYTHONHASHSEED does not walk over sets, whose order is not."""
    if it.room not in ("pure", "policies", "memory", "sim"):
        return
    for node in ast.walk(it.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
            yield f"{it.path}:{node.lineno}: hash() differs from process to process"
    shared = _attributes(it.tree) | _names(it.tree)
    for scope in [it.tree, *functions(it.tree)]:
        for node in _ordered_uses(scope, shared | _names(scope)):
            yield f"{it.path}:{node.lineno}: the order of a set is not fixed: sort it, or keep a dict"


_ORDERLESS = {"sorted", "sum", "any", "all", "len", "set", "frozenset"}
_ORDERED = {"list", "tuple", "iter", "enumerate", "min", "max", "next", "zip", "map", "filter", "reversed"}


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of the functions inside it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own(node)


def _names(scope: ast.AST) -> set[str]:
    """Local names that are annotated or assigned as sets."""
    found: set[str] = set()
    for node in _own(scope):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _set_type(node.annotation):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign) and _is_set(node.value, found):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.arg) and node.annotation and _set_type(node.annotation):
            found.add(node.arg)
    return found


def _attributes(tree: ast.Module) -> set[str]:
    """``self.x`` that are annotated (there or in the class) or assigned as sets."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and _set_type(each.annotation)]
            found |= {f"self.{ast.unparse(each.target)}" for each in fields}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and _set_type(node.annotation):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign) and _is_set(node.value, found):
            found |= {ast.unparse(target) for target in node.targets if isinstance(target, ast.Attribute)}
    return found


def _set_type(annotation: ast.expr) -> bool:
    return re.match(r"([\w.]+\.)?(set|frozenset|Set|AbstractSet|MutableSet)\b", ast.unparse(annotation)) is not None


def _is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node) in names
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left, names) or _is_set(node.right, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        makes = node.func.attr in ("union", "intersection", "difference", "symmetric_difference", "copy")
        return makes and _is_set(node.func.value, names)
    return False


def _ordered_uses(scope: ast.AST, names: set[str]) -> Iterator[ast.expr]:
    orderless: set[int] = set()
    for node in _own(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ORDERLESS:
            orderless |= {id(each) for each in node.args}
    for node in _own(scope):
        if isinstance(node, ast.For | ast.AsyncFor) and _is_set(node.iter, names):
            yield node.iter
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and id(node) not in orderless:
            yield from (each.iter for each in node.generators if _is_set(each.iter, names))
        elif isinstance(node, ast.Starred) and _is_set(node.value, names):
            yield node.value
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in _ORDERED:
                yield from (each for each in node.args if _is_set(each, names))
            elif isinstance(node.func, ast.Attribute):
                if node.func.attr in ("join", "fromkeys", "extend"):
                    yield from (each for each in node.args if _is_set(each, names))
                elif node.func.attr == "pop" and _is_set(node.func.value, names):
                    yield node.func.value


def environment(it: Module) -> Iterator[str]:
    """Library code has no environment switches: the command line reads the environment and hands it in."""
    if it.room in ("cli", "main"):
        return
    names = ("environ", "getenv", "environb")
    for node in ast.walk(it.tree):
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os":
            yield f"{it.path}:{node.lineno}: library code does not read the environment"
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            named = [alias.name for alias in node.names if alias.name in names]
            yield from (f"{it.path}:{node.lineno}: library code does not read the environment" for _ in named)


# ------------------------------------------------------------------------------------------------ sizes, annotations


def sizes(it: Module) -> Iterator[str]:
    """Functions and files stay small enough to be read."""
    lines = it.source.count("\n") + (not it.source.endswith("\n") and bool(it.source))
    if lines > MAX_FILE:
        yield f"{it.path}: {lines} lines, more than {MAX_FILE}"
    for function in functions(it.tree):
        length = (function.end_lineno or 0) - function.lineno + 1
        if length > MAX_FUNCTION:
            yield f"{it.path}:{function.lineno}: {function.name} has {length} lines, more than {MAX_FUNCTION}"


def annotated(it: Module) -> Iterator[str]:
    """Every public function, and every method of a public class, says its types; parts of Triton kernels have none."""

    def walk(body: list[ast.stmt], owner: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from walk(node.body, node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_") and not (owner and node.name == "__init__"):
                    continue
                if any(ast.unparse(each) == "triton.jit" for each in node.decorator_list):
                    continue
                missing = _unannotated(node, method=bool(owner))
                if missing:
                    yield f"{it.path}:{node.lineno}: {node.name} does not annotate {', '.join(missing)}"

    yield from walk(it.tree.body, "")


def _unannotated(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> list[str]:
    static = any(ast.unparse(each) == "staticmethod" for each in node.decorator_list)
    positional = [*node.args.posonlyargs, *node.args.args][1 if method and not static else 0 :]
    rest = [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
    missing = [each.arg for each in [*positional, *node.args.kwonlyargs, *rest] if each.annotation is None]
    return missing + ([] if node.returns is not None else ["what it returns"])
