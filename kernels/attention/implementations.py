"""The bundled kernel, in its variants, and PyTorch's own attention, as the harness calls them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from kernels.attention import correctness, passes, registry
from kernels.attention.baseline import Sdpa
from kernels.attention.case import VALUE_WIDTH, Case, refuse_features
from kernels.attention.interface import BuildFailed, BuildRecord, Unavailable
from kernels.attention.problem import Inputs
from kernels.harness.workload import Call, Implementation, Site


class Bundled:
    """`bench`: our own kernel for the device."""

    def __init__(self, site: Site) -> None:
        try:
            self.kernel = registry.find_kernel(site.device, threads=site.threads)
        except Unavailable as exc:
            raise BuildFailed(str(exc), remedy="measure the baselines only, or add a kernel for this device") from exc

    def build(self, site: Site) -> BuildRecord:
        """Compiles the kernel, or takes it from the cache."""
        return self.kernel.build(site.out, site.cache)

    def bind(self, case: Case, inputs: Inputs) -> Call:
        """A plan on these inputs. Raises `Unavailable`."""
        refusal = self.kernel.supports(case)
        if refusal is not None:
            raise Unavailable(refusal)
        if case.direction != "forward":
            if inputs.q.device.type != "cuda":
                raise Unavailable("the bundled kernel of this device has no backward pass")
            return passes.our_call(case, inputs, getattr(self.kernel, "engine", None))
        if case.shape.features:
            return passes.our_output(case, inputs, getattr(self.kernel, "engine", None))
        poisoned = partial(correctness.poison_memory, inputs.q, through_torch=True)
        # A plan may allocate its output now or at each call. In both cases its memory starts as NaN.
        with poisoned():
            plan = self.kernel.prepare(inputs.q, inputs.k, inputs.v, case.shape.causal)
        return Call(getattr(plan, "runs", self.kernel.name), plan, poisoned=poisoned)


class CudaVariant:
    """A variant of our kernel. `bench:lse` writes the log-sum-exp too. `bench@sm_80` is the code of that chip,
    translated by this device's driver; it shows that the code works and not how fast that chip is."""

    def __init__(self, name: str, site: Site) -> None:
        if site.device.type != "cuda":
            raise Unavailable(f"{name} is a variant of the CUDA kernel, and this device is a {site.device.type}")
        stem, _, option = name.partition(":")
        self.lse = option == "lse"
        self.chip = stem.partition("@sm_")[2]
        self.engine: Any = None

    def build(self, site: Site) -> None:
        """Makes the engine; each of its kernels is compiled when it is first bound. Raises `BuildFailed`."""
        from kernels.attention.cuda.compile.compiler import Target
        from kernels.attention.cuda.errors import CudaError
        from kernels.attention.cuda.run.engine import Engine

        try:
            target = Target(f"compute_{self.chip}") if self.chip else None
            self.engine = Engine(site.device, cache_dir=site.cache, target=target)
        except (CudaError, Unavailable, ValueError, OSError) as exc:
            raise BuildFailed(f"the CUDA kernels do not load: {exc}") from exc

    def of_chip(self, kernels: str) -> str:
        """The text for a row about what ran: the kernels, and their chip where it is not the device's own."""
        return kernels + (f"@sm_{self.chip}" if self.chip else "")

    def bind(self, case: Case, inputs: Inputs) -> Call:
        """A plan that writes into one output tensor, and one log-sum-exp if it is wanted. Raises `Unavailable`."""
        if case.direction != "forward":
            our_call = passes.our_call(case, inputs, self.engine)
            return replace(our_call, backend=self.of_chip(our_call.backend))
        call = passes.our_output(case, inputs, self.engine, lse=self.lse)
        return replace(call, backend=self.of_chip(call.backend) + ("+lse" if self.lse else ""))


class Baseline:
    """`sdpa:<backend>`: PyTorch's attention, pinned to one backend or to none."""

    def __init__(self, backend: str) -> None:
        self.sdpa = Sdpa(backend)

    def build(self, site: Site) -> None:
        """Does nothing: the implementation comes with PyTorch."""

    def bind(self, case: Case, inputs: Inputs) -> Call:
        """A plan on these inputs. Raises `Unavailable` with PyTorch's reason."""
        refusal = refuse_features(case, "PyTorch's attention", (VALUE_WIDTH,))
        if refusal is not None:
            raise Unavailable(refusal)
        if case.direction != "forward":
            return passes.baseline_call(self.sdpa, case, inputs)
        q, k, v, causal = inputs.q, inputs.k, inputs.v, case.shape.causal
        plan = self.sdpa.prepare(q, k, v, causal)
        poisoned = partial(correctness.poison_memory, q, through_torch=False)
        return Call(self.sdpa.resolved(q, k, v, causal), plan, self.sdpa.scope, poisoned)


def bundled_kernel(name: str, site: Site) -> Implementation:
    """The bundled kernel, or one of its variants. Raises `Unavailable` where there is none for the device."""
    return Bundled(site) if name == "bench" else CudaVariant(name, site)


def sdpa_implementation(name: str, _: Site) -> Implementation:
    """PyTorch's attention."""
    return Baseline(name.removeprefix("sdpa:"))
