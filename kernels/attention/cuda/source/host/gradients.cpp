// Attention with gradients as a function of autograd in C++. It does the same as `direct.py`, but once a plan exists it
// does not run Python.
//
// Python makes a plan for tensors of one type, device, shape and strides. A plan consists of numbers only: the
// arguments of each launch, and the places in them where addresses are written. Each call works on a copy of the
// arguments, so several threads can use one plan. Where a plan cannot be used (another stream, a graph capture, or a
// tensor that does not start on its boundary), Python makes the call.
#define AT_PER_OPERATOR_HEADERS  // include the headers of the operators below, not those of all operators

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Attribute {  // CUlaunchAttribute
  int32_t id, pad, value[16];
};
struct Config {  // CUlaunchConfig
  uint32_t grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  uint32_t count;
};
constexpr int MAX_ARGUMENTS = 8, MAX_ADDRESSES = 12, ALIGNMENT = 16, MAP_ALIGNMENT = 64;
constexpr size_t MAX_BYTES = 4096;  // the most that all arguments of a pass may take

// The functions of the driver and of PyTorch that a launch needs. Python passes their addresses to `use`.
struct Host {
  int (*launch)(const Config*, void*, void**, void**);
  int (*replace)(void*, void*);
  int (*capturing)(void*, int*);
  int (*context)(void**);
  int (*stream)(int32_t, void**);
};
Host host;

// The properties of a tensor that another one must share so that the same plan can be used for it.
struct Likeness {
  explicit Likeness(const Tensor& x)
      : keys(x.key_set()), type(x.dtype()), device(x.device()), sizes(x.sizes().vec()), strides(x.strides().vec()) {}
  bool of(const Tensor& x) const {
    return x.defined() && x.key_set() == keys && x.dtype() == type && x.device() == device && x.sizes() == sizes &&
           x.strides() == strides;
  }
  c10::DispatchKeySet keys;
  caffe2::TypeMeta type;
  at::Device device;
  std::vector<int64_t> sizes, strides;
};

// Reads a list of numbers from the first to the last.
struct Reader {
  const std::vector<int64_t>& words;
  size_t next = 0;
  int64_t take() {
    TORCH_CHECK(next < words.size(), "a plan ends too early");
    return words[next++];
  }
};

// The launches of a forward or backward pass, read from the numbers that Python wrote.
struct Pass {
  struct Write {
    int64_t offset, source, more;
  };
  struct Argument {
    int64_t offset, map;
  };
  struct Launch {
    Config config;
    void* function;
    int32_t attribute;  // the id of the attribute that is switched on, or 0
    std::vector<int> arguments;
  };

  explicit Pass(const std::vector<int64_t>& words) {
    Reader from{words};
    device = static_cast<int>(from.take());
    context = reinterpret_cast<void*>(from.take());
    has_stream = from.take() != 0;
    stream = reinterpret_cast<void*>(from.take());
    workspace = from.take();
    for (auto n = from.take(); n > 0; n--) {
      const auto map = from.take(), size = from.take();
      arguments.push_back({static_cast<int64_t>(bytes.size()), map});
      const size_t padded = (size + MAP_ALIGNMENT - 1) / MAP_ALIGNMENT * MAP_ALIGNMENT;
      bytes.resize(bytes.size() + padded);
      for (int64_t at = 0; at < size; at += 8) {
        const auto word = from.take();
        std::memcpy(bytes.data() + arguments.back().offset + at, &word, std::min<int64_t>(8, size - at));
      }
    }
    TORCH_CHECK(bytes.size() <= MAX_BYTES, "a plan's arguments are too large");
    for (auto n = from.take(); n > 0; n--) {
      const auto argument = from.take(), offset = from.take(), source = from.take(), more = from.take();
      writes.push_back({arguments.at(argument).offset + offset, source, more});
    }
    for (auto n = from.take(); n > 0; n--) {
      Launch one{};
      one.function = reinterpret_cast<void*>(from.take());
      for (auto& size : one.config.grid) size = static_cast<uint32_t>(from.take());
      one.config.block[0] = static_cast<uint32_t>(from.take());
      one.config.block[1] = one.config.block[2] = 1;
      one.config.shared = static_cast<uint32_t>(from.take());
      one.attribute = static_cast<int32_t>(from.take());
      for (auto m = from.take(); m > 0; m--) one.arguments.push_back(static_cast<int>(from.take()));
      TORCH_CHECK(one.arguments.size() <= MAX_ARGUMENTS, "a launch has too many arguments");
      launches.push_back(std::move(one));
    }
    TORCH_CHECK(from.next == words.size(), "a plan ends too late");
  }

  // Whether the pass can be launched now. If it can, `current` is set to the current stream.
  bool serves(void** current) const {
    void* now = nullptr;
    if (host.context(&now) != 0 || now != context || host.stream(device, current) != 0) return false;
    if (!has_stream) return true;
    int capturing = 0;
    return *current == stream && host.capturing(*current, &capturing) == 0 && capturing == 0;
  }

  // Launches the pass and returns the driver's code, 0 for success. `addresses` has the addresses of the pass's
  // tensors, followed by that of its workspace if it has one.
  int launch(const uint64_t* addresses, void* current) const {
    alignas(MAP_ALIGNMENT) unsigned char own[MAX_BYTES];
    std::memcpy(own, bytes.data(), bytes.size());
    for (const auto& one : writes) {
      const uint64_t address = addresses[one.source] + one.more;
      std::memcpy(own + one.offset, &address, 8);
    }
    for (const auto& one : arguments) {
      if (one.map < 0) continue;
      const int code = host.replace(own + one.offset, reinterpret_cast<void*>(addresses[one.map]));
      if (code != 0) return code;
    }
    for (const auto& one : launches) {
      Attribute attribute{one.attribute, 0, {1}};
      Config config = one.config;
      config.stream = current;
      config.attributes = one.attribute ? &attribute : nullptr;
      config.count = one.attribute ? 1 : 0;
      void* pointers[MAX_ARGUMENTS];
      for (size_t i = 0; i < one.arguments.size(); i++) pointers[i] = own + arguments[one.arguments[i]].offset;
      const int code = host.launch(&config, one.function, pointers, nullptr);
      if (code != 0) return code;
    }
    return 0;
  }

  int device;
  void *context, *stream;
  bool has_stream;
  int64_t workspace;
  std::vector<unsigned char> bytes;
  std::vector<Argument> arguments;
  std::vector<Write> writes;
  std::vector<Launch> launches;
};

uint64_t address(const Tensor& x) { return reinterpret_cast<uint64_t>(x.data_ptr()); }

// A backward pass for tensors with the properties of those in `given`: q, k, v, a mask or the starts of sequences if
// the call has them, out, lse, dout.
struct Backward {
  Backward(const std::vector<int64_t>& words, const std::vector<Tensor>& given, bool deterministic)
      : pass(words), deterministic(deterministic) {
    for (const auto& x : given) likes.emplace_back(x);
  }
  // Returns dQ, dK and dV, or an empty list if this pass cannot be used for these tensors.
  variable_list run(const variable_list& saved, const Tensor& dout) const {
    void* current = nullptr;
    if (at::globalContext().deterministicAlgorithms() != deterministic || !pass.serves(&current)) return {};
    uint64_t addresses[MAX_ADDRESSES];
    size_t count = 0;
    if (saved.size() + 1 != likes.size()) return {};
    for (const auto& x : saved) {
      if (!likes[count].of(x)) return {};
      addresses[count++] = address(x);
    }
    if (!likes[count].of(dout)) return {};
    addresses[count++] = address(dout);
    const uint64_t out = addresses[saved.size() - 2];
    if ((addresses[0] | addresses[1] | addresses[2] | out | address(dout)) % ALIGNMENT) return {};
    variable_list made{at::empty_like(saved[0]), at::empty_like(saved[1]), at::empty_like(saved[2])};
    for (const auto& x : made) addresses[count++] = address(x);
    Tensor workspace;
    if (pass.workspace) {
      workspace = at::empty({pass.workspace}, dout.options().dtype(at::kByte));
      addresses[count++] = address(workspace);
    }
    return pass.launch(addresses, current) == 0 ? made : variable_list{};
  }
  Pass pass;
  bool deterministic;
  std::vector<Likeness> likes;
};

// The plan for calls with tensors of the same properties. `backward` is set when Python has first made that pass.
struct Plan : torch::CustomClassHolder {
  Plan(int64_t number, const std::vector<int64_t>& words, bool pair, int64_t missed, int64_t longest_q,
       int64_t longest_k, bool causal, double scale, std::string alignment, int64_t left, int64_t right)
      : number(number), pass(words), pair(pair), missed(missed), longest_q(longest_q), longest_k(longest_k),
        causal(causal), scale(scale), alignment(std::move(alignment)), left(left), right(right) {}
  void learn(std::vector<int64_t> words, std::vector<Tensor> given, bool deterministic) {
    std::atomic_store(&backward, std::make_shared<const Backward>(words, given, deterministic));
  }
  int64_t number;
  Pass pass;
  bool pair;
  int64_t missed;  // the address of the mask modulo 16; -1 if there is no mask
  int64_t longest_q, longest_k;  // -1 if sequences are not packed
  bool causal;
  double scale;
  std::string alignment;
  int64_t left, right;
  std::shared_ptr<const Backward> backward;
};

using Three = std::tuple<Tensor, Tensor, Tensor>;

// Whether the backward pass must be called as an operator, so that it is seen by a dispatch mode, a tensor subclass, or
// autograd (for a second derivative, which the operator refuses).
bool is_watched(const Tensor& dout) {
  return at::GradMode::is_enabled() || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         dout.key_set().has(c10::DispatchKey::Python);
}

// The backward pass through Python: as the operator if it must be seen, else as `learning_backward`, which also stores
// the pass in the plan for the next call.
variable_list by_python(const Plan& plan, const variable_list& saved, const Tensor& dout, const Tensor& dlse) {
  const size_t end = saved.size() - 2;  // the number of tensors that the call was given
  const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[end], &lse = saved[end + 1];
  const auto slope = dlse.defined() ? std::optional<Tensor>(dlse) : std::nullopt;
  const auto a = end > 3 ? std::optional<Tensor>(saved[3]) : std::nullopt;
  const auto b = end > 4 ? std::optional<Tensor>(saved[4]) : std::nullopt;
  Three made;
  if (is_watched(dout) && plan.longest_q >= 0) {
    static const auto by_operator =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("spotbench::attention_varlen_backward", "")
            .typed<Three(const Tensor&, const std::optional<Tensor>&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, bool, double,
                         c10::string_view, int64_t, int64_t)>();
    made = by_operator.call(dout, slope, out, lse, q, k, v, *a, *b, plan.longest_q, plan.longest_k, plan.causal,
                            plan.scale, plan.alignment, plan.left, plan.right);
  } else if (is_watched(dout)) {
    static const auto by_operator =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("spotbench::attention_backward", "")
            .typed<Three(const Tensor&, const std::optional<Tensor>&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, bool, double, c10::string_view, int64_t, int64_t,
                         const std::optional<Tensor>&)>();
    made = by_operator.call(dout, slope, out, lse, q, k, v, plan.causal, plan.scale, plan.alignment, plan.left,
                            plan.right, a);
  } else {
    at::AutoDispatchBelowADInplaceOrView below;
    static const auto learning =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("spotbench_host::learning_backward", "")
            .typed<Three(int64_t, const Tensor&, const std::optional<Tensor>&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                         const std::optional<Tensor>&, int64_t, int64_t, bool, double, c10::string_view, int64_t,
                         int64_t)>();
    made = learning.call(plan.number, dout, slope, out, lse, q, k, v, a, b, plan.longest_q, plan.longest_k, plan.causal,
                         plan.scale, plan.alignment, plan.left, plan.right);
  }
  return {std::get<0>(made), std::get<1>(made), std::get<2>(made)};
}

// The driver refused a launch. Python then repeats the call and reports the error.
struct Refused {};

using Extra = std::optional<Tensor>;  // a mask; or the starts of the sequences, one tensor for Q and one for K

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Extra& a,
                               const Extra& b, const c10::intrusive_ptr<Plan>& plan, void* current) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto sums = q.dim() == 3 ? std::vector<int64_t>{q.size(1), q.size(0)} : q.sizes().slice(0, 3).vec();
    const auto out = at::empty_like(q), lse = at::empty(sums, q.options().dtype(at::kFloat));
    variable_list kept{q, k, v};
    for (const auto* x : {&a, &b}) {
      if (x->has_value()) kept.push_back(**x);
    }
    kept.insert(kept.end(), {out, lse});
    uint64_t addresses[MAX_ADDRESSES];
    for (size_t i = 0; i < kept.size(); i++) addresses[i] = address(kept[i]);
    if (plan->pass.launch(addresses, current) != 0) throw Refused();
    ctx->save_for_backward(std::move(kept));
    ctx->saved_data["plan"] = plan;
    ctx->set_materialize_grads(false);
    return plan->pair ? variable_list{out, lse} : variable_list{out};
  }
  static variable_list backward(AutogradContext* ctx, variable_list slopes) {
    const auto plan = ctx->saved_data["plan"].toCustomClass<Plan>();
    const auto saved = ctx->get_saved_variables();
    const auto dout = slopes[0].defined() ? slopes[0] : at::zeros_like(saved[saved.size() - 2]);
    const auto dlse = slopes.size() > 1 ? slopes[1] : Tensor();
    variable_list made;
    if (!dlse.defined() && !is_watched(dout)) {
      const auto known = std::atomic_load(&plan->backward);
      if (known) {
        at::AutoDispatchBelowADInplaceOrView below;
        made = known->run(saved, dout);
      }
    }
    if (made.empty()) made = by_python(*plan, saved, dout, dlse);
    made.resize(7);
    return made;
  }
};

// Returns the output, or the output and the log-sum-exps. They are undefined tensors if the plan cannot be used now.
variable_list attend(const Tensor& q, const Tensor& k, const Tensor& v, const Extra& a, const Extra& b, int64_t at) {
  const auto plan = c10::intrusive_ptr<Plan>::reclaim_copy(reinterpret_cast<Plan*>(at));
  void* current = nullptr;
  const bool aligned = (address(q) | address(k) | address(v)) % ALIGNMENT == 0;
  const bool as_planned = plan->missed < 0 || static_cast<int64_t>(address(*a) % ALIGNMENT) == plan->missed;
  if (aligned && as_planned && plan->pass.serves(&current)) {
    try {
      return Attention::apply(q, k, v, a, b, plan, current);
    } catch (const Refused&) {
    }
  }
  return {Tensor(), Tensor()};
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Extra& a, const Extra& b, int64_t plan) {
  return attend(q, k, v, a, b, plan)[0];
}

std::tuple<Tensor, Tensor> pair(const Tensor& q, const Tensor& k, const Tensor& v, const Extra& a, const Extra& b,
                                int64_t plan) {
  auto made = attend(q, k, v, a, b, plan);
  return {made[0], made[1]};
}

// Sets the functions of `Host`, given in the order of its members.
void use(at::IntArrayRef functions) {
  TORCH_CHECK(functions.size() == sizeof(Host) / 8, "five functions");
  std::memcpy(&host, functions.data(), sizeof(Host));
}

TORCH_LIBRARY(spotbench_host, library) {
  library.class_<Plan>("Plan")
      .def(torch::init<int64_t, std::vector<int64_t>, bool, int64_t, int64_t, int64_t, bool, double, std::string,
                       int64_t, int64_t>())
      .def("address", [](const c10::intrusive_ptr<Plan>& plan) { return reinterpret_cast<int64_t>(plan.get()); })
      .def("learn", [](const c10::intrusive_ptr<Plan>& plan, std::vector<int64_t> words, std::vector<Tensor> given,
                       bool deterministic) { plan->learn(std::move(words), std::move(given), deterministic); });
  library.def(
      "learning_backward(int number, Tensor dout, Tensor? dlse, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, "
      "Tensor? a, Tensor? b, int longest_q, int longest_k, bool causal, float scale, str alignment, int left, "
      "int right) -> (Tensor, Tensor, Tensor)");
  library.def("use(int[] functions) -> ()", &use);
  // These take the address of a plan that the caller keeps alive. To pass the object itself would cost as much again as
  // the rest of the call, because its type is checked in Python.
  library.def("attention(Tensor q, Tensor k, Tensor v, Tensor? a, Tensor? b, int plan) -> Tensor", &attention);
  library.def("pair(Tensor q, Tensor k, Tensor v, Tensor? a, Tensor? b, int plan) -> (Tensor, Tensor)", &pair);
}

}  // namespace
