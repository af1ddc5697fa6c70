"""cuDNN's attention by NVIDIA's own interface, cudnn-frontend: graphs built by hand, as its own benchmarks build them.

PyTorch's `sdpa:cudnn` uses the cuDNN and the frontend that PyTorch was built with. This entry uses those that are
installed, which may be newer, and has windows and sinks besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from kernels.attention.case import SINKS, VALUE_WIDTH, WINDOW, Case
from kernels.attention.problem import Inputs
from kernels.attention.rivals.package import Package, Rival
from kernels.harness.workload import Call, Implementation, Plan, Site

CUDNN_FRONTEND = Package(
    name="cudnn-frontend",
    module="cudnn",
    distribution="nvidia-cudnn-frontend",
    install="pip install nvidia-cudnn-frontend",
    names=("pygraph", "create_handle", "set_stream", "diagonal_alignment"),
    features=(VALUE_WIDTH, WINDOW, SINKS),
    aligns_top_left=True,
)
GRADIENTS = {"dQ": "q", "dK": "k", "dV": "v"}
"""The gradients by cuDNN's names, and the tensors that they are shaped like."""
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph, and its tensors by name."""

    graph: Any
    slots: Mapping[str, Any]

    def build(self, cudnn: Any, device: torch.device) -> torch.Tensor:
        """Chooses and compiles a plan, and returns its workspace. Raises cuDNN's errors."""
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.graph.check_support()
        self.graph.build_plans()
        return torch.empty(max(1, self.graph.get_workspace_size()), dtype=torch.uint8, device=device)

    @property
    def engine(self) -> str:
        """The kernel of the frontend's own that its plan uses; empty if it is one of cuDNN's."""
        engine = getattr(self.graph, "selected_engine", None)
        return "" if engine is None else str(engine.name)


@dataclass(frozen=True, slots=True)
class BuiltGraphs:
    """The graphs of a case, each with its workspace, and the handle that they run on."""

    cudnn: Any
    handle: Any
    graphs: Mapping[str, tuple[Graph, torch.Tensor]]

    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Enqueues a graph on the current stream."""
        graph, workspace = self.graphs[name]
        self.cudnn.set_stream(handle=self.handle, stream=stream_of(workspace.device))
        slots = {graph.slots[slot]: tensor for slot, tensor in tensors.items()}
        graph.graph.execute(slots, workspace, handle=self.handle)


class CudnnFrontend(Rival):
    """`cudnn-frontend`: the graphs of a case are built once, for all copies of its inputs."""

    package = CUDNN_FRONTEND

    def __init__(self) -> None:
        self.case_id = ""
        self.built: BuiltGraphs | None = None
        self.handle: Any = None

    def call(self, module: Any, case: Case, inputs: Inputs) -> Call:
        """The graphs of a case, bound to memory for their results."""
        if self.built is None or self.case_id != case.id:
            self.handle = self.handle or module.create_handle()
            self.built, self.case_id = build_graphs(module, self.handle, case, inputs.q.device), case.id
        built, training = self.built, case.direction != "forward"
        given = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
        given |= {} if inputs.sinks is None else {"sink_token": inputs.sinks.reshape(sizes_of(case)["sink_token"])}
        results = allocate_results(case, inputs, ("o", "stats") if training else ("o",))
        forward = partial(built.run, "forward", given | results)
        engines = {name: graph.engine for name, (graph, _) in built.graphs.items() if graph.engine}
        backend = f", cuDNN {module.backend_version()}" + "".join(f", {engine}" for engine in engines.values())
        if not training:
            return Call(backend, make_plan([forward], results["o"]))
        forward()
        gradients = allocate_results(case, inputs, (*GRADIENTS, *(["dSink_token"] if case.shape.sinks else [])))
        backward = partial(built.run, "backward", given | results | {"dO": inputs.slope} | gradients)
        steps: list[Callable[[], Any]] = [backward]
        answers = list(gradients.values())
        if case.shape.sinks:
            backward()
            if not gradients["dSink_token"].isfinite().all():  # it adds to what is there, which is NaN
                steps.insert(0, gradients["dSink_token"].zero_)
            answers[-1] = answers[-1].reshape(-1)
        if case.direction == "both":
            steps, answers = [forward, *steps], [results["o"], *answers]
        return Call(backend, make_plan(steps, tuple(answers)))


def make_plan(steps: Sequence[Callable[[], Any]], answer: Any) -> Plan:
    """A plan that makes the steps, which write into the answer, and returns it."""

    def plan() -> Any:
        for step in steps:
            step()
        return answer

    return plan


def allocate_results(case: Case, inputs: Inputs, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Memory for results, filled with NaN."""
    sizes = sizes_of(case)
    single = {"stats", "dSink_token"}
    return {
        name: inputs.q.new_full(sizes[name], torch.nan, dtype=torch.float32 if name in single else None)
        for name in names
    }


def sizes_of(case: Case) -> dict[str, Sizes]:
    """The sizes of a case's tensors, by cuDNN's names."""
    s = case.shape
    q, out = (s.batch, s.heads, s.seq_q, s.head_dim), (s.batch, s.heads, s.seq_q, s.width)
    k, v = (s.batch, s.kv_heads, s.seq_k, s.head_dim), (s.batch, s.kv_heads, s.seq_k, s.width)
    sink = (1, s.heads, 1, 1)
    return {
        "q": q, "k": k, "v": v, "o": out, "stats": (*out[:3], 1), "sink_token": sink,
        "dO": out, "dQ": q, "dK": k, "dV": v, "dSink_token": sink,
    }  # fmt: skip


def strides_of(sizes: Sizes) -> Sizes:
    """The strides of a contiguous tensor."""
    return tuple(accumulate((1, *sizes[:0:-1]), lambda stride, size: stride * size))[::-1]


def type_of(cudnn: Any, case: Case, name: str) -> Any:
    """The element type of a tensor."""
    if name in ("stats", "sink_token", "dSink_token"):
        return cudnn.data_type.FLOAT
    return {"float16": cudnn.data_type.HALF, "bfloat16": cudnn.data_type.BFLOAT16}[case.dtype]


def options_of(cudnn: Any, case: Case) -> dict[str, Any]:
    """The scale and the mask of a case. A left bound counts the keys that a row sees, itself included."""
    s = case.shape
    options: dict[str, Any] = {"attn_scale": s.head_dim**-0.5}
    if s.causal:
        options |= {"diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT, "diagonal_band_right_bound": 0}
    return options | ({"diagonal_band_left_bound": s.window} if s.window else {})


class GraphBuilder:
    """Describes the graph of a case."""

    def __init__(self, cudnn: Any, handle: Any, case: Case) -> None:
        single = cudnn.data_type.FLOAT
        self.cudnn, self.case, self.sizes = cudnn, case, sizes_of(case)
        self.graph = cudnn.pygraph(
            io_data_type=type_of(cudnn, case, "q"),
            intermediate_data_type=single,
            compute_data_type=single,
            handle=handle,
        )

    def add_tensors(self, *names: str) -> dict[str, Any]:
        """Tensors of the graph with memory of their own."""
        return {
            name: self.graph.tensor(
                name=name,
                dim=list(self.sizes[name]),
                stride=list(strides_of(self.sizes[name])),
                data_type=type_of(self.cudnn, self.case, name),
            )
            for name in names
        }

    def declare_results(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The results of an operation, of which memory is given."""
        for name, tensor in results.items():
            tensor.set_output(True).set_dim(list(self.sizes[name])).set_stride(list(strides_of(self.sizes[name])))
            tensor.set_data_type(type_of(self.cudnn, self.case, name))
        return dict(results)


def forward_graph(cudnn: Any, handle: Any, case: Case) -> Graph:
    """The graph of a forward pass; with the log-sum-exps if a backward pass needs them."""
    builder, training = GraphBuilder(cudnn, handle, case), case.direction != "forward"
    given = builder.add_tensors("q", "k", "v", *(["sink_token"] if case.shape.sinks else []))
    options = options_of(cudnn, case)
    out, stats = builder.graph.sdpa(name="forward", **given, generate_stats=training, **options)
    return Graph(builder.graph, given | builder.declare_results({"o": out} | ({"stats": stats} if training else {})))


def backward_graph(cudnn: Any, handle: Any, case: Case) -> Graph:
    """The graph of a backward pass, from the inputs and results of a forward pass."""
    builder = GraphBuilder(cudnn, handle, case)
    names = ("q", "k", "v", "o", "dO", "stats", *(("sink_token", "dSink_token") if case.shape.sinks else ()))
    given = builder.add_tensors(*names)
    deterministic = torch.are_deterministic_algorithms_enabled()
    results = builder.graph.sdpa_backward(
        name="backward", **given, use_deterministic_algorithm=deterministic, **options_of(cudnn, case)
    )
    return Graph(builder.graph, given | builder.declare_results(dict(zip(GRADIENTS, results, strict=True))))


def build_graphs(cudnn: Any, handle: Any, case: Case, device: torch.device) -> BuiltGraphs:
    """The graphs that a case needs, built."""
    graphs = {"forward": forward_graph(cudnn, handle, case)}
    if case.direction != "forward":
        graphs["backward"] = backward_graph(cudnn, handle, case)
    return BuiltGraphs(cudnn, handle, {name: (graph, graph.build(cudnn, device)) for name, graph in graphs.items()})


def stream_of(device: torch.device) -> int:
    """The current stream's address; 0 on a device that has none."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def cudnn_implementation(_name: str, _site: Site) -> Implementation:
    """cuDNN by cudnn-frontend."""
    return CudnnFrontend()
