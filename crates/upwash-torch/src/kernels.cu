// Kernels of the GPU engine. Compiled at start for the device at hand.

typedef unsigned char u8;
typedef unsigned short u16;
typedef long long i64;

__device__ inline u16 to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; // to nearest, ties to even
}

__device__ inline float from_bf16(u16 x) { return __uint_as_float(((unsigned)x) << 16); }

// Batches of all workers: cropped, mirrored and scaled images, channels last, and their labels.
// `images` is a byte a pixel, channel by channel; `picks` is (image, down, right, mirrored) for each
// image of each batch. `bf16` says what `out` holds.
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
    int channel = at % channels, place = at / channels;
    int column = place % width, row = place / width;
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

// Mean cross-entropy of a batch, its slope by the logits (in their own type), and how many were right.
// One block; a warp takes an image at a time. `result` is (loss, right).
extern "C" __global__ void cross_entropy(const void *logits, const i64 *labels, void *slope,
                                         volatile float *result, unsigned *count, int images,
                                         int classes, int bf16) {
  __shared__ float losses[32], rights[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float loss = 0, right = 0;
  for (int image = warp; image < images; image += warps) {
    i64 base = (i64)image * classes;
    auto logit = [&](int c) {
      return bf16 ? from_bf16(((const u16 *)logits)[base + c]) : ((const float *)logits)[base + c];
    };
    float most = -__int_as_float(0x7f800000);
    int best = classes;
    for (int c = lane; c < classes; c += 32)
      if (logit(c) > most) {
        most = logit(c);
        best = c;
      }
    for (int hop = 16; hop; hop /= 2) {
      float other = __shfl_xor_sync(~0u, most, hop);
      int theirs = __shfl_xor_sync(~0u, best, hop);
      if (other > most || (other == most && theirs < best)) {
        most = other;
        best = theirs;
      }
    }
    float sum = 0;
    for (int c = lane; c < classes; c += 32)
      sum += expf(logit(c) - most);
    for (int hop = 16; hop; hop /= 2)
      sum += __shfl_xor_sync(~0u, sum, hop);
    int label = (int)labels[image];
    for (int c = lane; c < classes; c += 32) {
      float value = (expf(logit(c) - most) / sum - (c == label ? 1.0f : 0.0f)) / images;
      if (bf16)
        ((u16 *)slope)[base + c] = to_bf16(value);
      else
        ((float *)slope)[base + c] = value;
    }
    loss += logf(sum) - (logit(label) - most);
    right += best == label;
  }
  if (lane == 0) {
    losses[warp] = loss;
    rights[warp] = right;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    loss = right = 0;
    for (int w = 0; w < warps; w++) {
      loss += losses[w];
      right += rights[w];
    }
    result[0] = loss / images;
    result[1] = right;
    if (count) {
      // The host reads while we go on: the number comes after what it announces.
      __threadfence_system();
      ((volatile unsigned *)result)[2] = ++*count;
    }
  }
}

// The optimizer: turns a gradient into u = rate x direction, four numbers at once.
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

// Steps in the place of gradients, for the rows whose rate is not negative.
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

// Adds messages in shared memory, (message, weight) each, as differences from a reference, and that last.
__device__ inline void add_heard(float4 *sum, const float4 *messages, const int2 *entry,
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

// The optimizer and X' = A X - C U in one pass over memory. A block takes 128 columns of all rows:
// everyone's step is taken and its message put into shared memory, then every row is summed up from
// the messages that its plan names, as differences from a reference message that is added last. Plans
// are sparse: `starts` has where each row's entries begin; `references` has (message, weight), where a
// message below 0 is none. A message is x, or x minus the step where `stepped`. A row whose rate is
// negative has no step.
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
    add_heard(&sum, messages + lane, entries + starts[row], entries + starts[row + 1],
              references[row]);
    models[row * width4 + column] = sum;
  }
}

// Any exchange: messages are sums of a part's own vectors, and assignments sums of own vectors and of
// messages, in order. `vectors` has where each kind of vector begins: models, steps, extras. Of the
// program, `messages` has (row, first term, one behind the last) for every message, `assignments`
// (vector, row, first term, one behind, first message, one behind, reference message or -1, its weight)
// for every assignment and `parts` where each part's assignments begin; terms are (vector, weight) and
// (message, weight of its difference from the reference).
extern "C" __global__ void exchange(float4 *const *vectors, const int *messages,
                                    const int *assignments, const int *parts, const int2 *terms,
                                    const int2 *heard, int message_count, int part_count,
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
  for (int p = warp; p < part_count && inside; p += warps)
    for (int a = parts[p]; a < parts[p + 1]; a++) {
      const int *assignment = assignments + 8 * a;
      i64 at = assignment[1] * width4 + column;
      float4 sum = make_float4(0, 0, 0, 0);
      for (int t = assignment[2]; t < assignment[3]; t++)
        add_scaled(&sum, __int_as_float(terms[t].y), vectors[terms[t].x][at]);
      add_heard(&sum, shared + lane, heard + assignment[4], heard + assignment[5],
                make_int2(assignment[6], assignment[7]));
      vectors[assignment[0]][at] = sum;
    }
}
