#include "shim.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_zero.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <vector>

#ifdef UPWASH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>
#endif

namespace {

// Runs `work`, and turns what it throws into a message.
template <typename Work> char *guarded(Work work) {
  try {
    work();
    return nullptr;
  } catch (const c10::Error &error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception &error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an unknown C++ exception");
  }
}

std::vector<at::Tensor> list(const upwash_tensor *tensors, size_t count) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < count; i++)
    all.push_back(*static_cast<at::Tensor *>(tensors[i]));
  return all;
}

} // namespace

void upwash_free(char *message) { free(message); }

char *upwash_backward(upwash_tensor logits, upwash_tensor slope, const upwash_tensor *leaves,
                      const upwash_tensor *targets, size_t count) {
  return guarded([&] {
    auto found =
        torch::autograd::grad({*static_cast<at::Tensor *>(logits)}, list(leaves, count),
                              {*static_cast<at::Tensor *>(slope)}, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    auto targets_of = list(targets, count);
    std::vector<at::Tensor> wanted, given, unused;
    for (size_t i = 0; i < count; i++)
      if (found[i].defined()) {
        wanted.push_back(targets_of[i]);
        given.push_back(found[i]);
      } else {
        unused.push_back(targets_of[i]);
      }
    at::NoGradGuard no_grad;
    at::_foreach_copy_(wanted, given);
    if (!unused.empty())
      at::_foreach_zero_(unused);
  });
}

char *upwash_copy(upwash_tensor to, upwash_tensor from) {
  return guarded([&] {
    static_cast<at::Tensor *>(to)->copy_(*static_cast<at::Tensor *>(from), /*non_blocking=*/true);
  });
}

char *upwash_add_scaled(const upwash_tensor *to, const upwash_tensor *from, size_t count,
                        double scale) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_foreach_add_(list(to, count), list(from, count), scale);
  });
}

char *upwash_pin(upwash_tensor tensor, upwash_tensor *pinned) {
  return guarded([&] {
    *pinned = new at::Tensor(static_cast<at::Tensor *>(tensor)->pin_memory());
  });
}

char *upwash_precision(int precision) {
  return guarded([&] {
    bool tf32 = precision == 1;
    at::globalContext().setAllowTF32CuBLAS(tf32);
    at::globalContext().setAllowTF32CuDNN(tf32);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setDeterministicCuDNN(true);
    if (precision == 2)
      at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  });
}

char *upwash_autocast(int enabled) {
  return guarded([&] {
    at::autocast::set_autocast_enabled(at::kCUDA, enabled != 0);
    // Casts of weights are kept for the next use otherwise, and the weights change.
    if (!enabled)
      at::autocast::clear_cache();
  });
}

#ifdef UPWASH_CUDA

namespace {

struct Streams {
  c10::cuda::CUDAStream main;
  c10::cuda::CUDAStream before;
  std::vector<c10::cuda::CUDAStream> others;
};

// The driver's and the compiler's functions that we need. Both are loaded when they are needed, so
// that the program starts where there is neither.
struct Driver {
  decltype(&nvrtcCreateProgram) create_program;
  decltype(&nvrtcCompileProgram) compile_program;
  decltype(&nvrtcDestroyProgram) destroy_program;
  decltype(&nvrtcGetProgramLogSize) log_size;
  decltype(&nvrtcGetProgramLog) log;
  decltype(&nvrtcGetCUBINSize) cubin_size;
  decltype(&nvrtcGetCUBIN) cubin;
  decltype(&cuModuleLoadData) load_module;
  decltype(&cuModuleUnload) unload_module;
  decltype(&cuModuleGetFunction) get_function;
  decltype(&cuFuncSetAttribute) set_attribute;
  decltype(&cuLaunchKernel) launch;
  decltype(&cuGetErrorString) error_string;
  decltype(&cuMemGetInfo) memory;
  decltype(&cuDeviceGetAttribute) attribute;
};

template <typename Function> void find(void *library, const char *name, Function &function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw std::runtime_error(std::string("no function ") + name + " in its library");
}

void *open(std::initializer_list<const char *> names) {
  for (auto name : names)
    if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return library;
  throw std::runtime_error(std::string("cannot load ") + *names.begin() + ": " + dlerror());
}

const Driver &driver() {
  static const Driver loaded = [] {
    Driver d;
    // libtorch's own library of this name brings the compiler along.
    void *compiler = open({"libnvrtc.so.13", "libcaffe2_nvrtc.so"});
    find(compiler, "nvrtcCreateProgram", d.create_program);
    find(compiler, "nvrtcCompileProgram", d.compile_program);
    find(compiler, "nvrtcDestroyProgram", d.destroy_program);
    find(compiler, "nvrtcGetProgramLogSize", d.log_size);
    find(compiler, "nvrtcGetProgramLog", d.log);
    find(compiler, "nvrtcGetCUBINSize", d.cubin_size);
    find(compiler, "nvrtcGetCUBIN", d.cubin);
    void *cuda = open({"libcuda.so.1"});
    find(cuda, "cuModuleLoadData", d.load_module);
    find(cuda, "cuModuleUnload", d.unload_module);
    find(cuda, "cuModuleGetFunction", d.get_function);
    find(cuda, "cuFuncSetAttribute", d.set_attribute);
    find(cuda, "cuLaunchKernel", d.launch);
    find(cuda, "cuGetErrorString", d.error_string);
    find(cuda, "cuMemGetInfo_v2", d.memory);
    find(cuda, "cuDeviceGetAttribute", d.attribute);
    return d;
  }();
  return loaded;
}

void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  const char *text = nullptr;
  driver().error_string(result, &text);
  throw std::runtime_error(std::string(what) + ": " + (text ? text : "unknown error"));
}

struct Kernels {
  CUmodule module = nullptr;
  std::vector<CUfunction> functions;
};

} // namespace

int upwash_cuda_state(int *devices) {
  *devices = c10::cuda::device_count();
  return *devices > 0 ? 0 : 2;
}

char *upwash_release_memory(void) {
  return guarded([&] { c10::cuda::CUDACachingAllocator::emptyCache(); });
}

char *upwash_memory(int device, size_t *in_use, size_t *peak, size_t *free, size_t *total) {
  return guarded([&] {
    // Nothing may have been used before: then there is no allocator to ask.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
    auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *in_use = stats.reserved_bytes[all].current;
    *peak = stats.reserved_bytes[all].peak;
    check(driver().memory(free, total), "asking for free memory");
  });
}

char *upwash_forget_peak(int device) {
  return guarded([&] { c10::cuda::CUDACachingAllocator::resetPeakStats(device); });
}

char *upwash_wait(int device) {
  return guarded([&] {
    c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).synchronize();
  });
}

char *upwash_is_idle(int device, int *idle) {
  return guarded([&] {
    *idle = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).query();
  });
}

char *upwash_streams_new(int device, size_t count, void **streams) {
  return guarded([&] {
    auto index = static_cast<c10::DeviceIndex>(device);
    auto main = c10::cuda::getStreamFromPool(false, index);
    auto made = new Streams{main, c10::cuda::getCurrentCUDAStream(index), {}};
    for (size_t i = 0; i < count; i++)
      made->others.push_back(c10::cuda::getStreamFromPool(false, index));
    *streams = made;
  });
}

void upwash_streams_free(void *streams) { delete static_cast<Streams *>(streams); }

char *upwash_streams_use(void *streams, int index) {
  return guarded([&] {
    auto &all = *static_cast<Streams *>(streams);
    auto &wanted = index == -1 ? all.main : index == -2 ? all.before : all.others.at(index);
    c10::cuda::setCurrentCUDAStream(wanted);
  });
}

char *upwash_streams_fork(void *streams) {
  return guarded([&] {
    auto &all = *static_cast<Streams *>(streams);
    c10::Event event(c10::DeviceType::CUDA);
    event.record(all.main.unwrap());
    for (auto &stream : all.others)
      event.block(stream.unwrap());
  });
}

char *upwash_streams_join(void *streams) {
  return guarded([&] {
    auto &all = *static_cast<Streams *>(streams);
    for (auto &stream : all.others) {
      c10::Event event(c10::DeviceType::CUDA);
      event.record(stream.unwrap());
      event.block(all.main.unwrap());
    }
  });
}

namespace {

// A recording, and the memory that it has to itself.
struct Recording {
  at::cuda::CUDAGraph graph;
  at::cuda::MempoolId_t memory;
};

} // namespace

char *upwash_graph_new(void **graph) {
  return guarded([&] { *graph = new Recording{{}, at::cuda::graph_pool_handle()}; });
}

void upwash_graph_free(void *graph) { delete static_cast<Recording *>(graph); }

char *upwash_graph_begin(void *graph) {
  return guarded([&] {
    auto &recording = *static_cast<Recording *>(graph);
    recording.graph.capture_begin(recording.memory, cudaStreamCaptureModeThreadLocal);
  });
}

char *upwash_graph_end(void *graph) {
  return guarded([&] {
    auto &recording = *static_cast<Recording *>(graph);
    auto device = c10::cuda::current_device();
    try {
      recording.graph.capture_end();
    } catch (...) {
      // A capture that cannot be ended leaves its memory taken for good, unless it is given back here.
      bool ended = true;
      try {
        recording.graph.pool();
      } catch (...) {
        ended = false;
      }
      if (!ended) {
        auto *allocator = c10::cuda::CUDACachingAllocator::get();
        allocator->endAllocateToPool(device, recording.memory);
        allocator->releasePool(device, recording.memory);
      }
      throw;
    }
  });
}

char *upwash_graph_replay(void *graph) {
  return guarded([&] { static_cast<Recording *>(graph)->graph.replay(); });
}

namespace {

// Compiles a source for a device; `dynamic`: its kernels may be launched with as much shared memory as
// there is.
void compile(Kernels &made, int device, const char *source, const char *const *names, size_t count,
             bool dynamic) {
  auto &d = driver();
  auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(d.attribute(&value, which, device), "asking for the device's properties");
    return value;
  };
  // Kernels may have some of their own besides.
  int shared = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) - 1024;
  std::string arch = "--gpu-architecture=sm_" +
                     std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) +
                     std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  nvrtcProgram program;
  if (d.create_program(&program, source, "upwash.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS)
    throw std::runtime_error("cannot make a program of our kernels");
  const char *options[] = {arch.c_str(), "--std=c++17"};
  if (d.compile_program(program, 2, options) != NVRTC_SUCCESS) {
    size_t size = 0;
    d.log_size(program, &size);
    std::string log(size, ' ');
    d.log(program, log.data());
    d.destroy_program(&program);
    throw std::runtime_error("our kernels do not compile: " + log);
  }
  size_t size = 0;
  d.cubin_size(program, &size);
  std::string cubin(size, ' ');
  d.cubin(program, cubin.data());
  d.destroy_program(&program);
  check(d.load_module(&made.module, cubin.data()), "loading our kernels");
  for (size_t i = 0; i < count; i++) {
    CUfunction function;
    check(d.get_function(&function, made.module, names[i]), names[i]);
    if (dynamic)
      check(d.set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared),
            names[i]);
    made.functions.push_back(function);
  }
}

void launch(const Kernels &kernels, size_t index, std::array<unsigned, 3> grid, unsigned block,
            unsigned shared_bytes, void **arguments) {
  auto stream = c10::cuda::getCurrentCUDAStream().stream();
  check(driver().launch(kernels.functions.at(index), grid[0], grid[1], grid[2], block, 1, 1,
                        shared_bytes, stream, arguments, nullptr),
        "launching a kernel");
}

} // namespace

char *upwash_kernels_new(int device, const char *source, const char *const *names, size_t count,
                         void **kernels) {
  return guarded([&] {
    auto made = new Kernels;
    *kernels = made;
    compile(*made, device, source, names, count, true);
  });
}

void upwash_kernels_free(void *kernels) {
  auto held = static_cast<Kernels *>(kernels);
  if (held->module)
    driver().unload_module(held->module);
  delete held;
}

char *upwash_kernels_launch(void *kernels, size_t index, const uint32_t grid[3], uint32_t block,
                            uint32_t shared_bytes, void **arguments) {
  return guarded([&] {
    launch(*static_cast<Kernels *>(kernels), index, {grid[0], grid[1], grid[2]}, block,
           shared_bytes, arguments);
  });
}

namespace {

// Our own batch normalisation on a device. Every layer of every worker has two counters of its own (for
// the way there and back), which are found by its running mean and are 0 between launches.
struct Norm {
  Kernels kernels;
  std::vector<at::Tensor> counters;
  std::map<void *, int *> counter_of;

  int *counters_of(const at::Tensor &running_mean) {
    const int64_t chunk = 16384;
    auto [place, is_new] = counter_of.try_emplace(running_mean.data_ptr(), nullptr);
    if (is_new) {
      int64_t at = 2 * (static_cast<int64_t>(counter_of.size()) - 1) % chunk;
      if (at == 0)
        counters.push_back(at::zeros({chunk}, running_mean.options().dtype(at::kInt)));
      place->second = counters.back().data_ptr<int>() + at;
    }
    return place->second;
  }
};

std::map<int, Norm> norms;

enum { COLLECT, APPLY, COLLECT_SLOPES, APPLY_SLOPES, KINDS };
const char *const norm_names[] = {"collect_f32",         "apply_f32",   "collect_slopes_f32",
                                  "apply_slopes_f32",    "collect_bf16", "apply_bf16",
                                  "collect_slopes_bf16", "apply_slopes_bf16"};

// How a tensor is walked through.
struct Walk {
  int64_t rows, count, per_vector;
  int channels, first_kernel;
  unsigned blocks, tiles, flat_blocks;

  explicit Walk(const at::Tensor &x) {
    bool half = x.scalar_type() == at::kBFloat16;
    channels = static_cast<int>(x.size(1));
    count = x.numel();
    rows = count / channels;
    per_vector = half ? 8 : 4;
    first_kernel = half ? KINDS : 0;
    int64_t vectors = count / per_vector;
    // A thread takes some sixteen vectors; other workers want room beside.
    blocks = static_cast<unsigned>(std::clamp<int64_t>(vectors / (256 * 16), 1, 128));
    tiles = static_cast<unsigned>((channels / per_vector + 255) / 256);
    flat_blocks = static_cast<unsigned>(std::clamp<int64_t>((vectors + 511) / 512, 1, 1056));
  }

  at::Tensor partial(const at::Tensor &x) const {
    return at::empty({static_cast<int64_t>(blocks), channels, 2}, x.options().dtype(at::kFloat));
  }
};

struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext *context, const at::Tensor &x,
                            const at::Tensor &weight, const at::Tensor &bias,
                            const at::Tensor &running_mean, const at::Tensor &running_variance,
                            double momentum, double epsilon, bool rectify) {
    auto &norm = norms.at(x.get_device());
    Walk walk(x);
    int *counter = norm.counters_of(running_mean);
    auto y = at::empty_like(x);
    auto stats = at::empty({4, walk.channels}, x.options().dtype(at::kFloat));
    auto partial = walk.partial(x);
    void *px = x.data_ptr(), *py = y.data_ptr(), *ps = stats.data_ptr(), *pp = partial.data_ptr();
    void *pw = weight.data_ptr(), *pb = bias.data_ptr();
    void *pm = running_mean.data_ptr(), *pv = running_variance.data_ptr();
    float m = static_cast<float>(momentum), e = static_cast<float>(epsilon);
    int on = rectify;
    void *collect[] = {&px, &pp, &counter, &pw, &pb, &pm, &pv, &ps, &walk.rows, &walk.channels,
                       &m, &e};
    launch(norm.kernels, walk.first_kernel + COLLECT, {walk.blocks, walk.tiles, 1}, 256, 0,
           collect);
    void *apply[] = {&px, &ps, &py, &walk.count, &walk.channels, &on};
    launch(norm.kernels, walk.first_kernel + APPLY, {walk.flat_blocks, 1, 1}, 256, 0, apply);
    context->save_for_backward({x, stats});
    context->saved_data["rectify"] = rectify;
    context->saved_data["counter"] = reinterpret_cast<int64_t>(counter + 1);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext *context,
                                                 torch::autograd::variable_list slopes) {
    auto saved = context->get_saved_variables();
    auto &x = saved[0], &stats = saved[1];
    // This thread may not have used the device yet.
    c10::cuda::set_device(x.get_device(), /*force=*/true);
    auto &norm = norms.at(x.get_device());
    Walk walk(x);
    auto slope = slopes[0].to(x.scalar_type()).contiguous(x.suggest_memory_format());
    auto result = at::empty_like(x);
    auto partial = walk.partial(x);
    auto both = at::empty({2, walk.channels}, stats.options());
    auto weight_slope = both[0], bias_slope = both[1];
    auto counter = reinterpret_cast<int *>(context->saved_data["counter"].toInt());
    int on = context->saved_data["rectify"].toBool();
    void *pd = slope.data_ptr(), *px = x.data_ptr(), *ps = stats.data_ptr();
    void *pp = partial.data_ptr(), *pr = result.data_ptr();
    void *pw = weight_slope.data_ptr(), *pb = bias_slope.data_ptr();
    void *collect[] = {&pd, &px, &ps, &pp, &counter, &pw, &pb, &walk.rows, &walk.channels, &on};
    launch(norm.kernels, walk.first_kernel + COLLECT_SLOPES, {walk.blocks, walk.tiles, 1}, 256, 0,
           collect);
    void *apply[] = {&pd, &px, &ps, &pw, &pb, &pr, &walk.rows, &walk.channels, &on};
    launch(norm.kernels, walk.first_kernel + APPLY_SLOPES, {walk.flat_blocks, 1, 1}, 256, 0, apply);
    at::Tensor none;
    return {result, weight_slope, bias_slope, none, none, none, none, none};
  }
};

} // namespace

char *upwash_norm_prepare(int device, const char *source) {
  return guarded([&] {
    auto [place, is_new] = norms.try_emplace(device);
    if (is_new)
      compile(place->second.kernels, device, source, norm_names, 2 * KINDS, false);
  });
}

namespace {

const at::Tensor &tensor(upwash_tensor t) { return *static_cast<at::Tensor *>(t); }

// Whether our own normalisation is ready, and made for such tensors.
bool is_for_us(const at::Tensor &x) {
  bool half = x.scalar_type() == at::kBFloat16, whole = x.scalar_type() == at::kFloat;
  return x.is_cuda() && (half || whole) && norms.count(x.get_device()) && x.dim() == 4 &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast) && x.size(1) % (half ? 8 : 4) == 0;
}

} // namespace

char *upwash_scale(upwash_tensor x, upwash_tensor stats, int rectify, upwash_tensor *result) {
  return guarded([&] {
    auto &input = tensor(x);
    *result = nullptr;
    if (!is_for_us(input))
      return;
    Walk walk(input);
    auto y = at::empty_like(input);
    void *px = input.data_ptr(), *ps = tensor(stats).data_ptr(), *py = y.data_ptr();
    void *apply[] = {&px, &ps, &py, &walk.count, &walk.channels, &rectify};
    launch(norms.at(input.get_device()).kernels, walk.first_kernel + APPLY,
           {walk.flat_blocks, 1, 1}, 256, 0, apply);
    *result = new at::Tensor(y);
  });
}

char *upwash_norm(upwash_tensor x, upwash_tensor weight, upwash_tensor bias,
                  upwash_tensor running_mean, upwash_tensor running_variance, double momentum,
                  double epsilon, int rectify, upwash_tensor *result) {
  return guarded([&] {
    auto &input = tensor(x);
    *result = nullptr;
    if (!is_for_us(input))
      return;
    *result = new at::Tensor(NormFunction::apply(input, tensor(weight), tensor(bias),
                                                 tensor(running_mean), tensor(running_variance),
                                                 momentum, epsilon, rectify != 0));
  });
}

#else

namespace {
char *missing() { return strdup("this build has no CUDA: libtorch or the CUDA headers lack it"); }
} // namespace

int upwash_cuda_state(int *devices) {
  *devices = 0;
  return 1;
}
char *upwash_release_memory(void) { return missing(); }
char *upwash_memory(int, size_t *, size_t *, size_t *, size_t *) { return missing(); }
char *upwash_forget_peak(int) { return missing(); }
char *upwash_wait(int) { return missing(); }
char *upwash_is_idle(int, int *) { return missing(); }
char *upwash_norm_prepare(int, const char *) { return missing(); }
char *upwash_scale(upwash_tensor, upwash_tensor, int, upwash_tensor *result) {
  *result = nullptr;
  return nullptr;
}
char *upwash_norm(upwash_tensor, upwash_tensor, upwash_tensor, upwash_tensor, upwash_tensor, double,
                  double, int, upwash_tensor *result) {
  *result = nullptr;
  return nullptr;
}
char *upwash_streams_new(int, size_t, void **) { return missing(); }
void upwash_streams_free(void *) {}
char *upwash_streams_use(void *, int) { return missing(); }
char *upwash_streams_fork(void *) { return missing(); }
char *upwash_streams_join(void *) { return missing(); }
char *upwash_graph_new(void **) { return missing(); }
void upwash_graph_free(void *) {}
char *upwash_graph_begin(void *) { return missing(); }
char *upwash_graph_end(void *) { return missing(); }
char *upwash_graph_replay(void *) { return missing(); }
char *upwash_kernels_new(int, const char *, const char *const *, size_t, void **) {
  return missing();
}
void upwash_kernels_free(void *) {}
char *upwash_kernels_launch(void *, size_t, const uint32_t *, uint32_t, uint32_t, void **) {
  return missing();
}

#endif
