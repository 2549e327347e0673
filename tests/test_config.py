"""Settings: argument before environment before default, and a clear word about what is no setting."""

from __future__ import annotations

import dataclasses
import math

import pytest

from r2ccl.config import Settings, environment, job_secret, read_settings
from r2ccl.errors import ConfigurationError, UsageError

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def test_without_an_environment_every_setting_has_its_default():
    assert read_settings({}) == (Settings(), [])


def test_the_environment_goes_before_the_default():
    settings, warnings = read_settings({"R2CCL_CHUNK_BYTES": "65536", "R2CCL_NICS": "eth0,^eth1", "PATH": "/bin"})
    assert settings == dataclasses.replace(Settings(), chunk_bytes=65536, nics="eth0,^eth1")
    assert warnings == []


def test_an_argument_goes_before_the_environment():
    settings, _ = read_settings({"R2CCL_TIMEOUT_SEC": "7.5", "R2CCL_DEBUG": "INFO"})
    changed = settings.replace(timeout_s=3.0)
    assert (settings.timeout_s, changed.timeout_s, changed.debug) == (7.5, 3.0, "INFO")


def test_the_processes_own_environment_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("R2CCL_NODE_ID", "rack-7")
    assert environment()["R2CCL_NODE_ID"] == "rack-7"
    assert read_settings()[0].node_id == "rack-7"


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("R2CCL_CHUNK_BYTE", "R2CCL_CHUNK_BYTE is not a setting; did you mean 'R2CCL_CHUNK_BYTES'?"),
        ("R2CCL_TIMEOUT_SECS", "R2CCL_TIMEOUT_SECS is not a setting; did you mean 'R2CCL_TIMEOUT_SEC'?"),
        ("R2CCL_QWXZJKQWXZJKQWXZ", "R2CCL_QWXZJKQWXZJKQWXZ is not a setting"),
    ],
)
def test_an_unknown_variable_is_warned_about_and_the_nearest_named(name, warning):
    settings, warnings = read_settings({name: "1"})
    assert settings == Settings()
    assert warnings == [warning]


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "r2ccl_debug", "MASTER_ADDR", "XR2CCL_DEBUG"])
def test_other_peoples_variables_are_left_alone(name):
    assert read_settings({name: "nonsense"}) == (Settings(), [])


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
    text = {"chunk_bytes": "4096", "checksum": "on", "debug": "INFO"}.get(name, "1")
    read = getattr(read_settings({field.metadata["variable"]: text})[0], name)
    assert type(read) is kind
    assert read == kind(text)


@pytest.mark.parametrize(
    "wrong", [{"chunk_bytes": 0}, {"chunk_bytes": 5 << 20}, {"checksum": "maybe"}, {"debug": "LOUD"}]
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
    settings, _ = read_settings({"R2CCL_SECRET_FILE": str(path)})
    assert job_secret(settings) == b"sword fish\xff"


def test_a_secret_file_that_cannot_be_read_or_is_empty_is_an_error_and_never_no_secret(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigurationError, match=f"R2CCL_SECRET_FILE='{path}' cannot be read"):
            job_secret(Settings(secret_file=str(path)))
    (tmp_path / "empty").write_bytes(b"\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        job_secret(Settings(secret_file=str(tmp_path / "empty")))
