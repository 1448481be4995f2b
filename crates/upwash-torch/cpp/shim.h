// C interface to the parts of libtorch and CUDA that tch does not expose: streams, CUDA graphs, precision settings and
// custom kernels. Every function that returns `char *` returns null on success and an error message otherwise; the
// caller frees the message with upwash_free.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *upwash_tensor; // at::Tensor *

void upwash_free(char *message);

// Backpropagates `grad_logits`, the gradient of the loss with respect to `logits`, and copies the gradients with
// respect to `leaves` into `targets`. A leaf that the logits do not depend on gets zeros.
char *upwash_backward(upwash_tensor logits, upwash_tensor grad_logits, const upwash_tensor *leaves,
                      const upwash_tensor *targets, size_t count);

// Copies `from` to `to`. Does not block when `from` is pinned memory.
char *upwash_copy(upwash_tensor to, upwash_tensor from);

// to[i] += scale x from[i] for all i in one call, not recorded by autograd.
char *upwash_add_scaled(const upwash_tensor *to, const upwash_tensor *from, size_t count,
                        double scale);
// Custom batch normalization. `upwash_norm_prepare` compiles the kernels once per device. `upwash_norm` updates the
// running statistics; `result` is null if the kernels do not support the tensor or are not compiled for its device.
char *upwash_norm_prepare(int device, const char *source);
char *upwash_norm(upwash_tensor x, upwash_tensor weight, upwash_tensor bias,
                  upwash_tensor running_mean, upwash_tensor running_variance, double momentum,
                  double epsilon, int rectify, upwash_tensor *result);
// x scale + shift for each channel, without a gradient. Scale and shift are the third and fourth row of `stats`.
// `result` is null under the same conditions as for upwash_norm.
char *upwash_scale(upwash_tensor x, upwash_tensor stats, int rectify, upwash_tensor *result);
// Restarts the measurement of peak memory.
char *upwash_reset_peak(int device);
// Blocks until the current stream has finished.
char *upwash_synchronize(int device);
// Whether the current stream has finished all its work. Reports failures of that work as errors.
char *upwash_is_idle(int device, int *idle);
// Copies a tensor into pinned memory, from which the GPU copies asynchronously.
char *upwash_pin(upwash_tensor tensor, upwash_tensor *pinned);

// Whether this build and machine have CUDA: 0 both, 1 built without CUDA, 2 no device or driver.
int upwash_cuda_state(int *devices);
// 0 f32, 1 TF32, 2 bf16 autocast (on CUDA; f32 elsewhere).
char *upwash_precision(int precision);
char *upwash_autocast(int enabled);
// Returns cached memory that is not in use to the device.
char *upwash_release_memory(void);
char *upwash_memory(int device, size_t *in_use, size_t *peak, size_t *free, size_t *total);

// Creates a main stream and `count` side streams on a device.
char *upwash_streams_new(int device, size_t count, void **streams);
void upwash_streams_free(void *streams);
// Makes side stream `index` current; -1 is the main stream, -2 the stream that was current at creation.
char *upwash_streams_use(void *streams, int index);
// Makes all side streams wait for the main stream (fork), or the main stream for all side streams (join).
char *upwash_streams_fork(void *streams);
char *upwash_streams_join(void *streams);

char *upwash_graph_new(void **graph);
void upwash_graph_free(void *graph);
char *upwash_graph_begin(void *graph);
char *upwash_graph_end(void *graph);
char *upwash_graph_replay(void *graph);

// Compiles custom kernels for a device.
char *upwash_kernels_new(int device, const char *source, const char *const *names, size_t count,
                         void **kernels);
void upwash_kernels_free(void *kernels);
// Launches kernel `index` on the current stream.
char *upwash_kernels_launch(void *kernels, size_t index, const uint32_t grid[3], uint32_t block,
                            uint32_t shared_bytes, void **arguments);

#ifdef __cplusplus
}
#endif
