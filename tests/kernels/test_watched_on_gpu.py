"""A kernel that never ends, and one that breaks the device, on a real GPU: the others are measured all the same."""

from __future__ import annotations

from pathlib import Path

from tests.kernels.cuda.on_gpu import ON_GPU
from tests.kernels.harness_process import HarnessProcess, named, shape, spec
from tests.kernels.payloads import planted

pytestmark = ON_GPU
BREAKS_OR_HANGS = """
out = inputs.q
if "-q64-" in case.id:
    out = torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")]
else:
    torch.cuda._sleep(1 << 62)
torch.cuda.synchronize()
return out
"""


def test_others_are_measured_beside_kernels_that_break_the_device_or_never_end(
    tmp_path: Path,
) -> None:
    wanted = spec(
        implementations=["planted", "bench", "sdpa:math"],
        measure={"shapes": [shape(64), shape(128), shape(256)], "dtypes": ["float16"]},
        answer_limit_s=20,
    )
    root = planted(tmp_path, BREAKS_OR_HANGS)
    with HarnessProcess("measure", wanted, tmp_path, root=root, fresh=True) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    broke, hung, left_out = (fact["skipped"]["planted"] for fact in named(facts, "case_finished"))
    assert broke.startswith("raised ")
    assert "CUDA error" in broke
    assert hung == "hung: no answer within 20 s while it was called"
    assert left_out == "not tried again: it hung in a case before"
    assert all(set(fact["median_us"]) == {"bench", "sdpa:math"} for fact in named(facts, "case_finished"))
