"""Settings: argument before environment before default, and a clear word about what is no setting."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.config import FILE_VARIABLE, Settings, environment, job_secret, read_settings, shown_value
from r2ccl.errors import ConfigurationError, UsageError

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
ROOT = Path(__file__).parent.parent


def test_without_an_environment_every_setting_has_its_default():
    reading = read_settings({})
    assert (reading.settings, reading.warnings, reading.file) == (Settings(), [], None)
    assert reading.origins == dict.fromkeys(FIELDS, "default")


def test_the_environment_goes_before_the_default():
    settings, warnings, *_ = read_settings({"R2CCL_CHUNK_BYTES": "65536", "R2CCL_NICS": "eth0,^eth1", "PATH": "/bin"})
    assert settings == dataclasses.replace(Settings(), chunk_bytes=65536, nics="eth0,^eth1")
    assert warnings == []


def test_an_argument_goes_before_the_environment():
    environ = {"R2CCL_TIMEOUT_SEC": "7.5", "R2CCL_DEBUG": "INFO"}
    settings, _, origins, _ = read_settings(environ, {"timeout_s": 3.0})
    assert (settings.timeout_s, settings.debug) == (3.0, "INFO")
    assert (origins["timeout_s"], origins["debug"]) == ("argument", "environment R2CCL_DEBUG")
    assert read_settings(environ).settings.timeout_s == 7.5


def test_the_processes_own_environment_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("R2CCL_NODE_ID", "rack-7")
    assert environment()["R2CCL_NODE_ID"] == "rack-7"
    assert read_settings()[0].node_id == "rack-7"


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("R2CCL_CHUNK_BYTE", "R2CCL_CHUNK_BYTE is not a setting; did you mean 'R2CCL_CHUNK_BYTES'?"),
        ("R2CCL_CONFIGS", "R2CCL_CONFIGS is not a setting; did you mean 'R2CCL_CONFIG'?"),
        ("R2CCL_TIMEOUT_SECS", "R2CCL_TIMEOUT_SECS is not a setting; did you mean 'R2CCL_TIMEOUT_SEC'?"),
        ("R2CCL_QWXZJKQWXZJKQWXZ", "R2CCL_QWXZJKQWXZJKQWXZ is not a setting"),
    ],
)
def test_an_unknown_variable_is_warned_about_and_the_nearest_named(name, warning):
    settings, warnings, *_ = read_settings({name: "1"})
    assert settings == Settings()
    assert warnings == [warning]


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "r2ccl_debug", "MASTER_ADDR", "XR2CCL_DEBUG"])
def test_other_peoples_variables_are_left_alone(name):
    assert read_settings({name: "nonsense"}) == read_settings({})


def test_an_argument_that_is_no_setting_is_refused_and_the_nearest_named():
    with pytest.raises(ConfigurationError, match="no setting is called 'heartbeats_s'; did you mean 'heartbeat_s'"):
        Settings().replace(heartbeats_s=1.0)
    with pytest.raises(ConfigurationError, match="no setting is called 'zzz'$"):
        Settings().replace(zzz=1)


@pytest.mark.parametrize(
    ("variable", "text", "kind"),
    [
        ("R2CCL_CHUNK_BYTES", "256K", "int"),
        ("R2CCL_CHUNK_BYTES", "", "int"),
        ("R2CCL_RUNNING_MAX", "1.5", "int"),
        ("R2CCL_HEARTBEAT", "10ms", "float"),
        ("R2CCL_INSECURE", "perhaps", "bool"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_that_names_the_variable(variable, text, kind):
    with pytest.raises(ConfigurationError, match=f"^{variable}='{text}' is not a valid {kind}$"):
        read_settings({variable: text})


@pytest.mark.parametrize(("text", "value"), [("1", True), ("True", True), ("yes", True), ("0", False), ("no", False)])
def test_a_switch_is_turned_by_any_of_the_usual_words(text, value):
    assert read_settings({"R2CCL_INSECURE": text})[0].insecure is value


@pytest.mark.parametrize(
    ("variable", "text"), [("R2CCL_CHUNK_BYTES", "-1"), ("R2CCL_HEARTBEAT", "-0.1"), ("R2CCL_SILENCE", "nan")]
)
def test_a_negative_number_is_an_error_that_names_the_variable(variable, text):
    with pytest.raises(ConfigurationError, match=f"{variable}=.* must not be negative"):
        read_settings({variable: text})


def test_an_argument_is_checked_like_a_variable():
    with pytest.raises(ConfigurationError, match="R2CCL_TIMEOUT_SEC=-1 must not be negative"):
        Settings().replace(timeout_s=-1)
    assert Settings().replace(timeout_s=math.inf).timeout_s == math.inf


def test_a_wrong_setting_is_the_callers_mistake_and_the_call_may_be_repeated():
    assert issubclass(ConfigurationError, UsageError)
    assert ConfigurationError.definite


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_a_variable_a_reason_and_is_read_as_the_type_of_its_default(name):
    field = FIELDS[name]
    assert field.metadata["variable"].startswith("R2CCL_")
    assert len(field.metadata["why"]) > 10
    kind: type = type(field.default)
    text = {"chunk_bytes": "4096", "checksum": "on", "debug": "INFO", "shared_memory": "off", "hierarchy": "off"}.get(
        name, "1"
    )
    read = getattr(read_settings({field.metadata["variable"]: text})[0], name)
    assert type(read) is kind
    assert read == kind(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"chunk_bytes": 0},
        {"chunk_bytes": 5 << 20},
        {"checksum": "maybe"},
        {"hierarchy": "maybe"},
        {"debug": "LOUD"},
        {"evidence_s": 0.0},
        {"evidence_sigmas": 0.0},
        {"evidence_window": 0},
        {"evidence_confirmations": 0},
        {"share_least": 0.0},
        {"share_least": 1.01},
        {"switch_refill_s": 0.0},
    ],  # fmt: skip
)
def test_a_setting_out_of_its_range_says_what_the_range_is(wrong):
    with pytest.raises(ConfigurationError, match=r"must be"):
        Settings().replace(**wrong)


def test_no_two_settings_share_a_variable():
    assert len({field.metadata["variable"] for field in FIELDS.values()}) == len(FIELDS)


def test_units_are_in_the_names_of_times_and_sizes():
    for name, field in FIELDS.items():
        assert {"s": name.endswith("_s"), "bytes": name.endswith("_bytes")}.get(field.metadata["unit"], True)


def test_settings_do_not_change_once_read():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().nics = "eth0"  # type: ignore[misc]


def test_the_secret_is_not_shown():
    shown = repr(Settings(secret="swordfish", secret_file="/run/secret"))
    assert "swordfish" not in shown
    assert "/run/secret" in shown


def test_without_a_secret_there_is_none():
    assert job_secret(Settings()) == b""


def test_the_secret_goes_before_its_file():
    assert job_secret(Settings(secret="swordfish", secret_file="/nowhere")) == b"swordfish"


def test_a_secret_in_the_environment_may_be_any_bytes():
    from_environment = b"\xff\x00bytes".decode(errors="surrogateescape")
    assert job_secret(Settings(secret=from_environment)) == b"\xff\x00bytes"


def test_the_secret_file_is_read_without_the_newline_that_editors_add(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"sword fish\xff\n")
    settings = read_settings({"R2CCL_SECRET_FILE": str(path)}).settings
    assert job_secret(settings) == b"sword fish\xff"


def test_a_secret_file_that_cannot_be_read_or_is_empty_is_an_error_and_never_no_secret(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigurationError, match=f"R2CCL_SECRET_FILE='{path}' cannot be read"):
            job_secret(Settings(secret_file=str(path)))
    (tmp_path / "empty").write_bytes(b"\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        job_secret(Settings(secret_file=str(tmp_path / "empty")))


# A file of settings.


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_each_setting_comes_from_the_first_that_has_it(tmp_path):
    file = write(tmp_path / "mine.toml", "chunk_bytes = 1024\neager_bytes = 512\ncredit_bytes = 2048\n")
    environ = {"R2CCL_CONFIG": str(file), "R2CCL_EAGER_BYTES": "256", "R2CCL_CREDIT_BYTES": "4096"}
    reading = read_settings(environ, {"credit_bytes": 8192})
    settings, origins = reading.settings, reading.origins
    assert (settings.chunk_bytes, settings.eager_bytes, settings.credit_bytes) == (1024, 256, 8192)
    assert (origins["chunk_bytes"], origins["eager_bytes"]) == (f"file {file}", "environment R2CCL_EAGER_BYTES")
    assert (origins["credit_bytes"], origins["silence_s"]) == ("argument", "default")
    assert reading.warnings == []


def test_the_file_named_goes_before_the_one_here_and_that_before_the_one_at_home(tmp_path):
    named = write(tmp_path / "named.toml", "job = 'named'")
    here = write(tmp_path / "here" / "r2ccl.toml", "job = 'here'")
    home = write(tmp_path / "home" / ".config" / "r2ccl.toml", "job = 'home'\nnode_id = 'n'")
    environ = {"HOME": str(tmp_path / "home"), FILE_VARIABLE: str(named)}
    assert read_settings(environ, directory=here.parent).file == named
    del environ[FILE_VARIABLE]
    reading = read_settings(environ, directory=here.parent)
    assert (reading.file, reading.settings.job, reading.settings.node_id) == (here, "here", "")
    reading = read_settings(environ, directory=tmp_path)
    assert (reading.file, reading.settings.job, reading.settings.node_id) == (home, "home", "n")
    assert read_settings({}, directory=tmp_path).file is None


def test_a_file_that_is_named_has_to_be_there(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: the file of settings cannot be read: No such file"):
        read_settings({FILE_VARIABLE: str(tmp_path / "nowhere.toml")})


def test_values_in_a_file_have_the_types_of_their_settings(tmp_path):
    write(
        tmp_path / "r2ccl.toml", "timeout_s = 30\nheartbeat_s = 0.5\ninsecure = true\nnics = 'eth0'\nrunning_max = 2\n"
    )
    settings = read_settings({}, directory=tmp_path).settings
    assert (settings.timeout_s, settings.heartbeat_s, settings.insecure) == (30, 0.5, True)
    assert (settings.nics, settings.running_max) == ("eth0", 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("chunk_bytes = ", "this is not TOML: Invalid value"),
        ("job = '\xff'", "this is not TOML: 'utf-8' codec"),
        ("chunk_byte = 1024", "'chunk_byte' is not a setting; did you mean 'chunk_bytes'?"),
        ("R2CCL_NICS = 'eth0'", "'R2CCL_NICS' is not a setting; did you mean 'nics'?"),
        ("[r2ccl]\nnics = 'eth0'", "'r2ccl' is not a setting"),
        ("chunk_bytes = '64K'", "chunk_bytes must be int, not str"),
        ("chunk_bytes = true", "chunk_bytes must be int, not bool"),
        ("insecure = 1", "insecure must be bool, not int"),
        ("nics = ['eth0']", "nics must be str, not list"),
        ("chunk_bytes = 1", "chunk_bytes: R2CCL_CHUNK_BYTES=1 must be from 64 to 4194304"),
        ("silence_s = nan", "silence_s: R2CCL_SILENCE=nan must not be negative"),
        ("debug = 'LOUD'", "debug: R2CCL_DEBUG='LOUD' must be one of WARN, INFO, TRACE"),
    ],
)
def test_a_mistake_in_a_file_is_an_error_that_names_file_and_key(tmp_path, text, complaint):
    file = tmp_path / "r2ccl.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=f"^{re.escape(f'{file}: {complaint}')}"):
        read_settings({}, directory=tmp_path)


def test_a_mistake_in_a_file_counts_also_where_something_goes_before_it(tmp_path):
    write(tmp_path / "r2ccl.toml", "chunk_bytes = 1")
    with pytest.raises(ConfigurationError, match="chunk_bytes"):
        read_settings({"R2CCL_CHUNK_BYTES": "1024"}, {"chunk_bytes": 2048}, directory=tmp_path)


@pytest.mark.parametrize(
    ("mode", "warns"), [(0o644, True), (0o640, True), (0o604, True), (0o600, False), (0o400, False)]
)
def test_a_secret_in_a_file_that_others_can_read_is_warned_about(tmp_path, mode, warns):
    file = write(tmp_path / "r2ccl.toml", "secret = 'swordfish'", mode)
    reading = read_settings({}, directory=tmp_path)
    assert reading.settings.secret == "swordfish"
    expected = f"{file} holds the job's secret, and others can read it: chmod 600 {file}"
    assert reading.warnings == ([expected] if warns else [])


def test_a_file_without_a_secret_may_be_read_by_all(tmp_path):
    write(tmp_path / "r2ccl.toml", "nics = 'eth0'", 0o644)
    assert read_settings({}, directory=tmp_path).warnings == []


def test_of_a_secret_and_a_secret_file_the_one_that_was_said_nearer_to_the_program_holds(tmp_path):
    write(tmp_path / "r2ccl.toml", "secret = 'old'")
    (tmp_path / "secret").write_text("new")
    named = {"R2CCL_SECRET_FILE": str(tmp_path / "secret")}
    assert job_secret(read_settings(named, directory=tmp_path).settings) == b"new"
    assert job_secret(read_settings({**named, "R2CCL_SECRET": "both"}).settings) == b"both"
    environ = {"R2CCL_SECRET": "environment"}
    assert job_secret(read_settings(environ, {"secret_file": str(tmp_path / "secret")}).settings) == b"new"
    assert job_secret(read_settings({**named, "R2CCL_SECRET_FILE": ""}, directory=tmp_path).settings) == b"old"


def test_an_argument_is_refused_for_its_name_or_type_as_ever():
    with pytest.raises(ConfigurationError, match="did you mean 'heartbeat_s'"):
        read_settings({}, {"heartbeats_s": 1.0})
    with pytest.raises(ConfigurationError, match="^nics must be str, not list$"):
        read_settings({}, {"nics": ["lo"]})


def test_values_are_shown_as_one_would_write_them_and_the_secret_is_not():
    settings = Settings(secret="swordfish", insecure=True, timeout_s=2.5)
    assert [shown_value(settings, name) for name in ("secret", "insecure", "timeout_s", "chunk_bytes")] == [
        "set", "1", "2.5", "262144",
    ]  # fmt: skip
    assert shown_value(Settings(), "secret") == "not set"


def test_without_a_file_no_parser_is_loaded(tmp_path):
    code = "import r2ccl.config, sys; r2ccl.config.read_settings({}); sys.exit('tomllib' in sys.modules)"
    environ = {**environment(), "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, check=False).returncode == 0


def test_every_variable_of_ours_that_the_code_names_is_a_setting_or_the_name_of_the_file():
    known = {field.metadata["variable"] for field in FIELDS.values()} | {FILE_VARIABLE}
    named: dict[str, str] = {}
    for room in ("r2ccl", "examples", "scripts"):
        for path in (ROOT / room).rglob("*.py"):
            # A name that begins with an underscore is nobody's business but the lab's, and is never looked at.
            found = re.findall(r"(?<![\w])R2CCL_[A-Z]\w*", path.read_text())
            named |= {name: str(path) for name in found}
    assert known & named.keys()
    assert {name: path for name, path in named.items() if name not in known} == {}


def test_a_home_that_cannot_be_looked_into_has_no_file_of_settings(tmp_path: Path) -> None:
    # Longer than any path may be: asking for it is an error, as it is of a home that belongs to somebody else.
    reading = read_settings({"HOME": "/" + "x" * 5000}, directory=tmp_path)
    assert reading.file is None
