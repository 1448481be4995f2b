// Kernels of the GPU engine. NVRTC compiles them at startup for the device in use.

typedef unsigned char u8;
typedef unsigned short u16;
typedef long long i64;

__device__ inline u16 to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; // round to nearest, ties to even
}

__device__ inline float from_bf16(u16 x) { return __uint_as_float(((unsigned)x) << 16); }

// Assembles the batches of all workers: crops, mirrors and scales images into channels-last `out`, and
// copies their labels. `images` holds one byte per pixel, channel by channel. `picks` holds
// (image, down, right, mirrored) for each image of each batch. `out` is bf16 if `bf16`, else f32.
extern "C" __global__ void assemble(const u8 *images, const u8 *labels, const int4 *picks,
                                    const float *scaling, void *out, i64 *out_labels, int count,
                                    int channels, int height, int width, int padding, float full,
                                    int bf16) {
  int size = channels * height * width;
  int image = blockIdx.y;
  if (image >= count)
    return;
  int4 pick = picks[image];
  if (blockIdx.x == 0 && threadIdx.x == 0)
    out_labels[image] = labels[pick.x];
  const u8 *source = images + (i64)pick.x * size;
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < size; at += gridDim.x * blockDim.x) {
    int channel = at % channels, pixel_index = at / channels;
    int column = pixel_index % width, row = pixel_index / width;
    if (pick.w)
      column = width - 1 - column;
    int y = row + pick.y - padding, x = column + pick.z - padding;
    float pixel = 0;
    if (y >= 0 && y < height && x >= 0 && x < width)
      pixel = source[(channel * height + y) * width + x];
    float value = (pixel / full - scaling[channel]) / scaling[channels + channel];
    i64 target = (i64)image * size + at;
    if (bf16)
      ((u16 *)out)[target] = to_bf16(value);
    else
      ((float *)out)[target] = value;
  }
}

// Mean cross-entropy of a batch, its gradient with respect to the logits (in the logits' type), and the
// number of correct predictions. Launched with one block; a warp processes one image at a time. `result`
// is (loss, correct). If `count` is given, it is incremented and written to result[2].
extern "C" __global__ void cross_entropy(const void *logits, const i64 *labels, void *grad_logits,
                                         volatile float *result, unsigned *count, int images,
                                         int classes, int bf16) {
  __shared__ float losses[32], corrects[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float loss = 0, correct = 0;
  for (int image = warp; image < images; image += warps) {
    i64 base = (i64)image * classes;
    auto logit = [&](int c) {
      return bf16 ? from_bf16(((const u16 *)logits)[base + c]) : ((const float *)logits)[base + c];
    };
    float highest = -__int_as_float(0x7f800000);
    int best = classes;
    for (int c = lane; c < classes; c += 32)
      if (logit(c) > highest) {
        highest = logit(c);
        best = c;
      }
    for (int offset = 16; offset; offset /= 2) {
      float other = __shfl_xor_sync(~0u, highest, offset);
      int other_best = __shfl_xor_sync(~0u, best, offset);
      if (other > highest || (other == highest && other_best < best)) {
        highest = other;
        best = other_best;
      }
    }
    float sum = 0;
    for (int c = lane; c < classes; c += 32)
      sum += expf(logit(c) - highest);
    for (int offset = 16; offset; offset /= 2)
      sum += __shfl_xor_sync(~0u, sum, offset);
    int label = (int)labels[image];
    for (int c = lane; c < classes; c += 32) {
      float value = (expf(logit(c) - highest) / sum - (c == label ? 1.0f : 0.0f)) / images;
      if (bf16)
        ((u16 *)grad_logits)[base + c] = to_bf16(value);
      else
        ((float *)grad_logits)[base + c] = value;
    }
    loss += logf(sum) - (logit(label) - highest);
    correct += best == label;
  }
  if (lane == 0) {
    losses[warp] = loss;
    corrects[warp] = correct;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    loss = correct = 0;
    for (int w = 0; w < warps; w++) {
      loss += losses[w];
      correct += corrects[w];
    }
    result[0] = loss / images;
    result[1] = correct;
    if (count) {
      // The host polls result[2] while the GPU goes on: the fence makes loss and correct visible first.
      __threadfence_system();
      ((volatile unsigned *)result)[2] = ++*count;
    }
  }
}

// SGD: turns a gradient into a step u = rate x direction, four components at once.
__device__ inline float4 step_of(float4 g, float4 x, float4 *velocity, float rate, float momentum,
                                 float decay, int nesterov) {
  float4 u;
  float *gs = &g.x, *xs = &x.x, *us = &u.x, *vs = velocity ? &velocity->x : 0;
  for (int k = 0; k < 4; k++) {
    float direction = gs[k] + decay * xs[k];
    if (vs) {
      vs[k] = momentum * vs[k] + direction;
      direction = nesterov ? direction + momentum * vs[k] : vs[k];
    }
    us[k] = rate * direction;
  }
  return u;
}

// Replaces gradients by steps in the rows whose rate is not negative.
extern "C" __global__ void take_steps(const float4 *models, float4 *gradients, float4 *velocities,
                                      const float *rates, i64 width4, float momentum, float decay,
                                      int nesterov) {
  int row = blockIdx.y;
  float rate = rates[row];
  i64 column = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (rate < 0 || column >= width4)
    return;
  i64 at = row * width4 + column;
  float4 v = velocities ? velocities[at] : make_float4(0, 0, 0, 0);
  gradients[at] = step_of(gradients[at], models[at], velocities ? &v : 0, rate, momentum, decay,
                          nesterov);
  if (velocities)
    velocities[at] = v;
}

__device__ inline void add_scaled(float4 *sum, float weight, float4 y) {
  sum->x += weight * y.x;
  sum->y += weight * y.y;
  sum->z += weight * y.z;
  sum->w += weight * y.w;
}

// Adds a weighted sum of messages in shared memory: entries (message, weight) as differences from the
// reference message, then the reference itself. A negative reference index means that there is nothing
// to add.
__device__ inline void add_received(float4 *sum, const float4 *messages, const int2 *entry,
                                    const int2 *end, int2 reference) {
  if (reference.x < 0)
    return;
  float4 r = messages[reference.x * 32];
  for (; entry < end; entry++) {
    float4 y = messages[entry->x * 32];
    add_scaled(sum, __int_as_float(entry->y),
               make_float4(y.x - r.x, y.y - r.y, y.z - r.z, y.w - r.w));
  }
  add_scaled(sum, __int_as_float(reference.y), r);
}

// The optimizer and X' = A X - C U in one pass over memory. A block processes 128 columns of all rows.
// First it computes every row's step and stores its message in shared memory. Then it sums up, for every
// row, the messages that its plan names, as differences from a reference message that is added last.
// Plans are sparse: `starts` holds the offset of each row's entries; `references` holds (message, weight),
// where a negative message index means that the row receives no messages. A message is x, or x minus the
// step if `stepped`. A row with a negative rate has no step.
extern "C" __global__ void step_and_mix(float4 *models, const float4 *gradients, float4 *velocities,
                                        const int *starts, const int2 *entries,
                                        const int2 *references, const float *own_updates,
                                        const float *rates, int rows,
                                        i64 width4, float momentum, float decay, int nesterov,
                                        int stepped) {
  extern __shared__ float4 shared[];
  float4 *messages = shared, *updates = shared + rows * 32;
  int lane = threadIdx.x % 32;
  i64 column = (i64)blockIdx.x * 32 + lane;
  bool inside = column < width4;
  for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    if (!inside)
      continue;
    i64 at = row * width4 + column;
    float4 x = models[at], u = make_float4(0, 0, 0, 0);
    if (rates[row] >= 0) {
      float4 v = velocities ? velocities[at] : u;
      u = step_of(gradients[at], x, velocities ? &v : 0, rates[row], momentum, decay, nesterov);
      if (velocities)
        velocities[at] = v;
    }
    updates[row * 32 + lane] = u;
    if (stepped)
      x = make_float4(x.x - u.x, x.y - u.y, x.z - u.z, x.w - u.w);
    messages[row * 32 + lane] = x;
  }
  __syncthreads();
  if (!inside)
    return;
  for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    float own = own_updates[row];
    float4 u = updates[row * 32 + lane], sum = make_float4(0, 0, 0, 0);
    if (own != 0)
      sum = make_float4(own * u.x, own * u.y, own * u.z, own * u.w);
    add_received(&sum, messages + lane, entries + starts[row], entries + starts[row + 1],
                 references[row]);
    models[row * width4 + column] = sum;
  }
}

// A general exchange. A message is a sum of the sender's own vectors; an assignment is a sum of the
// worker's own vectors and of messages. Assignments of a worker run in order. `vectors` holds the base
// address of each vector: models, steps, state vectors, then messages of other processes. The tables are:
// - `messages`: (row, first term, end of terms) for every message
// - `assignments`: (vector, row, first term, end of terms, first received, end of received, reference
//   message or -1, weight of the reference) for every assignment
// - `plans`: the index of each plan's first assignment
// - `terms`: (vector, weight)
// - `received`: (message, weight of its difference from the reference)
extern "C" __global__ void exchange(float4 *const *vectors, const int *messages,
                                    const int *assignments, const int *plans, const int2 *terms,
                                    const int2 *received, int message_count, int plan_count,
                                    i64 width4) {
  extern __shared__ float4 shared[];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  i64 column = (i64)blockIdx.x * 32 + lane;
  bool inside = column < width4;
  for (int m = warp; m < message_count && inside; m += warps) {
    float4 sum = make_float4(0, 0, 0, 0);
    i64 at = messages[3 * m] * width4 + column;
    for (int t = messages[3 * m + 1]; t < messages[3 * m + 2]; t++)
      add_scaled(&sum, __int_as_float(terms[t].y), vectors[terms[t].x][at]);
    shared[m * 32 + lane] = sum;
  }
  __syncthreads();
  for (int p = warp; p < plan_count && inside; p += warps)
    for (int a = plans[p]; a < plans[p + 1]; a++) {
      const int *assignment = assignments + 8 * a;
      i64 at = assignment[1] * width4 + column;
      float4 sum = make_float4(0, 0, 0, 0);
      for (int t = assignment[2]; t < assignment[3]; t++)
        add_scaled(&sum, __int_as_float(terms[t].y), vectors[terms[t].x][at]);
      add_received(&sum, shared + lane, received + assignment[4], received + assignment[5],
                   make_int2(assignment[6], assignment[7]));
      vectors[assignment[0]][at] = sum;
    }
}
