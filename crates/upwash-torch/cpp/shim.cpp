// The functions of libtorch that the Torch engine calls, with failures as text. One file, because every file would compile
// the headers of libtorch again, which takes most of the time.
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

// Runs `work` and turns an exception into an error message.
template <typename Work> char *guarded(Work work) {
  try {
    work();
    return nullptr;
  } catch (const c10::Error &error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception &error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}

std::vector<at::Tensor> tensor_list(const upwash_tensor *tensors, size_t count) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < count; i++)
    all.push_back(*static_cast<at::Tensor *>(tensors[i]));
  return all;
}

} // namespace

void upwash_free(char *message) { free(message); }

char *upwash_backward(upwash_tensor logits, upwash_tensor grad_logits, const upwash_tensor *leaves,
                      const upwash_tensor *targets, size_t count) {
  return guarded([&] {
    auto gradients =
        torch::autograd::grad({*static_cast<at::Tensor *>(logits)}, tensor_list(leaves, count),
                              {*static_cast<at::Tensor *>(grad_logits)}, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    auto target_list = tensor_list(targets, count);
    std::vector<at::Tensor> used, computed, unused;
    for (size_t i = 0; i < count; i++)
      if (gradients[i].defined()) {
        used.push_back(target_list[i]);
        computed.push_back(gradients[i]);
      } else {
        unused.push_back(target_list[i]);
      }
    at::NoGradGuard no_grad;
    at::_foreach_copy_(used, computed);
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
    at::_foreach_add_(tensor_list(to, count), tensor_list(from, count), scale);
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
    // Autocast caches casts of weights. They are stale once the weights have changed.
    if (!enabled)
      at::autocast::clear_cache();
  });
}

#ifdef UPWASH_CUDA

namespace {

struct Streams {
  c10::cuda::CUDAStream main;
  c10::cuda::CUDAStream previous;
  std::vector<c10::cuda::CUDAStream> side;
};

// Functions of the CUDA driver and of NVRTC. Both libraries are loaded on first use, so that the
// program starts on machines without them.
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

template <typename Function> void find_symbol(void *library, const char *name, Function &function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw std::runtime_error(std::string("function ") + name + " is missing from its library");
}

void *open_library(std::initializer_list<const char *> names) {
  for (auto name : names)
    if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return library;
  throw std::runtime_error(std::string("cannot load ") + *names.begin() + ": " + dlerror());
}

const Driver &driver() {
  static const Driver loaded = [] {
    Driver d;
    // libtorch bundles NVRTC in libcaffe2_nvrtc.so.
    void *compiler = open_library({"libnvrtc.so.13", "libcaffe2_nvrtc.so"});
    find_symbol(compiler, "nvrtcCreateProgram", d.create_program);
    find_symbol(compiler, "nvrtcCompileProgram", d.compile_program);
    find_symbol(compiler, "nvrtcDestroyProgram", d.destroy_program);
    find_symbol(compiler, "nvrtcGetProgramLogSize", d.log_size);
    find_symbol(compiler, "nvrtcGetProgramLog", d.log);
    find_symbol(compiler, "nvrtcGetCUBINSize", d.cubin_size);
    find_symbol(compiler, "nvrtcGetCUBIN", d.cubin);
    void *cuda = open_library({"libcuda.so.1"});
    find_symbol(cuda, "cuModuleLoadData", d.load_module);
    find_symbol(cuda, "cuModuleUnload", d.unload_module);
    find_symbol(cuda, "cuModuleGetFunction", d.get_function);
    find_symbol(cuda, "cuFuncSetAttribute", d.set_attribute);
    find_symbol(cuda, "cuLaunchKernel", d.launch);
    find_symbol(cuda, "cuGetErrorString", d.error_string);
    find_symbol(cuda, "cuMemGetInfo_v2", d.memory);
    find_symbol(cuda, "cuDeviceGetAttribute", d.attribute);
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
    // The allocator does not exist before the device is initialized.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
    auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *in_use = stats.reserved_bytes[all].current;
    *peak = stats.reserved_bytes[all].peak;
    check(driver().memory(free, total), "querying free memory");
  });
}

char *upwash_reset_peak(int device) {
  return guarded([&] { c10::cuda::CUDACachingAllocator::resetPeakStats(device); });
}

char *upwash_synchronize(int device) {
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
      made->side.push_back(c10::cuda::getStreamFromPool(false, index));
    *streams = made;
  });
}

void upwash_streams_free(void *streams) { delete static_cast<Streams *>(streams); }

char *upwash_streams_use(void *streams, int index) {
  return guarded([&] {
    auto &all = *static_cast<Streams *>(streams);
    auto &selected = index == -1 ? all.main : index == -2 ? all.previous : all.side.at(index);
    c10::cuda::setCurrentCUDAStream(selected);
  });
}

char *upwash_streams_fork(void *streams) {
  return guarded([&] {
    auto &all = *static_cast<Streams *>(streams);
    c10::Event event(c10::DeviceType::CUDA);
    event.record(all.main.unwrap());
    for (auto &stream : all.side)
      event.block(stream.unwrap());
  });
}

char *upwash_streams_join(void *streams) {
  return guarded([&] {
    auto &all = *static_cast<Streams *>(streams);
    for (auto &stream : all.side) {
      c10::Event event(c10::DeviceType::CUDA);
      event.record(stream.unwrap());
      event.block(all.main.unwrap());
    }
  });
}

namespace {

// A CUDA graph and its private memory pool.
struct CapturedGraph {
  at::cuda::CUDAGraph graph;
  at::cuda::MempoolId_t memory;
};

} // namespace

char *upwash_graph_new(void **graph) {
  return guarded([&] { *graph = new CapturedGraph{{}, at::cuda::graph_pool_handle()}; });
}

void upwash_graph_free(void *graph) { delete static_cast<CapturedGraph *>(graph); }

char *upwash_graph_begin(void *graph) {
  return guarded([&] {
    auto &captured = *static_cast<CapturedGraph *>(graph);
    captured.graph.capture_begin(captured.memory, cudaStreamCaptureModeThreadLocal);
  });
}

char *upwash_graph_end(void *graph) {
  return guarded([&] {
    auto &captured = *static_cast<CapturedGraph *>(graph);
    auto device = c10::cuda::current_device();
    try {
      captured.graph.capture_end();
    } catch (...) {
      // A capture that fails to end keeps its memory pool forever unless the pool is released here.
      bool ended = true;
      try {
        captured.graph.pool();
      } catch (...) {
        ended = false;
      }
      if (!ended) {
        auto *allocator = c10::cuda::CUDACachingAllocator::get();
        allocator->endAllocateToPool(device, captured.memory);
        allocator->releasePool(device, captured.memory);
      }
      throw;
    }
  });
}

char *upwash_graph_replay(void *graph) {
  return guarded([&] { static_cast<CapturedGraph *>(graph)->graph.replay(); });
}

namespace {

// Compiles a source for a device. With `dynamic`, its kernels may be launched with all the shared
// memory that the device allows.
void compile(Kernels &made, int device, const char *source, const char *const *names, size_t count,
             bool dynamic) {
  auto &d = driver();
  auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(d.attribute(&value, which, device), "querying device properties");
    return value;
  };
  // Leave room for static shared memory of the kernels.
  int shared = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) - 1024;
  std::string arch = "--gpu-architecture=sm_" +
                     std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) +
                     std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  nvrtcProgram program;
  if (d.create_program(&program, source, "upwash.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS)
    throw std::runtime_error("cannot create an NVRTC program for the kernels");
  const char *options[] = {arch.c_str(), "--std=c++17"};
  if (d.compile_program(program, 2, options) != NVRTC_SUCCESS) {
    size_t size = 0;
    d.log_size(program, &size);
    std::string log(size, ' ');
    d.log(program, log.data());
    d.destroy_program(&program);
    throw std::runtime_error("the kernels do not compile: " + log);
  }
  size_t size = 0;
  d.cubin_size(program, &size);
  std::string cubin(size, ' ');
  d.cubin(program, cubin.data());
  d.destroy_program(&program);
  check(d.load_module(&made.module, cubin.data()), "loading the kernels");
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
  auto owned = static_cast<Kernels *>(kernels);
  if (owned->module)
    driver().unload_module(owned->module);
  delete owned;
}

char *upwash_kernels_launch(void *kernels, size_t index, const uint32_t grid[3], uint32_t block,
                            uint32_t shared_bytes, void **arguments) {
  return guarded([&] {
    launch(*static_cast<Kernels *>(kernels), index, {grid[0], grid[1], grid[2]}, block,
           shared_bytes, arguments);
  });
}

namespace {

// Custom batch normalization on a device. Every layer of every worker has two counters (for the
// forward and the backward pass). The address of its running mean identifies the layer. Counters are 0
// between launches.
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

// Offsets into `norm_names` of the forward kernels (statistics, then normalization) and of the
// backward kernels (gradients of weight and bias, then of the input).
enum { COLLECT, APPLY, COLLECT_SLOPES, APPLY_SLOPES, KINDS };
const char *const norm_names[] = {"collect_f32",         "apply_f32",   "collect_slopes_f32",
                                  "apply_slopes_f32",    "collect_bf16", "apply_bf16",
                                  "collect_slopes_bf16", "apply_slopes_bf16"};

// Launch configuration of the kernels for a tensor.
struct LaunchShape {
  int64_t rows, count, per_vector;
  int channels, first_kernel;
  unsigned blocks, tiles, flat_blocks;

  explicit LaunchShape(const at::Tensor &x) {
    bool bf16 = x.scalar_type() == at::kBFloat16;
    channels = static_cast<int>(x.size(1));
    count = x.numel();
    rows = count / channels;
    per_vector = bf16 ? 8 : 4;
    first_kernel = bf16 ? KINDS : 0;
    int64_t vectors = count / per_vector;
    // About sixteen vectors per thread, which leaves room on the GPU for other workers.
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
    LaunchShape shape(x);
    int *counter = norm.counters_of(running_mean);
    auto y = at::empty_like(x);
    auto stats = at::empty({4, shape.channels}, x.options().dtype(at::kFloat));
    auto partial = shape.partial(x);
    void *px = x.data_ptr(), *py = y.data_ptr(), *ps = stats.data_ptr(), *pp = partial.data_ptr();
    void *pw = weight.data_ptr(), *pb = bias.data_ptr();
    void *pm = running_mean.data_ptr(), *pv = running_variance.data_ptr();
    float m = static_cast<float>(momentum), e = static_cast<float>(epsilon);
    int on = rectify;
    void *collect[] = {&px, &pp, &counter, &pw, &pb, &pm, &pv, &ps, &shape.rows, &shape.channels,
                       &m, &e};
    launch(norm.kernels, shape.first_kernel + COLLECT, {shape.blocks, shape.tiles, 1}, 256, 0,
           collect);
    void *apply[] = {&px, &ps, &py, &shape.count, &shape.channels, &on};
    launch(norm.kernels, shape.first_kernel + APPLY, {shape.flat_blocks, 1, 1}, 256, 0, apply);
    context->save_for_backward({x, stats});
    context->saved_data["rectify"] = rectify;
    context->saved_data["counter"] = reinterpret_cast<int64_t>(counter + 1);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext *context,
                                                 torch::autograd::variable_list grad_outputs) {
    auto saved = context->get_saved_variables();
    auto &x = saved[0], &stats = saved[1];
    // Autograd runs this on a thread that may not have used the device yet.
    c10::cuda::set_device(x.get_device(), /*force=*/true);
    auto &norm = norms.at(x.get_device());
    LaunchShape shape(x);
    auto grad_output = grad_outputs[0].to(x.scalar_type()).contiguous(x.suggest_memory_format());
    auto result = at::empty_like(x);
    auto partial = shape.partial(x);
    auto both = at::empty({2, shape.channels}, stats.options());
    auto grad_weight = both[0], grad_bias = both[1];
    auto counter = reinterpret_cast<int *>(context->saved_data["counter"].toInt());
    int on = context->saved_data["rectify"].toBool();
    void *pd = grad_output.data_ptr(), *px = x.data_ptr(), *ps = stats.data_ptr();
    void *pp = partial.data_ptr(), *pr = result.data_ptr();
    void *pw = grad_weight.data_ptr(), *pb = grad_bias.data_ptr();
    void *collect[] = {&pd, &px, &ps, &pp, &counter, &pw, &pb, &shape.rows, &shape.channels, &on};
    launch(norm.kernels, shape.first_kernel + COLLECT_SLOPES, {shape.blocks, shape.tiles, 1}, 256,
           0, collect);
    void *apply[] = {&pd, &px, &ps, &pw, &pb, &pr, &shape.rows, &shape.channels, &on};
    launch(norm.kernels, shape.first_kernel + APPLY_SLOPES, {shape.flat_blocks, 1, 1}, 256, 0,
           apply);
    at::Tensor none;
    return {result, grad_weight, grad_bias, none, none, none, none, none};
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

// Whether the custom batch normalization is compiled for the tensor's device and supports its type
// and layout.
bool is_supported(const at::Tensor &x) {
  bool bf16 = x.scalar_type() == at::kBFloat16, f32 = x.scalar_type() == at::kFloat;
  return x.is_cuda() && (bf16 || f32) && norms.count(x.get_device()) && x.dim() == 4 &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast) && x.size(1) % (bf16 ? 8 : 4) == 0;
}

} // namespace

char *upwash_scale(upwash_tensor x, upwash_tensor stats, int rectify, upwash_tensor *result) {
  return guarded([&] {
    auto &input = tensor(x);
    *result = nullptr;
    if (!is_supported(input))
      return;
    LaunchShape shape(input);
    auto y = at::empty_like(input);
    void *px = input.data_ptr(), *ps = tensor(stats).data_ptr(), *py = y.data_ptr();
    void *apply[] = {&px, &ps, &py, &shape.count, &shape.channels, &rectify};
    launch(norms.at(input.get_device()).kernels, shape.first_kernel + APPLY,
           {shape.flat_blocks, 1, 1}, 256, 0, apply);
    *result = new at::Tensor(y);
  });
}

char *upwash_norm(upwash_tensor x, upwash_tensor weight, upwash_tensor bias,
                  upwash_tensor running_mean, upwash_tensor running_variance, double momentum,
                  double epsilon, int rectify, upwash_tensor *result) {
  return guarded([&] {
    auto &input = tensor(x);
    *result = nullptr;
    if (!is_supported(input))
      return;
    *result = new at::Tensor(NormFunction::apply(input, tensor(weight), tensor(bias),
                                                 tensor(running_mean), tensor(running_variance),
                                                 momentum, epsilon, rectify != 0));
  });
}

#else

namespace {
char *no_cuda() {
  return strdup("built without CUDA: libtorch lacked CUDA support or the CUDA headers were missing; "
                "rebuild with both, or use --device cpu");
}
} // namespace

int upwash_cuda_state(int *devices) {
  *devices = 0;
  return 1;
}
char *upwash_release_memory(void) { return no_cuda(); }
char *upwash_memory(int, size_t *, size_t *, size_t *, size_t *) { return no_cuda(); }
char *upwash_reset_peak(int) { return no_cuda(); }
char *upwash_synchronize(int) { return no_cuda(); }
char *upwash_is_idle(int, int *) { return no_cuda(); }
char *upwash_norm_prepare(int, const char *) { return no_cuda(); }
char *upwash_scale(upwash_tensor, upwash_tensor, int, upwash_tensor *result) {
  *result = nullptr;
  return nullptr;
}
char *upwash_norm(upwash_tensor, upwash_tensor, upwash_tensor, upwash_tensor, upwash_tensor, double,
                  double, int, upwash_tensor *result) {
  *result = nullptr;
  return nullptr;
}
char *upwash_streams_new(int, size_t, void **) { return no_cuda(); }
void upwash_streams_free(void *) {}
char *upwash_streams_use(void *, int) { return no_cuda(); }
char *upwash_streams_fork(void *) { return no_cuda(); }
char *upwash_streams_join(void *) { return no_cuda(); }
char *upwash_graph_new(void **) { return no_cuda(); }
void upwash_graph_free(void *) {}
char *upwash_graph_begin(void *) { return no_cuda(); }
char *upwash_graph_end(void *) { return no_cuda(); }
char *upwash_graph_replay(void *) { return no_cuda(); }
char *upwash_kernels_new(int, const char *, const char *const *, size_t, void **) {
  return no_cuda();
}
void upwash_kernels_free(void *) {}
char *upwash_kernels_launch(void *, size_t, const uint32_t *, uint32_t, uint32_t, void **) {
  return no_cuda();
}

#endif
