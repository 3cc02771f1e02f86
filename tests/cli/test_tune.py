"""`tune`: what it ranks, what it writes, and what it leaves alone."""

import json

import pytest

from lora_alloy.autotuner.space import candidates
from lora_alloy.merging.recipe import Recipe


def test_a_ranking_without_a_file(run, loras, tmp_path):
    ran = run("tune", *loras[:2], "--json", tmp_path / "j")
    assert ran.code == 0 and ran.err == ""
    assert f"{len(candidates(Recipe()))} recipes tried" in ran.out
    assert "kept 2" in ran.out and "Saved" not in ran.out
    tuning = json.loads((tmp_path / "j").read_text())["tuning"]
    merged = [one for one in tuning["candidates"] if one["measured"] is not None]
    assert len(merged) == 3 and [one["rank"] for one in merged] == [1, 2, 3]
    assert merged[0]["measured"] >= merged[1]["measured"] >= merged[2]["measured"]
    assert all(0 < kept <= 1.5 for one in merged for kept in one["kept"])


def test_the_picked_rank_is_written_as_its_recipe_merges(run, loras, tmp_path):
    ran = run("tune", *loras, "-o", tmp_path / "second", "--pick", "2", "--json", tmp_path / "j")
    assert ran.code == 0 and "Rank 2 of the ranking, written" in ran.out and "bit for bit" in ran.out
    told = json.loads((tmp_path / "j").read_text())
    (tmp_path / "recipe.json").write_text(json.dumps(told["tuning"]["candidates"][1]["recipe"]))
    again = run("merge", *loras, "-o", tmp_path / "again", "--recipe", tmp_path / "recipe.json")
    assert again.code == 0
    second, merged = (tmp_path / f"{name}.safetensors" for name in ("second", "again"))
    assert second.read_bytes() == merged.read_bytes()
    assert run("verify", second, *loras).code == 0


def test_what_is_not_tuned_is_kept(run, loras, tmp_path):
    run(
        "tune",
        *loras[:2],
        "-o",
        tmp_path / "out",
        "--dtype",
        "bfloat16",
        "--rank",
        "5",
        "--json",
        tmp_path / "j",
    )
    told = json.loads((tmp_path / "j").read_text())
    assert all(one["recipe"]["rank"] == 5 for one in told["tuning"]["candidates"])
    assert told["plan"]["recipe"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--method", "ties"], "`method`: that is what `tune` finds out"),
        (["--density", "0.5", "--enhance", "refine"], "`enhance`, `density`"),
        (["--top-n", "0"], "at least 1"),
        (["--pick", "2"], "-o OUT"),
        (["--score", "luck"], "own_foreign"),
    ],
)
def test_what_cannot_be_asked(run, loras, words, told):
    ran = run("tune", *loras[:2], *words)
    assert ran.code == 1 and told in ran.err


def test_a_rank_that_does_not_exist_writes_nothing(run, loras, tmp_path):
    ran = run("tune", *loras[:2], "-o", tmp_path / "out", "--pick", "9999")
    assert ran.code == 1 and "There is no rank 9999" in ran.err
    assert not list(tmp_path.glob("out*"))


def test_nothing_that_exists_is_replaced_unasked(run, loras, tmp_path):
    (tmp_path / "out.safetensors").write_text("mine")
    ran = run("tune", *loras[:2], "-o", tmp_path / "out")
    assert ran.code == 1 and "out.safetensors" in ran.err
    assert (tmp_path / "out.safetensors").read_text() == "mine"


def test_the_page_shows_every_candidate_and_marks_the_pick(run, loras, tmp_path):
    assert run("tune", *loras, "-o", tmp_path / "out", "--pick", "2", "--html", tmp_path / "t.html").code == 0
    page = (tmp_path / "t.html").read_text(encoding="utf-8")
    assert page.count("<circle") == page.count("</circle>") > 50
    assert page.count('class="picked"') == 1 and page.count('class="merged"') == 2
    assert "<script" not in page and "ink" in page
