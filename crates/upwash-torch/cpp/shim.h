// What tch does not offer: streams, graphs, precision, and kernels of our own. Every function that can
// fail returns null, or a message that the caller frees with upwash_free.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *upwash_tensor; // at::Tensor *

void upwash_free(char *message);

// Gradients of `logits` in the direction `slope` with respect to `leaves`, copied into `targets`.
char *upwash_backward(upwash_tensor logits, upwash_tensor slope, const upwash_tensor *leaves,
                      const upwash_tensor *targets, size_t count);

// Copies without waiting for it, where `from` is pinned memory.
char *upwash_copy(upwash_tensor to, upwash_tensor from);

// A copy in memory that the GPU can read while the program goes on.
// to[i] += scale x from[i], for all at once and behind autograd's back.
char *upwash_add_scaled(const upwash_tensor *to, const upwash_tensor *from, size_t count,
                        double scale);
// Batch normalisation of our own: compiled once for a device, then used for tensors there that it is made
// for; `result` is null for others. Running statistics move.
char *upwash_norm_prepare(int device, const char *source);
char *upwash_norm(upwash_tensor x, upwash_tensor weight, upwash_tensor bias,
                  upwash_tensor running_mean, upwash_tensor running_variance, double momentum,
                  double epsilon, int rectify, upwash_tensor *result);
// x scale + shift for each channel, the third and the fourth row of `stats`, without a slope; likewise.
char *upwash_scale(upwash_tensor x, upwash_tensor stats, int rectify, upwash_tensor *result);
// Counts the most memory that was held from here on.
char *upwash_forget_peak(int device);
// Waits for the current stream.
char *upwash_wait(int device);
// Whether the current stream has done everything. What failed on the device is an error.
char *upwash_is_idle(int device, int *idle);
char *upwash_pin(upwash_tensor tensor, upwash_tensor *pinned);

// Whether this build and machine have CUDA: 0 both, 1 built without, 2 no device or driver.
int upwash_cuda_state(int *devices);
// 0 f32, 1 TF32, 2 bf16 autocast (on CUDA; f32 elsewhere).
char *upwash_precision(int precision);
char *upwash_autocast(int enabled);
// Gives memory that is not in use back to the device.
char *upwash_release_memory(void);
char *upwash_memory(int device, size_t *in_use, size_t *peak, size_t *free, size_t *total);

// A main stream and `count` others on a device.
char *upwash_streams_new(int device, size_t count, void **streams);
void upwash_streams_free(void *streams);
// Makes stream `index` current, or the main one with -1, or the one before with -2.
char *upwash_streams_use(void *streams, int index);
// All streams wait for the main one, or the main one for all.
char *upwash_streams_fork(void *streams);
char *upwash_streams_join(void *streams);

char *upwash_graph_new(void **graph);
void upwash_graph_free(void *graph);
char *upwash_graph_begin(void *graph);
char *upwash_graph_end(void *graph);
char *upwash_graph_replay(void *graph);

// Kernels of our own, compiled for a device.
char *upwash_kernels_new(int device, const char *source, const char *const *names, size_t count,
                         void **kernels);
void upwash_kernels_free(void *kernels);
// Launches kernel `index` on the current stream.
char *upwash_kernels_launch(void *kernels, size_t index, const uint32_t grid[3], uint32_t block,
                            uint32_t shared_bytes, void **arguments);

#ifdef __cplusplus
}
#endif
