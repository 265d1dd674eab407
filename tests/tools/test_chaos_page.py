"""The report page of the chaos harness."""

import json
import random
from pathlib import Path

import pytest
from test_chaos_checker import two_believers, two_tenures
from test_peers import figures

from dev.chaos.__main__ import ENGINES, chosen_engines
from dev.chaos.figures import DEEDS
from dev.chaos.network import faults
from dev.chaos.page import INJECTED, main

FACTS = {"lease": 1.5, "injector": True, "engine": "embedded", "seconds": 10.0}


def keep(folder: Path, seed: int, events: list) -> None:
    """Leave a history as a run does."""
    run = folder / str(seed)
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(FACTS | {"seed": seed}))
    (run / "wire.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_page_adds_up_the_runs_it_finds(tmp_path: Path, capsys) -> None:
    for seed in (31, 32):
        keep(tmp_path / "kept" / "deep", seed, two_tenures().events)
    assert main([str(tmp_path / "page"), str(tmp_path / "kept")]) == 0
    page = (tmp_path / "page" / "report.html").read_text()
    assert "20 seconds of attack in 2\nruns" in page
    assert "31 (embedded), 32 (embedded)" in page
    assert '<td>P1</td>\n<td class="holds">holds</td>\n<td class="number">0</td><td class="number">6</td>' in page  # fmt: skip
    assert "P5" in page
    assert "not tried" in page
    assert "What was not tried" in page
    assert "violated" not in page.partition("</style>")[2]
    assert (tmp_path / "page" / "timeline.png").stat().st_size > 10_000
    assert "2 runs" in capsys.readouterr().out


def test_page_names_violations_and_draws_them(tmp_path: Path) -> None:
    keep(tmp_path, 1, two_tenures().events)
    assert main([str(tmp_path / "page"), str(tmp_path)]) == 0
    good = (tmp_path / "page" / "timeline.png").read_bytes()
    keep(tmp_path, 2, two_believers().events)
    assert main([str(tmp_path / "page"), str(tmp_path)]) == 1
    page = (tmp_path / "page" / "report.html").read_text()
    assert "both believed" in page
    assert "around the first violation" in page
    assert (tmp_path / "page" / "timeline.png").read_bytes() != good


def test_page_has_words_for_all_that_is_done() -> None:
    names = {fault.name for fault in faults(random.Random(), 1.0)}
    assert INJECTED["faults"].keys() == {*names, "partition"}
    assert INJECTED["injector"].keys() == set(DEEDS)


def test_page_without_a_run_is_refused(tmp_path: Path, capsys) -> None:
    assert main([str(tmp_path / "page"), str(tmp_path)]) == 1
    assert "no runs found" in capsys.readouterr().out
    assert not (tmp_path / "page").exists()


def test_page_shows_what_the_models_said_and_the_peers(tmp_path: Path) -> None:
    keep(tmp_path, 1, two_tenures().events)
    page = tmp_path / "page"

    def shown() -> str:
        assert main([str(page), str(tmp_path)]) == 0
        return (page / "report.html").read_text()

    assert "make models" in shown()
    (page / "models.txt").write_text("all as <expected>\n")
    (page / "peers.json").write_text(json.dumps(figures(takeovers=[5.0])))
    text = shown()
    assert "all as &lt;expected&gt;" in text
    assert "median 5.00 s, max 5.00 s, n 1" in text
    assert "peers.png" not in text
    (page / "peers.png").touch()
    assert "peers.png" in shown()


def test_runs_take_turns_on_thechosen_engines(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delenv("PYNAMODB_MUTEX_REQUIRE_LOCAL", raising=False)
    monkeypatch.setattr("dev.chaos.__main__.why_no_dynamodb_local", lambda: None)
    assert chosen_engines("both") == ENGINES
    monkeypatch.setattr("dev.chaos.__main__.why_no_dynamodb_local", lambda: "there is no Java")
    assert chosen_engines("both") == ("embedded",)
    assert "there is no Java" in capsys.readouterr().out
    assert chosen_engines("local") == ("local",)
    monkeypatch.setenv("PYNAMODB_MUTEX_REQUIRE_LOCAL", "1")
    assert chosen_engines("both") == ENGINES
