"""accelrt demo, and the pipeline that it checks."""

from child import run_python
from cli_command import RECORDED, ROOT, accelrt

from accelrt.tools.cli.pipeline import BLOCKS, GUARD, GUARD_VALUE, Pipeline, pipeline_part


def test_the_demo_passes_on_the_host_device():
    done = accelrt("demo")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].startswith("driver: host")
    assert "fell back" not in done.stdout
    assert lines[-1] == "PASS"
    times = [line for line in lines if "ns per event" in line or "us per replay" in line]
    assert len(times) == 2
    assert all("of the host device, emulated on the CPU" in line for line in times)
    events, peak_live, _ = RECORDED["gpt2"]
    for figure in (f"{events:,}", f"{peak_live:,}", "0 of 101", "101 times"):
        assert figure in done.stdout


def test_without_a_gpu_the_demo_falls_back_and_says_so_in_its_first_line():
    done = accelrt("demo", ACCELRT_DRIVER=None, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("driver: host (fell back")
    assert done.stdout.endswith("PASS\n")


def test_the_demo_scales_the_trace_to_a_small_device():
    done = accelrt("demo", ACCELRT_HOST_MEMORY="1GiB")
    assert "sizes divided by 32 to fit the device" in done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")


def test_the_demo_fails_where_the_gpu_asked_for_is_not():
    done = accelrt("demo", "--driver", "cuda", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (1, "")
    assert "no NVIDIA device can be used" in done.stdout
    assert done.stdout.endswith("FAIL\n")


def test_the_demo_fails_on_a_device_that_holds_nothing():
    done = accelrt("demo", ACCELRT_HOST_MEMORY="2MiB")
    assert done.returncode == 1
    assert done.stdout.endswith("FAIL\n")


def test_the_demo_fails_when_memory_is_left_behind():
    code = (
        "import sys, accelrt\nfrom accelrt.tools.cli.commands import demo\n"
        "accelrt.init('host')\nkept = accelrt.Buffer(512)\n"
        "demo.show = lambda trace: demo.release_everything()\nsys.exit(demo.run('host'))\n"
    )
    done = run_python("-c", code, cwd=ROOT)
    assert done.returncode == 1
    assert "512 bytes are live" in done.stdout
    assert done.stdout.endswith("FAIL\n")


def test_the_pipeline_counts_every_run():
    figures = pipeline_part(nbytes=1 << 12, replays=5)
    assert (figures.nbytes, figures.replays, figures.wrong, figures.calls) == (1 << 12, 5, 0, 6)
    assert figures.nodes >= BLOCKS + 5
    assert figures.passed


def test_a_wrong_byte_anywhere_is_noticed():
    pipeline = Pipeline(1 << 12)
    pipeline.renew()
    pipeline.enqueue()
    pipeline.copier.synchronize()
    assert pipeline.is_right()
    assert set(pipeline.output[:GUARD]) == {GUARD_VALUE}
    for place in (0, GUARD - 1, GUARD, len(pipeline.output) // 2, -GUARD - 1, -GUARD, -1):
        pipeline.output[place] ^= 1
        assert not pipeline.is_right()
        pipeline.output[place] ^= 1
    assert pipeline.is_right()
