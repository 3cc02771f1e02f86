"""Candidates judged by several ComfyUI servers: lost ones, slow ones, ones that answer nonsense, and cancelling."""

import json
import socket
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from lora_alloy import tune
from lora_alloy.autotuner.comfy_queue import ComfyQueue
from lora_alloy.autotuner.evaluators import evaluator_of
from lora_alloy.autotuner.workers import ComfyWorkers
from lora_alloy.autotuner.workflow import Workflow
from lora_alloy.core.errors import FileError, RecipeError, SaveError
from lora_alloy_testing.builders import stack_of, toy_lora
from lora_alloy_testing.fake_comfy import FakeComfy
from lora_alloy_testing.sweeps import shorten

WORKFLOW = {
    "1": {"class_type": "LoraLoaderModelOnly", "inputs": {"model": ["2", 0], "lora_name": "{lora}"}},
    "9": {"class_type": "PreviewAny", "inputs": {"source": ["8", 0]}, "_meta": {"title": "Score"}},
}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def stack():
    return stack_of(toy_lora(1), toy_lora(2))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "loras"
    made.mkdir()
    return made


def queue(address, **how):
    quick = {"interval": 0.02, "patience": 0.2, "timeout": 20.0, "answer_seconds": 2.0}
    return ComfyQueue(address, **{**quick, **how})


def workers(folder, *queues, mode="external_only"):
    return ComfyWorkers(queues, Workflow.of(WORKFLOW), folder, mode)


def swept(stack, folder, *queues, top_n=4, **how):
    with workers(folder, *queues) as evaluate:
        found = tune(stack, top_n=top_n, evaluate=evaluate, **how)
    assert not list(folder.iterdir())
    return found.ranked[:top_n], found


def name_of(prompt):
    return prompt["1"]["inputs"]["lora_name"]


def dead_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def loudness(folder):
    """The norm of a candidate's file, brought below 1: tells the candidates apart."""

    def score(prompt):
        tensors = load_file(folder / name_of(prompt)).values()
        return str(float(torch.stack([one.float().norm() for one in tensors]).sum()) / 1000)

    return score


def test_the_servers_share_the_candidates_and_the_ranking_is_that_of_one(stack, folder):
    score = loudness(folder)
    with FakeComfy(score, seconds=0.1) as one, FakeComfy(score, seconds=0.1) as two:
        ranked, found = swept(stack, folder, queue(one.address), queue(two.address))
        assert len(one.prompts) + len(two.prompts) == 4 and one.prompts and two.prompts
    with FakeComfy(score) as alone:
        again, _ = swept(stack, folder, queue(alone.address))
    assert [one.name for one in ranked] == [one.name for one in again]
    assert [one.verdict.external for one in ranked] == [one.verdict.external for one in again]
    scores = [one.verdict.external for one in ranked]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4
    assert found.tuned.notes == ranked[0].plan.notes


def test_the_best_is_merged_again_bit_for_bit_if_its_verdict_came_late(stack, folder):
    order = []

    def last_is_best(prompt):
        order.append(name_of(prompt))
        return str(len(dict.fromkeys(order)) / 10)

    with FakeComfy(last_is_best) as server:
        ranked, found = swept(stack, folder, queue(server.address), top_n=3)
    assert ranked[0].verdict.external == 0.3
    # The candidate that is handed out is the one that was judged last, and not the one that led by our own score.
    assert ranked[0].measured < max(one.measured for one in ranked)
    again = found.pick(1, is_lazy=True)
    for here, there in zip(found.best.patches, again.patches, strict=True):
        assert torch.equal(here.delta.flat(), there.delta.flat())


def test_a_server_that_dies_loses_no_candidate(stack, folder):
    with FakeComfy(dies_at=1) as dying, FakeComfy(lambda _: 0.75) as sound:
        ranked, found = swept(stack, folder, queue(dying.address), queue(sound.address))
        assert dying.is_dead
    assert all(one.verdict.external in (0.5, 0.75) for one in ranked)
    assert found.tuned.notes == ranked[0].plan.notes


def test_a_server_that_was_never_there_costs_nothing(stack, folder):
    with FakeComfy() as sound:
        ranked, _ = swept(stack, folder, queue(dead_address()), queue(sound.address))
    assert all(one.verdict.external == 0.5 for one in ranked)


def test_a_server_that_dies_while_it_works_gives_its_candidate_to_another(stack, folder):
    with FakeComfy(hangs=True) as dying, FakeComfy(seconds=0.05) as sound:

        def kill():
            while not dying.prompts:
                time.sleep(0.01)
            dying.is_dead = True

        killer = threading.Thread(target=kill)
        killer.start()
        ranked, _ = swept(stack, folder, queue(dying.address), queue(sound.address))
        killer.join()
        assert len(sound.prompts) == 4
    assert all(one.verdict.external == 0.5 for one in ranked)


def test_without_any_server_left_every_candidate_says_why_and_the_sweep_ends_well(stack, folder):
    ranked, found = swept(stack, folder, queue(dead_address()), queue(dead_address()), top_n=3)
    assert all(one.verdict.error.startswith("No ComfyUI server gave a score.") for one in ranked)
    assert "cannot be reached" in ranked[0].verdict.error + ranked[1].verdict.error
    assert any("no score for 3 of 3 candidates" in note for note in found.tuned.notes)
    assert ranked[0].measured == max(one.measured for one in ranked)


def test_what_is_too_slow_is_cancelled_there_and_tried_elsewhere(stack, folder):
    with FakeComfy(hangs=True) as slow, FakeComfy() as sound:
        ranked, _ = swept(stack, folder, queue(slow.address, timeout=0.3), queue(sound.address), top_n=2)
        assert set(slow.interrupted) == set(slow.prompts)
    assert all(one.verdict.external == 0.5 for one in ranked)


def test_a_restarted_server_is_given_the_prompt_again(stack, folder):
    with FakeComfy(forgets=1) as restarted:
        ranked, _ = swept(stack, folder, queue(restarted.address), top_n=2)
    assert all(one.verdict.external == 0.5 for one in ranked)


def test_an_old_server_numbers_prompts_itself(stack, folder):
    with FakeComfy(knows_ids=False) as old:
        ranked, _ = swept(stack, folder, queue(old.address), top_n=2)
    assert all(one.verdict.external == 0.5 for one in ranked)


def fail(prompt):
    raise ValueError("out of memory")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"score": fail}, "KSampler (node 5) failed: out of memory"),
        ({"score": lambda _: "a picture"}, "its node 9 showed no score"),
        ({"score": lambda _: {"images": [{"filename": "a.png"}]}}, "its node 9 showed no score"),
        ({"score": lambda _: {"text": 3}}, None),
        ({"score": lambda _: {"text": ["scored", "0.5"]}}, None),
        ({"refuses": "Value not in list"}, "node 1: Value not in list lora_name: 'x' not in []"),
        ({"drops": "Value not in list"}, "refused a part of the prompt: node 1: Value not in list"),
        ({"answers": {"/prompt": b"<html>"}}, "not what a ComfyUI server says"),
        ({"answers": {"/prompt": b"{}"}}, "gave it no number"),
        ({"answers": {"/prompt": b'{"prompt_id": 3}'}}, "gave it no number"),
        ({"answers": {"/history": b"[1]"}}, "not what a ComfyUI server says"),
        ({"answers": {"/queue": b"[[" * 5000}, "seconds": 0.1}, "not what a ComfyUI server says"),
        (
            {
                "answers": {"/queue": b'{"queue_running": [3, [], [1, {}]], "queue_pending": 1}'},
                "hangs": True,
            },
            "forgot",
        ),
    ],
)
def test_an_answer_that_is_no_score_is_said_so(stack, folder, how, said):
    with FakeComfy(**how) as server:
        ranked, _ = swept(stack, folder, queue(server.address), top_n=1)
    verdict = ranked[0].verdict
    if said is None:
        assert verdict.external in (0.5, 1.0)
    else:
        assert verdict.external is None and said in verdict.error and server.address in verdict.error


def test_what_one_server_cannot_do_another_may(stack, folder):
    with FakeComfy(fail) as small, FakeComfy(seconds=0.05) as large:
        ranked, _ = swept(stack, folder, queue(small.address), queue(large.address))
        assert small.prompts
    assert all(one.verdict.external == 0.5 for one in ranked)


def test_cancelling_takes_our_prompts_back_and_leaves_those_of_others(stack, folder):
    class CancelledError(Exception):
        pass

    with FakeComfy(hangs=True) as server:

        def progress(what, done, total):
            if what == "evaluate" and server.prompts:
                raise CancelledError

        began = time.monotonic()
        with pytest.raises(CancelledError):
            swept(stack, folder, queue(server.address), progress=progress)
        assert time.monotonic() - began < 30
        assert server.interrupted == list(server.prompts) and not server.deleted
    assert not list(folder.iterdir())
    assert not [one for one in threading.enumerate() if one.name == server.address]


def test_what_waits_behind_others_is_taken_back_without_interrupting_them(stack, folder):
    with FakeComfy(is_busy=True) as busy:
        ranked, _ = swept(stack, folder, queue(busy.address, timeout=0.3), top_n=1)
        assert busy.deleted == list(busy.prompts) and not busy.interrupted
    assert "took longer than 0.3 s" in ranked[0].verdict.error


def test_progress_counts_the_candidates_that_are_done(stack, folder):
    told = []
    with FakeComfy() as server:
        swept(stack, folder, queue(server.address), progress=lambda *what: told.append(what))
    counted = [what[1:] for what in told if what[0] == "evaluate"]
    assert counted[-1] == (4, 4) and counted == sorted(counted)


def test_the_proxy_of_the_environment_is_not_asked(stack, folder, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{dead_address()}")
    with FakeComfy() as server:
        ranked, _ = swept(stack, folder, queue(server.address), top_n=1)
    assert ranked[0].verdict.external == 0.5


@pytest.mark.parametrize(
    "address",
    ["", "file:///etc/passwd", "http://", "ftp://a:1", "http://me:secret@a:1", "a:port", "http://a/?x=1"],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(RecipeError, match="no address of a ComfyUI server"):
        ComfyQueue(address)


def test_servers_and_a_folder_must_be_there(folder, tmp_path):
    with pytest.raises(RecipeError, match="no ComfyUI server"):
        workers(folder)
    with pytest.raises(RecipeError, match="named twice"):
        workers(folder, queue("127.0.0.1:1"), queue("http://127.0.0.1:1/"))
    with pytest.raises(RecipeError, match="is no folder"):
        workers(tmp_path / "none", queue("127.0.0.1:1"))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"nodes": [], "links": []}, "is saved for ComfyUI's editor"),
        ([], "API form"),
        ({}, "API form"),
        ({"1": {"inputs": {}}}, "API form"),
        ({"9": WORKFLOW["9"]}, "names no LoRA"),
        ({"1": WORKFLOW["1"]}, "has no node `score`"),
        ({**WORKFLOW, "8": WORKFLOW["9"]}, "has 2 nodes `score`"),
    ],
)
def test_a_workflow_that_scores_no_lora_is_refused(found, said):
    with pytest.raises(RecipeError, match=said):
        Workflow.of(found)


def test_the_score_node_may_be_named_by_its_id_or_title():
    assert Workflow.of(WORKFLOW, "9").score_node == Workflow.of(WORKFLOW, "SCORE").score_node == "9"
    assert Workflow.of(WORKFLOW, "1").prompt("a.safetensors")["1"]["inputs"]["lora_name"] == "a.safetensors"
    assert WORKFLOW["1"]["inputs"]["lora_name"] == "{lora}"


def test_the_line_of_the_user_makes_them(stack, folder, tmp_path):
    path = tmp_path / "score.json"
    path.write_text(json.dumps(WORKFLOW))
    with FakeComfy() as server:
        how = {"workers": [server.address], "folder": str(folder)}
        with evaluator_of(str(path), "external_only", **how) as evaluate:
            assert tune(stack, top_n=1, evaluate=evaluate).ranked[0].verdict.external == 0.5
    with pytest.raises(SaveError, match="--worker-loras"), evaluator_of(str(path), workers=["127.0.0.1:1"]):
        pass
    with pytest.raises(FileError), evaluator_of(str(tmp_path / "no.json"), workers=["127.0.0.1:1"]):
        pass
    path.write_text("{")
    with pytest.raises(FileError, match="no JSON"), evaluator_of(str(path), workers=["127.0.0.1:1"]):
        pass
