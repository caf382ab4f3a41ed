"""Configuration: layers, errors that name what is wrong, and a file that reads back as it was."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.build import limits_of
from stepwell.core.config import (
    DEFAULT_CLASSES,
    ClassConfig,
    Config,
    MemoryConfig,
    SchedulerConfig,
    WorkloadConfig,
    validate,
)
from stepwell.core.config_load import resolve, to_toml
from stepwell.core.errors import UserError


def wrote(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(
    path: Path | None = None, environ: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> UserError:
    with pytest.raises(UserError) as caught:
        resolve(path, environ=environ, overrides=overrides)
    return caught.value


# ------------------------------------------------------------------------------------------------ layers


def test_defaults_need_nothing() -> None:
    resolved = resolve()
    assert resolved.config == Config() == validate(Config())
    assert resolved.origin("scheduler.policy") == "default"
    assert resolved.config.classes == DEFAULT_CLASSES
    assert resolved.notes == ()


def test_defaults_are_those_of_the_common_workload() -> None:
    config = Config()
    assert (config.scheduler.token_budget, config.scheduler.running_limit, config.scheduler.depth) == (2048, 256, 1)
    assert (config.memory.page_size, config.memory.pages) == (16, 8192)


def test_command_line_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = wrote(tmp_path, "[scheduler]\nseed = 1\ndepth = 2\nrunning_limit = 7\n")
    resolved = resolve(
        path,
        environ={"STEPWELL__SCHEDULER__SEED": "2", "STEPWELL__SCHEDULER__DEPTH": "3", "HOME": "/", "STEPWELL_X": "1"},
        overrides=["scheduler.seed=3"],
    )
    scheduler = resolved.config.scheduler
    assert (scheduler.seed, scheduler.depth, scheduler.running_limit, scheduler.token_budget) == (3, 3, 7, 2048)
    assert resolved.origin("scheduler.seed") == "command line"
    assert resolved.origin("scheduler.depth") == "environment STEPWELL__SCHEDULER__DEPTH"
    assert resolved.origin("scheduler.running_limit") == str(path)
    assert resolved.origin("scheduler.token_budget") == "default"


def test_the_process_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL__SCHEDULER__SEED", "9")
    assert resolve().config.scheduler.seed == 0


def test_tables_merge_key_by_key(tmp_path: Path) -> None:
    path = wrote(tmp_path, "[scheduler]\noptions = {a = 1, b = {c = 2, d = 3}}\n")
    resolved = resolve(path, overrides=["scheduler.options.b.c=9", "scheduler.options.e=[1, 2]"])
    assert resolved.config.scheduler.options == {"a": 1, "b": {"c": 9, "d": 3}, "e": [1, 2]}
    assert resolved.origin("scheduler.options.b.d") == str(path)
    assert resolved.origin("scheduler.options.b.c") == "command line"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("swap", "swap"),
        ("3", 3),
        ("2.5", 2.5),
        ("true", True),
        ('"3"', "3"),
        ("{x = 1}", {"x": 1}),
        ("a=b", "a=b"),
        ("", ""),
        ("1\ny = 2", "1\ny = 2"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_free_values_are_read_as_toml_or_taken_as_text(text: str, value: object) -> None:
    resolved = resolve(overrides=[f"scheduler.options.x={text}"])
    assert resolved.config.scheduler.options == {"x": value}


@pytest.mark.parametrize("text", ["7", "true", "my file.csv", "[x]", "a # b"])
def test_text_stays_text_where_text_is_wanted(text: str) -> None:
    assert resolve(environ={"STEPWELL__SCHEDULER__POLICY": text}).config.scheduler.policy == text


def test_classes_of_a_file_replace_the_default_ones(tmp_path: Path) -> None:
    path = wrote(tmp_path, '[[classes]]\nname = "only"\nttft_ms = 250\n')
    resolved = resolve(path)
    assert resolved.config.classes == (ClassConfig(name="only", ttft_ms=250.0),)
    assert resolved.origin("classes[0].ttft_ms") == str(path)
    assert resolved.origin("classes[0].rank") == "default"


def test_one_value_of_a_class_is_reached_by_name_or_index() -> None:
    resolved = resolve(environ={"STEPWELL__CLASSES__CHAT__TTFT_MS": "5"}, overrides=["classes.1.rank=4"])
    chat, batch = resolved.config.classes
    assert (chat.ttft_ms, chat.tpot_ms, batch.rank) == (5.0, 100.0, 4)
    assert chat.ttft_ns == 5_000_000
    assert resolved.origin("classes[1].rank") == "command line"
    assert resolved.origin("classes[0].rank") == "default"


def test_tenants_are_reached_like_classes(tmp_path: Path) -> None:
    path = wrote(tmp_path, '[[tenants]]\nname = "team-a/x@y.z"\nweight = 3\n\n[[tenants]]\nname = "b"\n')
    config = resolve(path, overrides=["tenants.b.weight=2", "tenants.0.weight=0.5"]).config
    assert [(each.name, each.weight) for each in limits_of(config).tenants] == [("team-a/x@y.z", 0.5), ("b", 2.0)]
    assert "no tenant 'c' to set this in (from command line); tenants: none" in str(
        refused(overrides=["tenants.c.weight=1"])
    )


def test_options_belong_to_the_plugin_they_were_written_for(tmp_path: Path) -> None:
    path = wrote(tmp_path, '[scheduler]\npolicy = "chat-batch"\noptions = {aging_s = 5}\n')
    assert resolve(path, overrides=["scheduler.policy=chat-batch"]).config.scheduler.options == {"aging_s": 5}
    other = resolve(path, overrides=["scheduler.policy=swap", "scheduler.options.x=1"])
    assert other.config.scheduler.options == {"x": 1}
    (note,) = other.notes
    assert "chat-batch" in note
    assert str(path) in note


def test_settings_belong_to_the_kind_of_workload_they_were_written_for(tmp_path: Path) -> None:
    file = tmp_path / "sessions.toml"
    file.write_text('[workload]\nkind = "sessions"\nlimit = 5\n[workload.settings]\nsessions = 3\n')
    other = resolve(file, overrides=["workload.settings.seed=4", "workload.kind=trace", "workload.trace=t.csv"])
    assert (other.config.workload.settings, other.config.workload.limit) == ({"seed": 4}, 5)
    (note,) = other.notes
    assert "belong to 'sessions' and were left out, since 'trace' was chosen (command line)" in note
    same = resolve(file, overrides=["workload.kind=sessions"])
    assert (same.config.workload.settings, same.notes) == ({"sessions": 3}, ())
    by_hand = resolve(None, overrides=["workload.settings.count=7", "workload.kind=common"])
    assert (by_hand.config.workload.settings, by_hand.notes) == ({"count": 7}, ())


def test_options_for_the_default_plugin_are_dropped_with_it() -> None:
    environ = {"STEPWELL__COST__OPTIONS__BASE_NS": "1"}
    assert resolve(environ=environ).config.cost.options == {"base_ns": 1}
    assert resolve(environ=environ, overrides=["cost.model=other"]).config.cost.options == {}


def test_a_trace_in_a_file_lies_beside_the_file(tmp_path: Path) -> None:
    path = wrote(tmp_path, '[workload]\nkind = "trace"\ntrace = "t.csv"\n')
    assert resolve(path).trace_path() == tmp_path / "t.csv"
    assert resolve(path, overrides=["workload.trace=u.csv"]).trace_path() == Path("u.csv")
    assert resolve(path).config.workload.trace == "t.csv"


# ------------------------------------------------------------------------------------------------ what is refused


def test_unknown_key_names_file_path_nearest_and_allowed(tmp_path: Path) -> None:
    path = wrote(tmp_path, "[scheduler]\ntoken_budgt = 5\n")
    error = refused(path)
    assert error.field == "scheduler.token_budgt"
    for part in (str(path), "'token_budget'", "running_limit", "max_waiting"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("sheduler = 1", "sheduler", "'scheduler'"),
        ("scheduler = 1", "scheduler", "expected a table, got int"),
        ("[classes]\nname = 'a'", "classes", "expected a list, got a table"),
        ("classes = [3]", "classes[0]", "expected a table"),
        ("[[classes]]\nrank = 1", "classes[0].name", "missing"),
        ("[[classes]]\nname = 'a b'", "classes[0].name", "'a b'"),
        ("[[classes]]\nname = 'a\\n'", "classes[0].name", "match"),
        ("[[classes]]\nname = 'a'\nrnk = 1", "classes[0].rnk", "'rank'"),
        ("[[classes]]\nname = 'a'\n[[classes]]\nname = 'a'", "classes[1].name", "twice"),
        ("classes = []", "classes", "at least one"),
        ("[[classes]]\nname = 'a'\nqueue_share = 0", "classes[0].queue_share", "> 0"),
        ("[[classes]]\nname = 'a'\nqueue_share = 1.5", "classes[0].queue_share", "<= 1"),
        ("[scheduler]\ndepth = 'x'", "scheduler.depth", "expected int, got str 'x'"),
        ("[scheduler]\ndepth = true", "scheduler.depth", "expected int, got bool"),
        ("[scheduler]\ndepth = 1.0", "scheduler.depth", "expected int, got float"),
        ("[scheduler]\ndepth = 0", "scheduler.depth", ">= 1"),
        ("[scheduler]\ndepth = 4", "scheduler.depth", "<= 3"),
        ("[scheduler]\nseed = -1", "scheduler.seed", ">= 0"),
        ("[scheduler]\nseed = 99999999999999999999", "scheduler.seed", "64 bits"),
        ("[scheduler]\npolicy = ''", "scheduler.policy", "length >= 1"),
        ("[scheduler]\npolicy = 3", "scheduler.policy", "expected str, got int 3"),
        ("[scheduler]\noptions = 3", "scheduler.options", "expected a table"),
        ("[scheduler]\noptions = {a = nan}", "scheduler.options.a", "finite"),
        ("[scheduler]\noptions = {a = [1, inf]}", "scheduler.options.a[1]", "finite"),
        ("[scheduler]\noptions = {a = 2020-01-01}", "scheduler.options.a", "date"),
        ("[scheduler]\ntoken_budget = 100", "scheduler.token_budget", "at least scheduler.running_limit (256)"),
        ("[scheduler]\nmax_context = 131073", "scheduler.max_context", "131072"),
        ("[memory]\npage_size = 0", "memory.page_size", ">= 1"),
        ("[memory]\nhost_pages = -1", "memory.host_pages", ">= 0"),
        ("[journal]\nlevel = 'all'", "journal.level", "one of 'decisions', 'tokens', got 'all'"),
        ("[[tenants]]\nname = 'a'\nweight = 0", "tenants[0].weight", ">= 1e-06"),
        ("[[tenants]]\nname = 'a b'", "tenants[0].name", "'a b' does not match"),
        ("[[tenants]]\nname = 'a'\n[[tenants]]\nname = 'a'", "tenants[1].name", "tenant 'a' is defined twice"),
        ("[workload]\nkind = 'trace'", "workload.trace", "needed"),
        ("[workload]\ntrace = 'x.csv'", "workload.kind", "'trace'"),
        ("[workload]\nrate = nan", "workload.rate", "finite"),
    ],
)
def test_wrong_values_name_path_reason_and_file(tmp_path: Path, text: str, field: str, says: str) -> None:
    path = wrote(tmp_path, text)
    error = refused(path)
    assert error.field == field
    assert says in error.message
    assert str(path) in error.message


def test_wrong_value_names_the_layer_that_gave_it(tmp_path: Path) -> None:
    path = wrote(tmp_path, "[scheduler]\nseed = 1\n")
    assert "environment STEPWELL__SCHEDULER__SEED" in str(refused(path, {"STEPWELL__SCHEDULER__SEED": "x"}))
    assert "environment STEPWELL__SCHEDULER__SED" in str(refused(path, {"STEPWELL__SCHEDULER__SED": "1"}))
    assert "command line" in str(refused(path, overrides=["memory.page_size=no"]))


@pytest.mark.parametrize(
    "override",
    ["scheduler.seed", "=3", "scheduler..seed=1", ".=1", "classes.chat=1", "classes.x.rank=1", "tenants.x=1"],
)
def test_malformed_overrides(override: str) -> None:
    assert override.partition("=")[0] in str(refused(overrides=[override])) or "path=value" in str(
        refused(overrides=[override])
    )


def test_malformed_environment_name() -> None:
    assert "empty part" in str(refused(environ={"STEPWELL__": "1"}))
    assert "'STEPWELL__SCHEDULER__'" in str(refused(environ={"STEPWELL__SCHEDULER__": "1"}))


def test_text_that_is_no_unicode() -> None:
    assert "Unicode" in str(refused(environ={"STEPWELL__SCHEDULER__POLICY": "\udcff"}))


@pytest.mark.parametrize("data", [b"x = ", b"\xff\xfe", b"a = 1\na = 2", b"x = " + b"[" * 20_000])
def test_broken_files_are_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(data)
    assert str(path) in str(refused(path))


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    assert "No such file" in str(refused(tmp_path / "no.toml"))
    assert str(tmp_path) in str(refused(tmp_path))


def test_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf[scheduler]\r\nseed = 4\r\n")
    assert resolve(path).config.scheduler.seed == 4


def test_a_tree_made_in_python_is_checked_as_strictly() -> None:
    bad = [
        Config(scheduler=SchedulerConfig(depth=9)),
        Config(scheduler=SchedulerConfig(token_budget=1)),
        Config(memory=MemoryConfig(pages="many")),  # type: ignore[arg-type]
        Config(scheduler=SchedulerConfig(options={"x": float("inf")})),
        Config(classes=()),
    ]
    for config in bad:
        with pytest.raises(UserError):
            validate(config)


def test_the_tree_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Config().scheduler.seed = 3  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------ digest, writing


def test_digest_follows_values_and_not_their_spelling(tmp_path: Path) -> None:
    one = resolve(wrote(tmp_path, "[scheduler]\noptions = {a = 1, b = 2}\n[[classes]]\nname='c'\nttft_ms = 3\n")).config
    two = resolve(
        wrote(tmp_path, "[[classes]]\nttft_ms = 3.0\nname='c'\n[scheduler]\noptions = {b = 2, a = 1}\n")
    ).config
    assert one.digest == two.digest
    assert len(one.digest) == 64
    seeds = {Config(scheduler=SchedulerConfig(seed=seed)).digest for seed in range(20)}
    assert len(seeds) == 20


def test_show_says_where_each_value_came_from(tmp_path: Path) -> None:
    path = wrote(tmp_path, "[scheduler]\noptions = {x = 'a\"b'}\n")
    text = resolve(path, overrides=["memory.pages=9000"]).to_toml()
    assert f'x = "a\\"b"  # {path}' in text
    assert "pages = 9000  # command line" in text
    assert "page_size = 16  # default" in text
    assert "[[classes]]" in text


def test_show_survives_a_file_name_with_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "a\nb = 3.toml"
    path.write_text("[scheduler]\nseed = 1\n")
    assert tomllib.loads(resolve(path).to_toml())["scheduler"]["seed"] == 1


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
LEAF = st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
TABLES = st.dictionaries(
    TEXT, st.recursive(LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=3))
)


@settings(max_examples=60, deadline=None)
@given(
    options=TABLES,
    free=TABLES,
    names=st.lists(st.from_regex(r"[a-z0-9_-]{1,8}", fullmatch=True), unique=True, min_size=1),
)
def test_written_toml_reads_back_equal(options: dict[str, object], free: dict[str, object], names: list[str]) -> None:
    config = validate(
        Config(
            scheduler=SchedulerConfig(options=options),
            workload=WorkloadConfig(settings=free),
            classes=tuple(ClassConfig(name=name, rank=rank, ttft_ms=0.1 * rank) for rank, name in enumerate(names)),
        )
    )
    for text in (to_toml(config), to_toml(config, comment=lambda path: path)):
        again = msgspec.convert(tomllib.loads(text), Config)
        assert again == config
        assert again.digest == config.digest
