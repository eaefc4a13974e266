"""Settings: the stronger source wins, and a wrong key or value is named, with what is right."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dgl_heta.errors import InputError
from dgl_heta.settings import (
    PLAIN_VARIABLES,
    CacheSettings,
    Origin,
    Settings,
    keys,
    load_settings,
    read_section,
)


@pytest.fixture
def toml(tmp_path):
    """Writes a settings file and returns its path."""
    def write(text: str):
        path = tmp_path / "heta.toml"
        path.write_text(text, encoding="utf-8")
        return path
    return write


def load(*overrides: str, file=None, **environ: str) -> Settings:
    return load_settings(file, overrides, environ)


def refused(*overrides: str, file=None, **environ: str) -> str:
    with pytest.raises(InputError) as caught:
        load(*overrides, file=file, **environ)
    message = str(caught.value)
    assert "\n" not in message
    assert "pydantic" not in message
    assert "Value error" not in message
    return message


def test_defaults_are_valid():
    assert load() == Settings()
    assert load().train.fanouts == [25, 20]
    assert load().model.layers == 2


def test_a_batch_is_of_a_worker_or_of_all_together(toml):
    assert load("train.batch_size=7").train.step_size(3) == 21
    assert load("train.global_batch_size=7").train.step_size(3) == 7
    message = refused("train.global_batch_size=7", file=toml("[train]\nbatch_size = 1024\n"))
    assert "leave one of them out" in message


def test_the_file_is_weaker_than_the_environment_and_that_than_set(toml):
    file = toml("[train]\nlr = 0.1\nepochs = 3\nbatch_size = 7\n[model]\nhidden = 16\n")
    loaded = load("train.lr=0.3", file=file, DGL_HETA_TRAIN__LR="0.2", DGL_HETA_TRAIN__EPOCHS="4")
    assert (loaded.train.lr, loaded.train.epochs, loaded.train.batch_size) == (0.3, 4, 7)
    assert loaded.model.hidden == 16
    assert loaded.train.sparse_lr == Settings().train.sparse_lr


def test_what_a_program_gives_is_weaker_than_all_of_these(toml):
    base = {"train": {"epochs": 1, "lr": 0.5, "seed": 9}, "model": {"hidden": 8}}
    loaded = load_settings(toml("train.lr = 0.1\n"), ["model.hidden=4"],
                           {"DGL_HETA_TRAIN__EPOCHS": "2"}, base)
    assert (loaded.train.lr, loaded.train.epochs, loaded.train.seed) == (0.1, 2, 9)
    assert loaded.model.hidden == 4
    assert base == {"train": {"epochs": 1, "lr": 0.5, "seed": 9}, "model": {"hidden": 8}}


@given(st.sets(st.sampled_from(["base", "file", "variable", "flag"])))
def test_a_value_knows_the_strongest_source_that_named_it(tmp_path_factory, named):
    file = tmp_path_factory.mktemp("settings") / "heta.toml"
    file.write_text('[partition]\nshared = "rows"\n' if "file" in named else "", encoding="utf-8")
    loaded = load_settings(
        file, ["partition.shared=rows"] if "flag" in named else [],
        {"DGL_HETA_PARTITION__SHARED": "rows"} if "variable" in named else {},
        {"partition": {"shared": "rows"}} if "base" in named else None, Origin.PLAN)
    strongest = next((origin for source, origin in (
        ("flag", Origin.FLAG), ("variable", Origin.VARIABLE), ("file", Origin.FILE),
        ("base", Origin.PLAN)) if source in named), Origin.DEFAULT)
    assert loaded.origin("partition.shared") is strongest
    assert loaded.asked("partition") == ({"shared": "rows"} if strongest.asked else {})
    assert loaded.origin("train.fanouts") is Origin.DEFAULT
    assert loaded.asked("train") == {}
    assert loaded == Settings(partition={"shared": "rows" if named else "auto"})


def test_settings_that_a_program_makes_are_asked_for():
    made = Settings(cache=CacheSettings(policy="hotness"))
    assert made.origin("cache.policy") is Origin.PROGRAM
    assert made.asked("cache") == {"policy": "hotness"}
    assert made.origin("cache.gate") is Origin.DEFAULT


def test_the_last_set_wins():
    assert load("train.epochs=3", "train.epochs=5").train.epochs == 5


def test_the_environment_names_the_file(toml, tmp_path):
    file = toml("[train]\nepochs = 3\n")
    assert load(DGL_HETA_CONFIG=str(file)).train.epochs == 3
    other = tmp_path / "other.toml"
    other.write_text("[train]\nepochs = 4\n", encoding="utf-8")
    assert load(file=other, DGL_HETA_CONFIG=str(file)).train.epochs == 4
    assert load(DGL_HETA_CONFIG="").train.epochs == Settings().train.epochs


def test_the_process_environment_is_read(monkeypatch):
    monkeypatch.setenv("DGL_HETA_TRAIN__EPOCHS", "6")
    assert load_settings().train.epochs == 6


def test_variables_that_are_no_settings_are_left_alone():
    others = {name: "1" for name in PLAIN_VARIABLES if name != "DGL_HETA_CONFIG"}
    assert load(PATH="/bin", DGLBACKEND="pytorch", **others) == Settings()


# Unknown keys


def test_an_unknown_key_is_named_with_the_nearest_wherever_it_comes_from(toml):
    file = toml("[train]\nepoch = 3\n")
    for message, origin in (
            (refused(file=file), str(file)),
            (refused("train.epoch=3"), "--set train.epoch=3"),
            (refused(DGL_HETA_TRAIN__EPOCH="3"), "variable DGL_HETA_TRAIN__EPOCH")):
        assert origin in message
        assert "unknown setting 'train.epoch'" in message
        assert "did you mean 'train.epochs'" in message


def test_an_unknown_section_is_named_with_the_nearest_wherever_it_comes_from(toml):
    file = toml("[trian]\nepochs = 3\n")
    for message in (refused(file=file), refused("trian.epochs=3"),
                    refused(DGL_HETA_TRIAN__EPOCHS="3")):
        assert "unknown section 'trian'" in message
        assert "model, partition, plugins, run, task, train" in message
        assert "did you mean 'train'" in message


def test_a_key_in_the_wrong_section_is_found():
    assert "did you mean 'model.hidden'" in refused("train.hidden=8")
    assert "did you mean 'train.lr'" in refused("partition.lr=8")


def test_a_key_without_its_section_is_found():
    assert "did you mean 'train.epochs'" in refused("epochs=8")
    assert "section.key=value" in refused("train.epochs")
    assert "section.key=value" in refused("")
    assert "unknown section 'epochs'" in refused(DGL_HETA_EPOCHS="8")


def test_a_section_that_is_given_a_value_is_named_with_its_keys(toml):
    for message in (refused(file=toml("model = 3\n")), refused(DGL_HETA_MODEL="3")):
        assert "'model' is a section" in message
        assert "model.hidden" in message


# Wrong values


@pytest.mark.parametrize(("name", "value"), [
    ("train.epochs", "many"), ("train.epochs", "0"), ("train.epochs", "2.5"),
    ("train.epochs", "true"), ("train.epochs", ""), ("train.lr", "false"), ("train.lr", "fast"),
    ("train.lr", "0"), ("train.lr", "inf"), ("train.lr", "nan"), ("run.timeout_s", "inf"),
    ("model.dropout", "1.0"), ("model.layers", "[1, 2]"), ("model.self_loop", "perhaps"),
    ("model.aggregate", "average"), ("train.device", "tpu"), ("partition.parts", "-1"),
    ("train.seed", "-1"), ("run.timeout_s", "1e-300"), ("run.timeout_s", "1e300"),
    ("model.bases", "65537"), ("train.trainers", "1025"), ("train.threads", "4097"),
    ("train.fanouts", "2147483648,2"), ("train.fanouts", "a,b"), ("train.fanouts", "1.5,2"),
    ("train.fanouts", "true,2"), ("train.fanouts", ""),
])
def test_a_wrong_value_is_named_with_its_key(name, value):
    message = refused(f"{name}={value}")
    assert message.startswith(f"setting {name}")
    variable = "DGL_HETA_" + name.upper().replace(".", "__")
    assert refused(**{variable: value}) == message


def test_a_wrong_value_in_the_file_is_named_with_its_key(toml):
    assert "setting train.epochs" in refused(file=toml("[train]\nepochs = 'many'\n"))
    assert "'many'" in refused(file=toml("[train]\nepochs = 'many'\n"))
    assert "setting model.name" in refused(file=toml("[model]\nname = true\n"))


def test_the_choices_are_named():
    message = refused("model.reduce=average")
    for choice in ("sum", "mean", "max", "min", "'average'"):
        assert choice in message


@pytest.mark.parametrize("value", ["0,5", "-2,5", "5,-10"])
def test_a_fanout_is_positive_or_minus_one(value):
    message = refused(f"train.fanouts={value}")
    assert message.startswith("setting train.fanouts: a fanout is 1 or more and below 2^31, or -1")
    assert "eval_fanouts" in refused(f"train.eval_fanouts={value}")


def test_there_is_a_fanout_per_layer():
    assert load("model.layers=3").train.fanouts == [25, 20, 20]
    message = refused("model.layers=3", "train.fanouts=5,5")
    assert "train.fanouts has 2 numbers, but model.layers is 3" in message
    assert "train.eval_fanouts has 1 number" in refused("train.eval_fanouts=[5]")
    assert "train.fanouts has 1 number" in refused("train.fanouts=5")
    assert load("model.layers=3", "train.fanouts=3,2,1").train.fanouts == [3, 2, 1]


@pytest.mark.parametrize(("content", "words"), [
    (b"a = " + b"[" * 50_000, "nested too deeply"), (b"a" + b".a" * 50_000 + b" = 1", "200 dots"),
    (b"x = " + b"9" * 6000, "is not TOML"), (b"#" * 300_000, "256 KiB"),
    (b"[train", "is not TOML"), (b"\xff", "is not TOML"), (b"train = ", "is not TOML")])
def test_a_damaged_file_is_refused_by_name(tmp_path, content, words):
    file = tmp_path / "heta.toml"
    file.write_bytes(content)
    for message in (refused(file=file), refused(DGL_HETA_CONFIG=str(file))):
        assert str(file) in message
        assert words in message


def test_a_missing_file_is_named(tmp_path):
    assert "cannot read settings" in refused(file=tmp_path / "absent.toml")
    assert "absent.toml" in refused(DGL_HETA_CONFIG=str(tmp_path / "absent.toml"))
    assert "cannot read settings" in refused(file=tmp_path)


# How to write values


@pytest.mark.parametrize(("text", "fanouts"), [
    ("10,5", [10, 5]), ("[10, 5]", [10, 5]), (" 10 , 5 ", [10, 5]), ("-1,-1", [-1, -1]),
    ("[-1,5]", [-1, 5]), ("10,-1", [10, -1]), ("10,5,", [10, 5])])
def test_a_list_is_written_with_brackets_or_without(text, fanouts):
    assert load(f"train.fanouts={text}").train.fanouts == fanouts
    assert load(DGL_HETA_TRAIN__FANOUTS=text).train.fanouts == fanouts


def test_one_fanout_is_enough_for_one_layer(toml):
    assert load("model.layers=1", "train.fanouts=-1").train.fanouts == [-1]
    file = toml("[train]\nfanouts = 10\neval_fanouts = 20\n[model]\nlayers = 1\n")
    assert load(file=file).train.fanouts == [10]
    assert load(file=file).train.eval_fanouts == [20]


@pytest.mark.parametrize("text", ["a,b", "2024", "2024-05-01", "true", "1.5", "runs/a=b", "x y",
                                  "[1]", "#3", "'", "C:\\runs"])
def test_text_needs_no_quotes_whatever_it_looks_like(text):
    assert load(f"run.directory={text}").run.directory == text
    assert load(DGL_HETA_RUN__DIRECTORY=text).run.directory == text


def test_text_may_be_quoted():
    assert load("run.directory='a b'").run.directory == "a b"
    assert load('model.name="rgcn"').model.name == "rgcn"
    assert load("model.name=rgcn").model.name == "rgcn"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("False", False),
                                             ("1", True), ("0", False), ("no", False)])
def test_a_switch_is_written_in_the_usual_ways(text, value):
    assert load(f"run.verify={text}").run.verify is value


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6) | st.just(-1), min_size=1, max_size=5))
def test_any_list_of_fanouts_can_be_set(fanouts):
    loaded = load(f"model.layers={len(fanouts)}", "train.fanouts=" + ",".join(map(str, fanouts)))
    assert loaded.train.fanouts == fanouts


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_after_set_is_read_or_refused_with_a_message(text):
    for override in (text, f"train.{text}", f"train.fanouts={text}", f"model.name={text}"):
        try:
            load(override)
        except InputError:
            continue


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        load().train.epochs = 3


def test_every_setting_says_what_it_is_for():
    assert set(keys()) == {f"{section}.{key}" for section, values in Settings().model_dump().items()
                           for key in values}
    assert all(field.description for field in keys().values())


def test_settings_survive_json():
    loaded = load("train.fanouts=3,-1", "run.directory=here")
    assert Settings(**json.loads(json.dumps(loaded.model_dump()))) == loaded


def test_a_choice_of_texts_may_look_like_a_number():
    class Section(BaseModel):
        order: Literal["1", "2"] = "1"

    assert read_section(Section, {"order": "2"}, "plugins.x") == Section(order="2")
    with pytest.raises(InputError, match=r"plugins\.x\.order: .*'1' or '2'; got 3"):
        read_section(Section, {"order": "3"}, "plugins.x")
