"""YAML that could exhaust memory or the stack is refused in one sentence, wherever it is read."""

from pathlib import Path

import pytest
import yaml

from fledge.core.errors import ConfigError
from fledge.core.overrides import from_plain, read_yaml
from fledge.core.yaml_text import parse_yaml
from fledge.tasks.gym.task import GymConfig, read_options

HOSTILE = {
    "a: " + "[" * 20_000 + "]" * 20_000: "nested deeper than 32",
    "a: 1:30": "1:30 would be a number in base 60",
    "a: " + "9" * 5_000: "a number has 5,000 characters",
    "a: &x [1, 1]\nb: [*x, *x]": "aliases",
    "a: !!python/object:os.system x": "tags such as",
    "a: !!bool maybe": "tags such as",
}


@pytest.mark.parametrize(("text", "sentence"), HOSTILE.items(), ids=HOSTILE.values())
def test_hostile_yaml_gets_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(yaml.YAMLError, match=sentence):
        parse_yaml(text)
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_yaml(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match=sentence):
        read_options(text)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"seed: 1\nseed: 2\n", "in line 2: found duplicate key seed"),
        (b"seed: \xe9\n", "cannot be read"),
        (b"? [1, 2]\n: 3\n", "cannot be read"),
        (b"- 1\n", "is not a file of settings"),
        (b"# " + b"x" * 1_000_001, "at most 1,000,000 characters"),
    ],
)
def test_a_file_that_is_not_settings_gets_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read_yaml(tmp_path / "a.yaml")


def test_numbers_and_text_are_read_as_before() -> None:
    text = "{a: 1_000, b: 1.5, c: cuda:0, d: '1:30', e: 2026-11-18}"
    assert {key: str(value) for key, value in parse_yaml(text).items()} == {
        "a": "1000",
        "b": "1.5",
        "c": "cuda:0",
        "d": "1:30",
        "e": "2026-11-18",
    }


def test_a_saved_file_cannot_read_environment_variables() -> None:
    with pytest.raises(ConfigError, match="write the value itself"):
        from_plain(GymConfig, {"options": "${oc.env:HOME}"})
