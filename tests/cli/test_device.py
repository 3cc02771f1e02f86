"""`--device`: where element-wise work is done."""

import pytest


@pytest.mark.parametrize("command", ["merge", "verify"])
def test_a_device_that_there_is_not_is_refused_in_a_sentence(command, run, loras, tmp_path):
    output = tmp_path / "out.safetensors"
    words = [*loras[:2], "--device", "nowhere"]
    if command == "merge":
        ran = run("merge", *words, "-o", output)
        assert not output.exists()
    else:
        assert run("merge", *loras[:2], "-o", output).code == 0
        ran = run("verify", output, *words)
    assert ran.code == 1 and ran.out == ""
    assert ran.err.startswith("There is no device `nowhere` to work on here") and ran.err.endswith(
        "or none.\n"
    )


def test_the_cpu_is_the_default(run, loras, tmp_path):
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    assert run("merge", *loras[:2], "-o", one, "--method", "ties").code == 0
    assert run("merge", *loras[:2], "-o", other, "--method", "ties", "--device", "cpu").code == 0
    assert one.read_bytes() == other.read_bytes()
    assert run("verify", one, *loras[:2], "--device", "cpu").code == 0
